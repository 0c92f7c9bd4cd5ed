// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: the input is a tokenizer.json, a zero byte and a text. Whatever it holds, loading and
// encoding either work or throw episodic::Error. Built with -fsanitize=fuzzer it is a libFuzzer
// target; the tests drive it with mutations of real files.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "episodic/base/error.hpp"
#include "tokenizer_files.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TempDir dir;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = std::min(input.find('\0'), input.size());
  const std::string text = input.substr(std::min(zero + 1, input.size()));
  dir.write("tokenizer.json", input.substr(0, zero));
  try {
    const auto tokenizer = episodic::load_tokenizer(dir.path());
    const auto ids = tokenizer->encode(text);
    for (const std::int64_t id : ids)
      if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
    tokenizer->decode(ids, false);
    episodic::StreamDecoder stream(*tokenizer);
    for (const std::int64_t id : ids) stream.push(id);
    stream.finish();
  } catch (const episodic::Error&) {
    // one of the two ways to end well
  }
  return 0;
}
