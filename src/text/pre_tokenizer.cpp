// SPDX-License-Identifier: Apache-2.0
#include "pre_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bert.hpp"
#include "normalizer.hpp"
#include "pattern.hpp"
#include "utf8.hpp"

namespace episodic::text {
namespace {

/// What becomes of the stretches that match.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const JsonNode& node) {
  const std::string& name = node.str();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  node.fail(fmt::format("behavior '{}' is not supported", name));
}

/// Joins neighbouring spans as the behavior says.
void regroup(std::vector<Span>& spans, Behavior behavior) {
  if (behavior == Behavior::isolated) return;
  if (behavior == Behavior::removed) {
    spans.erase(std::remove_if(spans.begin(), spans.end(), [](const Span& s) { return s.match; }),
                spans.end());
    return;
  }
  // a match goes to its neighbour on one side, once
  const auto joins = [&](bool left, bool right) {
    if (behavior == Behavior::contiguous) return left == right;
    return behavior == Behavior::merged_with_previous ? right && !left : left && !right;
  };
  std::vector<Span> out;
  bool before = false;
  for (const Span& s : spans) {
    if (!out.empty() && joins(before, s.match))
      out.back().end = s.end;
    else
      out.push_back(s);
    before = s.match;
  }
  spans = std::move(out);
}

class SplitStage : public PreTokenizerStage {
 public:
  SplitStage(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(const Piece& piece, Arena&, const PieceSink& sink) const override {
    std::vector<Span> spans;
    pattern_.split(piece.text, spans);
    if (invert_)
      for (Span& s : spans) s.match = !s.match;
    regroup(spans, behavior_);
    for (const Span& s : spans)
      sink({piece.text.substr(s.begin, s.end - s.begin), piece.at_start && s.begin == 0});
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

/// Puts a prefix before a piece that has it not yet.
class PrefixStage : public PreTokenizerStage {
 public:
  PrefixStage(std::string prefix, bool only_at_start)
      : prefix_(std::move(prefix)), only_at_start_(only_at_start) {}

  void apply(const Piece& piece, Arena& arena, const PieceSink& sink) const override {
    if (piece.text.starts_with(prefix_) || (only_at_start_ && !piece.at_start)) return sink(piece);
    arena.push_back(prefix_ + std::string(piece.text));
    sink({arena.back(), piece.at_start});
  }

 private:
  std::string prefix_;
  bool only_at_start_;
};

class SpaceStage : public PreTokenizerStage {
 public:
  explicit SpaceStage(std::string replacement) : replacement_(std::move(replacement)) {}

  void apply(const Piece& piece, Arena& arena, const PieceSink& sink) const override {
    if (piece.text.find(' ') == std::string_view::npos) return sink(piece);
    std::string out;
    for (const char c : piece.text) c == ' ' ? out += replacement_ : out += c;
    arena.push_back(std::move(out));
    sink({arena.back(), piece.at_start});
  }

 private:
  std::string replacement_;
};

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::size_t kMostStages = 64;  // each one is a call within the one before

nlohmann::json literal(const std::string& text) { return {{"String", text}}; }

}  // namespace

void PreTokenizer::add(const JsonNode& node, int depth) {
  if (node.null()) return;
  if (depth > kMaxNesting) node.fail("is nested too deep");
  if (stages_.size() >= kMostStages)
    node.fail(fmt::format("is one of more than {} stages", kMostStages));
  const JsonNode type = node.at("type");
  const std::string& name = type.str();
  if (name != "Sequence" && byte_level_) type.fail("nothing may come after ByteLevel");
  const auto push = [&](auto stage) {
    stages_.push_back(std::make_shared<const decltype(stage)>(std::move(stage)));
  };
  if (name == "Sequence") {
    const JsonNode list = node.at("pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i) add(list.at(i), depth + 1);
  } else if (name == "Split") {
    push(SplitStage(Pattern::from_json(node.at("pattern")), behavior_of(node.at("behavior")),
                    node.at("invert").boolean(false)));
  } else if (name == "Digits") {
    push(SplitStage(
        Pattern::regex("\\p{N}"),
        node.at("individual_digits").boolean(false) ? Behavior::isolated : Behavior::contiguous,
        false));
  } else if (name == "Metaspace") {
    const std::string& mark = node.at("replacement").str();
    if (mark.empty() || utf8_length(mark, 0) != mark.size())
      node.at("replacement").fail("must be one character");
    const JsonNode scheme = node.at("prepend_scheme");
    const bool prefix = node.at("add_prefix_space").boolean(true);
    const std::string how = scheme.null() ? (prefix ? "always" : "never") : scheme.str();
    if (how != "always" && how != "never" && how != "first")
      scheme.fail(fmt::format("'{}' is not supported (always, never and first are)", how));
    push(SpaceStage(mark));
    if (how != "never") push(PrefixStage(mark, how == "first"));
    if (node.at("split").boolean(true)) {
      const nlohmann::json pattern = literal(mark);
      push(
          SplitStage(Pattern::from_json(JsonNode("", pattern)), Behavior::merged_with_next, false));
    }
  } else if (name == "BertPreTokenizer") {
    push(BertWordStage());
  } else if (name == "ByteLevel") {
    if (node.at("add_prefix_space").boolean(true)) push(PrefixStage(" ", false));
    if (node.at("use_regex").boolean(true))
      push(SplitStage(Pattern::regex(kGpt2), Behavior::isolated, false));
    byte_level_ = true;
  } else {
    type.fail(
        fmt::format("pre-tokenizer '{}' is not supported (Split, Digits, Metaspace, "
                    "BertPreTokenizer, ByteLevel and Sequence are)",
                    name));
  }
}

void PreTokenizer::apply(const Piece& piece, Arena& arena, const PieceSink& sink) const {
  if (!piece.text.empty()) apply_from(0, piece, arena, sink);
}

void PreTokenizer::apply_from(std::size_t stage, const Piece& piece, Arena& arena,
                              const PieceSink& sink) const {
  if (stage == stages_.size()) return sink(piece);
  if (stage + 1 == stages_.size()) return stages_[stage]->apply(piece, arena, sink);
  stages_[stage]->apply(piece, arena,
                        [&](const Piece& part) { apply_from(stage + 1, part, arena, sink); });
}

}  // namespace episodic::text
