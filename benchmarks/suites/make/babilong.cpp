// SPDX-License-Identifier: Apache-2.0
#include "make/babilong.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"
#include "scoring/contained.hpp"

namespace episodic::suites {
namespace {

using Texts = std::span<const std::string_view>;

constexpr std::string_view kBabiTasks[] = {"qa1", "qa2", "qa3", "qa4", "qa5"};
constexpr std::array<std::string_view, 4> kWalkers{"Mary", "John", "Daniel", "Sandra"};
constexpr std::array<std::string_view, 4> kGivers{"Bill", "Fred", "Jeff", "Mary"};
constexpr std::array<std::string_view, 3> kThings{"apple", "football", "milk"};
constexpr std::array<std::string_view, 5> kMoves{"moved to", "went to", "travelled to",
                                                 "journeyed to", "went back to"};
constexpr std::array<std::string_view, 3> kTakes{"took", "picked up", "grabbed"};
constexpr std::array<std::string_view, 3> kDrops{"dropped", "put down", "left"};
constexpr std::array<std::string_view, 3> kGives{"gave", "handed", "passed"};

/// People who walk from place to place, take things, put them down and give them away. Where
/// somebody is or was is always told before it matters.
class World {
 public:
  World(Draw& draw, Texts people) : draw_(draw), people_(people) {}

  struct Gift {
    std::string_view giver, thing, receiver;
  };

  void move() {
    const std::string_view who = draw_.from(people_);
    std::string_view& place = at_[who];
    const std::string_view before = place;
    while (place == before) place = draw_.from(babilong_labels("qa1"));
    facts_.push_back(fmt::format("{} {} the {}.", who, draw_.from(kMoves), place));
    for (const std::string_view thing : kThings)
      if (holder(thing) == who) seen(thing, place);
  }

  /// Somebody takes or puts down a thing, or gives it away, where that can be.
  void handle(bool may_give) {
    const std::string_view who = draw_.from(people_), thing = draw_.from(kThings);
    const auto there = at_.find(who);
    if (there == at_.end()) return;
    if (holder(thing) == who) {
      if (may_give) {
        const std::string_view to = draw_.from(people_);
        if (to == who || !at_.contains(to) || at_[to] != there->second) return;
        facts_.push_back(fmt::format("{} {} the {} to {}.", who, draw_.from(kGives), thing, to));
        gifts_.push_back({who, thing, to});
        held_[thing] = to;
      } else {
        facts_.push_back(fmt::format("{} {} the {}.", who, draw_.from(kDrops), thing));
        held_.erase(thing);
      }
    } else if (holder(thing).empty() && (!been(thing) || been(thing) == there->second)) {
      facts_.push_back(fmt::format("{} {} the {} there.", who, draw_.from(kTakes), thing));
      held_[thing] = who;
      seen(thing, there->second);
    }
  }

  const std::vector<std::string>& facts() const { return facts_; }
  const std::map<std::string_view, std::string_view>& people_at() const { return at_; }
  const std::vector<Gift>& gifts() const { return gifts_; }
  /// Places where a thing was, one after the other.
  const std::vector<std::string_view>& way(std::string_view thing) { return ways_[thing]; }

 private:
  std::string_view holder(std::string_view thing) const {
    const auto found = held_.find(thing);
    return found == held_.end() ? std::string_view() : found->second;
  }
  std::optional<std::string_view> been(std::string_view thing) const {
    const auto found = ways_.find(thing);
    if (found == ways_.end() || found->second.empty()) return std::nullopt;
    return found->second.back();
  }
  void seen(std::string_view thing, std::string_view place) {
    std::vector<std::string_view>& way = ways_[thing];
    if (way.empty() || way.back() != place) way.push_back(place);
  }

  Draw& draw_;
  Texts people_;
  std::vector<std::string> facts_;
  std::map<std::string_view, std::string_view> at_, held_;
  std::map<std::string_view, std::vector<std::string_view>> ways_;
  std::vector<Gift> gifts_;
};

/// qa1: where somebody is.
Story person_story(Draw& draw) {
  World world(draw, kWalkers);
  const std::int64_t n = draw.between(2, 10);
  for (std::int64_t i = 0; i < n; ++i) world.move();
  std::vector<std::pair<std::string_view, std::string_view>> people(world.people_at().begin(),
                                                                    world.people_at().end());
  const auto& [who, where] = draw.from(people);
  return {world.facts(), fmt::format("Where is {}?", who), std::string(where)};
}

/// qa2: where a thing is; qa3: where it was before.
Story thing_story(Draw& draw, bool before) {
  while (true) {
    World world(draw, kWalkers);
    const std::int64_t n = before ? draw.between(8, 24) : draw.between(4, 16);
    while (std::ssize(world.facts()) < n) draw.coin() ? world.move() : world.handle(false);
    std::vector<std::string_view> things(kThings.begin(), kThings.end());
    draw.shuffle(things);
    for (const std::string_view thing : things) {
      const std::vector<std::string_view>& way = world.way(thing);
      if (!before && !way.empty())
        return {world.facts(), fmt::format("Where is the {}?", thing), std::string(way.back())};
      // the last place once alone: else the question has two answers
      if (before && way.size() >= 2 && std::count(way.begin(), way.end(), way.back()) == 1)
        return {world.facts(), fmt::format("Where was the {} before the {}?", thing, way.back()),
                std::string(way[way.size() - 2])};
    }
  }
}

/// qa4: two rooms beside a third.
Story room_story(Draw& draw) {
  static constexpr std::array<std::array<std::string_view, 2>, 2> kWays{
      {{"north", "south"}, {"east", "west"}}};
  const Texts places = babilong_labels("qa4");
  const std::vector<std::int64_t> rooms = draw.sample(std::ssize(places), 3);
  const auto room = [&](std::size_t i) { return places[static_cast<std::size_t>(rooms[i])]; };
  std::array<std::string_view, 2> way = draw.from(kWays);
  if (draw.coin()) std::swap(way[0], way[1]);
  // room 0 lies on one side of room 1, room 2 on the other
  Story story;
  story.facts = {fmt::format("The {} is {} of the {}.", room(0), way[0], room(1)),
                 draw.coin() ? fmt::format("The {} is {} of the {}.", room(2), way[1], room(1))
                             : fmt::format("The {} is {} of the {}.", room(1), way[0], room(2))};
  if (draw.coin()) std::swap(story.facts[0], story.facts[1]);
  const bool direct = draw.coin();
  story.question = direct ? fmt::format("What is {} of the {}?", way[0], room(1))
                          : fmt::format("What is the {} {} of?", room(1), way[0]);
  story.answer = std::string(room(direct ? 0 : 2));
  return story;
}

/// qa5: who gave what to whom.
Story gift_story(Draw& draw) {
  while (true) {
    World world(draw, kGivers);
    const std::int64_t n = draw.between(4, 20);
    while (std::ssize(world.facts()) < n)
      draw.between(0, 2) == 0 ? world.move() : world.handle(true);
    if (world.gifts().empty()) continue;
    const World::Gift asked = draw.from(world.gifts());
    const std::int64_t kind = draw.between(0, 4);
    // what a gift has in common with the question, and what is asked of it
    const auto fits = [&](const World::Gift& gift) {
      const bool giver = gift.giver == asked.giver, thing = gift.thing == asked.thing,
                 receiver = gift.receiver == asked.receiver;
      switch (kind) {
        case 0:
          return giver && thing;
        case 1:
          return giver && receiver;
        case 2:
          return thing && receiver;
        default:
          return thing;
      }
    };
    const auto wanted = [&](const World::Gift& gift) {
      return kind == 1 ? gift.thing : kind == 0 || kind == 4 ? gift.receiver : gift.giver;
    };
    const bool one_answer = std::all_of(
        world.gifts().begin(), world.gifts().end(),
        [&](const World::Gift& gift) { return !fits(gift) || wanted(gift) == wanted(asked); });
    if (!one_answer) continue;
    const std::string questions[] = {
        fmt::format("Who did {} give the {} to?", asked.giver, asked.thing),
        fmt::format("What did {} give to {}?", asked.giver, asked.receiver),
        fmt::format("Who gave the {} to {}?", asked.thing, asked.receiver),
        fmt::format("Who gave the {}?", asked.thing),
        fmt::format("Who received the {}?", asked.thing)};
    return {world.facts(), questions[kind], std::string(wanted(asked))};
  }
}

class StoryMaker final : public RowMaker {
 public:
  explicit StoryMaker(const MakeOptions& options) : RowMaker(options) {
    if (!options.source.empty()) {
      stories_ = read_babi(options.source, options.task);
      if (std::ssize(stories_) < options.count)
        throw ConfigError(fmt::format("--count {}: {} has {} questions", options.count,
                                      options.source.string(), stories_.size()));
    }
    for (std::string& sentence : sentences_of(options.haystack_file))
      if (sentence.size() >= kShortest) sentences_.push_back(std::move(sentence));
    if (sentences_.empty())
      throw ConfigError(fmt::format("--haystack {}: has no sentence of {} characters",
                                    options.haystack_file.string(), kShortest));
  }
  std::int64_t smallest() const override { return 1; }
  bool has_depth() const override { return false; }
  std::int64_t length_of(const Json& row, const TokenCounter& count) const override {
    return count(row.at("input").get_ref<const std::string&>());
  }

  Json row(Draw& draw, std::int64_t sentences, std::int64_t index) const override {
    const Story story = stories_.empty() ? draw_story(options_.task, draw)
                                         : stories_[static_cast<std::size_t>(index)];
    const std::int64_t start = draw.between(0, std::ssize(sentences_) - 1);
    // before which sentence each fact stands; several may stand side by side
    std::vector<std::int64_t> places;
    for (std::size_t i = 0; i < story.facts.size(); ++i)
      places.push_back(draw.between(0, sentences));
    std::sort(places.begin(), places.end());
    std::vector<std::string_view> text;
    std::size_t told = 0;
    for (std::int64_t i = 0; i <= sentences; ++i) {
      for (; told < places.size() && places[told] == i; ++told) text.push_back(story.facts[told]);
      if (i < sentences)
        text.push_back(sentences_[static_cast<std::size_t>((start + i) % std::ssize(sentences_))]);
    }
    return {{"id", 0},
            {"input", fmt::format("{}", fmt::join(text, " "))},
            {"question", story.question},
            {"target", story.answer}};
  }

 private:
  static constexpr std::size_t kShortest = 40;  // about ten tokens, as published
  std::vector<Story> stories_;
  std::vector<std::string> sentences_;
};

}  // namespace

Texts babilong_names() { return kBabiTasks; }

Story draw_story(std::string_view task, Draw& draw) {
  if (task == "qa1") return person_story(draw);
  if (task == "qa2") return thing_story(draw, false);
  if (task == "qa3") return thing_story(draw, true);
  if (task == "qa4") return room_story(draw);
  return gift_story(draw);
}

std::vector<Story> read_babi(const std::filesystem::path& file, std::string_view task) {
  const Texts labels = babilong_labels(task);
  const std::string text = tools::read_text(file);
  std::vector<Story> stories;
  std::vector<std::string> facts;
  std::int64_t number = 0;
  const auto fail = [&](const std::string& what) {
    throw FileError(fmt::format("{}:{}: {}", file.string(), number, what));
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty()) continue;
    std::int64_t place = 0;
    const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), place);
    const auto behind = static_cast<std::size_t>(rest - line.data());
    if (error != std::errc() || place < 1 || behind >= line.size() || line[behind] != ' ')
      fail("must begin with its number in the story and a space, as bAbI's files do");
    line.remove_prefix(behind + 1);
    if (place == 1) facts.clear();
    const std::size_t tab = line.find('\t');
    if (tab == std::string_view::npos) {
      facts.emplace_back(line);
      continue;
    }
    std::string_view asked = line.substr(0, tab), answer = line.substr(tab + 1);
    answer = answer.substr(0, answer.find('\t'));
    while (!asked.empty() && asked.back() == ' ') asked.remove_suffix(1);
    if (facts.empty()) fail("asks before anything was told");
    if (std::find(labels.begin(), labels.end(), answer) == labels.end())
      fail(fmt::format("the answer \"{}\" is none of the task {}: {}", printable(answer), task,
                       fmt::join(labels, ", ")));
    stories.push_back({facts, std::string(asked), std::string(answer)});
  }
  if (stories.empty())
    throw FileError(
        fmt::format("{}: holds no question; take a file of bAbI such as "
                    "qa1_single-supporting-fact_test.txt",
                    file.string()));
  return stories;
}

void make_babilong_rows(const MakeOptions& options, const TokenCounter& count,
                        const RowSink& emit) {
  make_rows(StoryMaker(options), options, count, emit);
}

}  // namespace episodic::suites
