// SPDX-License-Identifier: Apache-2.0
#include "builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic::grammar {
namespace {

// Parts and their bytes together: ten times what the largest schemas of tools come to.
constexpr std::size_t kMostParts = std::size_t{1} << 18;
constexpr std::size_t kMostInstructions = std::size_t{1} << 20;
constexpr std::uint32_t kUndefined = 0xffffffff;

}  // namespace

Part Builder::add(Node node) {
  size_ += 1 + node.text.size() + node.parts.size();
  if (size_ > kMostParts)
    throw ConfigError(
        fmt::format("{}: has more than {} parts; make it smaller", what_, kMostParts));
  nodes_.push_back(std::move(node));
  return {static_cast<std::uint32_t>(nodes_.size() - 1)};
}

Part Builder::nothing() { return literal({}); }

Part Builder::literal(std::string_view bytes) {
  return add({.kind = Kind::literal, .text = std::string(bytes)});
}

Part Builder::characters(const CharacterRanges& set) {
  const auto [at, made] = set_numbers_.try_emplace(set, static_cast<std::uint32_t>(sets_.size()));
  if (made) {
    size_ += set.ranges().size();
    sets_.push_back(set);
  }
  return add({.kind = Kind::characters, .a = at->second});
}

Part Builder::sequence(std::vector<Part> parts) {
  if (parts.size() == 1) return parts[0];
  Node node{.kind = Kind::sequence};
  for (const Part part : parts) node.parts.push_back(part.number);
  return add(std::move(node));
}

Part Builder::choice(std::vector<Part> parts) {
  if (parts.size() == 1) return parts[0];
  Node node{.kind = Kind::choice};
  for (const Part part : parts) node.parts.push_back(part.number);
  return add(std::move(node));
}

Part Builder::repeat(Part part, std::uint32_t min, std::uint32_t max) {
  if (min == 1 && max == 1) return part;
  return add({.kind = Kind::repeat, .a = min, .b = max, .parts = {part.number}});
}

Part Builder::call(Rule rule) { return add({.kind = Kind::call, .a = rule.number}); }

Rule Builder::rule(std::string name) {
  size_ += 1;
  names_.push_back(std::move(name));
  definitions_.push_back(kUndefined);
  return {static_cast<std::uint32_t>(names_.size() - 1)};
}

void Builder::define(Rule rule, Part part) { definitions_[rule.number] = part.number; }

/// One use of a builder's parts.
class Compiler {
 public:
  explicit Compiler(const Builder& builder) : b_(builder), program_(std::make_shared<Program>()) {}

  std::shared_ptr<const Program> compile(Rule root) {
    ends_ = find([](const Node& node, const Builder& b) {
      return node.kind == Kind::literal ||
             (node.kind == Kind::characters && !b.sets_[node.a].empty());
    });
    if (!ends_[b_.definitions_[root.number]])
      throw ConfigError(fmt::format("{}: {} describes no text that comes to an end", b_.what_,
                                    name_of_rule(root.number)));
    empty_ = find([](const Node& node, const Builder&) {
      return node.kind == Kind::literal && node.text.empty();
    });
    refuse_left_recursion();
    emit_rules(root.number);
    classify_bytes();
    return program_;
  }

 private:
  using Kind = Builder::Kind;
  using Node = Builder::Node;

  std::string name_of_rule(std::uint32_t rule) const { return printable(b_.names_[rule]); }

  /// Nodes that have a property: leaves by themselves, a sequence by all its parts, a choice by
  /// one, a repeat by its part or because it needs none. In time linear in the parts.
  template <class Leaf>
  std::vector<bool> find(Leaf leaf) const {
    const std::size_t n = b_.nodes_.size();
    std::vector<std::vector<std::uint32_t>> above(n), callers(b_.names_.size());
    std::vector<std::vector<std::uint32_t>> defines(n);
    std::vector<std::size_t> lacks(n, 0);
    std::vector<std::uint32_t> queue;
    std::vector<bool> has(n, false);
    const auto set = [&](std::uint32_t i) {
      if (has[i]) return;
      has[i] = true;
      queue.push_back(i);
    };
    for (std::uint32_t r = 0; r < b_.names_.size(); ++r) defines[b_.definitions_[r]].push_back(r);
    for (std::uint32_t i = 0; i < n; ++i) {
      const Node& node = b_.nodes_[i];
      if (node.kind == Kind::call) callers[node.a].push_back(i);
      for (const std::uint32_t part : node.parts) above[part].push_back(i);
      lacks[i] = node.parts.size();
      const bool all_there = node.kind == Kind::sequence && node.parts.empty();
      const bool needs_none = node.kind == Kind::repeat && node.a == 0;
      if (all_there || needs_none || leaf(node, b_)) set(i);
    }
    while (!queue.empty()) {
      const std::uint32_t i = queue.back();
      queue.pop_back();
      for (const std::uint32_t up : above[i])
        if (b_.nodes_[up].kind != Kind::sequence || --lacks[up] == 0) set(up);
      for (const std::uint32_t r : defines[i])
        for (const std::uint32_t caller : callers[r]) set(caller);
    }
    return has;
  }

  /// Rules that a part may begin with. \param visit called with each
  template <class Visit>
  void first_rules(std::uint32_t i, const Visit& visit) const {
    const Node& node = b_.nodes_[i];
    if (!ends_[i]) return;
    switch (node.kind) {
      case Kind::call:
        return visit(node.a);
      case Kind::sequence:
        for (const std::uint32_t part : node.parts) {
          first_rules(part, visit);
          if (!empty_[part]) return;
        }
        return;
      case Kind::choice:
      case Kind::repeat:
        for (const std::uint32_t part : node.parts) first_rules(part, visit);
        return;
      case Kind::literal:
      case Kind::characters:
        return;
    }
  }

  void refuse_left_recursion() const {
    const std::size_t n = b_.names_.size();
    enum : std::uint8_t { fresh, open, closed };
    std::vector<std::uint8_t> mark(n, fresh);
    std::vector<std::vector<std::uint32_t>> first(n);
    for (std::uint32_t r = 0; r < n; ++r)
      first_rules(b_.definitions_[r], [&](std::uint32_t other) { first[r].push_back(other); });
    for (std::uint32_t start = 0; start < n; ++start) {
      if (mark[start] != fresh) continue;
      std::vector<std::pair<std::uint32_t, std::size_t>> way{{start, 0}};
      mark[start] = open;
      while (!way.empty()) {
        auto& [rule, next] = way.back();
        if (next == first[rule].size()) {
          mark[rule] = closed;
          way.pop_back();
          continue;
        }
        const std::uint32_t other = first[rule][next++];
        if (mark[other] == open)
          throw ConfigError(fmt::format(
              "{}: {} begins with itself; write what repeats behind what it begins with", b_.what_,
              name_of_rule(other)));
        if (mark[other] == fresh) {
          mark[other] = open;
          way.emplace_back(other, 0);
        }
      }
    }
  }

  std::uint32_t here() const { return static_cast<std::uint32_t>(program_->code.size()); }

  std::uint32_t put(Op op, std::uint32_t a = 0, std::uint32_t b = 0) {
    if (program_->code.size() + program_->targets.size() >= kMostInstructions)
      throw ConfigError(
          fmt::format("{}: has more than {} steps once its parts are written out; "
                      "make it smaller",
                      b_.what_, kMostInstructions));
    program_->code.push_back({op, a, b});
    return here() - 1;
  }

  /// A split to `count` targets that are filled in later. \return the first one's number
  std::uint32_t put_split(std::size_t count) {
    const auto first = static_cast<std::uint32_t>(program_->targets.size());
    program_->targets.resize(first + count);
    put(Op::split, first, static_cast<std::uint32_t>(count));
    return first;
  }

  void emit_rules(std::uint32_t root) {
    std::vector<std::uint32_t> entry(b_.names_.size(), kUndefined);
    std::vector<std::uint32_t> waiting{root};
    wanted_.assign(b_.names_.size(), false);
    wanted_[root] = true;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      entry[waiting[i]] = here();
      emit(b_.definitions_[waiting[i]], waiting);
      put(Op::ret);
    }
    for (Instruction& instruction : program_->code)
      if (instruction.op == Op::call) instruction.a = entry[instruction.a];
  }

  /// \param waiting rules that are called for the first time come behind it
  void emit(std::uint32_t i, std::vector<std::uint32_t>& waiting) {
    const Node& node = b_.nodes_[i];
    switch (node.kind) {
      case Kind::literal:
        for (const char c : node.text) put(Op::byte, static_cast<unsigned char>(c));
        return;
      case Kind::characters:
        put(Op::character, characters(node.a));
        return;
      case Kind::call:
        if (!wanted_[node.a]) waiting.push_back(node.a);
        wanted_[node.a] = true;
        put(Op::call, node.a);
        return;
      case Kind::sequence:
        for (const std::uint32_t part : node.parts) emit(part, waiting);
        return;
      case Kind::choice:
        return emit_choice(node, waiting);
      case Kind::repeat:
        return emit_repeat(node, waiting);
    }
  }

  void emit_choice(const Node& node, std::vector<std::uint32_t>& waiting) {
    std::vector<std::uint32_t> parts;
    for (const std::uint32_t part : node.parts)
      if (ends_[part]) parts.push_back(part);
    if (parts.size() == 1) return emit(parts[0], waiting);
    const std::uint32_t first = put_split(parts.size());
    std::vector<std::uint32_t> jumps;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      program_->targets[first + k] = here();
      emit(parts[k], waiting);
      if (k + 1 < parts.size()) jumps.push_back(put(Op::jump));
    }
    for (const std::uint32_t jump : jumps) program_->code[jump].a = here();
  }

  void emit_repeat(const Node& node, std::vector<std::uint32_t>& waiting) {
    const std::uint32_t part = node.parts[0], max = node.b;
    if (max == 0 || !ends_[part]) return;  // then it needs none, or nobody asks for it
    const std::uint32_t min = empty_[part] ? 0 : node.a;
    auto& targets = program_->targets;
    if (max == 1) {  // here min is 0
      const std::uint32_t first = put_split(2);
      targets[first] = here();
      emit(part, waiting);
      targets[first + 1] = here();
    } else if (max == kUnbounded && min == 0) {
      const std::uint32_t start = here(), first = put_split(2);
      targets[first] = here();
      emit(part, waiting);
      put(Op::jump, start);
      targets[first + 1] = here();
    } else if (max == kUnbounded && min == 1) {
      const std::uint32_t start = here();
      emit(part, waiting);
      const std::uint32_t first = put_split(2);
      targets[first] = start;
      targets[first + 1] = here();
    } else {
      const auto number = static_cast<std::uint32_t>(program_->repeats.size());
      program_->repeats.push_back({min, max, 0, 0, static_cast<bool>(empty_[part])});
      put(Op::enter, number);
      const std::uint32_t loop = put(Op::loop, number);
      emit(part, waiting);
      put(Op::again, number);
      program_->repeats[number].loop = loop;
      program_->repeats[number].exit = here();
    }
  }

  /// The automaton of a set, made when it is first used.
  std::uint32_t characters(std::uint32_t set) {
    if (used_sets_.empty()) used_sets_.assign(b_.sets_.size(), kUndefined);
    if (used_sets_[set] == kUndefined) {
      used_sets_[set] = static_cast<std::uint32_t>(program_->characters.size());
      program_->characters.emplace_back(b_.sets_[set]);
    }
    return used_sets_[set];
  }

  /// Two bytes are of one class if no instruction tells them apart.
  void classify_bytes() {
    std::bitset<257> begins;  // of a class
    const auto bound = [&](unsigned first, unsigned last) {
      begins.set(first);
      begins.set(last + 1);
    };
    for (const Instruction& instruction : program_->code)
      if (instruction.op == Op::byte) bound(instruction.a, instruction.a);
    for (const CharacterBytes& set : program_->characters)
      for (const auto& edges : set.states)
        for (const CharacterBytes::Edge& edge : edges) bound(edge.first, edge.last);
    begins.set(0);
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (begins[byte]) program_->byte_of_class.push_back(static_cast<std::uint8_t>(byte));
      program_->class_of[byte] = static_cast<std::uint8_t>(program_->byte_of_class.size() - 1);
    }
  }

  const Builder& b_;
  std::vector<bool> ends_, empty_;  // by node: has a text at all; may be empty
  std::vector<bool> wanted_;        // by rule
  std::vector<std::uint32_t> used_sets_;
  std::shared_ptr<Program> program_;
};

std::shared_ptr<const Program> Builder::compile(Rule root) const {
  return Compiler(*this).compile(root);
}

}  // namespace episodic::grammar
