// SPDX-License-Identifier: Apache-2.0
#include "channel_reader.hpp"

#include <algorithm>
#include <utility>

#include "answer_text.hpp"
#include "tool_call_format.hpp"

namespace episodic::text {
namespace {

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>",
                           kRecipient = "to=", kFunctions = "functions.";
// What a message ends with; the last two begin the next one, of a model that left the end out.
constexpr std::string_view kMessageEnds[] = {"<|end|>", "<|call|>", "<|return|>", kStart, kChannel};
constexpr std::size_t kLongestHeader = 1024;

/// A word of a header behind a mark; empty where there is none.
std::string_view word_behind(std::string_view header, std::string_view mark) {
  const std::size_t at = header.rfind(mark);  // of a header that was begun twice
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + mark.size());
  while (!header.empty() && json_space(header.front())) header.remove_prefix(1);
  std::size_t n = 0;
  while (n < header.size() && !json_space(header[n]) && header[n] != '<') ++n;
  return header.substr(0, n);
}

}  // namespace

ChannelReader::ChannelReader(std::vector<std::string> names, const ToolCallOptions& options,
                             std::uint64_t seed)
    : names_(std::move(names)), options_(options), seed_(seed) {}

std::vector<ToolCallEvent> ChannelReader::push(std::string_view piece) {
  held_ += piece;
  read(false);
  return std::exchange(events_, {});
}

std::vector<ToolCallEvent> ChannelReader::finish() {
  read(true);
  held_.clear();
  mode_ = Mode::start;
  kind_ = Kind::content;
  told_content_ = told_reasoning_ = false;
  return std::exchange(events_, {});
}

void ChannelReader::tell(std::string text) {
  if (text.empty()) return;
  const Kind kind = kind_ == Kind::reasoning && !options_.part_reasoning ? Kind::content : kind_;
  // two messages of one kind stay apart
  bool& told = kind == Kind::content ? told_content_ : told_reasoning_;
  if (std::exchange(fresh_, false) && told) text = "\n\n" + text;
  told = true;
  if (!events_.empty() && events_.back().kind == kind)
    events_.back().text += text;
  else
    events_.push_back({kind, 0, std::move(text), {}, {}});
}

void ChannelReader::read(bool last) {
  for (bool more = true; more && !held_.empty();) {
    switch (mode_) {
      case Mode::start:
        more = read_start(last);
        break;
      case Mode::header:
        more = read_header(last);
        break;
      case Mode::body:
        more = read_body(last);
        break;
      case Mode::call:
        more = read_call(last);
        break;
      case Mode::between:
        more = read_between(last);
        break;
    }
  }
}

/// The prompt ends within a header, so a recipient or a channel may come. Anything else is an
/// answer without channels.
bool ChannelReader::read_start(bool last) {
  const std::size_t spaces = held_.find_first_not_of(' ');
  const std::string_view text = std::string_view(held_).substr(std::min(spaces, held_.size()));
  bool partly = text.empty() && held_.size() <= kMostSpaces;
  for (const std::string_view mark : {kChannel, kMessage, kStart, kRecipient}) {
    const TextMatch matched = match_text(text, mark);
    if (matched == TextMatch::yes) {
      mode_ = Mode::header;
      header_.clear();
      return true;
    }
    partly = partly || matched == TextMatch::partly;
  }
  if (partly && !last) return false;
  fresh_ = true;
  mode_ = Mode::body;
  kind_ = Kind::content;
  return true;
}

bool ChannelReader::read_header(bool last) {
  const std::size_t end = held_.find(kMessage);
  // arguments right behind the name: of an answer that is held to a call
  const std::size_t brace = std::string_view(held_).substr(0, end).find('{');
  if (brace <= kLongestHeader) {
    header_ = held_.substr(0, brace);
    held_.erase(0, brace);
    open_message();
    return true;
  }
  if (end <= kLongestHeader) {
    header_ = held_.substr(0, end);
    held_.erase(0, end + kMessage.size());
    open_message();
    return true;
  }
  if (held_.size() < kLongestHeader + kMessage.size()) {
    if (last) held_.clear();  // of a message that never came
    return false;
  }
  held_.erase(0, kLongestHeader);  // no header, and none of anything else
  mode_ = Mode::body;
  kind_ = Kind::reasoning;
  fresh_ = true;
  return true;
}

void ChannelReader::open_message() {
  const std::string_view channel = word_behind(header_, kChannel);
  std::string_view recipient = word_behind(header_, kRecipient);
  fresh_ = true;
  mode_ = Mode::body;
  kind_ = channel == "analysis" ? Kind::reasoning : Kind::content;
  if (recipient.empty() || recipient == "user" || recipient == "all") return;
  kind_ = Kind::reasoning;
  if (!recipient.starts_with(kFunctions)) return;
  recipient.remove_prefix(kFunctions.size());
  if (std::find(names_.begin(), names_.end(), recipient) == names_.end()) return;
  name_ = recipient;
  mode_ = Mode::call;
  scanner_ = {};
  at_ = sent_ = 0;
  begun_ = false;
}

std::size_t ChannelReader::end_of_message(std::size_t& mark_bytes) const {
  std::size_t first = std::string::npos;
  for (const std::string_view mark : kMessageEnds) {
    const std::size_t at = held_.find(mark);
    if (at >= first) continue;
    first = at;
    mark_bytes = mark == kStart || mark == kChannel ? 0 : mark.size();
  }
  return first;
}

bool ChannelReader::read_body(bool last) {
  std::size_t mark_bytes = 0;
  const std::size_t end = end_of_message(mark_bytes);
  if (end != std::string::npos) {
    tell(held_.substr(0, end));
    held_.erase(0, end + mark_bytes);
    mode_ = Mode::between;
    return true;
  }
  std::size_t keep = 0;
  if (!last)
    for (const std::string_view mark : kMessageEnds) keep = std::max(keep, begun_mark(held_, mark));
  tell(held_.substr(0, held_.size() - keep));
  held_.erase(0, held_.size() - keep);
  return false;
}

void ChannelReader::tell_arguments() {
  if (at_ <= sent_) return;
  if (!std::exchange(begun_, true))
    events_.push_back({Kind::begun, next_, {}, short_call_id(seed_ + next_), name_});
  std::string text = held_.substr(sent_, at_ - sent_);
  sent_ = at_;
  if (!events_.empty() && events_.back().kind == Kind::arguments && events_.back().index == next_)
    events_.back().text += text;
  else
    events_.push_back({Kind::arguments, next_, std::move(text), {}, {}});
}

/// The call is none, or was not written to its end. \return that there is more to read
bool ChannelReader::break_off() {
  if (options_.early_arguments) tell_arguments();
  if (std::exchange(begun_, false)) {
    events_.push_back({Kind::broken, next_, {}, {}, {}});
    ++next_;
  }
  mode_ = Mode::body;
  kind_ = Kind::reasoning;
  fresh_ = true;
  return true;
}

bool ChannelReader::read_call(bool last) {
  if (at_ == 0) {
    held_.erase(0, std::min(held_.find_first_not_of(" \n\r\t"), held_.size()));
    if (held_.empty()) return false;
    if (held_.front() != '{') return break_off();
  }
  while (at_ < held_.size()) {
    if (at_ >= options_.longest_call || scanner_.push(held_[at_]) == JsonScanner::Place::bad)
      return break_off();
    ++at_;
    if (scanner_.place() != JsonScanner::Place::done) continue;
    if (!object_text(std::string_view(held_).substr(0, at_))) return break_off();
    tell_arguments();
    events_.push_back({Kind::ended, next_, {}, {}, {}});
    ++next_;
    ++calls_;
    held_.erase(0, at_);
    mode_ = Mode::between;
    return true;
  }
  if (last) return break_off();
  if (options_.early_arguments) tell_arguments();
  return false;
}

/// Behind a message a header comes, or the end. What else stands there is nothing.
bool ChannelReader::read_between(bool last) {
  std::size_t first = std::string::npos;
  for (const std::string_view mark : {kStart, kChannel}) first = std::min(first, held_.find(mark));
  if (first != std::string::npos) {
    held_.erase(0, first);
    mode_ = Mode::header;
    return true;
  }
  std::size_t keep = 0;
  if (!last)
    for (const std::string_view mark : {kStart, kChannel})
      keep = std::max(keep, begun_mark(held_, mark));
  held_.erase(0, held_.size() - keep);
  return false;
}

}  // namespace episodic::text
