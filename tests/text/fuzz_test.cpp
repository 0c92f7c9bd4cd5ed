// SPDX-License-Identifier: Apache-2.0
#include <random>

#include "support/test.hpp"
#include "tokenizer_files.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

using namespace episodic::test;

namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

/// A value of the kind that files should not hold.
Json odd_value(Random& random) {
  static const std::vector<Json> values{nullptr,
                                        -1,
                                        0,
                                        1,
                                        1e300,
                                        4294967295u,
                                        18446744073709551615ull,
                                        "",
                                        " ",
                                        "a",
                                        Json::array(),
                                        Json::object(),
                                        true,
                                        false,
                                        "(((",
                                        "\\K",
                                        "(a*)*b",
                                        "Sequence",
                                        "ByteLevel",
                                        "Metaspace",
                                        "Removed",
                                        "\xe2\x96\x81",
                                        "<0x41>",
                                        Json::array({"a", "b"})};
  return values[below(random, values.size())];
}

/// Changes one value somewhere in the tree.
void mutate(Json& node, Random& random) {
  if (!node.is_structured() || node.empty() || below(random, 6) == 0) {
    node = odd_value(random);
    return;
  }
  auto it = node.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(below(random, node.size())));
  if (below(random, 12) == 0)
    node.erase(it);
  else
    mutate(*it, random);
}

std::string random_text(Random& random) {
  static const std::vector<std::string> parts{"the",
                                              " king",
                                              "<s>",
                                              "<|bos|>",
                                              "<|left|>",
                                              "\n",
                                              "  ",
                                              "12",
                                              "\xe2\x96\x81",
                                              "\xff",
                                              "\xc3",
                                              "\xc3\xa9",
                                              "\xf0\x9f\x98\x80",
                                              "\xe4\xbd",
                                              "'ll",
                                              "e\xcc\x81",
                                              std::string(1, '\0')};
  std::string text;
  for (std::size_t n = below(random, 20); n > 0; --n) text += parts[below(random, parts.size())];
  return text;
}

void run(const std::string& file, const std::string& text) {
  const std::string input = file + '\0' + text;
  INFO(file << "\n" << text);
  CHECK(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()) ==
        0);
}

}  // namespace

TEST_CASE("damaged tokenizer files end in an Error or work") {
  Random random(11);
  for (const Json& kind : vectors()["kinds"]) {
    const Json whole = tokenizer_of(kind);
    for (int i = 0; i < 60; ++i) {
      Json changed = whole;
      // mostly the small sections, where the decisions are
      for (std::size_t n = 1 + below(random, 2); n > 0; --n) {
        const char* sections[] = {"normalizer",     "pre_tokenizer", "decoder",
                                  "post_processor", "added_tokens",  "model"};
        mutate(changed[sections[below(random, 6)]], random);
      }
      run(changed.dump(-1, ' ', false, Json::error_handler_t::replace), random_text(random));
    }
    const std::string file = whole.dump();
    for (int i = 0; i < 40; ++i) {
      std::string damaged = file;
      if (below(random, 4) == 0) damaged.resize(below(random, damaged.size()));
      for (std::size_t n = below(random, 4); n > 0 && !damaged.empty(); --n)
        damaged[below(random, damaged.size())] = static_cast<char>(1 + below(random, 255));
      run(damaged, random_text(random));
    }
  }
}
