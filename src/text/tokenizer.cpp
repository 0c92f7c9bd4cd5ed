// SPDX-License-Identifier: Apache-2.0
#include "episodic/text/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/error.hpp"
#include "hf_tokenizer.hpp"

namespace episodic {

std::vector<std::int64_t> Tokenizer::encode_marked(std::string_view text,
                                                   std::span<const TextSpan> input) const {
  for (const TextSpan& span : input)
    for (const std::int64_t id : encode(text.substr(span.begin, span.end - span.begin), false))
      if (const std::vector<std::int64_t> one{id}; decode(one, true) != decode(one, false))
        throw DataError(
            fmt::format("the text holds '{}', which is a special token of the model, and the "
                        "tokenizer does not say how to read it as text; take it out",
                        token(id)));
  return encode(text, false);
}

}  // namespace episodic

namespace episodic::text {
namespace {

/// The first of the parts that ends behind `begin`.
std::span<const TextSpan>::iterator first_behind(std::span<const TextSpan> parts,
                                                 std::size_t begin) {
  return std::upper_bound(parts.begin(), parts.end(), begin,
                          [](std::size_t b, const TextSpan& s) { return b < s.end; });
}

bool touches(std::span<const TextSpan> parts, std::size_t begin, std::size_t end) {
  const auto at = first_behind(parts, begin);
  return at != parts.end() && at->begin < end;
}

}  // namespace

std::vector<std::int64_t> HfTokenizer::encode(std::string_view text, bool add_special) const {
  const TokenizerParts& p = parts_;
  std::vector<std::int64_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special) ids = p.prefix;
  std::visit([&](const auto& model) { encode(text, model, ids, nullptr); }, p.model);
  if (add_special) ids.insert(ids.end(), p.suffix.begin(), p.suffix.end());
  return ids;
}

std::vector<std::int64_t> HfTokenizer::encode_marked(std::string_view text,
                                                     std::span<const TextSpan> input) const {
  std::vector<std::int64_t> ids;
  ids.reserve(text.size() / 3 + 8);
  std::visit([&](const auto& model) { encode(text, model, ids, &input); }, parts_.model);
  return ids;
}

template <class Model>
void HfTokenizer::encode(std::string_view text, const Model& model, std::vector<std::int64_t>& ids,
                         const std::span<const TextSpan>* input) const {
  const TokenizerParts& p = parts_;
  Arena arena;  // outlives the encoder, which may remember views
  typename Model::Encoder encoder(model, ids);
  Growth growth("normalizer", text.size());
  const auto word = [&](const Piece& piece) { encoder.add(piece.text); };
  const auto special = [&](std::int64_t id) { ids.push_back(id); };
  const auto offset_of = [&](std::string_view part) {
    return static_cast<std::size_t>(part.data() - text.data());
  };
  /// What is allowed of a part of the text: all without input.
  const auto allowed = [&](std::string_view part) -> AddedTokens::Allowed {
    if (!input) return {};
    return [&, at = offset_of(part)](std::int64_t id, std::size_t begin, std::size_t end) {
      return !controls(id) || !touches(*input, at + begin, at + end);
    };
  };
  const auto split = [&](std::string_view normal, bool at_start, const AddedTokens::Allowed& may) {
    const char* begin = normal.data();
    p.normalized_added.split(
        normal,
        [&](std::string_view gap) {
          p.pre_tokenizer.apply({gap, at_start && gap.data() == begin}, arena, word);
        },
        special, may);
  };
  p.raw_added.split(
      text,
      [&](std::string_view raw) {
        const bool at_start = raw.data() == text.data();
        if (p.normalizer.empty()) return split(raw, at_start, allowed(raw));
        const auto normalized = [&](std::string_view part) -> std::string_view {
          arena.push_back(p.normalizer(std::string(part), growth));
          growth.keep(arena.back().size());
          return arena.back();
        };
        const std::string_view normal = normalized(raw);
        const std::size_t begin = offset_of(raw), end = begin + raw.size();
        if (!input || !touches(*input, begin, end)) return split(normal, at_start, {});
        // Normalizing hides what came from where. It does not matter unless a special token is
        // looked for behind it, and found elsewhere than in what the template wrote.
        const auto count = [&](std::string_view part) {
          std::size_t n = 0;
          p.normalized_added.split(
              part, [](std::string_view) {}, [&](std::int64_t id) { n += controls(id); });
          return n;
        };
        struct Part {
          std::string_view text;
          bool input;
        };
        std::vector<Part> parts;
        std::size_t found = count(normal);
        if (found > 0)
          for (std::size_t at = begin; at < end;) {
            const auto next = first_behind(*input, at);
            const bool inside = next != input->end() && next->begin <= at;
            const std::size_t stop = std::min(end, inside                 ? next->end
                                                   : next == input->end() ? end
                                                                          : next->begin);
            parts.push_back({text.substr(at, stop - at), inside});
            if (!inside) found -= std::min(found, count(normalized(parts.back().text)));
            at = stop;
          }
        if (found == 0) return split(normal, at_start, {});
        for (const Part& part : parts)
          split(normalized(part.text), part.text.data() == text.data(),
                [&](std::int64_t id, std::size_t, std::size_t) {
                  return !part.input || !controls(id);
                });
      },
      special, allowed(text));
}

std::string HfTokenizer::decode(const std::vector<std::int64_t>& ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int64_t id : ids) {
    const std::size_t i = checked(id);
    if (skip_special && parts_.special[i]) continue;
    const auto shown = parts_.shown.find(id);
    tokens.push_back(shown == parts_.shown.end() ? parts_.entries[i] : shown->second);
  }
  return parts_.decoder(std::move(tokens));
}

std::string HfTokenizer::token(std::int64_t id) const { return parts_.entries[checked(id)]; }

std::int64_t HfTokenizer::id_of(std::string_view token) const {
  const auto it = parts_.ids.find(token);
  return it == parts_.ids.end() ? -1 : it->second;
}

std::size_t HfTokenizer::checked(std::int64_t id) const {
  if (id < 0 || id >= vocab_size())
    throw DataError(fmt::format("token id {} is not in the vocabulary of {} ids of {}", id,
                                vocab_size(), parts_.file.string()));
  return static_cast<std::size_t>(id);
}

}  // namespace episodic::text
