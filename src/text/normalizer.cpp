// SPDX-License-Identifier: Apache-2.0
#include "normalizer.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "bert.hpp"
#include "episodic/base/error.hpp"
#include "pattern.hpp"
#include "utf8.hpp"

namespace episodic::text {
namespace {

bool ascii(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

std::string replace(const Pattern& pattern, const std::string& content, std::string_view text,
                    const Growth& growth) {
  std::vector<Span> spans;
  pattern.split(text, spans);
  std::size_t size = 0;
  for (const Span& s : spans) growth.check(size += s.match ? content.size() : s.end - s.begin);
  std::string out;
  out.reserve(size);
  for (const Span& s : spans)
    out += s.match ? std::string_view(content) : text.substr(s.begin, s.end - s.begin);
  return out;
}

}  // namespace

std::string normal_form(const std::string& text, int options) {
  if (ascii(text)) return text;
  std::string out;
  out.reserve(text.size());
  for (const Utf8Run& run : utf8_runs(text)) {
    if (!run.valid) {
      out += run.text;
      continue;
    }
    utf8proc_uint8_t* mapped = nullptr;
    const utf8proc_ssize_t n =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.text.data()),
                     static_cast<utf8proc_ssize_t>(run.text.size()), &mapped,
                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> hold(mapped, &std::free);
    if (n == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
    if (n < 0)
      throw DataError(
          fmt::format("a text cannot be brought to Unicode normal form: {}", utf8proc_errmsg(n)));
    out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(n));
  }
  return out;
}

void Normalizer::add(const JsonNode& node, int depth) {
  if (node.null()) return;
  if (depth > kMaxNesting) node.fail("is nested too deep");
  if (steps_.size() >= kMostSteps)
    node.fail(fmt::format("is one of more than {} steps", kMostSteps));
  const JsonNode type = node.at("type");
  const std::string& name = type.str();
  if (name == "Sequence") {
    const JsonNode list = node.at("normalizers");
    for (std::size_t i = 0; i < list.size(); ++i) add(list.at(i), depth + 1);
  } else if (name == "NFC" || name == "NFD" || name == "NFKC" || name == "NFKD") {
    const int options = (name.back() == 'C' ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                        (name[2] == 'K' ? UTF8PROC_COMPAT : 0);
    steps_.emplace_back(
        [options](const std::string& text, const Growth&) { return normal_form(text, options); });
  } else if (name == "Prepend") {
    steps_.emplace_back(
        [prefix = node.at("prepend").str()](const std::string& text, const Growth& growth) {
          growth.check(prefix.size() + text.size());
          return text.empty() ? text : prefix + text;
        });
  } else if (name == "BertNormalizer") {
    steps_.emplace_back([bert = BertNormalizer(node)](const std::string& text, const Growth&) {
      return bert(text);
    });
  } else if (name == "Replace") {
    const Pattern checked = Pattern::from_json(node.at("pattern"));
    if (checked.matches_nothing())
      node.at("pattern").fail(
          "may match nothing at all, which is not supported in a Replace; write "
          "it so that it matches a character");
    steps_.emplace_back([pattern = checked, content = node.at("content").str()](
                            const std::string& text, const Growth& growth) {
      return replace(pattern, content, text, growth);
    });
  } else {
    type.fail(
        fmt::format("normalizer '{}' is not supported (NFC, NFD, NFKC, NFKD, Prepend, "
                    "Replace, BertNormalizer and Sequence are)",
                    name));
  }
}

std::string Normalizer::operator()(std::string text, const Growth& growth) const {
  for (const auto& step : steps_) {
    text = step(text, growth);
    growth.check(text.size());
  }
  return text;
}

}  // namespace episodic::text
