// SPDX-License-Identifier: Apache-2.0
#include "scoring/python_random.hpp"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <vector>

namespace episodic::suites {
namespace {

/// MT19937 seeded by an array of numbers (Matsumoto and Nishimura's init_by_array), which
/// std::mt19937 has no door to.
class MersenneTwister {
 public:
  explicit MersenneTwister(const std::vector<std::uint32_t>& key) {
    start(19650218);
    const auto length = static_cast<std::uint32_t>(key.size());
    std::uint32_t i = 1, j = 0;
    for (std::uint32_t k = std::max(kN, length); k > 0; --k) {
      state_[i] = (state_[i] ^ (mixed(i) * 1664525U)) + key[j] + j;
      step(i);
      if (++j >= length) j = 0;
    }
    for (std::uint32_t k = kN - 1; k > 0; --k) {
      state_[i] = (state_[i] ^ (mixed(i) * 1566083941U)) - i;
      step(i);
    }
    state_[0] = 0x80000000U;
  }

  std::uint32_t operator()() {
    if (at_ == kN) refill();
    std::uint32_t y = state_[at_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    return y ^ (y >> 18);
  }

 private:
  static constexpr std::uint32_t kN = 624, kM = 397;

  std::uint32_t mixed(std::uint32_t i) const { return state_[i - 1] ^ (state_[i - 1] >> 30); }
  void step(std::uint32_t& i) {
    if (++i < kN) return;
    state_[0] = state_[kN - 1];
    i = 1;
  }
  void start(std::uint32_t seed) {
    state_[0] = seed;
    for (std::uint32_t i = 1; i < kN; ++i) state_[i] = 1812433253U * mixed(i) + i;
  }
  void refill() {
    for (std::uint32_t i = 0; i < kN; ++i) {
      const std::uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kN] & 0x7fffffffU);
      state_[i] = state_[(i + kM) % kN] ^ (y >> 1) ^ (y & 1U ? 0x9908b0dfU : 0U);
    }
    at_ = 0;
  }

  std::array<std::uint32_t, kN> state_{};
  std::uint32_t at_ = kN;
};

/// The words of a big-endian number, the lowest first and without leading zeros.
std::vector<std::uint32_t> words_of(const std::string& bytes) {
  std::vector<std::uint32_t> words;
  for (std::size_t end = bytes.size(); end > 0; end -= std::min<std::size_t>(4, end)) {
    std::uint32_t word = 0;
    for (std::size_t i = end - std::min<std::size_t>(4, end); i < end; ++i)
      word = word << 8 | static_cast<unsigned char>(bytes[i]);
    words.push_back(word);
  }
  while (words.size() > 1 && words.back() == 0) words.pop_back();
  return words;
}

}  // namespace

std::uint32_t python_choice(std::string_view text, std::uint32_t n) {
  std::array<unsigned char, SHA512_DIGEST_LENGTH> digest;
  SHA512(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::string seed(text);
  seed.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  MersenneTwister random(words_of(seed));
  const int bits = std::bit_width(n);
  std::uint32_t drawn = 0;
  do drawn = random() >> (32 - bits);
  while (drawn >= n);
  return drawn;
}

}  // namespace episodic::suites
