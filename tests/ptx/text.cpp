// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

namespace ptx {
namespace {

struct Token {
  int line;
  std::string_view text;  // a word, a quoted string with its quotes, or one character
};

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  int line = 1;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(c)) || c == '\0') {
      ++i;
    } else if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.substr(i, 2) == "/*") {
      const std::size_t end = text.find("*/", i);
      if (end == std::string_view::npos) throw TextError(line, "a comment without an end");
      line += static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(i),
                                          text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      i = end + 2;
    } else {
      std::size_t end = i + 1;
      if (c == '"') {
        while (end < text.size() && text[end] != '"') ++end;
        if (end == text.size()) throw TextError(line, "a string without an end");
        ++end;
      } else if (is_word(c)) {
        // the words of `shared::cta` are one
        for (; end < text.size(); ++end) {
          if (text.substr(end, 2) == "::")
            ++end;
          else if (!is_word(text[end]))
            break;
        }
      }
      tokens.push_back({line, text.substr(i, end - i)});
      i = end;
    }
  }
  return tokens;
}

/// An integer, or a float written as its bits (0f3F800000, 0d3FF0000000000000).
bool number(std::string_view word, std::uint64_t& bits) {
  if (word.empty() || !std::isdigit(static_cast<unsigned char>(word[0]))) return false;
  int base = 10;
  if (word.size() > 2 && word[0] == '0') {
    const char kind = static_cast<char>(std::tolower(static_cast<unsigned char>(word[1])));
    if (kind == 'x' || kind == 'f' || kind == 'd') {
      base = 16;
      word.remove_prefix(2);
    }
  }
  if (base == 10 && word.back() == 'U') word.remove_suffix(1);
  std::size_t end = 0;
  try {
    bits = std::stoull(std::string(word), &end, base);
  } catch (const std::exception&) {
    return false;
  }
  return end == word.size();
}

/// Names that a scope declares: registers, also as ranges ("%r<41>").
struct Scope {
  std::map<std::string, int, std::less<>> registers;
  struct Range {
    std::string prefix;
    int first, count;
  };
  std::vector<Range> ranges;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : tokens_(tokens_of(text)) {}

  Module read() {
    while (!at_end()) directive();
    return std::move(module_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw TextError(at_ < tokens_.size() ? tokens_[at_].line : 0, what);
  }
  bool at_end() const { return at_ == tokens_.size(); }
  std::string_view peek() const { return at_end() ? std::string_view() : tokens_[at_].text; }
  std::string_view next() {
    if (at_end()) fail("the module ends in the middle of something");
    return tokens_[at_++].text;
  }
  bool accept(std::string_view text) {
    if (peek() != text) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text))
      fail("expected '" + std::string(text) + "', found '" + std::string(peek()) + "'");
  }
  std::int64_t integer() {
    const bool negative = accept("-");
    std::uint64_t bits = 0;
    if (!number(next(), bits)) fail("expected a number");
    return static_cast<std::int64_t>(negative ? 0 - bits : bits);
  }

  // ---- the module ----
  void directive() {
    const std::string_view word = peek();
    if (word == ".version" || word == ".address_size") {
      at_ += 2;
    } else if (word == ".target") {
      next();
      module_.target = next();
    } else if (word == ".visible" || word == ".weak") {
      next();
    } else if (word == ".extern") {
      next();
      is_extern_ = true;
    } else if (word == ".entry" || word == ".func") {
      function();
    } else if (word == ".global" || word == ".const" || word == ".shared") {
      module_.variables.push_back(variable());
    } else if (word == ".file") {
      at_ += 2;
      if (!peek().empty() && peek().front() == '"') next();
    } else if (word == ".pragma") {
      at_ += 2;
      expect(";");
    } else {
      fail("'" + std::string(word) + "' is not known");
    }
  }

  /// `.shared .align 4 .b8 name[32];`, also with a value.
  Variable variable() {
    Variable v = declaration();
    if (accept("=")) value(v);
    expect(";");
    return v;
  }
  Variable declaration() {
    Variable v;
    const std::string_view space = next();
    if (space == ".global")
      v.space = Space::global;
    else if (space == ".const")
      v.space = Space::constant;
    else if (space == ".shared")
      v.space = Space::shared;
    else if (space == ".local")
      v.space = Space::local;
    else if (space == ".param")
      v.space = Space::param;
    else
      fail("the space '" + std::string(space) + "' is not known");
    v.is_extern = std::exchange(is_extern_, false);
    std::string type;
    bool aligned = false;
    while (peek().starts_with(".")) {
      const std::string_view word = next();
      if (word == ".align") {
        v.align = static_cast<std::uint64_t>(integer());
        aligned = true;
      } else if (word != ".ptr" && word != ".global") {
        type = word.substr(1);
      }
    }
    element_ = static_cast<std::uint64_t>(size_of_type(type));
    if (element_ == 0) fail("the type '" + type + "' is not known");
    if (!aligned) v.align = element_;
    v.name = next();
    v.size = element_;
    while (accept("[")) {
      if (accept("]")) {
        v.size = 0;
        continue;
      }
      v.size *= static_cast<std::uint64_t>(integer());
      expect("]");
    }
    return v;
  }
  void value(Variable& v) {
    const bool list = accept("{");
    do {
      const std::int64_t element = integer();
      const auto* bytes = reinterpret_cast<const unsigned char*>(&element);
      v.value.insert(v.value.end(), bytes, bytes + element_);
    } while (list && accept(","));
    if (list) expect("}");
    v.value.resize(v.size);
  }

  // ---- functions ----
  void function() {
    Function f;
    f.line = tokens_[at_].line;
    f.is_entry = next() == ".entry";
    if (peek() == "(") f.results = parameters();
    f.name = next();
    if (peek() == "(") f.params = parameters();
    for (bool more = true; more;) {
      if (peek() == ".maxntid" || peek() == ".reqntid") {
        next();
        f.max_threads = 1;
        do f.max_threads *= static_cast<int>(integer());
        while (accept(","));
      } else if (peek() == ".minnctapersm") {
        at_ += 2;
      } else if (peek() == ".noreturn") {
        next();
      } else {
        more = false;
      }
    }
    if (accept(";")) return;  // declared; its body comes later
    function_ = &f;
    scopes_.clear();
    block();
    module_.functions[f.name] = std::move(f);
  }
  std::vector<Variable> parameters() {
    std::vector<Variable> all;
    expect("(");
    while (!accept(")")) {
      all.push_back(declaration());
      accept(",");
    }
    return all;
  }

  void block() {
    expect("{");
    scopes_.emplace_back();
    while (!accept("}")) statement();
    scopes_.pop_back();
  }

  void statement() {
    const std::string_view word = peek();
    if (word == "{") return block();
    if (accept(";")) return;
    if (word == ".reg") return registers();
    if (word == ".shared" || word == ".local" || word == ".param") {
      function_->variables.push_back(variable());
      return;
    }
    if (word == ".pragma") {
      next();
      std::string_view text = next();
      constexpr std::string_view kUsed = "\"used_bytes_mask ";
      if (text.starts_with(kUsed)) {
        text.remove_prefix(kUsed.size());
        used_ = static_cast<std::uint32_t>(std::stoul(std::string(text), nullptr, 0));
      } else if (text != "\"nounroll\"") {
        fail("the pragma " + std::string(text) + " is not known");
      }
      expect(";");
      return;
    }
    if (word == ".loc") {
      at_ += 4;
      return;
    }
    Statement s;
    s.line = tokens_[at_].line;
    if (word.front() != '@' && at_ + 1 < tokens_.size() && tokens_[at_ + 1].text == ":") {
      s.label = next();
      next();
      function_->body.push_back(std::move(s));
      return;
    }
    if (accept("@")) {
      s.guard_negated = accept("!");
      s.guard = find_register(next());
      if (s.guard < 0) fail("the guard is no register");
    }
    s.opcode = next();
    s.used = std::exchange(used_, ~0u);
    while (!accept(";")) {
      s.operands.push_back(operand());
      if (!accept(",") && peek() != ";") fail("expected ',' or ';'");
    }
    function_->body.push_back(std::move(s));
  }

  void registers() {
    next();
    const std::string type(next().substr(1));
    if (size_of_type(type) == 0) fail("the type '" + type + "' is not known");
    do {
      const std::string name(next());
      const int first = static_cast<int>(function_->registers.size());
      int count = 1;
      if (accept("<")) {
        count = static_cast<int>(integer());
        expect(">");
        scopes_.back().ranges.push_back({name, first, count});
      } else {
        scopes_.back().registers[name] = first;
      }
      function_->registers.insert(function_->registers.end(), static_cast<std::size_t>(count),
                                  type);
    } while (accept(","));
    expect(";");
  }

  int find_register(std::string_view name) const {
    for (std::size_t i = scopes_.size(); i-- > 0;) {
      const auto found = scopes_[i].registers.find(name);
      if (found != scopes_[i].registers.end()) return found->second;
      for (const Scope::Range& range : scopes_[i].ranges) {
        if (!name.starts_with(range.prefix)) continue;
        std::uint64_t index = 0;
        if (number(name.substr(range.prefix.size()), index) &&
            index < static_cast<std::uint64_t>(range.count))
          return range.first + static_cast<int>(index);
      }
    }
    return -1;
  }

  Operand operand() {
    Operand o;
    if (accept("{")) {
      o.kind = Operand::Kind::list;
      while (!accept("}")) {
        o.list.push_back(operand());
        accept(",");
      }
      return o;
    }
    if (accept("(")) {  // of a call
      o.kind = Operand::Kind::list;
      while (!accept(")")) {
        o.list.push_back(operand());
        accept(",");
      }
      return o;
    }
    if (accept("[")) {
      o = operand();
      if (o.kind == Operand::Kind::immediate) {
        o.offset = static_cast<std::int64_t>(o.bits);
        o.bits = 0;
      }
      o.kind = Operand::Kind::address;
      if (accept("+")) o.offset = integer();
      expect("]");
      return o;
    }
    o.negated = accept("!");
    const bool minus = accept("-");
    const std::string_view word = next();
    if (number(word, o.bits)) {
      o.kind = Operand::Kind::immediate;
      if (minus) o.bits = 0 - o.bits;
      return o;
    }
    if (minus) fail("expected a number after '-'");
    if (word != "_") {
      o.reg = find_register(word);
      if (o.reg < 0) {
        o.kind = Operand::Kind::symbol;
        o.symbol = word;
      }
    }
    if (accept("|")) o.pair.push_back(operand());
    return o;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  Module module_;
  Function* function_ = nullptr;
  std::vector<Scope> scopes_;
  bool is_extern_ = false;
  std::uint64_t element_ = 1;
  std::uint32_t used_ = ~0u;
};

}  // namespace

int size_of_type(std::string_view type) {
  if (type == "pred") return 1;
  if (type.size() < 2 || std::string_view("bsuf").find(type[0]) == std::string_view::npos) return 0;
  const std::string_view bits = type.substr(1);
  return bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
}

Module read_module(std::string_view text) { return Reader(text).read(); }

}  // namespace ptx
