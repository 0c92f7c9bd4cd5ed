// SPDX-License-Identifier: Apache-2.0
// Feeds a fuzz target the inputs that libFuzzer kept in a folder, and mutations of valid inputs:
// the same ones on every run, with any compiler. libFuzzer, guided by coverage, goes further;
// `--corpus DIR` writes it valid inputs to start from.

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "support/sampled.hpp"
#include "target.hpp"

namespace {

const char* const kWords[] = {"-1",
                              "0",
                              "18446744073709551615",
                              "9223372036854775808",
                              "1e999",
                              "null",
                              "[",
                              "]",
                              "{",
                              "}",
                              "\"",
                              ",",
                              ":",
                              "true",
                              "\\u0000",
                              "[[[[[[[[",
                              "1.5",
                              "\xff",
                              "{\"a\":",
                              "4294967296",
                              "\"F64\"",
                              "[]",
                              "{}",
                              "-0.0"};

void mutate(std::string& s, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return n ? random() % n : 0; };
  const std::size_t at = below(s.size() + 1);
  const std::size_t length = below(std::min<std::size_t>(s.size() - at, 40) + 1);
  const std::string word = kWords[below(std::size(kWords))];
  switch (below(8)) {
    case 0:
      if (at < s.size()) s[at] = static_cast<char>(s[at] ^ (1 << below(8)));
      break;
    case 1:
      if (at < s.size()) s[at] = static_cast<char>(random());
      break;
    case 2:
      s.insert(at, word);
      break;
    case 3:
      s.replace(at, length, word);
      break;
    case 4:
      s.erase(at, length);
      break;
    case 5:
      s.insert(below(s.size() + 1), s.substr(at, length));
      break;
    case 6:
      s.resize(at);
      break;
    default: {  // a number for a number
      const auto digit = s.find_first_of("0123456789", at);
      if (digit == std::string::npos) break;
      const auto end = s.find_first_not_of("0123456789", digit);
      s.replace(digit, (end == std::string::npos ? s.size() : end) - digit,
                below(3) ? std::to_string(below(70)) : word);
    }
  }
  if (below(50) == 0) s += seeds[below(seeds.size())];
}

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

/// The files of a folder, by name.
std::vector<std::string> read_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  std::vector<std::string> files;
  for (const auto& name : names) {
    std::ifstream in(name, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> seeds = fuzz::seeds();
  if (argc == 3 && std::strcmp(argv[1], "--corpus") == 0) {
    std::filesystem::create_directories(argv[2]);
    for (std::size_t i = 0; i < seeds.size(); ++i)
      std::ofstream(std::filesystem::path(argv[2]) / ("seed" + std::to_string(i)), std::ios::binary)
          << seeds[i];
    return 0;
  }
  const long all = argc > 1 ? std::atol(argv[1]) : 20000;
  const long count = episodic_test::all_or(all, all / 3);
  std::mt19937_64 random(1);
  std::string input;
  std::size_t corpus_size = 0;
  try {
    const std::vector<std::string> corpus =
        argc > 2 ? read_files(argv[2]) : std::vector<std::string>();
    corpus_size = corpus.size();
    for (const std::string& file : corpus) run(input = file);
    for (const std::string& seed : seeds) run(input = seed);
    for (long i = 0; i < count; ++i) {
      input = seeds[random() % seeds.size()];
      for (std::uint64_t m = 1 + random() % 4; m > 0; --m) mutate(input, seeds, random);
      if (random() % 2) fuzz::repair(input);
      run(input);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fuzz: %s escaped for the input\n%s\n", e.what(), input.c_str());
    return 1;
  }
  std::printf("%zu inputs of a corpus, %ld mutations of %zu inputs\n", corpus_size, count,
              seeds.size());
  return 0;
}
