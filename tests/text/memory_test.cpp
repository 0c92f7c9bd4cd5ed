// SPDX-License-Identifier: Apache-2.0
// How much memory a text takes while its ids are found. Apart from the other tests of the room: it
// counts every allocation of its process.
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "support/nothrow_new.hpp"
#include "support/sampled.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

namespace {

std::int64_t g_now = 0, g_most = 0;

void* allocate(std::size_t bytes) {
  void* p = std::malloc(bytes ? bytes : 1);
  if (!p) throw std::bad_alloc();
  g_now += static_cast<std::int64_t>(malloc_usable_size(p));
  g_most = std::max(g_most, g_now);
  return p;
}

void release(void* p) noexcept {
  if (p) g_now -= static_cast<std::int64_t>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void operator delete(void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }

using namespace episodic;
using namespace episodic::test;

namespace {

std::string repeated(const std::string& part, std::size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += part;
  out.resize(bytes);
  return out;
}

/// Bytes that were taken at the worst moment for each byte of the text; the text itself not
/// counted.
double bytes_a_byte(const Tokenizer& tokenizer, const std::string& text) {
  g_most = g_now;
  const std::int64_t before = g_now;
  REQUIRE(tokenizer.encode(text).size() <= text.size() + 8);  // none where spaces count for nothing
  return static_cast<double>(g_most - before) / static_cast<double>(text.size());
}

}  // namespace

TEST_CASE("the memory that a text takes follows its length, whatever stands in it") {
  const std::size_t n_bytes = episodic_test::all_or(400'000, 100'000);
  for (const Json& kind : vectors().at("kinds")) {
    INFO(kind.at("name").get<std::string>());
    const auto tokenizer = load(tokenizer_of(kind));
    for (const auto& [name, text] :
         {std::pair("spaces", repeated(" ", n_bytes)),
          std::pair("one word", repeated("abcdefghij", n_bytes)),
          std::pair("one letter", repeated("a", n_bytes)),
          std::pair("digits", repeated("7", n_bytes)), std::pair("lines", repeated("\n", n_bytes)),
          std::pair("prose", repeated("The dog went home, and 3 cats slept. ", n_bytes)),
          std::pair("signs", repeated("a,b;c d!", n_bytes)),
          std::pair("no ASCII", repeated("\xe4\xb8\xad\xe6\x96\x87", n_bytes))}) {
      INFO(name);
      // a token a byte is 8 of them; spaces that become metaspaces of three bytes take the most
      CHECK(bytes_a_byte(*tokenizer, text) < 120);
    }
  }
}
