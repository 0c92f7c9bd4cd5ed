// SPDX-License-Identifier: Apache-2.0
#include "pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <limits>

#include "episodic/base/error.hpp"
#include "oniguruma.hpp"
#include "utf8.hpp"

namespace episodic::text {
namespace {

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

template <class T>
Owned<T> owned(T* p) {
  if (!p) throw std::bad_alloc();
  return Owned<T>(p);
}

std::string message_of(int code) {
  unsigned char buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

constexpr std::size_t kMaxExpression = 1 << 16;
constexpr std::uint32_t kHeapLimitKiB = 1 << 16;

/// What one thread needs to match.
struct Scratch {
  Owned<pcre2_match_data> data;
  Owned<pcre2_match_context> context;
  Owned<pcre2_jit_stack> stack;

  Scratch(const pcre2_code* code, std::size_t text_bytes)
      : data(owned(pcre2_match_data_create_from_pattern(code, nullptr))),
        context(owned(pcre2_match_context_create(nullptr))),
        stack(owned(pcre2_jit_stack_create(1 << 15, 1 << 25, nullptr))),
        steps_left_(kFreeSteps + kStepsPerByte * text_bytes),
        last_second_(thread_seconds() + kFreeSeconds +
                     kSecondsPerByte * static_cast<double>(text_bytes)) {
    pcre2_set_heap_limit(context.get(), kHeapLimitKiB);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  /// As pcre2_match. The steps of a match that takes many come out of what the whole text may
  /// take: an expression that goes wrong a little at each place would else take for ever. Machine
  /// code of PCRE2 counts few of its steps, so its processor time is looked at, too.
  /// \param last the last byte that a match may begin at
  int match(const pcre2_code* code, std::string_view text, std::size_t from,
            std::size_t last = PCRE2_UNSET) {
    if ((++matches_ % kMatchesPerLook == 0 || last != last_) && thread_seconds() > last_second_)
      return PCRE2_ERROR_MATCHLIMIT;
    if (last != last_) pcre2_set_offset_limit(context.get(), last_ = last);
    for (std::size_t limit = kFewSteps;;) {
      pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(limit));
      const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                 PCRE2_NO_UTF_CHECK, data.get(), context.get());
      if (rc != PCRE2_ERROR_MATCHLIMIT || steps_left_ == 0) return rc;
      steps_left_ -= std::min(limit, steps_left_);
      limit = std::min({16 * limit, steps_left_, kMostSteps});
    }
  }

 private:
  // A match of a whole text takes some steps a byte: white space of any length is matched.
  static constexpr std::size_t kFreeSteps = 20'000'000, kStepsPerByte = 64, kFewSteps = 4096;
  static constexpr std::size_t kMostSteps = std::numeric_limits<std::uint32_t>::max();
  // Expressions of models take 0.1 to 0.3 us a byte, without machine code some ten times as much.
  static constexpr double kFreeSeconds = 2, kSecondsPerByte = 5e-6;
  static constexpr std::size_t kMatchesPerLook = 64;

  static double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  std::size_t steps_left_, matches_ = 0, last_ = PCRE2_UNSET;
  double last_second_;
};

}  // namespace

struct Pattern::Code {
  Owned<pcre2_code> code;
  bool in_parts = false;  // where a search begins does not matter, so that it may be cut
};

Pattern Pattern::regex(const std::string& expression) {
  if (expression.size() > kMaxExpression)
    throw Error(fmt::format("regular expression of {} bytes, at most {} are supported",
                            expression.size(), kMaxExpression));
  const std::string adapted = pcre2_of_oniguruma(expression);
  auto context = owned(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  std::size_t at = 0;
  // Oniguruma's Ruby syntax: ^ and $ match at every line
  Owned<pcre2_code> code(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(adapted.data()), adapted.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
      &error, &at, context.get()));
  if (!code)
    throw Error(
        fmt::format("the regular expression is not taken by PCRE2 in its own language ({}, byte {} "
                    "of {}); write a shorter or simpler one",
                    message_of(error), at, adapted.size()));
  // without JIT the interpreter does the same, slower
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  Pattern pattern;
  pattern.code_ =
      std::make_shared<const Code>(Code{std::move(code), adapted.find("\\G") == std::string::npos});
  return pattern;
}

Pattern Pattern::from_json(const JsonNode& node) {
  const JsonNode literal = node.at("String");
  if (!literal.null() && literal.str().empty()) return regex("");  // found at every place
  if (!literal.null()) {
    Pattern pattern;
    pattern.literal_ = literal.str();
    return pattern;
  }
  const JsonNode expression = node.at("Regex");
  if (expression.null()) node.fail("must be {\"String\": ...} or {\"Regex\": ...}");
  const std::string& text = expression.str();
  try {
    return regex(text);
  } catch (const Error& e) {
    expression.fail(e.what());
  }
}

bool Pattern::matches_nothing() const {
  if (!code_) return literal_.empty();
  return Scratch(code_->code.get(), 0).match(code_->code.get(), "", 0) >= 0;
}

void Pattern::split(std::string_view text, std::vector<Span>& spans) const {
  spans.clear();
  if (code_) {
    for (const Utf8Run& run : utf8_runs(text)) {
      const std::size_t offset = static_cast<std::size_t>(run.text.data() - text.data());
      if (run.valid)
        split_valid(run.text, offset, spans);
      else
        spans.push_back({offset, offset + run.text.size(), false});
    }
    return;
  }
  std::size_t done = 0;
  if (!literal_.empty()) {
    for (std::size_t at; (at = text.find(literal_, done)) != std::string_view::npos;
         done = at + literal_.size()) {
      if (at > done) spans.push_back({done, at, false});
      spans.push_back({at, at + literal_.size(), true});
    }
  }
  if (done < text.size()) spans.push_back({done, text.size(), false});
}

void Pattern::split_valid(std::string_view text, std::size_t offset,
                          std::vector<Span>& spans) const {
  Scratch scratch(code_->code.get(), text.size());
  const std::size_t* found = pcre2_get_ovector_pointer(scratch.data.get());
  // A search through much text is cut, to be looked at how long it takes.
  constexpr std::size_t kPart = 4096;
  std::size_t done = 0, from = 0, last = kPart;
  while (from <= text.size()) {
    while (last < from) last += kPart;
    const bool cut = code_->in_parts && last < text.size();
    const int rc = scratch.match(code_->code.get(), text, from, cut ? last : PCRE2_UNSET);
    if (rc == PCRE2_ERROR_NOMATCH && cut) {
      from = last + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
      continue;
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0)
      throw DataError(fmt::format(
          "the tokenizer's regular expression gave up on this text at byte {} ({}); cut "
          "the text there, for instance at a line end, and give it in parts",
          offset + from, message_of(rc)));
    // \K may put the begin before what is already cut, or behind the end
    const std::size_t begin = found[0], end = found[1];
    if (begin < done || end < begin)
      throw DataError("the tokenizer's regular expression matches outside of its text (\\K)");
    if (begin > done) spans.push_back({offset + done, offset + begin, false});
    if (end > begin) spans.push_back({offset + begin, offset + end, true});
    done = end;
    from = end;
    if (end == begin) {  // an empty match: look on behind the next character
      if (end == text.size()) break;
      from += utf8_length(text, end);
    }
  }
  if (done < text.size()) spans.push_back({offset + done, offset + text.size(), false});
}

}  // namespace episodic::text
