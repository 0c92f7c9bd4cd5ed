// SPDX-License-Identifier: Apache-2.0
// Calls in an answer that comes in pieces. Everything is decided byte by byte on the text as a
// whole, so the places where it is cut change nothing.
#include <algorithm>
#include <array>
#include <utility>

#include "answer_text.hpp"
#include "base/unique_id.hpp"
#include "channel_reader.hpp"
#include "episodic/text/tool_calls.hpp"
#include "json_scanner.hpp"
#include "thought_reader.hpp"
#include "tool_call_format.hpp"

namespace episodic {
namespace {

using Place = text::JsonScanner::Place;
using Kind = ToolCallEvent::Kind;
using Match = text::TextMatch;
using text::in_call_name;
using text::json_space;
using text::kLongestWord;
using text::kMostSpaces;
using text::match_text;

/// The last of what a form writes behind a call, where that is a mark of its own.
std::string_view last_mark_of(const text::ToolCallForm& form) {
  const std::string_view tail = form.end.empty() ? form.call_end : form.end;
  std::string_view mark = tail.ends_with(']') ? tail.substr(tail.size() - 1) : std::string_view();
  for (const std::string_view close : form.closes)
    if (!close.empty() && tail.ends_with(close)) mark = close;
  return mark;
}

}  // namespace

struct ToolCallParser::Impl {
  /// What the text at `at` is a part of.
  enum class Mode : std::uint8_t {
    text,    ///< until a call begins
    call,    ///< what may be a call
    behind,  ///< a call has just ended
  };
  /// What comes next in what may be a call.
  enum class Step : std::uint8_t {
    value,
    element,
    object,
    name,
    id,
    after_name,
    arguments,
    written  ///< in a notation that is not JSON
  };
  enum class Field : std::uint8_t { none, name, arguments, id, type };

  std::shared_ptr<const ToolCallFormat::Impl> format;  // holds the form
  const text::ToolCallForm* form;
  std::optional<text::ThoughtReader> thoughts;    // what the model thinks stands first
  std::unique_ptr<text::ChannelReader> channels;  // which then reads all
  std::vector<Tool> tools;
  ToolCallOptions options;
  std::uint64_t seed = 0;

  Mode mode = Mode::text;
  std::string held;  // what no event has told of
  std::vector<ToolCallEvent> events;
  std::size_t calls = 0;       // that ended
  std::size_t next = 0;        // index of the next one
  bool fresh = true;           // nothing but white space so far: a bare call may begin
  bool in_list = false;        // the call that ended is an element of a list
  bool over = false;           // first_call_over
  std::string_view last_mark;  // what the form writes last behind a call; empty: nothing

  // Of what may be a call: it begins with held.
  Step step = Step::value;
  std::size_t at = 0;  // read so far
  bool list = false, begun = false;
  text::JsonScanner scanner;
  std::size_t key_begin = 0, value_begin = 0, arguments_sent = 0;
  std::size_t after = 0;  // index of after_name
  Field field = Field::none;
  std::array<bool, 5> seen{};
  std::string name;
  std::optional<std::pair<std::size_t, std::size_t>> arguments;  // of an object, within held
  bool arguments_end = false;
  std::size_t written_begin = 0, searched = 0;  // of calls in a notation of their own
  std::optional<std::string> decoded;           // arguments that were a text

  std::string_view rest() const { return std::string_view(held).substr(at); }

  // Events.

  void add(Kind kind, std::string text) {
    if (text.empty()) return;
    const std::size_t index = kind == Kind::content || kind == Kind::reasoning ? 0 : next;
    if (!events.empty() && events.back().kind == kind && events.back().index == index)
      events.back().text += text;
    else
      events.push_back({kind, index, std::move(text), {}, {}});
  }

  /// The first bytes of what is held are content.
  void give(std::size_t bytes) {
    add(Kind::content, held.substr(0, bytes));
    held.erase(0, bytes);
  }

  void begin_event() {
    begun = true;
    events.push_back({Kind::begun, next, {}, text::short_call_id(seed + next), name});
  }

  // What may be a call.

  void try_call(std::size_t where, Step first) {
    mode = Mode::call;
    step = first;
    at = where;
    list = first == Step::element;
    written_begin = searched = 0;
    begun = false;
    scanner = {};
    arguments_sent = after = 0;
    field = Field::none;
    seen = {};
    name.clear();
    arguments.reset();
    arguments_end = false;
    decoded.reset();
  }

  /// It is none. What was read of it is content, and is not looked at again: a text takes time in
  /// proportion to its length, whatever it is.
  bool give_up() {
    tell_early();  // as much of it as if it had come in pieces
    if (begun) {
      events.push_back({Kind::broken, next, {}, {}, {}});
      ++next;
    }
    give(std::max<std::size_t>(at, 1));
    mode = Mode::text;
    fresh = in_list = false;
    return true;
  }

  bool known(std::string_view text) const {
    return std::any_of(tools.begin(), tools.end(),
                       [&](const Tool& tool) { return tool.name == text; });
  }

  /// \return whether to go on: false if more text is wanted
  bool complete() {
    std::string text = "{}";
    if (decoded) {
      text = *decoded;
    } else if (arguments) {
      const auto valid = text::object_text(
          std::string_view(held).substr(arguments->first, arguments->second - arguments->first));
      if (!valid) return give_up();
      text = *valid;
    }
    if (!begun) begin_event();
    add(Kind::arguments, text.substr(std::min(arguments_sent, text.size())));
    events.push_back({Kind::ended, next, {}, {}, {}});
    ++next;
    ++calls;
    held.erase(0, at);
    mode = Mode::behind;
    in_list = list;
    fresh = false;
    over = over || last_mark.empty();
    return true;
  }

  /// Arguments so far, where they are to be told before they are whole.
  void tell_early() {
    if (!options.early_arguments || name.empty() || !arguments) return;
    if (!begun) begin_event();
    const std::size_t end = arguments_end ? arguments->second : at;
    const std::size_t from = arguments->first + arguments_sent;
    if (end <= from) return;
    add(Kind::arguments, held.substr(from, end - from));
    arguments_sent = end - arguments->first;
  }

  static Field field_of(std::string_view key) {
    constexpr std::pair<std::string_view, Field> kFields[] = {{"name", Field::name},
                                                              {"function", Field::name},
                                                              {"tool_name", Field::name},
                                                              {"arguments", Field::arguments},
                                                              {"parameters", Field::arguments},
                                                              {"id", Field::id},
                                                              {"call_id", Field::id},
                                                              {"tool_call_id", Field::id},
                                                              {"type", Field::type}};
    for (const auto& [text, known_field] : kFields)
      if (key == text) return known_field;
    return Field::none;
  }

  /// A member's value begins with this byte. \return whether it can
  bool begins(char c) {
    value_begin = at;
    switch (field) {
      case Field::name:
      case Field::type:
        return c == '"';
      case Field::arguments:
        if (c == '{') arguments = {at, at};
        return c == '{' || c == '"' || c == 'n';
      case Field::id:
        return c != '{' && c != '[';
      case Field::none:
        break;
    }
    return false;
  }

  /// A member's value has ended before `at`. \return whether it is one of a call
  bool ends() {
    const std::string_view value = std::string_view(held).substr(value_begin, at - value_begin);
    if (field == Field::name) {
      const std::string_view found = value.substr(1, value.size() - 2);
      if (known(found)) name = found;
      return known(found);
    }
    if (field == Field::type) return value == "\"function\"";
    if (field != Field::arguments || value == "null") return true;
    if (value.front() == '"') {
      decoded = text::object_in_text(value);
      return decoded.has_value();
    }
    arguments->second = at;
    arguments_end = true;
    return value.front() == '{';  // and not true or false
  }

  /// {"name": ..., "arguments": {...}}
  bool read_object() {
    while (at < held.size()) {
      if (at >= options.longest_call) return give_up();
      const char c = held[at];
      const Place before = scanner.place();
      const std::size_t depth = scanner.depth();
      const Place now = scanner.push(c);
      if (now == Place::bad) return give_up();
      const bool outer = depth == 1;
      if (outer && c == '"' && (before == Place::key || before == Place::key_or_end))
        key_begin = at + 1;
      const bool begin = outer && before == Place::value && !json_space(c);
      if (begin && !begins(c)) return give_up();
      ++at;
      if (outer && before == Place::in_key && now == Place::colon) {
        field = field_of(std::string_view(held).substr(key_begin, at - 1 - key_begin));
        if (field == Field::none || std::exchange(seen[static_cast<std::size_t>(field)], true))
          return give_up();
      }
      const bool scalar = before == Place::in_string || before == Place::literal;
      if (now == Place::separator && scanner.depth() == 1 && (depth == 2 || (outer && scalar)) &&
          !ends())
        return give_up();
      if (now == Place::done) return name.empty() ? give_up() : complete();
    }
    tell_early();
    return false;
  }

  /// The arguments of a call whose name stands before them.
  bool read_arguments() {
    while (at < held.size()) {
      if (at >= options.longest_call) return give_up();
      if (scanner.push(held[at]) == Place::bad) return give_up();
      ++at;
      if (scanner.place() == Place::done) {
        arguments->second = at;
        arguments_end = true;
        return complete();
      }
    }
    tell_early();
    return false;
  }

  /// Reads on over white space. \return whether anything else follows
  bool skip_spaces() {
    while (at < held.size() && json_space(held[at]) && at < options.longest_call) ++at;
    return at < held.size();
  }

  /// Reads a text that may stand here. \return false if more text is wanted
  bool skip(std::string_view part, bool last) {
    const Match matched = match_text(rest(), part);
    if (matched == Match::yes) at += part.size();
    return matched != Match::partly || last;
  }

  /// The letters, digits, _ and - from here; nothing where more of them may follow.
  std::optional<std::string_view> word() {
    std::size_t end = at;
    while (end < held.size() && in_call_name(held[end]) && end - at <= kLongestWord) ++end;
    if (end == held.size()) return std::nullopt;
    return std::string_view(held).substr(at, end - at);
  }

  bool read_call(bool last) {
    if (read_parts(last)) return true;
    if (!last) return false;
    if (step == Step::name || step == Step::id) at = held.size();
    return give_up();  // it will never be whole
  }

  bool read_parts(bool last) {
    for (;;) {
      if (step == Step::object) return read_object();
      if (step == Step::arguments && arguments) return read_arguments();
      if (step == Step::written) return read_written(last);
      if (!skip_spaces()) return false;
      switch (step) {
        case Step::value:
          if (const auto json = begins_json(last); !json) {
            return false;
          } else if (!*json) {
            step = Step::written;
            written_begin = searched = at;
          } else if (held[at] == '[') {
            ++at;
            list = true;
            step = Step::element;
          } else if (form->named && held[at] != '{') {
            if (!skip(form->before_name, last)) return false;
            step = Step::name;
          } else {
            step = Step::element;
          }
          break;
        case Step::element:
          if (held[at] != '{') return give_up();
          step = Step::object;
          break;
        case Step::name: {
          const auto found = word();
          if (!found) return false;
          if (!known(*found)) return give_up();
          name = *found;
          at += found->size();
          step = Step::id;
          break;
        }
        case Step::id: {
          const Match matched = match_text(rest(), form->id_mark);
          if (matched == Match::partly && !last) return false;
          if (matched == Match::yes) {
            const std::size_t begin = at;
            at += form->id_mark.size();
            const auto found = word();
            if (!found) {
              at = begin;
              return false;
            }
            at += found->size();
          }
          step = Step::after_name;
          break;
        }
        case Step::after_name:
          if (after == form->after_name.size()) {
            step = Step::arguments;
          } else {
            if (!skip(form->after_name[after], last)) return false;
            ++after;
          }
          break;
        case Step::arguments:
          if (held[at] != '{') return give_up();
          arguments = {at, at};
          break;
        case Step::object:
        case Step::written:
          break;
      }
    }
  }

  /// Whether what stands here is JSON, where there is a choice; nothing where more text is wanted.
  std::optional<bool> begins_json(bool last) const {
    if (form->notation == text::CallNotation::json) return true;
    if (form->notation == text::CallNotation::keyed) return false;
    if (held[at] != '[') return held[at] == '{';
    const std::size_t behind = leading_spaces(at + 1);
    if (behind == held.size() && !last) return std::nullopt;
    return behind < held.size() && held[behind] == '{';
  }

  /// Calls in a notation of their own: all of them once their closing text has come.
  bool read_written(bool last) {
    const std::string_view close = form->closes[0];
    const auto written = [&](std::size_t end) {
      return std::string_view(held).substr(written_begin, end - written_begin);
    };
    std::size_t end = held.find(close, searched);
    while (end != std::string::npos && !text::ends_calls(form->notation, written(end)))
      end = held.find(close, end + 1);
    searched = end != std::string::npos
                   ? end
                   : std::max(searched, held.size() - text::begun_mark(held, close));
    at = std::min(searched, options.longest_call);
    if (searched > options.longest_call) return give_up();
    if (end == std::string::npos) {
      if (!last) return false;
      at = end = held.size();
    }
    const auto found = text::read_calls(form->notation, written(end), tools);
    if (!found) return give_up();
    for (const text::WrittenCall& call : *found) {
      name = call.name;
      begin_event();
      add(Kind::arguments, call.arguments);
      events.push_back({Kind::ended, next, {}, {}, {}});
      ++next;
      ++calls;
    }
    held.erase(0, at);
    mode = Mode::behind;
    in_list = list = fresh = false;
    over = over || last_mark.empty();
    return true;
  }

  // The text around calls.

  std::size_t leading_spaces(std::size_t from = 0) const {
    std::size_t n = from;
    while (n < held.size() && json_space(held[n])) ++n;
    return n;
  }

  bool read_text(bool last) {
    if (fresh) {
      const std::size_t spaces = leading_spaces();
      if (spaces == held.size() && !last && spaces <= kMostSpaces) return false;
      const bool bare = form->bare && spaces <= kMostSpaces && spaces < held.size() &&
                        (held[spaces] == '{' || held[spaces] == '[');
      if (bare) {
        try_call(spaces, Step::value);
        return true;
      }
      fresh = false;
    }
    std::size_t content = 0;  // up to here, and white space behind it
    for (std::size_t p = 0; p < held.size(); ++p) {
      if (json_space(held[p])) {
        if (p - content >= kMostSpaces) ++content;
        continue;
      }
      for (const std::string_view open : form->opens) {
        const Match matched = match_text(std::string_view(held).substr(p), open);
        if (matched == Match::no || (matched == Match::partly && last)) continue;
        give(content);
        if (matched == Match::partly) return false;
        try_call(p - content + open.size(), Step::value);
        return true;
      }
      content = p + 1;
    }
    give(last ? held.size() : content);
    return false;
  }

  bool read_behind(bool last) {
    const std::size_t spaces = leading_spaces();
    if (spaces == held.size() && spaces <= kMostSpaces) {
      if (last) held.clear();
      return false;
    }
    mode = Mode::text;
    over = over || spaces > kMostSpaces;
    if (spaces > kMostSpaces) return true;
    const std::string_view text = std::string_view(held).substr(spaces);
    for (const std::string_view close : form->closes) {
      const Match matched = match_text(text, close);
      if (matched == Match::no || (matched == Match::partly && last)) continue;
      mode = Mode::behind;
      over = over || (matched == Match::yes && close == last_mark);
      if (matched == Match::yes) held.erase(0, spaces + close.size());
      return matched == Match::yes;
    }
    if (in_list && text.front() == ']') {
      held.erase(0, spaces + 1);
      in_list = false;
      mode = Mode::behind;
      over = over || last_mark == "]";
      return true;
    }
    over = true;
    const bool between =
        text.front() == ',' ? in_list || form->bare : text.front() == ';' && form->bare;
    if (between || (form->bare && text.front() == '{')) {
      const std::size_t begin = leading_spaces(spaces + (between ? 1 : 0));
      if (begin == held.size() && !last && begin <= kMostSpaces) {
        mode = Mode::behind;
        return false;
      }
      if (begin < held.size() && begin <= kMostSpaces && held[begin] == '{') {
        const bool element = in_list;
        try_call(begin, Step::element);
        list = element;
      }
    }
    return true;
  }

  void take(std::string_view piece, bool last) {
    text::PartedText parted = thoughts->push(piece, last);
    add(options.part_reasoning ? Kind::reasoning : Kind::content, std::move(parted.thought));
    held += parted.answer;
    if (tools.empty()) give(held.size());
    read(last);
  }

  void read(bool last) {
    for (bool more = true; more && !held.empty();) {
      switch (mode) {
        case Mode::text:
          more = read_text(last);
          break;
        case Mode::call:
          more = read_call(last);
          break;
        case Mode::behind:
          more = read_behind(last);
          break;
      }
    }
  }
};

ToolCallParser::ToolCallParser(const ToolCallFormat& format, std::span<const Tool> tools,
                               const ToolCallOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->format = format.impl_;
  impl_->form = format.impl_->form;
  impl_->tools.assign(tools.begin(), tools.end());
  impl_->options = options;
  impl_->seed = options.id_seed ? *options.id_seed : detail::unique_id();
  impl_->thoughts.emplace(format.impl_->marks(), options.thinking, !options.part_reasoning);
  impl_->last_mark = last_mark_of(*impl_->form);
  if (!impl_->form->channels) return;
  std::vector<std::string> names;
  for (const Tool& tool : tools) names.push_back(tool.name);
  impl_->channels = std::make_unique<text::ChannelReader>(std::move(names), options, impl_->seed);
}

ToolCallParser::ToolCallParser(ToolCallParser&&) noexcept = default;
ToolCallParser& ToolCallParser::operator=(ToolCallParser&&) noexcept = default;
ToolCallParser::~ToolCallParser() = default;

std::vector<ToolCallEvent> ToolCallParser::push(std::string_view piece) {
  if (impl_->channels) return impl_->channels->push(piece);
  impl_->take(piece, false);
  return std::exchange(impl_->events, {});
}

std::vector<ToolCallEvent> ToolCallParser::finish() {
  if (impl_->channels) return impl_->channels->finish();
  impl_->take({}, true);
  impl_->give(impl_->held.size());
  impl_->thoughts.emplace(impl_->format->marks(), false, !impl_->options.part_reasoning);
  impl_->mode = Impl::Mode::text;
  impl_->fresh = true;
  impl_->in_list = false;
  return std::exchange(impl_->events, {});
}

std::size_t ToolCallParser::calls() const {
  return impl_->channels ? impl_->channels->calls() : impl_->calls;
}
bool ToolCallParser::first_call_over() const {
  return impl_->channels ? impl_->channels->calls() > 0 : impl_->over;
}

}  // namespace episodic
