// SPDX-License-Identifier: Apache-2.0
// How fast a tokenizer encodes a text, on one thread. benchmarks/tokenizers_beside.py runs it
// beside Hugging Face's.

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "episodic/text/tokenizer.hpp"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "Usage: bench_tokenizer DIR TEXT [ROUNDS]\n"
                 "Encodes the UTF-8 text in the file TEXT with DIR's tokenizer, 5 times or ROUNDS, "
                 "and once\n"
                 "before that does not count. JSON on stdout.\n";
    return 2;
  }
  try {
    std::ifstream in(argv[2], std::ios::binary);
    if (!in) throw std::runtime_error(std::string(argv[2]) + ": cannot be read");
    const int rounds = argc > 3 ? std::stoi(argv[3]) : 5;
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const auto tokenizer = episodic::load_tokenizer(argv[1]);
    nlohmann::json seconds = nlohmann::json::array();
    std::size_t tokens = 0;
    for (int round = 0; round <= rounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      tokens = tokenizer->encode(text).size();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (round > 0) seconds.push_back(took.count());
    }
    std::cout << nlohmann::json{{"bytes", text.size()}, {"tokens", tokens}, {"seconds", seconds}}
              << '\n';
  } catch (const std::exception& e) {
    std::cerr << "bench_tokenizer: " << e.what() << '\n';
    return 1;
  }
}
