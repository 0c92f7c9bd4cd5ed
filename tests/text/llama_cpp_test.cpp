// SPDX-License-Identifier: Apache-2.0
// Vectors of llama.cpp against real vocabularies, in ../shared.
#include <algorithm>
#include <map>
#include <sstream>

#include "support/shared.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace llama_cpp_test {

constexpr const char* kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::filesystem::path folder() { return *shared_dir() / "data/tokenizers"; }

bool here() { return shared_dir() && std::filesystem::exists(folder() / "llama_cpp_vectors"); }

void check_vectors(const Tokenizer& tokenizer, const std::string& name) {
  const auto file = folder() / "llama_cpp_vectors" / ("ggml-vocab-" + name + ".gguf");
  const std::string inputs = read_file(file.string() + ".inp");
  std::istringstream outputs(read_file(file.string() + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::size_t count = 0;
  for (std::size_t at = 0; at < inputs.size(); ++count) {
    const std::size_t end = std::min(inputs.find(separator, at), inputs.size());
    const std::string text = inputs.substr(at, end - at);
    at = end + separator.size();
    std::string line;
    if (!std::getline(outputs, line)) break;  // the last separator ends the file
    std::istringstream numbers(line);
    const std::vector<std::int64_t> expected{std::istream_iterator<std::int64_t>(numbers), {}};
    INFO(name << ": '" << text << "'");
    CHECK(tokenizer.encode(text, false) == expected);
    CHECK(tokenizer.decode(expected) == text);
  }
  CHECK(count == 46);
}

/// The byte-level model in GPT-2's alphabet around a vocabulary and merges.
Json byte_level(Json vocab, Json merges, Json pre_tokenizer, bool ignore_merges) {
  return {{"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", std::move(vocab)},
            {"merges", std::move(merges)},
            {"ignore_merges", ignore_merges}}}};
}

std::string base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  int n = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(digits.find(c));
    if ((n += 6) >= 8) out += static_cast<char>(bits >> (n -= 8) & 0xff);
  }
  return out;
}

/// GPT-2's printable form of bytes, as its definition has it.
std::string printable(const std::string& bytes) {
  static const std::vector<std::string> table = [] {
    std::vector<std::string> t(256);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool same = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      const int code = same ? b : next++;
      if (code < 0x80) {
        t[static_cast<std::size_t>(b)] = static_cast<char>(code);
      } else {
        t[static_cast<std::size_t>(b)] = static_cast<char>(0xc0 | code >> 6);
        t[static_cast<std::size_t>(b)] += static_cast<char>(0x80 | (code & 0x3f));
      }
    }
    return t;
  }();
  std::string out;
  for (const char c : bytes) out += table[static_cast<unsigned char>(c)];
  return out;
}

TEST_CASE("Phi-3 and LLaMA-2 agree with llama.cpp") {
  if (!here()) EPISODIC_SKIP("no ../shared");
  check_vectors(*load_tokenizer(folder() / "phi3_mini_hf"), "phi-3");
  const auto llama2 = load_tokenizer(folder() / "llama2_hf");
  CHECK(llama2->bos() == 1);
  CHECK(llama2->eos() == 2);
  CHECK(llama2->encode("Hello", true) == std::vector<std::int64_t>{1, 15043});
  check_vectors(*llama2, "llama-spm");
}

TEST_CASE("GPT-2 agrees with llama.cpp") {
  if (!here()) EPISODIC_SKIP("no ../shared");
  Json merges = Json::array();
  std::istringstream lines(read_file(folder() / "gpt2/gpt2.merges.txt"));
  std::string line;
  std::getline(lines, line);  // the version
  while (std::getline(lines, line))
    if (!line.empty()) merges.push_back(line);
  const auto gpt2 = load(byte_level(Json::parse(read_file(folder() / "gpt2/gpt2.vocab")), merges,
                                    {{"type", "ByteLevel"}, {"add_prefix_space", false}}, false));
  check_vectors(*gpt2, "gpt-2");
  const TempDir dir;
  dir.write("tokenizer.json", read_file(folder() / "scalellm_tokenizer.json"));
  check_vectors(*load_tokenizer(dir.path()), "gpt-2");
}

TEST_CASE("LLaMA-3 agrees with llama.cpp") {
  if (!here()) EPISODIC_SKIP("no ../shared");
  std::istringstream lines(read_file(folder() / "llama3_tiktoken/tokenizer.model"));
  std::string entry;
  std::map<std::string, int> ranks;
  std::vector<std::string> tokens;
  for (int rank = 0; lines >> entry >> rank;) {
    tokens.push_back(base64(entry));
    ranks[tokens.back()] = rank;
  }
  REQUIRE(tokens.size() == 128000);
  // every way to put a token together from two, in the order of the tokens
  Json vocab = Json::object(), merges = Json::array();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    vocab[printable(tokens[id])] = id;
    std::vector<std::pair<std::pair<int, int>, std::size_t>> ways;
    for (std::size_t cut = 1; cut < tokens[id].size(); ++cut) {
      const auto left = ranks.find(tokens[id].substr(0, cut));
      const auto right = ranks.find(tokens[id].substr(cut));
      if (left != ranks.end() && right != ranks.end())
        ways.push_back({{left->second, right->second}, cut});
    }
    std::sort(ways.begin(), ways.end());
    for (const auto& way : ways)
      merges.push_back(
          {printable(tokens[id].substr(0, way.second)), printable(tokens[id].substr(way.second))});
  }
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kLlama3Split}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto llama3 =
      load(byte_level(std::move(vocab), std::move(merges),
                      {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}, true));
  check_vectors(*llama3, "llama-bpe");
}

}  // namespace llama_cpp_test
