// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/passages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "closed_text.hpp"
#include "encoder_voice.hpp"
#include "episodic/base/error.hpp"
#include "episodic/text/sentences.hpp"
#include "key_voice.hpp"
#include "question_likelihood.hpp"
#include "word_voice.hpp"

namespace episodic {
namespace {

constexpr double kFusion = 5;             // 1 / (kFusion + rank), ranks from 0
constexpr double kPrior = 2;              // of the voices' score beside the likelihood, as a power
constexpr double kEncoderWeight = 2;      // as much as keys and words together
constexpr double kSilentTokens = 6;       // of a question, by which leads of short ones are less
constexpr std::int64_t kToSentence = 32;  // tokens that a border moves to a sentence's at most
constexpr std::int64_t kWindowPlaces = 2;
constexpr std::int64_t kPlaceStep = 16;  // tokens between places of the window that are compared

/// What each voice says of the events, and how much it counts.
struct Opinion {
  std::vector<double> scores;
  double weight = 1;
};

/// Numbers of the scores, the highest first; of equal ones the earlier.
std::vector<std::size_t> best_first(const std::vector<double>& scores) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  return order;
}

/// Of each event, what a voice's ranking of them adds.
void add_ranks(const Opinion& opinion, std::vector<double>& fused) {
  const std::vector<std::size_t> order = best_first(opinion.scores);
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    fused[order[rank]] += opinion.weight * kFusion / (kFusion + static_cast<double>(rank));
}

/// Of an even number the mean of the two in the middle. \param passages one at least
double median_gain(std::span<const Passage> passages) {
  std::vector<double> gains;
  for (const Passage& p : passages) gains.push_back(p.gain);
  std::sort(gains.begin(), gains.end());
  const std::size_t n = gains.size();
  return (gains[(n - 1) / 2] + gains[n / 2]) / 2;
}

/// Whether it tells any two events apart.
bool tells(const std::vector<double>& scores) {
  return std::any_of(scores.begin(), scores.end(), [&](double s) { return s != scores.front(); });
}

}  // namespace

struct PassageFinder::Impl {
  std::shared_ptr<const Model> model;
  KeyVoice keys;
  WordVoice words;
  std::optional<EncoderVoice> encoder;
  VectorFolder folder;
  std::int64_t encoded = 0;          // tokens that the encoder's voice knows
  std::uint64_t line = 0;            // of the memory's events that were taken in
  std::vector<EventId> gone;         // those of them that were forgotten then
  std::vector<std::int32_t> ids;     // of the closed events
  std::vector<std::int32_t> window;  // those behind
  std::vector<TokenRange> events;

  explicit Impl(std::shared_ptr<const Model> m) : model(m), keys(std::move(m)) {}

  void clear() {
    keys.clear();
    words = {};
    ids.clear();
    window.clear();
    events.clear();
    gone.clear();
    encoded = 0;
    line = 0;
  }
  template <class IdsOf>
  void follow(const SequenceMemory& memory, const IdsOf& ids_of);
  std::int64_t tokens() const { return std::ssize(ids) + std::ssize(window); }
  /// -1: unknown, or not there.
  std::int32_t id_of(std::int64_t token) const {
    if (token < 0 || token >= tokens()) return -1;
    const std::int64_t behind = token - std::ssize(ids);
    return behind < 0 ? ids[static_cast<std::size_t>(token)]
                      : window[static_cast<std::size_t>(behind)];
  }
  bool known(std::int64_t token) const { return id_of(token) >= 0; }
  /// Text of tokens [range.start, range.end), all known, and the byte at which each begins.
  std::string text_of(const TokenRange& range, std::vector<std::size_t>& begins) const;
  std::string text_of(const TokenRange& range) const {
    std::vector<std::size_t> begins;
    return text_of(range, begins);
  }
  /// So many tokens around a range's middle, which is known, from sentence to sentence, and before
  /// `end`.
  TokenRange around(const TokenRange& range, std::int64_t tokens, std::int64_t end) const;
  std::vector<Passage> in_window(std::string_view question, std::int64_t tokens,
                                 double coverage) const;
  bool rerank(std::string_view question, std::vector<Passage>& passages,
              const ProgressCallback& progress) const;
};

PassageFinder::PassageFinder(std::shared_ptr<const Model> model) {
  if (!model) throw ConfigError("passages: the model is null; load one");
  (void)model->tokenizer();  // says what is missing
  impl_ = std::make_unique<Impl>(std::move(model));
}
PassageFinder::~PassageFinder() = default;
PassageFinder::PassageFinder(PassageFinder&&) noexcept = default;
PassageFinder& PassageFinder::operator=(PassageFinder&&) noexcept = default;

void PassageFinder::set_vectors(std::shared_ptr<WindowVectors> vectors) {
  impl_->encoder.reset();
  impl_->encoded = 0;
  if (!vectors) return;
  impl_->encoder.emplace(std::move(vectors));
  impl_->encoder->keep_in(impl_->folder);
}

void PassageFinder::set_encoder(const SentenceEncoder* encoder) {
  if (!encoder) return set_vectors(nullptr);
  set_vectors(std::make_shared<WindowVectors>(
      std::shared_ptr<const SentenceEncoder>(std::shared_ptr<void>(), encoder)));
}

void PassageFinder::keep_vectors(VectorFolder folder) {
  impl_->folder = std::move(folder);
  if (impl_->encoder) impl_->encoder->keep_in(impl_->folder);
}

std::int64_t PassageFinder::events() const { return std::ssize(impl_->events); }
std::int64_t PassageFinder::bytes() const {
  return impl_->keys.bytes() + impl_->words.bytes() +
         (impl_->encoder ? impl_->encoder->bytes() : 0) + 4 * impl_->tokens() +
         static_cast<std::int64_t>(sizeof(TokenRange)) * std::ssize(impl_->events);
}

void PassageFinder::read(const SequenceMemory& memory, std::span<const std::int64_t> ids,
                         const ProgressCallback& progress) {
  follow(memory, ids);
  encode(progress);
}

void PassageFinder::follow(const SequenceMemory& memory, std::span<const std::int64_t> ids) {
  const std::int64_t end = closed_end(memory);
  if (std::ssize(ids) < end)
    throw DataError(
        fmt::format("passages: {} token ids, but events end at token {}; give all of the sequence",
                    ids.size(), end));
  impl_->follow(memory, [&](TokenRange r) {
    return ids.subspan(static_cast<std::size_t>(r.start), static_cast<std::size_t>(r.size()));
  });
  for (const std::int64_t id : ids.subspan(static_cast<std::size_t>(end)))
    impl_->window.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(id, -1)));
}

void PassageFinder::follow(const SequenceMemory& memory,
                           const std::function<std::vector<std::int64_t>(TokenRange)>& ids_of) {
  impl_->follow(memory, [&](TokenRange r) {
    std::vector<std::int64_t> ids = ids_of(r);
    if (std::ssize(ids) != r.size())
      throw DataError(fmt::format("passages: {} ids of tokens {} to {}; give one for each",
                                  ids.size(), r.start, r.end));
    return ids;
  });
}

/// \param ids_of something that has the ids of a range of tokens
template <class IdsOf>
void PassageFinder::Impl::follow(const SequenceMemory& memory, const IdsOf& ids_of) {
  const std::int64_t end = closed_end(memory);
  const EventTable& table = memory.events();
  const auto went_on = [&] {
    const std::vector<EventId>& all = memory.forgotten();
    const auto behind = std::lower_bound(all.begin(), all.end(), std::ssize(events));
    return line == table.line() && std::equal(all.begin(), behind, gone.begin(), gone.end());
  };
  const auto is_the_same = [&] {
    if (std::ssize(ids) > end || std::ssize(events) > table.size()) return false;
    for (std::size_t e = 0; e < events.size(); ++e)
      if (table[static_cast<EventId>(e)] != events[e]) return false;
    return ids.empty() || are_closed_ids(memory, ids_of(TokenRange{0, std::ssize(ids)}), ids);
  };
  if (!went_on() && !is_the_same()) clear();
  window.clear();  // whoever knows it says it again
  line = 0;        // of what is whole
  try {
    const std::int64_t known = std::ssize(ids);
    add_closed_ids(memory, ids_of(TokenRange{known, end}), ids);
    words.add(model->tokenizer(), std::span(ids).subspan(static_cast<std::size_t>(known)));
    for (EventId e = std::ssize(events); e < table.size(); ++e) events.push_back(table[e]);
    keys.add(memory);
    gone = memory.forgotten();
    if (encoder) {
      encoder->follow(model->tokenizer(), ids, encoded);
      encoded = end;
    }
  } catch (...) {
    clear();  // rather than know some of it
    throw;
  }
  line = table.line();
}

bool PassageFinder::encode(const ProgressCallback& progress) {
  return !impl_->encoder || impl_->encoder->encode(progress);
}

std::string PassageFinder::Impl::text_of(const TokenRange& range,
                                         std::vector<std::size_t>& begins) const {
  std::string text;
  StreamDecoder decoder(model->tokenizer());
  // decoders of some kinds drop the space that a text begins with
  if (known(range.start - 1)) decoder.push(id_of(range.start - 1));
  for (std::int64_t t = range.start; t < range.end; ++t) {
    begins.push_back(text.size());
    text += decoder.push(id_of(t));
  }
  text += decoder.finish();
  begins.push_back(text.size());
  return text;
}

TokenRange PassageFinder::Impl::around(const TokenRange& event, std::int64_t tokens,
                                       std::int64_t end) const {
  const std::int64_t middle = (event.start + event.end) / 2;
  const TokenRange wanted{middle - tokens / 2, middle - tokens / 2 + tokens};
  TokenRange seen{middle, middle};
  while (seen.start > wanted.start - kToSentence && known(seen.start - 1)) --seen.start;
  while (seen.end < std::min(wanted.end + kToSentence, end) && known(seen.end)) ++seen.end;
  std::vector<std::size_t> begins;
  const std::string text = text_of(seen, begins);
  TokenRange range{std::max(wanted.start, seen.start), std::min(wanted.end, seen.end)};
  for (const std::size_t byte : sentence_ends(text)) {
    const std::int64_t token =
        seen.start + (std::lower_bound(begins.begin(), begins.end(), byte) - begins.begin());
    if (token <= wanted.start) range.start = token;  // the last one before
    if (token >= range.end) {
      range.end = token;
      break;
    }
  }
  return range;
}

/// The places behind the closed events that have most of the question's words. Their score is what
/// they have of them beside the best of the events.
/// \param coverage of that one
std::vector<Passage> PassageFinder::Impl::in_window(std::string_view question, std::int64_t tokens,
                                                    double coverage) const {
  WordVoice voice;
  voice.add(model->tokenizer(), window);
  std::vector<TokenRange> places;
  for (std::int64_t at = 0; at < std::ssize(window); at += kPlaceStep)
    if (known(std::ssize(ids) + at)) places.push_back({at, at + 1});
  const WordVoice::Scores scores = voice.score(question, places);
  const std::vector<std::size_t> order = best_first(scores.events);
  std::vector<Passage> found;
  for (const std::size_t p : order) {
    if (std::ssize(found) == kWindowPlaces || scores.events[p] <= 0) break;
    const std::int64_t first = std::ssize(ids);
    Passage passage{
        around({first + places[p].start, first + places[p].end}, tokens, this->tokens()), {}, 0};
    const double share = scores.coverage * scores.events[p] / scores.events[order.front()];
    passage.score = coverage > share ? share / coverage : 1.0;
    passage.tokens.start = std::max(passage.tokens.start, first);  // not what an event has
    const bool apart = std::all_of(found.begin(), found.end(), [&](const Passage& other) {
      return other.tokens.end <= passage.tokens.start || passage.tokens.end <= other.tokens.start;
    });
    if (apart) found.push_back(std::move(passage));
  }
  return found;
}

/// By the likelihood of the question behind each times score^kPrior; of equal ones the earlier
/// stays first. \return false where `progress` ended it
bool PassageFinder::Impl::rerank(std::string_view question, std::vector<Passage>& passages,
                                 const ProgressCallback& progress) const {
  if (passages.empty()) return true;
  QuestionLikelihood likelihood(model, question);
  const double alone = likelihood.log_likelihood("");
  const auto tokens = static_cast<double>(likelihood.tokens());
  for (std::size_t i = 0; i < passages.size(); ++i) {
    const double behind = likelihood.log_likelihood(passages[i].text);
    passages[i].gain = (behind - alone) / tokens;
    passages[i].score = behind + kPrior * std::log(passages[i].score);
    if (progress &&
        !progress(static_cast<std::int64_t>(i) + 1, static_cast<std::int64_t>(passages.size())))
      return false;
  }
  const double middle = median_gain(passages);
  for (Passage& p : passages) p.lead = (p.gain - middle) * tokens / (tokens + kSilentTokens);
  std::stable_sort(passages.begin(), passages.end(),
                   [](const Passage& a, const Passage& b) { return a.score > b.score; });
  const double best = passages.front().score;
  for (Passage& p : passages) p.score = std::exp((p.score - best) / tokens);
  return true;
}

std::vector<Passage> PassageFinder::find(std::string_view question, const PassageOptions& options,
                                         const ProgressCallback& progress) {
  if (options.count < 0)
    throw ConfigError(fmt::format("passages: count = {}, must be >= 0", options.count));
  if (options.tokens < 1)
    throw ConfigError(fmt::format("passages: tokens = {}, must be >= 1", options.tokens));
  if (options.rerank < 0)
    throw ConfigError(fmt::format("passages: rerank = {}, must be >= 0", options.rerank));
  if (question.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw DataError("passages: the question is empty; ask something");
  Impl& m = *impl_;
  std::vector<Passage> found;
  if (m.events.empty() || options.count == 0) return found;

  // A question in other words than the text's has few words in any one place: then keys count more.
  WordVoice::Scores words = m.words.score(question, m.events);
  const double by_words = std::sqrt(words.coverage), coverage = words.coverage;
  std::vector<Opinion> voices{{m.keys.score(question), 2 - 2 * by_words},
                              {std::move(words.events), 2 * by_words}};
  if (m.encoder) voices.push_back({m.encoder->score(question, m.events), kEncoderWeight});
  std::vector<double> fused(m.events.size(), 0.0);
  double heard = 0;
  for (const Opinion& voice : voices)
    if (tells(voice.scores)) add_ranks(voice, fused), heard += voice.weight;
  if (heard == 0) return found;

  const std::vector<std::size_t> order = best_first(fused);
  const std::int64_t candidates =
      options.rerank == 0 ? options.count : std::max(options.count, options.rerank);
  std::int64_t taken = 0;
  for (const std::size_t e : order) {
    const TokenRange& event = m.events[e];
    if (taken == candidates) break;
    if (!m.known((event.start + event.end) / 2)) continue;
    const auto holds = [&](const Passage& p) {
      return p.tokens.start <= event.start && event.end <= p.tokens.end;
    };
    if (std::any_of(found.begin(), found.end(), holds)) continue;
    ++taken;
    Passage passage{m.around(event, options.tokens, std::ssize(m.ids)), {}, fused[e] / heard};
    // those that share tokens become one, in the better one's place
    for (auto p = found.begin(); p != found.end();) {
      if (p->tokens.end < passage.tokens.start || passage.tokens.end < p->tokens.start) {
        ++p;
        continue;
      }
      passage.tokens = {std::min(p->tokens.start, passage.tokens.start),
                        std::max(p->tokens.end, passage.tokens.end)};
      passage.score = std::max(p->score, passage.score);
      p = found.erase(p);
    }
    const auto behind = std::find_if(found.begin(), found.end(),
                                     [&](const Passage& p) { return p.score < passage.score; });
    found.insert(behind, std::move(passage));
  }
  if (options.rerank > 0 && options.window)
    for (Passage& p : m.in_window(question, options.tokens, coverage))
      found.push_back(std::move(p));
  for (Passage& p : found) p.text = m.text_of(p.tokens);
  if (options.rerank > 0 && !m.rerank(question, found, progress)) return {};
  if (std::ssize(found) > options.count) found.resize(static_cast<std::size_t>(options.count));
  return found;
}

FoundPassages PassageFinder::find_for(PassageUse use, std::string_view question,
                                      const PassageOptions& options,
                                      const ProgressCallback& progress) {
  const bool where_sure = use == PassageUse::where_sure;
  std::vector<Passage> found =
      find(question, where_sure ? PassageOptions::finds() : options, progress);
  if (found.empty()) return {};
  if (where_sure && !is_sure(found)) return {find(question), false};
  return {std::move(found), use != PassageUse::behind_memory};
}

bool is_sure(std::span<const Passage> passages) {
  constexpr double kSureLead = 0.7;  // above what requests about nothing in the text had
  return !passages.empty() && passages.front().lead >= kSureLead;
}

std::string joined_text(std::span<const Passage> passages) {
  std::vector<const Passage*> order;
  for (const Passage& p : passages) order.push_back(&p);
  std::stable_sort(order.begin(), order.end(), [](const Passage* a, const Passage* b) {
    return a->tokens.start < b->tokens.start;
  });
  std::string text;
  for (const Passage* p : order) {
    if (!text.empty()) text += text.ends_with('\n') ? "...\n" : "\n...\n";
    text += p->text;
  }
  return text;
}

}  // namespace episodic
