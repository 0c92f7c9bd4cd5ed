// SPDX-License-Identifier: Apache-2.0
#include "thought_reader.hpp"

#include <algorithm>
#include <utility>

#include "answer_text.hpp"

namespace episodic::text {
namespace {

std::size_t spaces_at_begin(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && json_space(text[n])) ++n;
  return n;
}

/// At most kMostSpaces.
std::size_t spaces_at_end(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && n < kMostSpaces && json_space(text[text.size() - 1 - n])) ++n;
  return n;
}

}  // namespace

PartedText ThoughtReader::push(std::string_view piece, bool last) {
  PartedText out;
  if (stage_ == Stage::answer) {
    out.answer = piece;
    return out;
  }
  held_ += piece;
  while (read(out, last)) {
  }
  return out;
}

/// \return whether there may be more to read
bool ThoughtReader::read(PartedText& out, bool last) {
  switch (stage_) {
    case Stage::start:
      return read_start(out, last);
    case Stage::thought:
      return read_thought(out, last);
    case Stage::behind:
      return read_behind(last);
    case Stage::wrapped:
      return read_wrapped(out, last);
    case Stage::answer:
      break;
  }
  out.answer += std::exchange(held_, {});
  return false;
}

bool ThoughtReader::read_start(PartedText& out, bool last) {
  const std::size_t spaces = spaces_at_begin(held_);
  const bool many = spaces > kMostSpaces;
  const TextMatch matched =
      many ? TextMatch::no : match_text(std::string_view(held_).substr(spaces), form_->open);
  if (matched == TextMatch::partly && !last) return false;
  stage_ = matched == TextMatch::yes ? Stage::thought : Stage::answer;
  if (matched != TextMatch::yes) return true;
  if (whole_) out.thought += held_.substr(0, spaces + form_->open.size());
  held_.erase(0, spaces + form_->open.size());
  return true;
}

bool ThoughtReader::read_thought(PartedText& out, bool last) {
  const std::size_t close = held_.find(form_->close);
  const bool ends = close != std::string::npos;
  if (whole_) {
    const std::size_t bytes = ends   ? close + form_->close.size()
                              : last ? held_.size()
                                     : held_.size() - begun_mark(held_, form_->close);
    out.thought += held_.substr(0, bytes);
    held_.erase(0, bytes);
    if (ends) stage_ = Stage::answer;
    return ends;
  }
  if (!told_) {
    const std::size_t spaces = std::min(spaces_at_begin(held_), close);
    held_.erase(0, spaces);
    if (spaces > 0) return true;
  }
  std::size_t end = ends ? close : held_.size();
  if (!ends && !last) end -= begun_mark(held_, form_->close);
  const std::size_t told = end - spaces_at_end(std::string_view(held_).substr(0, end));
  out.thought += held_.substr(0, told);
  told_ = told_ || told > 0;
  if (!ends) {
    held_.erase(0, last ? held_.size() : told);
    return false;
  }
  held_.erase(0, close + form_->close.size());
  stage_ = Stage::behind;
  return true;
}

bool ThoughtReader::read_behind(bool last) {
  held_.erase(0, spaces_at_begin(held_));
  const TextMatch matched = match_text(held_, form_->answer_open);
  if (held_.empty() || (matched == TextMatch::partly && !last)) return false;
  if (matched == TextMatch::yes) held_.erase(0, form_->answer_open.size());
  stage_ = matched == TextMatch::yes ? Stage::wrapped : Stage::answer;
  return true;
}

bool ThoughtReader::read_wrapped(PartedText& out, bool last) {
  const std::size_t close = held_.find(form_->answer_close);
  const bool ends = close != std::string::npos;
  const std::size_t bytes = ends   ? close
                            : last ? held_.size()
                                   : held_.size() - begun_mark(held_, form_->answer_close);
  out.answer += held_.substr(0, bytes);
  held_.erase(0, ends ? close + form_->answer_close.size() : bytes);
  if (ends) stage_ = Stage::answer;
  return ends;
}

}  // namespace episodic::text
