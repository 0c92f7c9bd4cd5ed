// SPDX-License-Identifier: Apache-2.0
#include "jinja_value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "jinja_unicode.hpp"
#include "utf8.hpp"

namespace episodic::text::jinja {

void fail(const std::string& what) { throw DataError(what); }

void Budget::spent() { fail("the template takes too long; it may have no end"); }
void Budget::full() { fail("what the template makes grows too long"); }

// -- values -------------------------------------------------------------------------------------

bool Value::whole(Integer* out) const {
  if (const bool* b = std::get_if<bool>(&data_)) return *out = *b ? 1 : 0, true;
  if (const Integer* i = integer()) return *out = *i, true;
  return false;
}

bool Value::number(double* out) const {
  Integer i = 0;
  if (whole(&i)) return *out = static_cast<double>(i), true;
  if (const double* d = real()) return *out = *d, true;
  return false;
}

bool Value::truth() const {
  double as_number = 0;
  if (number(&as_number)) return as_number != 0;
  if (undefined() || none()) return false;
  if (const Str* s = string()) return !s->bytes.empty();
  if (const Sequence* s = sequence()) return !s->items.empty();
  if (const Dict* d = dict()) return !d->items.empty();
  return true;
}

const char* Value::kind() const {
  if (undefined()) return "something undefined";
  if (none()) return "none";
  if (boolean()) return "a boolean";
  if (integer()) return "an integer";
  if (real()) return "a float";
  if (string()) return "a string";
  if (dict()) return "a mapping";
  if (space()) return "a namespace";
  if (function()) return function()->macro ? "a macro" : "a function";
  if (generator()) return "a generator";
  if (loop()) return "a loop";
  switch (sequence()->kind) {
    case Sequence::Kind::list:
      return "a list";
    case Sequence::Kind::range:
      return "a range";
    case Sequence::Kind::tuple:
    case Sequence::Kind::group:
      return "a tuple";
    default:
      return "a mapping's view";
  }
}

int Value::depth() const {
  if (const Sequence* s = sequence()) return s->depth;
  if (const Dict* d = dict()) return d->depth;
  if (const Generator* g = generator()) return g->depth;
  if (const Loop* l = loop()) return l->items->depth + 1;
  if (const Function* f = function()) return f->depth;
  return 0;  // a namespace is kept by the renderer, which takes it apart by itself
}

bool Value::same(const Value& o) const {
  if (data_.index() != o.data_.index()) return false;
  return std::visit(
      [&](const auto& a) {
        using T = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<T, Undefined>)
          return a.name == std::get<T>(o.data_).name;
        else if constexpr (std::is_same_v<T, None>)
          return true;
        else
          return a == std::get<T>(o.data_);
      },
      data_);
}

const Value* Dict::find(Budget& budget, const Value& key) const {
  budget.step();
  if (const Str* s = key.string()) {
    budget.pass(s->bytes.size());
    return find(s->bytes);
  }
  if (names.size() == items.size()) return nullptr;
  for (const auto& [k, v] : items)
    if (!k.string() && equal(budget, k, key)) return &v;
  return nullptr;
}

void Namespace::set(const std::string& name, Value value) {
  const auto [at, fresh] = names.try_emplace(name, items.size());
  if (fresh) {
    charge.grow(2 * name.size() + 2 * sizeof(Value) + 128);
    items.emplace_back(name, std::move(value));
  } else {
    items[at->second].second = std::move(value);
  }
}

bool Generator::take(Value* out) {
  if (next < items.size()) return *out = items[next++], true;
  if (!error.empty()) fail(error);
  return false;
}

// -- making values ------------------------------------------------------------------------------

namespace {

Charge charge_of(Budget& budget, const Str& s) {
  return {budget, sizeof(Str) + 32 + s.bytes.capacity() + s.input.capacity() * sizeof(TextSpan)};
}

}  // namespace

void too_deep(int depth) {
  if (depth > kDeepest) fail("a value is nested too deep");
}

Value text_value(Budget& budget, std::string_view text, bool input) {
  budget.pass(text.size());
  auto s = std::make_shared<Str>();
  s->charge = Charge(budget, sizeof(Str) + 32 + text.size());
  s->bytes = text;
  s->length = count_characters(text);
  if (input && !text.empty()) s->input.push_back({0, text.size()});
  return StrPtr(std::move(s));
}

Value literal_text(std::string text) {
  auto s = std::make_shared<Str>();
  s->length = count_characters(text);
  s->bytes = std::move(text);
  return StrPtr(std::move(s));
}

Value list_value(Budget& budget, List items, Sequence::Kind kind) {
  budget.step(1 + items.size() / 4);
  auto s = std::make_shared<Sequence>();
  s->charge = Charge(budget, sizeof(Sequence) + 32 + items.capacity() * sizeof(Value));
  s->kind = kind;
  for (const Value& v : items) s->depth = std::max(s->depth, v.depth() + 1);
  too_deep(s->depth);
  s->items = std::move(items);
  return std::shared_ptr<const Sequence>(std::move(s));
}

Value undefined_value(std::string_view name) {
  return Undefined{std::make_shared<const std::string>(name)};
}

DictMaker::DictMaker(Budget& budget) : budget_(budget), dict_(std::make_shared<Dict>()) {
  budget.step();
  dict_->charge = Charge(budget, sizeof(Dict) + 32);
}

void DictMaker::set(const Value& key, Value value) {
  budget_.step();
  Dict& d = *dict_;
  if (key.dict() ||
      (key.sequence() && !key.sequence()->tuple() && key.sequence()->kind != Sequence::Kind::range))
    fail(fmt::format("{} cannot be the key of a mapping", key.kind()));
  if (key.number() || key.none() || key.string() || key.undefined() || key.sequence()) {
    double number = 0;
    if (key.number(&number) && std::isnan(number))
      fail("nan as the key of a mapping is not supported");
  }
  d.depth = std::max({d.depth, value.depth() + 1, key.depth() + 1});
  too_deep(d.depth);
  if (const Value* found = d.find(budget_, key)) {
    const_cast<Value&>(*found) = std::move(value);
    return;
  }
  d.charge.grow(4 * sizeof(Value) + 64);
  d.items.emplace_back(key, std::move(value));
  if (const Str* s = d.items.back().first.string()) d.names.emplace(s->bytes, d.items.size() - 1);
}

Value DictMaker::finish() { return std::shared_ptr<const Dict>(std::move(dict_)); }

Value from_json(Budget& budget, const nlohmann::ordered_json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned()) return static_cast<Integer>(json.get<std::uint64_t>());
  if (json.is_number_integer()) return static_cast<Integer>(json.get<std::int64_t>());
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return text_value(budget, json.get_ref<const std::string&>(), true);
  if (json.is_array()) {
    List list;
    list.reserve(json.size());
    for (const auto& item : json) list.push_back(from_json(budget, item));
    return list_value(budget, std::move(list));
  }
  DictMaker dict(budget);
  for (const auto& [key, value] : json.items())
    dict.set(text_value(budget, key, true), from_json(budget, value));
  return dict.finish();
}

// -- building texts -----------------------------------------------------------------------------

void Builder::room(std::size_t bytes) {
  budget_->pass(bytes);
  const std::size_t need = bytes_.size() + bytes;
  if (need <= bytes_.capacity() && need <= charge_.bytes()) return;
  const std::size_t next = std::max(need, bytes_.capacity() * 2);
  if (next > charge_.bytes()) charge_.grow(next - charge_.bytes());
  bytes_.reserve(next);
}

void Builder::mark(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  if (!input_.empty() && input_.back().end == begin) {
    input_.back().end = end;
    return;
  }
  charge_.grow(2 * sizeof(TextSpan));
  input_.push_back({begin, end});
}

void Builder::add(std::string_view text, bool input) {
  room(text.size());
  if (input) mark(bytes_.size(), bytes_.size() + text.size());
  bytes_ += text;
}

void Builder::add(const Str& s, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  const std::size_t at = bytes_.size();
  room(end - begin);
  bytes_.append(s.bytes, begin, end - begin);
  auto span = std::upper_bound(s.input.begin(), s.input.end(), begin,
                               [](std::size_t b, const TextSpan& t) { return b < t.end; });
  for (; span != s.input.end() && span->begin < end; ++span) {
    budget_->step();
    mark(at + std::max(span->begin, begin) - begin, at + std::min(span->end, end) - begin);
  }
}

Value Builder::finish(bool markup) {
  auto s = std::make_shared<Str>();
  s->length = count_characters(bytes_);
  budget_->pass(bytes_.size());
  s->bytes = std::move(bytes_);
  s->input = std::move(input_);
  s->markup = markup;
  charge_ = Charge();
  s->charge = charge_of(*budget_, *s);
  bytes_.clear();
  input_.clear();
  return StrPtr(std::move(s));
}

StrPtr str_of(Budget& budget, const Value& value) {
  if (value.string()) return value.shared_string();
  Builder out(budget);
  out.print(value);
  return out.finish().shared_string();
}

std::string shown(const Value& value) {
  if (const Str* s = value.string()) return fmt::format("'{}'", printable(s->bytes, 60));
  Integer i = 0;
  if (value.integer() && value.whole(&i)) return integer_text(i);
  return value.kind();
}

// -- printing -----------------------------------------------------------------------------------

std::string integer_text(Integer i) {
  const bool minus = i < 0;
  __extension__ unsigned __int128 rest =
      minus ? -static_cast<unsigned __int128>(i) : static_cast<unsigned __int128>(i);
  std::string out;
  do {
    out += static_cast<char>('0' + static_cast<int>(rest % 10));
    rest /= 10;
  } while (rest != 0);
  if (minus) out += '-';
  std::reverse(out.begin(), out.end());
  return out;
}

std::string float_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::abs(d),
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t e = text.find('e');
  int exponent = 0;
  const char* digits_of = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of, end, exponent);
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  const std::string sign = std::signbit(d) ? "-" : "";
  if (d != 0 && (exponent < -4 || exponent >= 16)) {
    std::string out = sign + digits[0];
    if (digits.size() > 1) out += '.' + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + '.' + digits.substr(whole);
}

void Builder::print(const Value& value) {
  if (const Str* s = value.string())
    add(*s);
  else if (!value.undefined())
    repr(value);
}

namespace {

void quoted(Builder& out, Budget& budget, const Str& s) {
  const bool single = s.bytes.find('\'') != std::string::npos;
  const char quote = single && s.bytes.find('"') == std::string::npos ? '"' : '\'';
  budget.step(s.bytes.size() / 8);
  out.add({&quote, 1});
  MarkCursor marks(s);
  std::size_t done = 0;
  for (std::size_t at = 0; at < s.bytes.size();) {
    const Character c = character_at(s.bytes, at);
    std::string instead;
    if (c.code == static_cast<unsigned char>(quote) || c.code == '\\')
      instead = {'\\', static_cast<char>(c.code)};
    else if (c.code == '\n')
      instead = "\\n";
    else if (c.code == '\t')
      instead = "\\t";
    else if (c.code == '\r')
      instead = "\\r";
    else if (c.code != kNoCharacter && !is_printable(c.code))
      instead = c.code < 0x100     ? fmt::format("\\x{:02x}", c.code)
                : c.code < 0x10000 ? fmt::format("\\u{:04x}", c.code)
                                   : fmt::format("\\U{:08x}", c.code);
    if (!instead.empty()) {
      out.add(s, done, at);
      out.add(instead, marks.at(at));
      done = at + c.size;
    }
    at += c.size;
  }
  out.add(s, done, s.bytes.size());
  out.add({&quote, 1});
}

}  // namespace

void Builder::repr(const Value& v, int depth) {
  budget_->step();
  too_deep(depth);
  Integer i = 0;
  if (v.none())
    add("None");
  else if (v.undefined())
    add("Undefined");
  else if (v.boolean())
    add(v.truth() ? "True" : "False");
  else if (v.whole(&i))
    add(integer_text(i));
  else if (const double* d = v.real())
    add(float_text(*d));
  else if (const Str* text = v.string()) {
    if (text->markup) fail("'safe' and 'escape' within a printed list are not supported");
    quoted(*this, *budget_, *text);
  } else if (const Dict* dict = v.dict()) {
    bool first = true;
    for (const auto& [key, value] : dict->items) {
      add(first ? "{" : ", ");
      repr(key, depth + 1);
      add(": ");
      repr(value, depth + 1);
      first = false;
    }
    add(first ? "{}" : "}");
  } else if (const Namespace* space = v.space()) {
    bool first = true;
    add("<Namespace {");
    for (const auto& [name, value] : space->items) {
      if (!first) add(", ");
      quoted(*this, *budget_, *text_value(*budget_, name).string());
      add(": ");
      repr(value, depth + 1);
      first = false;
    }
    add("}>");
  } else if (const Loop* loop = v.loop()) {
    add(fmt::format("<LoopContext {}/{}>", loop->index0 + 1, loop->items->items.size()));
  } else if (v.function() && v.function()->macro) {
    add("<Macro ");
    quoted(*this, *budget_, *text_value(*budget_, v.function()->name).string());
    add(">");
  } else if (v.generator()) {
    fail("printing a generator is not supported; put '| list' behind it");
  } else if (v.function()) {
    fail(fmt::format("printing the function '{}' is not supported", v.function()->name));
  } else {
    const Sequence& s = *v.sequence();
    if (s.kind == Sequence::Kind::range) {
      add(fmt::format("range({}, {}{})", integer_text(s.start), integer_text(s.stop),
                      s.step == 1 ? "" : ", " + integer_text(s.step)));
      return;
    }
    const bool view = s.view(), tuple = s.tuple();
    if (view)
      add(s.kind == Sequence::Kind::keys     ? "dict_keys("
          : s.kind == Sequence::Kind::values ? "dict_values("
                                             : "dict_items(");
    add(tuple ? "(" : "[");
    bool first = true;
    for (const Value& item : s.items) {
      if (!first) add(", ");
      repr(item, depth + 1);
      first = false;
    }
    if (tuple && s.items.size() == 1) add(",");
    add(tuple ? ")" : "]");
    if (view) add(")");
  }
}

// -- comparing ----------------------------------------------------------------------------------

namespace {

/// -1, 0, 1; 2: no order.
int compare_numbers(const Value& a, const Value& b) {
  const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : x > y ? 1 : 0; };
  Integer i = 0, j = 0;
  const bool whole_a = a.whole(&i), whole_b = b.whole(&j);
  if (whole_a && whole_b) return order(i, j);
  if (!whole_a && !whole_b) {
    if (std::isnan(*a.real()) || std::isnan(*b.real())) return 2;
    return order(*a.real(), *b.real());
  }
  if (whole_b) {
    const int turned = compare_numbers(b, a);
    return turned == 2 ? 2 : -turned;
  }
  const double d = *b.real();
  if (std::isnan(d)) return 2;
  if (std::abs(d) >= 1e38) return d > 0 ? -1 : 1;
  const Integer floor = static_cast<Integer>(std::floor(d));
  if (i != floor) return order(i, floor);
  return d > std::floor(d) ? -1 : 0;
}

}  // namespace

bool equal(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.number() && b.number()) return compare_numbers(a, b) == 0;
  if (a.undefined() || b.undefined()) return a.undefined() && b.undefined();
  if (a.none() || b.none()) return a.none() && b.none();
  if (a.string() && b.string()) {
    if (a.string()->bytes.size() != b.string()->bytes.size()) return false;
    budget.pass(a.string()->bytes.size());
    return a.string()->bytes == b.string()->bytes;
  }
  if (a.same(b)) return true;
  if (a.dict() && b.dict()) {
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    for (const auto& [key, value] : a.dict()->items) {
      const Value* other = b.dict()->find(budget, key);
      if (other == nullptr || !(value.same(*other) || equal(budget, value, *other))) return false;
    }
    return true;
  }
  const Sequence *s = a.sequence(), *t = b.sequence();
  if (!s || !t) return false;
  if (s->view() && t->view()) {
    if (s->kind == Sequence::Kind::values || t->kind == Sequence::Kind::values) return false;
    fail("comparing the views of mappings is not supported");
  }
  const bool alike = s->kind == t->kind || (s->tuple() && t->tuple());
  if (!alike || s->items.size() != t->items.size()) return false;
  for (std::size_t i = 0; i < s->items.size(); ++i)
    if (!s->items[i].same(t->items[i]) && !equal(budget, s->items[i], t->items[i])) return false;
  return true;
}

int compare(Budget& budget, const Value& a, const Value& b, const char* sign) {
  budget.step();
  if (a.number() && b.number()) return compare_numbers(a, b);
  if (a.string() && b.string()) {
    budget.pass(std::min(a.string()->bytes.size(), b.string()->bytes.size()));
    return std::clamp(a.string()->bytes.compare(b.string()->bytes), -1, 1);
  }
  const Sequence *s = a.sequence(), *t = b.sequence();
  const bool ordered = s && t && s->plain() && t->plain() && s->tuple() == t->tuple();
  if (!ordered)
    fail(fmt::format("{} {} {} cannot be computed: they have no order", a.kind(), sign, b.kind()));
  for (std::size_t i = 0; i < s->items.size() && i < t->items.size(); ++i)
    if (!s->items[i].same(t->items[i]) && !equal(budget, s->items[i], t->items[i]))
      return compare(budget, s->items[i], t->items[i], sign);
  return s->items.size() < t->items.size() ? -1 : s->items.size() > t->items.size() ? 1 : 0;
}

}  // namespace episodic::text::jinja
