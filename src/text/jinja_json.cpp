// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jinja_unicode.hpp"
#include "jinja_value.hpp"
#include "utf8.hpp"

namespace episodic::text::jinja {
namespace {

class JsonPrinter {
 public:
  JsonPrinter(Budget& budget, const JsonStyle& style)
      : budget_(budget), style_(style), out_(budget) {}

  Value run(const Value& v) {
    print(v, 0);
    return out_.finish();
  }

 private:
  void string(const Str& s) {
    budget_.step(s.bytes.size() / 8);
    out_.add("\"");
    MarkCursor marks(s);
    std::size_t done = 0;
    for (std::size_t at = 0; at < s.bytes.size();) {
      const Character c = character_at(s.bytes, at);
      std::string instead;
      if (c.code == '"' || c.code == '\\')
        instead = {'\\', static_cast<char>(c.code)};
      else if (c.code < 0x20)
        instead = control(c.code);
      else if (style_.ascii && c.code >= 0x7f && c.code != kNoCharacter)
        instead = escaped(c.code);
      if (!instead.empty()) {
        out_.add(s, done, at);
        out_.add(instead, marks.at(at));
        done = at + c.size;
      }
      at += c.size;
    }
    out_.add(s, done, s.bytes.size());
    out_.add("\"");
  }

  static std::string control(std::uint32_t c) {
    switch (c) {
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\f':
        return "\\f";
      case '\b':
        return "\\b";
      default:
        return fmt::format("\\u{:04x}", c);
    }
  }
  static std::string escaped(std::uint32_t c) {
    if (c < 0x10000) return fmt::format("\\u{:04x}", c);
    c -= 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 | c >> 10, 0xdc00 | (c & 0x3ff));
  }

  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return float_text(d);
  }

  void new_line(int depth) {
    if (!style_.lines) return;
    out_.add("\n");
    for (int i = 0; i < depth; ++i) out_.add(style_.indent);
  }

  /// What stands between members: with lines of their own, no space behind the comma.
  void between(bool first, int depth) {
    if (!first) out_.add(style_.between);
    new_line(depth);
  }

  void key(const Value& k) {
    Integer i = 0;
    if (k.string())
      string(*k.string());
    else if (k.none())
      out_.add("\"null\"");
    else if (k.boolean())
      out_.add(k.truth() ? "\"true\"" : "\"false\"");
    else if (k.whole(&i))
      out_.add('"' + integer_text(i) + '"');
    else if (k.real())
      out_.add('"' + number(*k.real()) + '"');
    else
      fail(fmt::format("tojson: {} cannot be a key", k.kind()));
  }

  void dict(const Dict& d, int depth) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : d.items) items.push_back(&item);
    const Charge charge(budget_, items.size() * sizeof(void*));
    if (style_.sorted)
      std::stable_sort(items.begin(), items.end(), [&](const auto* a, const auto* b) {
        return compare(budget_, a->first, b->first) == -1;
      });
    out_.add("{");
    bool first = true;
    for (const auto* item : items) {
      between(first, depth + 1);
      key(item->first);
      out_.add(style_.behind_key);
      print(item->second, depth + 1);
      first = false;
    }
    if (!first) new_line(depth);
    out_.add("}");
  }

  void print(const Value& v, int depth) {
    budget_.step();
    too_deep(depth);
    Integer i = 0;
    if (v.none())
      out_.add("null");
    else if (v.boolean())
      out_.add(v.truth() ? "true" : "false");
    else if (v.whole(&i))
      out_.add(integer_text(i));
    else if (v.real())
      out_.add(number(*v.real()));
    else if (v.string())
      string(*v.string());
    else if (v.dict())
      dict(*v.dict(), depth);
    else if (v.sequence() && v.sequence()->plain()) {
      out_.add("[");
      bool first = true;
      for (const Value& item : v.sequence()->items) {
        between(first, depth + 1);
        print(item, depth + 1);
        first = false;
      }
      if (!first) new_line(depth);
      out_.add("]");
    } else {
      fail(fmt::format("tojson: {} has no JSON", v.kind()));
    }
  }

  Budget& budget_;
  const JsonStyle& style_;
  Builder out_;
};

}  // namespace

Value to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  return JsonPrinter(budget, style).run(value);
}

}  // namespace episodic::text::jinja
