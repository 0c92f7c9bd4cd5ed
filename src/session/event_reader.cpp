// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/event_reader.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/recall/reweight.hpp"

namespace episodic {

RecallHook weighting(std::shared_ptr<const EventReader> reader) {
  if (!reader) throw ConfigError("weighting: the reader is null; give one, or set no hook");
  return [reader = std::move(reader)](const RecalledEvents& recalled) {
    std::vector<float> scores(recalled.events.size());
    reader->score(recalled, scores);
    for (std::size_t i = 0; i < scores.size(); ++i) recalled.weights[i] *= scores[i];
  };
}

RankHook ranking(std::shared_ptr<const EventReader> reader) {
  if (!reader) throw ConfigError("ranking: the reader is null; give one, or set no hook");
  return
      [reader = std::move(reader), events = std::vector<EventId>(), scores = std::vector<float>()](
          const RankRequest& asked, std::vector<ScoredEvent>& best) mutable {
        const EventId known = std::min(asked.n_events, reader->ready());
        if (known <= 0) return false;
        events.clear();
        auto gone = asked.forgotten.begin();
        for (EventId e = 0; e < known; ++e) {
          if (gone != asked.forgotten.end() && *gone == e)
            ++gone;
          else
            events.push_back(e);
        }
        scores.assign(events.size(), 0.0f);
        reader->score({asked.layer, asked.group, events, {}, asked.query, {}}, scores);
        for (std::size_t i = 0; i < events.size(); ++i) best.push_back({events[i], scores[i]});
        const auto wanted =
            static_cast<std::ptrdiff_t>(std::min<std::int64_t>(asked.count, std::ssize(best)));
        std::partial_sort(best.begin(), best.begin() + wanted, best.end(),
                          [](const ScoredEvent& a, const ScoredEvent& b) {
                            return a.score != b.score ? a.score > b.score : a.event < b.event;
                          });
        best.resize(static_cast<std::size_t>(wanted));
        return true;
      };
}

void KeyReader::score(const RecalledEvents& recalled, std::span<float> scores) const {
  const std::int64_t lanes_per_layer = memory_.lanes() / memory_.shape().n_layers;
  const std::int64_t lane = recalled.layer * lanes_per_layer + recalled.group;
  for (std::size_t i = 0; i < scores.size(); ++i)
    scores[i] = relevance_score(recalled.query, memory_.representative(lane, recalled.events[i]));
}

void EncoderReader::write(const EventTable& events, std::span<const std::int64_t> ids) {
  if (events.size() > 0 && static_cast<std::int64_t>(ids.size()) < events.pending_start())
    throw DataError(fmt::format(
        "event reader: {} token ids, but events end at token {}; give all of the sequence",
        ids.size(), events.pending_start()));
  const auto ids_of = [&](const TokenRange& e) {
    return ids.subspan(static_cast<std::size_t>(e.start), static_cast<std::size_t>(e.size()));
  };
  std::int64_t same = 0;  // events that are what they were
  for (; same < std::min(events.size(), size()); ++same) {
    const Written& w = written_[static_cast<std::size_t>(same)];
    if (w.range != events[same] || w.ids != checksum_of(ids_of(w.range))) break;
  }
  std::vector<std::string> texts;
  for (std::int64_t e = same; e < events.size(); ++e) {
    const auto part = ids_of(events[e]);
    texts.push_back(tokenizer_.decode({part.begin(), part.end()}, true));
  }
  const std::vector<float> vectors = encoder_.encode_all(texts);
  written_.resize(static_cast<std::size_t>(same));
  auto from = vectors.begin();
  for (std::int64_t e = same; e < events.size(); ++e, from += encoder_.width())
    written_.push_back(
        {events[e], checksum_of(ids_of(events[e])), {from, from + encoder_.width()}});
}

void EncoderReader::read(std::string_view question) {
  if (question.empty())
    question_.clear();
  else
    question_ = encoder_.encode(question);
  for (const Written& w : written_) w.score = -1.0f;
}

float EncoderReader::score(EventId event) const {
  if (event < 0 || event >= size())
    throw DataError(fmt::format(
        "event reader: event {} was not written, {} were; call write after each step that "
        "closes events",
        event, size()));
  if (question_.empty()) return 1.0f;
  const Written& w = written_[static_cast<std::size_t>(event)];
  if (w.score < 0.0f) w.score = relevance_score(question_, w.vector);  // the same in every layer
  return w.score;
}

void EncoderReader::score(const RecalledEvents& recalled, std::span<float> scores) const {
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = score(recalled.events[i]);
}

}  // namespace episodic
