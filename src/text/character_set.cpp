// SPDX-License-Identifier: Apache-2.0
#include "character_set.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <memory>
#include <new>

#include "episodic/base/error.hpp"
#include "utf8.hpp"

namespace episodic::text {
namespace {

constexpr std::uint32_t kLast = 0x10ffff, kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

struct FreePcre2 {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};

const std::vector<std::uint32_t> kNoCharacters;

std::unique_ptr<pcre2_code, FreePcre2> compiled(const std::string& expression) {
  int error = 0;
  std::size_t at = 0;
  return std::unique_ptr<pcre2_code, FreePcre2>(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr));
}

std::u32string key_of(const std::vector<std::uint32_t>& sequence) {
  std::u32string key;
  for (const std::uint32_t c : sequence) key += static_cast<char32_t>(c);
  return key;
}

}  // namespace

CharacterSet::CharacterSet(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  const auto append = [&](std::uint32_t low, std::uint32_t high) {
    if (low > high) return;
    if (!ranges_.empty() && low <= ranges_.back().second + 1)
      ranges_.back().second = std::max(ranges_.back().second, high);
    else
      ranges_.emplace_back(low, high);
  };
  for (const auto& [low, high] : ranges) {
    append(low, std::min(high, kFirstSurrogate - 1));
    append(std::max(low, kLastSurrogate + 1), std::min(high, kLast));
  }
}

bool CharacterSet::contains(std::uint32_t c) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), Range(c, kLast + 1));
  return after != ranges_.begin() && std::prev(after)->second >= c;
}

CharacterSet CharacterSet::complement() const {
  std::vector<Range> out;
  std::uint32_t next = 0;
  for (const auto& [low, high] : ranges_) {
    if (low > next) out.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLast) out.emplace_back(next, kLast);
  return CharacterSet(std::move(out));
}

CharacterSet CharacterSet::operator|(const CharacterSet& other) const {
  std::vector<Range> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return CharacterSet(std::move(all));
}

CharacterSet CharacterSet::operator&(const CharacterSet& other) const {
  return (complement() | other.complement()).complement();
}

bool is_pcre2_class(const std::string& pcre2_class) { return compiled(pcre2_class) != nullptr; }

CharacterSet matched_by(const std::string& pcre2_class) {
  const auto code = compiled(pcre2_class + "+");
  if (!code) throw Error(fmt::format("the class {} is not known to PCRE2", pcre2_class));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, FreePcre2> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  if (!data) throw std::bad_alloc();
  const std::size_t* found = pcre2_get_ovector_pointer(data.get());
  std::vector<CharacterSet::Range> ranges;
  // In blocks: a stretch of one block is not too long to be matched as a whole.
  constexpr std::uint32_t kBlock = 4096;
  for (std::uint32_t first = 0; first <= kLast; first += kBlock) {
    std::string text;
    for (std::uint32_t c = first; c < first + kBlock; ++c)
      if (c < kFirstSurrogate || c > kLastSurrogate) text += utf8_of(c);
    for (std::size_t from = 0;
         from < text.size() &&
         pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                     PCRE2_NO_UTF_CHECK, data.get(), nullptr) >= 0;
         from = found[1]) {
      std::size_t last = found[1] - 1;
      while ((static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
      ranges.emplace_back(utf8_code_point(text, found[0], utf8_length(text, found[0])),
                          utf8_code_point(text, last, utf8_length(text, last)));
    }
  }
  return CharacterSet(std::move(ranges));
}

const CaseFolds& CaseFolds::instance() {
  static const CaseFolds folds;
  return folds;
}

CaseFolds::CaseFolds() {
  for (std::uint32_t c = 0; c <= kLast; ++c) {
    utf8proc_int32_t to[8];
    int boundary = UTF8PROC_BOUNDCLASS_START;
    const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), to, 8,
                                                       UTF8PROC_CASEFOLD, &boundary);
    if (n < 1 || n > 8 || (n == 1 && static_cast<std::uint32_t>(to[0]) == c)) continue;
    std::vector<std::uint32_t> sequence(to, to + n);
    members_[key_of(sequence)].push_back(c);
    if (n > 1) expanding_.push_back(c);
    folded_.emplace(c, std::move(sequence));
  }
}

std::uint32_t CaseFolds::fold(std::uint32_t c) const {
  const auto it = folded_.find(c);
  return it == folded_.end() || it->second.size() > 1 ? c : it->second[0];
}

std::vector<std::uint32_t> CaseFolds::same(std::uint32_t c) const {
  const auto it = folded_.find(c);
  const std::vector<std::uint32_t> target =
      it == folded_.end() ? std::vector<std::uint32_t>{c} : it->second;
  std::vector<std::uint32_t> all;
  if (const auto found = members_.find(key_of(target)); found != members_.end())
    all = found->second;
  if (target.size() == 1) all.push_back(target[0]);
  return all;
}

const std::vector<std::uint32_t>& CaseFolds::expansion(std::uint32_t c) const {
  const auto it = folded_.find(c);
  return it == folded_.end() || it->second.size() == 1 ? kNoCharacters : it->second;
}

const std::vector<std::uint32_t>& CaseFolds::folding_to(
    const std::vector<std::uint32_t>& sequence) const {
  const auto it = members_.find(key_of(sequence));
  return it == members_.end() ? kNoCharacters : it->second;
}

CharacterSet CaseFolds::closure(const CharacterSet& set) const {
  std::vector<CharacterSet::Range> ranges = set.ranges();
  for (const auto& [key, members] : members_) {
    std::vector<std::uint32_t> all = members;
    if (key.size() == 1) all.push_back(static_cast<std::uint32_t>(key[0]));
    if (std::any_of(all.begin(), all.end(), [&](std::uint32_t c) { return set.contains(c); }))
      for (const std::uint32_t c : all) ranges.emplace_back(c, c);
  }
  return CharacterSet(std::move(ranges));
}

std::vector<std::uint32_t> CaseFolds::expanding(const CharacterSet& set) const {
  std::vector<std::uint32_t> out;
  for (const std::uint32_t c : expanding_)
    if (set.contains(c)) out.push_back(c);
  return out;
}

}  // namespace episodic::text
