// SPDX-License-Identifier: Apache-2.0
// Text that goes on after text, with a tokenizer that puts a space before every text of its own.
#include <string>
#include <vector>

#include "episodic/session/session.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

/// Like LLaMA 2's: a character a token, a space as U+2581, one before every text (`prefixed`), and
/// none at the start of what is decoded.
class Characters final : public Tokenizer {
 public:
  explicit Characters(bool prefixed) : prefixed_(prefixed) {}
  std::vector<std::int64_t> encode(std::string_view text, bool add_special) const override {
    std::vector<std::int64_t> ids;
    if (add_special) ids.push_back(1);
    if (prefixed_ && !text.empty()) ids.push_back(' ');
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(const std::vector<std::int64_t>& ids, bool skip_special) const override {
    std::string text;
    for (const std::int64_t id : ids)
      if (id > 2)
        text += static_cast<char>(id);
      else if (!skip_special)
        text += "<s>";
    if (prefixed_ && text.starts_with(" ")) text.erase(0, 1);
    return text;
  }
  std::string token(std::int64_t id) const override {
    return id == ' ' && prefixed_ ? "\xE2\x96\x81" : std::string(1, static_cast<char>(id));
  }
  std::int64_t id_of(std::string_view token) const override {
    return token.empty() ? -1 : static_cast<unsigned char>(token[0]);
  }
  std::int64_t vocab_size() const override { return 256; }
  std::int64_t bos() const override { return 1; }
  std::int64_t eos() const override { return 2; }

 private:
  bool prefixed_;
};

/// Says a fixed text, whatever it reads.
class Parrot final : public LanguageModel {
 public:
  explicit Parrot(std::string text) : text_(std::move(text)) { config_.vocab_size = 256; }
  const ModelConfig& config() const override { return config_; }
  std::int64_t chunk() const override { return 64; }
  std::int64_t tokens() const override { return static_cast<std::int64_t>(read.size()); }
  using LanguageModel::step;
  std::vector<StepKind> kinds;  // of each step of one token
  void step(std::span<const std::int64_t> ids, StepKind kind) override {
    if (ids.size() == 1) kinds.push_back(kind);
    read.insert(read.end(), ids.begin(), ids.end());
    if (said_ > 0 || ids.size() == 1) ++said_;
  }
  std::span<const float> logits() override {
    logits_.assign(256, 0.0f);
    const std::size_t at = said_ == 0 ? 0 : said_ - 1;
    logits_[at < text_.size() ? static_cast<unsigned char>(text_[at]) : 2] = 1;
    return logits_;
  }
  std::vector<std::int64_t> read;

 private:
  ModelConfig config_;
  std::string text_;
  std::vector<float> logits_;
  std::size_t said_ = 0;
};

std::vector<std::int64_t> bytes_of(std::string_view text) {
  std::vector<std::int64_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

}  // namespace

TEST_CASE("a text that goes on after another one gets no space in front") {
  const Characters prefixed(true), plain(false);
  for (const char* text : {"What", " What", "\n\nWhat is it?", "a", ".", "\n"}) {
    INFO(text);
    CHECK(encode_continuation(prefixed, text) == bytes_of(text));
    CHECK(encode_continuation(plain, text) == bytes_of(text));
  }
  CHECK(encode_continuation(prefixed, "").empty());
  CHECK(prefixed.encode("What", false).size() == 5);  // the space that is meant
}

TEST_CASE("the space between a question and its answer is part of the answer") {
  for (const bool prefixed : {true, false}) {
    const Characters tokenizer(prefixed);
    Parrot model(" 60453.");
    Session session(model, &tokenizer);
    GenerateOptions options;
    options.max_new = 7;
    std::string streamed;
    options.on_token = [&](std::int64_t, std::string_view piece) {
      streamed += piece;
      return true;
    };
    const auto question = encode_continuation(tokenizer, "The key is");
    const GenerateResult r = session.generate(question, options);
    CHECK(r.text == " 60453.");
    CHECK(streamed == r.text);
  }
}

TEST_CASE("what was read is forgotten with the state that held it") {
  const Characters tokenizer(false);
  Parrot model("abc");
  Session session(model, &tokenizer);
  session.prefill(bytes_of("xyz"));
  CHECK(session.history_start() == 0);
  Parrot later("abc");
  later.read = bytes_of("read before");
  Session second(later, &tokenizer);
  CHECK(second.history_start() == 11);
  second.prefill(bytes_of("xyz"));
  later.read.resize(5);  // restored to a state before the session began
  CHECK(second.history_start() == 5);
}

TEST_CASE("tokens that are read say so, those that are written do too") {
  Parrot model("abcd");
  Session session(model);
  std::vector<std::int64_t> text(model.chunk() + 1, 'x');  // a chunk, and one token that is left
  session.prefill(text);
  CHECK(model.kinds == std::vector{StepKind::prompt});
  model.kinds.clear();
  GenerateOptions options;
  options.max_new = 3;
  options.feed_last = true;
  session.generate(std::vector<std::int64_t>{'y'}, options);
  CHECK(model.kinds ==
        std::vector{StepKind::prompt, StepKind::decode, StepKind::decode, StepKind::decode});
}
