// SPDX-License-Identifier: Apache-2.0
// Passages of a text that was read, found for a question: against plain computations in float64,
// and end to end on the shipped model.
#include "small_memory.hpp"
#include "support/model.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/passages.hpp"
#include "episodic/text/words.hpp"
#include "session/encoder_voice.hpp"
#include "session/key_voice.hpp"
#include "session/word_voice.hpp"

using namespace episodic;

namespace passages_test {

using Ids = std::vector<std::int64_t>;

std::shared_ptr<const Model> model() {
  static const auto m = load_model(shipped_model_dir());
  return m;
}

/// Sentences of no consequence with a fact of each name between them.
std::string story(int sentences, const std::vector<std::string>& facts) {
  static const char* who[] = {"The old man", "My sister", "A soldier", "The doctor", "His friend"};
  static const char* did[] = {"walked slowly to", "looked at", "spoke of", "remembered", "left"};
  static const char* what[] = {"the river", "the church", "a small house", "the garden", "the sea"};
  std::mt19937 random(7);
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text +=
        std::string(who[random() % 5]) + " " + did[random() % 5] + " " + what[random() % 5] + ". ";
    for (std::size_t f = 0; f < facts.size(); ++f)
      if (i == static_cast<int>(f + 1) * sentences / static_cast<int>(facts.size() + 2))
        text += facts[f] + " ";
  }
  return text;
}

const std::vector<std::string> kFacts = {"The donkey of Agatha is called Biscuit.",
                                         "Quentin buried the spoons behind the chapel.",
                                         "The door code of Rosalind is 48151."};

/// An engine that has read such a story.
struct Reader {
  Engine engine{model()};
  explicit Reader(int sentences = 120, const MemoryConfig& config = small_memory()) {
    engine.attach(config);
    engine.read(story(sentences, kFacts));
    REQUIRE(engine.n_events() > 40);
  }
  PassageFinder finder() {
    PassageFinder f(model());
    f.read(*engine.memory(), engine.known_ids());
    return f;
  }
};

/// BM25 with soft documents, as its formula says.
std::vector<double> plain_word_scores(const Tokenizer& tokenizer,
                                      const std::vector<std::int32_t>& ids,
                                      const std::string& question,
                                      const std::vector<TokenRange>& events) {
  // the token that each word begins in: the last whose text begins before the word's second byte
  std::vector<std::pair<std::string, double>> words;
  std::string text;
  std::vector<std::size_t> begins;
  StreamDecoder decoder(tokenizer);
  for (const std::int64_t id : ids) {
    begins.push_back(text.size());
    text += decoder.push(id);
  }
  for (const Word& w : words_of(text)) {
    std::size_t token = 0;
    for (std::size_t t = 0; t < begins.size(); ++t)
      if (begins[t] <= w.begin) token = t;
    words.emplace_back(w.stem, static_cast<double>(token));
  }
  std::set<std::string> asked;
  for (const Word& w : words_of(question)) asked.insert(w.stem);
  std::vector<double> scores;
  for (const TokenRange& e : events) {
    double score = 0;
    for (const std::string& word : asked) {
      double near = 0, n = 0;
      for (const auto& [stem, token] : words) {
        if (stem != word) continue;
        ++n;
        const double far = (0.5 * static_cast<double>(e.start + e.end) - token) / 24;
        if (std::abs(far) <= 3) near += std::exp(-far * far);
      }
      if (n == 0) continue;
      const double rarity = std::log(1 + static_cast<double>(ids.size()) / 96 / (n + 0.5));
      score += std::pow(rarity, 1.5) * near * 2.2 / (near + 1.2);
    }
    scores.push_back(score);
  }
  return scores;
}

TEST_CASE("passages: the words' voice is BM25 over what stands near an event") {
  const Tokenizer& tokenizer = model()->tokenizer();
  const Ids encoded = tokenizer.encode(story(60, kFacts));
  const std::vector<std::int32_t> ids(encoded.begin(), encoded.end());
  std::vector<TokenRange> events;
  for (std::int64_t t = 4, n = 3; t + n < std::ssize(ids); t += n, n = 3 + (n * 7 + 2) % 11)
    events.push_back({t, t + n});
  for (const std::string question :
       {"What is the donkey of Agatha called?", "Who looked at the sea?", "Rosalind", "Zebra!"}) {
    CAPTURE(question);
    const std::vector<double> expected = plain_word_scores(tokenizer, ids, question, events);
    // in one call, and in pieces of several sizes, some of them within a word's tokens
    for (const std::size_t piece : {ids.size(), std::size_t{97}}) {
      WordVoice voice;
      if (piece == ids.size()) {
        voice.add(tokenizer, ids);
        const std::vector<double> scores = voice.score(question, events).events;
        for (std::size_t e = 0; e < events.size(); ++e)
          REQUIRE(scores[e] == Approx(expected[e]).margin(1e-9));
        continue;
      }
      for (std::size_t at = 0; at < ids.size(); at += piece)
        voice.add(tokenizer, std::span(ids).subspan(at, std::min(piece, ids.size() - at)));
      REQUIRE(voice.score(question, events).events.size() == events.size());
    }
  }
}

/// y with C y = x, by Gaussian elimination.
std::vector<double> solve(std::vector<double> c, std::vector<double> x) {
  const std::size_t d = x.size();
  for (std::size_t i = 0; i < d; ++i)
    for (std::size_t r = i + 1; r < d; ++r) {
      const double f = c[r * d + i] / c[i * d + i];
      for (std::size_t j = i; j < d; ++j) c[r * d + j] -= f * c[i * d + j];
      x[r] -= f * x[i];
    }
  for (std::size_t i = d; i-- > 0;) {
    for (std::size_t j = i + 1; j < d; ++j) x[i] -= c[i * d + j] * x[j];
    x[i] /= c[i * d + i];
  }
  return x;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Mean keys [memory layers][G * d] of a question behind the words that come before it.
std::vector<std::vector<double>> plain_mean_keys(const std::string& question) {
  const Tokenizer& tokenizer = model()->tokenizer();
  Ids ids = tokenizer.encode("Questions about a text follow.\n\n");
  const std::size_t before = ids.size();
  for (const std::int64_t id : tokenizer.encode(question, false)) ids.push_back(id);
  Sequence sequence(model());
  std::vector<std::vector<double>> means(model()->config().layers.size());
  sequence.set_keys_hook([&](std::int64_t layer, std::span<const float> keys) {
    const std::size_t width = keys.size() / ids.size();
    std::vector<double>& mean = means[static_cast<std::size_t>(layer)];
    mean.assign(width, 0.0);
    for (std::size_t t = before; t < ids.size(); ++t)
      for (std::size_t c = 0; c < width; ++c)
        mean[c] += keys[t * width + c] / static_cast<double>(ids.size() - before);
  });
  sequence.step(ids, StepKind::prompt);
  return means;
}

TEST_CASE("passages: words count as far as one place has those of the question") {
  const Tokenizer& tokenizer = model()->tokenizer();
  const Ids encoded = tokenizer.encode(story(60, kFacts));
  const std::vector<std::int32_t> ids(encoded.begin(), encoded.end());
  std::vector<TokenRange> events;
  for (std::int64_t t = 4; t + 8 < std::ssize(ids); t += 8) events.push_back({t, t + 8});
  WordVoice voice;
  voice.add(tokenizer, ids);
  const auto coverage = [&](const char* question) {
    return voice.score(question, events).coverage;
  };
  REQUIRE(coverage("The donkey of Agatha is called") > 0.7);
  REQUIRE(coverage("Zebra? Xylophone!") == 0);
  REQUIRE(coverage("...") == 0);
  REQUIRE(coverage("By which sound does one summon her grey animal?") < 0.3);
  REQUIRE(voice.score("Agatha", {}).coverage == 0);
}

TEST_CASE("passages: the keys' voice is a sum of cosines after whitening") {
  if (no_model()) return;
  Reader reader;
  const auto& memory = *reader.engine.memory();
  const auto shape = memory.shape();
  const auto d = static_cast<std::size_t>(shape.head_dim);
  const std::int64_t events = memory.events().size(), group = shape.n_heads / shape.n_kv_heads;
  KeyVoice voice(model());
  voice.add(memory);
  REQUIRE(voice.size() == events);

  std::vector<std::vector<double>> usual;
  for (const char* q : {"What is the name of the king?", "Where did they meet in the evening?",
                        "Why was the road closed?", "When does the next train leave?",
                        "How many people live there?", "Who wrote the letter?",
                        "Which colour has the flag?", "What happened after the storm?"}) {
    const auto keys = plain_mean_keys(q);
    usual.resize(keys.size(), std::vector<double>(keys[0].size(), 0.0));
    for (std::size_t l = 0; l < keys.size(); ++l)
      for (std::size_t c = 0; c < keys[l].size(); ++c) usual[l][c] += keys[l][c] / 8;
  }
  const std::string question = "Where are the spoons that Quentin buried?";
  const auto asked = plain_mean_keys(question);

  std::vector<double> expected(static_cast<std::size_t>(events), 0.0);
  for (std::int64_t l = 1; l < shape.n_layers; l += 2)
    for (std::int64_t h = 0; h < shape.n_kv_heads; ++h) {
      std::vector<std::vector<double>> x;
      std::vector<double> mean(d, 0.0);
      for (EventId e = 0; e < events; ++e) {
        const std::vector<float> r = memory.representative(l, e);
        x.emplace_back(d, 0.0);
        for (std::int64_t k = 0; k < group; ++k)
          for (std::size_t c = 0; c < d; ++c)
            x.back()[c] +=
                r[static_cast<std::size_t>(h * group + k) * d + c] / static_cast<double>(group);
        for (std::size_t c = 0; c < d; ++c) mean[c] += x.back()[c] / static_cast<double>(events);
      }
      std::vector<double> covariance(d * d, 0.0);
      double trace = 0;
      for (std::vector<double>& v : x) {
        for (std::size_t c = 0; c < d; ++c) v[c] -= mean[c];
        for (std::size_t i = 0; i < d; ++i)
          for (std::size_t j = 0; j < d; ++j)
            covariance[i * d + j] += v[i] * v[j] / static_cast<double>(events);
      }
      for (std::size_t i = 0; i < d; ++i) trace += covariance[i * d + i];
      const double ridge =
          std::max(1e-3, 0.1 * static_cast<double>(d) / static_cast<double>(events));
      for (std::size_t i = 0; i < d; ++i)
        covariance[i * d + i] += ridge * trace / static_cast<double>(d);
      std::vector<double> q(d);
      for (std::size_t c = 0; c < d; ++c) {
        const std::size_t at = static_cast<std::size_t>(h) * d + c;
        q[c] = asked[static_cast<std::size_t>(l)][at] - usual[static_cast<std::size_t>(l)][at];
      }
      const std::vector<double> inverse_q = solve(covariance, q);
      std::vector<double> cosines;
      double sum = 0, squares = 0;
      for (const std::vector<double>& v : x) {
        cosines.push_back(dot(v, inverse_q) /
                          std::sqrt(dot(q, inverse_q) * dot(v, solve(covariance, v))));
        sum += cosines.back();
        squares += cosines.back() * cosines.back();
      }
      const double n = static_cast<double>(events);
      const double deviation = std::sqrt(squares / n - sum / n * sum / n);
      for (std::size_t e = 0; e < cosines.size(); ++e)
        expected[e] += (cosines[e] - sum / n) / deviation;
    }

  const std::vector<double> scores = voice.score(question);
  REQUIRE(scores.size() == expected.size());
  double most = 0;
  for (const double s : expected) most = std::max(most, std::abs(s));
  for (std::size_t e = 0; e < scores.size(); ++e)  // 8-bit codes: a percent of the range
    REQUIRE(scores[e] == Approx(expected[e]).margin(0.02 * most));
}

/// The text is this now, and encoded as far as `progress` lets it.
void read(EncoderVoice& voice, const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
          const ProgressCallback& progress) {
  voice.follow(tokenizer, ids, 0);
  voice.encode(progress);
}

const SentenceEncoder& encoder() {
  static const auto e = SentenceEncoder::open(std::filesystem::path(EPISODIC_SOURCE_DIR) /
                                              "tests/model/sentence_encoder/tiny");
  return e;
}

std::shared_ptr<WindowVectors> vectors() {
  return std::make_shared<WindowVectors>(
      std::shared_ptr<const SentenceEncoder>(std::shared_ptr<void>(), &encoder()));
}

/// The cosine of the question and the window whose middle is nearest, the earlier of two. Windows
/// of 48 tokens begin every 24, up to the first that reaches the end.
std::vector<double> plain_encoder_scores(const Tokenizer& tokenizer,
                                         const std::vector<std::int32_t>& ids,
                                         const std::string& question,
                                         const std::vector<TokenRange>& events) {
  const std::vector<float> asked = encoder().encode(question);
  std::vector<std::vector<float>> vectors;
  for (std::size_t first = 0;; first += 24) {
    std::string text;
    StreamDecoder decoder(tokenizer);
    for (std::size_t t = first; t < std::min(first + 48, ids.size()); ++t)
      if (ids[t] >= 0) text += decoder.push(ids[t]);
    text += decoder.finish();
    const bool blank = text.find_first_not_of(" \t\r\n") == std::string::npos;
    vectors.push_back(blank ? std::vector<float>() : encoder().encode(text));
    if (first + 48 >= ids.size()) break;
  }
  std::vector<double> scores;
  for (const TokenRange& e : events) {
    const std::int64_t middle = (e.start + e.end) / 2;
    std::size_t best = 0;
    const auto far = [&](std::size_t w) {
      return std::abs(middle - 24 * static_cast<std::int64_t>(w) - 24);
    };
    for (std::size_t w = 1; w < vectors.size(); ++w)
      if (far(w) <= far(best)) best = w;
    double score = vectors[best].empty() ? -1 : 0;
    for (std::size_t i = 0; i < vectors[best].size(); ++i)
      score += static_cast<double>(vectors[best][i]) * static_cast<double>(asked[i]);
    scores.push_back(score);
  }
  return scores;
}

TEST_CASE("passages: the encoder's voice is the cosine of the window about an event") {
  const Tokenizer& tokenizer = model()->tokenizer();
  const Ids encoded = tokenizer.encode(story(60, kFacts));
  const std::string question = "Who walked slowly to the garden?";
  for (const std::size_t n : {std::size_t{1}, std::size_t{47}, std::size_t{48}, std::size_t{49},
                              std::size_t{72}, std::size_t{73}, std::size_t{500}}) {
    CAPTURE(n);
    std::vector<std::int32_t> ids(encoded.begin(),
                                  encoded.begin() + static_cast<std::ptrdiff_t>(n));
    std::vector<TokenRange> events;
    for (std::int64_t t = 0, size = 1; t < std::ssize(ids); t += size, size = 1 + (size * 7) % 11)
      events.push_back({t, std::min(t + size, std::ssize(ids))});
    EncoderVoice voice(vectors());
    std::int64_t asked_for = 0;
    read(voice, tokenizer, ids, [&](std::int64_t, std::int64_t of) {
      asked_for = of;
      return true;
    });
    // the first token, which begins a text, has none of its own
    REQUIRE(asked_for == (n == 1 ? 0 : EncoderVoice::windows(std::ssize(ids))));
    for (const bool forgotten : {false, true}) {
      if (forgotten && n < 200) break;
      if (forgotten) {
        std::fill(ids.begin() + 100, ids.begin() + 190, -1);  // two windows have no text left
        std::int64_t again = 0;
        read(voice, tokenizer, ids, [&](std::int64_t, std::int64_t of) {
          again = of;
          return true;
        });
        REQUIRE(again == 4);  // those that reach in, and no other
      }
      const std::vector<double> got = voice.score(question, events),
                                expected = plain_encoder_scores(tokenizer, ids, question, events);
      REQUIRE(got.size() == expected.size());
      for (std::size_t e = 0; e < got.size(); ++e) {
        CAPTURE(e);
        REQUIRE(got[e] == Approx(expected[e]).margin(3e-4));  // vectors are kept in float16
      }
    }
    REQUIRE(voice.bytes() >= asked_for * 2 * encoder().width());
  }
}

TEST_CASE("passages: an encoder's windows that wait are encoded later, and those there once") {
  const Tokenizer& tokenizer = model()->tokenizer();
  const Ids encoded = tokenizer.encode(story(120, kFacts));
  const std::vector<std::int32_t> ids(encoded.begin(), encoded.begin() + 1200);
  const std::vector<TokenRange> events{{0, 9}, {590, 610}, {1180, 1200}};
  EncoderVoice whole(vectors()), parts(vectors());
  read(whole, tokenizer, ids, {});
  std::int64_t done = 0, total = 0;
  const auto note = [&](bool go_on) {
    return [&, go_on](std::int64_t d, std::int64_t of) {
      done = d;
      total = of;
      return go_on;
    };
  };
  read(parts, tokenizer, std::span(ids).first(500), note(false));
  REQUIRE(done < total);
  REQUIRE(parts.score("Who?", {{events[1]}})[0] == -1);
  const std::int64_t known = done;
  read(parts, tokenizer, ids, note(true));
  REQUIRE(done == total);
  REQUIRE(total == EncoderVoice::windows(1200) - known);
  REQUIRE(parts.score("Who left the sea?", events) == whole.score("Who left the sea?", events));
  read(parts, tokenizer, ids,
       [](std::int64_t, std::int64_t) -> bool { throw Error("nothing is left to encode"); });
}

TEST_CASE("passages: an encoder counts as much as keys and words together") {
  if (no_model()) return;
  Reader reader;
  const Ids ids = reader.engine.known_ids();
  PassageFinder finder(model());
  finder.set_encoder(&encoder());
  finder.read(*reader.engine.memory(), ids);
  const std::int64_t bytes = finder.bytes();
  const std::string question = "What is the donkey of Agatha called?";
  const std::vector<Passage> with = finder.find(question, {8, 16});
  finder.set_encoder(nullptr);
  REQUIRE(finder.bytes() < bytes);
  const std::vector<Passage> without = finder.find(question, {8, 16});
  REQUIRE(without == reader.finder().find(question, {8, 16}));
  REQUIRE(with != without);
  // two voices that agree still count half of all
  REQUIRE(mentions(without.at(0).text, "Biscuit"));
  const auto fact = std::find_if(with.begin(), with.end(), [](const Passage& p) {
    return p.text.find("Biscuit") != std::string::npos;
  });
  REQUIRE(fact != with.end());
  REQUIRE(fact->score > 0.45);
}

TEST_CASE("passages: the place that a question asks for is found, with its sentence whole") {
  if (no_model()) return;
  Reader reader;
  PassageFinder finder = reader.finder();
  REQUIRE(finder.events() == reader.engine.n_events());
  REQUIRE(finder.bytes() > 0);
  const std::string questions[] = {"What is the donkey of Agatha called?",
                                   "Behind what did Quentin bury the spoons?",
                                   "What is the door code of Rosalind?"};
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(questions[i]);
    const std::vector<Passage> found = finder.find(questions[i], {2, 48});
    REQUIRE(!found.empty());
    REQUIRE(found.size() <= 2);
    REQUIRE(mentions(found[0].text, kFacts[i]));
    REQUIRE(found[0].score > 0);
    REQUIRE(found[0].score <= 1);
    for (const Passage& p : found) {
      REQUIRE(p.tokens.size() >= 24);
      REQUIRE(p.tokens.size() <= 2 * (48 + 2 * 32));
    }
    // no token twice
    for (std::size_t a = 0; a < found.size(); ++a)
      for (std::size_t b = a + 1; b < found.size(); ++b)
        REQUIRE((found[a].tokens.end < found[b].tokens.start ||
                 found[b].tokens.end < found[a].tokens.start));
  }
  REQUIRE(finder.find(questions[0], {0, 48}).empty());
}

/// Log-likelihood of a question behind a text, from all logits of one step.
double plain_log_likelihood(const std::string& text, const std::string& question) {
  const Tokenizer& tokenizer = model()->tokenizer();
  Ids ids = tokenizer.encode(text + "\n\nQuestion:");
  const std::size_t before = ids.size();
  for (const std::int64_t id : encode_continuation(tokenizer, " " + question)) ids.push_back(id);
  Sequence sequence(model());
  const auto vocab = static_cast<std::size_t>(model()->config().vocab_size);
  std::vector<float> logits(ids.size() * vocab);
  sequence.step(ids, logits);
  double sum = 0;
  for (std::size_t t = before; t < ids.size(); ++t) {
    const float* row = logits.data() + (t - 1) * vocab;
    double all = 0;
    for (std::size_t v = 0; v < vocab; ++v) all += std::exp(static_cast<double>(row[v]));
    sum += row[ids[t]] - std::log(all);
  }
  return sum;
}

TEST_CASE("passages: the model reads candidates and puts the likeliest question's first") {
  if (no_model()) return;
  Reader reader;
  PassageFinder finder = reader.finder();
  const Tokenizer& tokenizer = model()->tokenizer();
  for (const std::string question :
       {"What is the donkey of Agatha called?", "Who looked at the sea?", "Quentin?"}) {
    CAPTURE(question);
    const std::vector<Passage> candidates = finder.find(question, {9, 24});
    const std::vector<Passage> all = finder.find(question, {9, 24, 9});
    REQUIRE(all.size() == candidates.size());
    std::vector<double> expected;
    for (const Passage& p : candidates)
      expected.push_back(plain_log_likelihood(p.text, question) + 2 * std::log(p.score));
    std::vector<std::size_t> order(candidates.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return expected[a] > expected[b]; });
    const auto n = static_cast<double>(encode_continuation(tokenizer, " " + question).size());
    const double alone = plain_log_likelihood("", question);
    std::vector<double> gains;
    for (const Passage& p : all) gains.push_back(p.gain);
    std::sort(gains.begin(), gains.end());
    const std::size_t half = gains.size() / 2;
    const double middle = gains.size() % 2 == 1 ? gains[half] : (gains[half - 1] + gains[half]) / 2;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const double behind = plain_log_likelihood(all[i].text, question);
      REQUIRE(all[i].gain == Approx((behind - alone) / n).epsilon(1e-4).margin(1e-4));
      REQUIRE(candidates[i].gain == 0);
      REQUIRE(all[i].lead == Approx((all[i].gain - middle) * n / (n + 6)).margin(1e-12));
      REQUIRE(candidates[i].lead == 0);
      REQUIRE(all[i].tokens == candidates[order[i]].tokens);
      REQUIRE(all[i].text == candidates[order[i]].text);
      REQUIRE(all[i].score ==
              Approx(std::exp((expected[order[i]] - expected[order[0]]) / n)).epsilon(1e-4));
    }
    // fewer than are read: the first of the same; fewer candidates than passages: as many as those
    const std::vector<Passage> two = finder.find(question, {2, 24, 9});
    REQUIRE(two == std::vector<Passage>(all.begin(), all.begin() + 2));
    REQUIRE(finder.find(question, {9, 24, 1}) == all);
    REQUIRE(finder.find(question, {9, 24, 0}) == candidates);

    const std::int64_t stop = std::min<std::int64_t>(3, std::ssize(candidates));
    std::vector<std::int64_t> told;
    const auto tells = [&](std::int64_t done, std::int64_t of) {
      REQUIRE(of == std::ssize(candidates));
      told.push_back(done);
      return done < stop;
    };
    REQUIRE(finder.find(question, {2, 24, 9}, tells).empty());
    REQUIRE(std::ssize(told) == stop);
  }
}

TEST_CASE("passages: the window's places are candidates where they are asked for") {
  if (no_model()) return;
  Reader reader;
  // which stays in the window, with what follows it
  const std::string fact = "The key of the cellar hangs behind the copper kettle.";
  reader.engine.read(fact + " The old man left the sea. ");
  const Ids ids = reader.engine.known_ids();
  PassageFinder finder = reader.finder();
  const EventTable& events = reader.engine.memory()->events();
  const std::int64_t closed = events[events.size() - 1].end;
  const std::string question = "Where does the key of the cellar hang?";
  PassageOptions options{.count = 12, .tokens = 24, .rerank = 8};
  const std::vector<Passage> without = finder.find(question, options);
  REQUIRE(!without.empty());
  for (const Passage& p : without) REQUIRE(p.tokens.end <= closed);
  options.window = true;
  const std::vector<Passage> with = finder.find(question, options);
  REQUIRE(mentions(with.at(0).text, "behind the copper kettle"));
  REQUIRE(with.at(0).tokens.start >= closed);
  REQUIRE(with.at(0).gain > 0.1);
  std::vector<TokenRange> behind;
  for (const Passage& p : with) {
    if (p.tokens.end <= closed) continue;
    REQUIRE(p.tokens.start >= closed);  // no passage has what another has
    REQUIRE(p.tokens.end <= std::ssize(ids));
    for (const TokenRange& other : behind)
      REQUIRE((other.end <= p.tokens.start || p.tokens.end <= other.start));
    behind.push_back(p.tokens);
  }
  REQUIRE(with.size() == without.size() + behind.size());
  REQUIRE(behind.size() <= 2);
  // words that it does not have; and no rerank: the window is in none
  for (const Passage& p : finder.find("Quentin?", options)) REQUIRE(p.tokens.end <= closed);
  options.rerank = 0;
  for (const Passage& p : finder.find(question, options)) REQUIRE(p.tokens.end <= closed);
  // what became an event is in the window no more, and what was unread is nowhere
  reader.engine.read(story(60, {}));
  finder.read(*reader.engine.memory(), reader.engine.known_ids());
  options = {.count = 12, .tokens = 24, .rerank = 8, .window = true};
  const std::vector<Passage> later = finder.find(question, options);
  REQUIRE(mentions(later.at(0).text, "behind the copper kettle"));
  REQUIRE(later.at(0).tokens.end <= events[events.size() - 1].end);
}

TEST_CASE("passages: they are enough alone where the model is sure of them") {
  REQUIRE_FALSE(is_sure({}));
  std::vector<Passage> two(2);
  two[1].lead = 9;
  REQUIRE_FALSE(is_sure(two));  // the best one counts
  two[0].lead = 0.69;
  REQUIRE_FALSE(is_sure(two));
  two[0].lead = 0.71;
  REQUIRE(is_sure(two));
  if (no_model()) return;
  Reader reader;
  PassageFinder finder = reader.finder();
  const std::string asked = "What is the door code of Rosalind?";
  const FoundPassages sure = finder.find_for(PassageUse::where_sure, asked);
  REQUIRE(sure.alone);
  REQUIRE(sure.passages == finder.find(asked, PassageOptions::finds()));
  const FoundPassages alone = finder.find_for(PassageUse::alone, asked);
  REQUIRE((alone.alone && alone.passages == sure.passages));
  const FoundPassages behind = finder.find_for(PassageUse::behind_memory, asked, {2, 24});
  REQUIRE_FALSE(behind.alone);
  REQUIRE(behind.passages == finder.find(asked, {2, 24}));
  for (const std::string question : {"Tell me more.", "How does a steam engine work?"}) {
    CAPTURE(question);
    const FoundPassages found = finder.find_for(PassageUse::where_sure, question);
    REQUIRE_FALSE(found.alone);
    REQUIRE(found.passages == finder.find(question));
  }
  // all that was read is in the window: there is nothing to read again
  Reader empty;
  empty.engine.attach(small_memory());
  empty.engine.read("The door code of Rosalind is 48151.");
  const FoundPassages none =
      empty.finder().find_for(PassageUse::where_sure, "What is the door code of Rosalind?");
  REQUIRE(none.passages.empty());
  REQUIRE_FALSE(none.alone);
}

TEST_CASE("passages: what is asked for is joined in the order of the text") {
  const std::vector<Passage> passages{{{40, 50}, " later", 1}, {{10, 20}, "first.\n", 0.5}};
  REQUIRE(joined_text(passages) == "first.\n...\n later");
  REQUIRE(joined_text({}).empty());
}

TEST_CASE("passages: a finder follows its sequence, forward, back and to another") {
  if (no_model()) return;
  Engine engine(model());
  engine.attach(small_memory());
  const std::string text = story(120, kFacts);
  engine.read(text.substr(0, text.size() / 2));
  const auto half = engine.snapshot();
  PassageFinder finder(model());
  finder.read(*engine.memory(), engine.known_ids());
  const std::int64_t events = finder.events();
  engine.read(text.substr(text.size() / 2));
  finder.read(*engine.memory(), engine.known_ids());
  REQUIRE(finder.events() > events);
  const std::string question = "What is the door code of Rosalind?";
  REQUIRE(mentions(finder.find(question).at(0).text, "48151"));
  // what was read in parts is found as what was read at once, but for the fit of the covariance
  PassageFinder at_once(model());
  at_once.read(*engine.memory(), engine.known_ids());
  REQUIRE(mentions(at_once.find(question).at(0).text, "48151"));

  engine.restore(*half);
  finder.read(*engine.memory(), engine.known_ids());
  REQUIRE(finder.events() == events);
  for (const Passage& p : finder.find(question)) REQUIRE(!mentions(p.text, "48151"));

  Engine other(model());
  other.attach(small_memory());
  other.read(story(90, {"The number of lamps is 777."}));
  finder.read(*other.memory(), other.known_ids());
  REQUIRE(mentions(finder.find("What is the number of lamps?").at(0).text, "777"));
}

TEST_CASE("passages: a sequence that only goes on is asked for what it added") {
  if (no_model()) return;
  Engine engine(model());
  engine.attach(small_memory());
  const std::string text = story(120, kFacts);
  engine.read(text.substr(0, text.size() / 2));
  const auto half = engine.snapshot();
  std::vector<TokenRange> asked;
  const auto ids_of = [&](TokenRange r) {
    asked.push_back(r);
    const Ids all = engine.known_ids();
    return Ids(all.begin() + r.start, all.begin() + r.end);
  };
  const auto end = [&] { return engine.memory()->events().pending_start(); };
  const auto as_anew = [&](PassageFinder& finder) {
    PassageFinder fresh(model());
    fresh.read(*engine.memory(), engine.known_ids());
    // the words' voice and the events alone: the keys' covariance is of what was read first
    REQUIRE(finder.events() == fresh.events());
    const std::string question = "What is the door code of Rosalind?";
    REQUIRE(finder.find(question, {1, 16}).at(0).tokens == fresh.find(question, {1, 16})[0].tokens);
  };
  PassageFinder finder(model());
  finder.follow(*engine.memory(), ids_of);
  const std::int64_t first = end();
  REQUIRE(asked == std::vector<TokenRange>{{0, first}});
  asked.clear();
  engine.read(text.substr(text.size() / 2));
  finder.follow(*engine.memory(), ids_of);
  REQUIRE(asked == std::vector<TokenRange>{{first, end()}});
  as_anew(finder);
  asked.clear();
  finder.follow(*engine.memory(), ids_of);
  REQUIRE(asked == std::vector<TokenRange>{{end(), end()}});

  // back, and forward to other words in events that begin alike
  const std::int64_t before = end();
  engine.restore(*half);
  std::string other = text.substr(text.size() / 2);
  for (std::size_t at; (at = other.find("48151")) != std::string::npos;)
    other.replace(at, 5, "96262");
  engine.read(other + " And so on, and on, and on for a while, till the day ends.");
  asked.clear();
  finder.follow(*engine.memory(), ids_of);
  REQUIRE(asked.back().start == 0);  // all anew
  REQUIRE(end() > before - 64);
  as_anew(finder);
  REQUIRE(mentions(finder.find("What is the door code of Rosalind?").at(0).text, "96262"));

  // back to where all that it knew still stands: looked at, and not taken in again
  const auto here = engine.snapshot();
  const std::int64_t known = end();
  engine.read(story(20, {}));
  engine.restore(*here);
  asked.clear();
  finder.follow(*engine.memory(), ids_of);
  REQUIRE(asked == std::vector<TokenRange>{{0, known}, {known, known}});
  as_anew(finder);

  // forgotten since: anew, and in no passage
  const TokenRange place =
      finder.find("What is the donkey of Agatha called?", {1, 16}).at(0).tokens;
  engine.forget(place);
  asked.clear();
  finder.follow(*engine.memory(), ids_of);
  REQUIRE(asked.back() == TokenRange{0, end()});
  for (const Passage& p : finder.find("What is the donkey of Agatha called?", {8, 64}))
    REQUIRE(!mentions(p.text, "Biscuit"));
  asked.clear();
  engine.read(story(20, {}));
  finder.follow(*engine.memory(), ids_of);
  REQUIRE(asked == std::vector<TokenRange>{{known, end()}});  // what is gone stays so
  REQUIRE(mentions(refusal<DataError>([&] {
                     engine.read(story(20, {}));
                     finder.follow(*engine.memory(), [](TokenRange) { return Ids{}; });
                   }),
                   "give one for each"));
  finder.follow(*engine.memory(), ids_of);
  REQUIRE(asked.back().start == 0);  // after a failure all of it
}

TEST_CASE("passages: nothing forgotten or unknown is in one") {
  if (no_model()) return;
  Reader reader;
  const Ids ids = reader.engine.known_ids();
  PassageFinder finder(model());
  finder.read(*reader.engine.memory(), ids);
  const std::string question = "What is the donkey of Agatha called?";
  const TokenRange place = finder.find(question, {1, 16}).at(0).tokens;
  reader.engine.forget(place);
  // the engine still knows the ids; a kept memory would give -1
  REQUIRE(reader.engine.known_ids() == ids);
  finder.read(*reader.engine.memory(), ids);
  for (const Passage& p : finder.find(question, {8, 64})) {
    REQUIRE(!mentions(p.text, "Biscuit"));
    REQUIRE((p.tokens.end <= place.start || p.tokens.start >= place.end));
  }
}

TEST_CASE("passages: short memories and bad input") {
  if (no_model()) return;
  REQUIRE(mentions(refusal<ConfigError>([] { PassageFinder(nullptr); }), "model is null"));
  PassageFinder finder(model());
  REQUIRE(finder.find("Who?").empty());  // nothing was read
  Engine engine(model());
  engine.attach(small_memory());
  engine.read("One.");
  finder.read(*engine.memory(), engine.known_ids());
  REQUIRE(finder.find("Who?").empty());  // all in the window
  REQUIRE(mentions(refusal<DataError>([&] { finder.find(" \n"); }), "question is empty"));
  REQUIRE(mentions(refusal<ConfigError>([&] { finder.find("Who?", {-1, 8}); }), "count = -1"));
  REQUIRE(mentions(refusal<ConfigError>([&] { finder.find("Who?", {1, 0}); }), "tokens = 0"));
  REQUIRE(mentions(refusal<ConfigError>([&] { finder.find("Who?", {1, 8, -2}); }), "rerank = -2"));

  Reader reader;
  REQUIRE(mentions(refusal<DataError>([&] { finder.read(*reader.engine.memory(), {}); }),
                   "give all of the sequence"));
  MemoryConfig by_head = small_memory();
  by_head.scope = EventScope::head;
  Engine heads(model());
  heads.attach(by_head);
  REQUIRE(
      mentions(refusal<ConfigError>([&] { finder.read(*heads.memory(), {}); }), "scope = head"));
}

TEST_CASE("passages: lanes of groups of heads are read as one layer") {
  if (no_model()) return;
  MemoryConfig groups = small_memory();
  groups.recall_groups = model()->config().n_kv_heads;
  Reader one, several(120, groups);
  const std::string question = "Behind what did Quentin bury the spoons?";
  REQUIRE(mentions(several.finder().find(question).at(0).text, "chapel"));
  REQUIRE(mentions(one.finder().find(question).at(0).text, "chapel"));
}

}  // namespace passages_test
