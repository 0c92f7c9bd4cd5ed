// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random texts of all scripts, signs, emoji and controls: those that make_random_vectors.py gave
// Hugging Face's tokenizers, drawn again, and the checksums of what came out.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer_files.hpp"

namespace episodic::test {

inline const Json& random_vectors() {
  static const Json v = Json::parse(
      read_file(std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/text/vectors/random.json"));
  return v;
}

class RandomTexts {
 public:
  std::string next() {
    static const auto pieces = random_vectors()["pieces"].get<std::vector<std::string>>();
    static const auto blocks =
        random_vectors()["blocks"].get<std::vector<std::array<std::uint32_t, 2>>>();
    std::string text;
    for (std::size_t parts = 1 + below(24); parts > 0; --parts) {
      if (below(3) == 0) {
        text += pieces[below(pieces.size())];
      } else {
        const auto [first, last] = blocks[below(blocks.size())];
        append(text, first + static_cast<std::uint32_t>(below(last - first + 1)));
      }
    }
    return text;
  }

 private:
  std::size_t below(std::size_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state_ >> 33) % n;
  }

  static void append(std::string& text, std::uint32_t c) {
    const auto byte = [&](std::uint32_t b) { text += static_cast<char>(b); };
    if (c < 0x80) return byte(c);
    if (c < 0x800) return byte(0xc0 | c >> 6), byte(0x80 | (c & 0x3f));
    if (c < 0x10000)
      return byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f));
    byte(0xf0 | c >> 18), byte(0x80 | (c >> 12 & 0x3f));
    byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f));
  }

  std::uint64_t state_ = 1;
};

/// Checksums as make_random_vectors.py takes them.
struct TextSums {
  std::uint64_t ids = 0xcbf29ce484222325u, texts = ids;

  void add(const Tokenizer& tokenizer, const std::string& text) {
    const auto tokens = tokenizer.encode(text);
    mix(ids, tokens.size());
    for (const std::int64_t id : tokens) mix(ids, static_cast<std::uint64_t>(id));
    for (const char c : tokenizer.decode(tokens, false)) mix(texts, static_cast<std::uint8_t>(c));
  }

 private:
  static void mix(std::uint64_t& sum, std::uint64_t number) {
    sum = (sum ^ number) * 0x100000001b3u;
  }
};

}  // namespace episodic::test
