// SPDX-License-Identifier: Apache-2.0
#include "episodic/text/tokenizer.hpp"

#include <fmt/format.h>

#include "episodic/base/error.hpp"
#include "hf_tokenizer.hpp"

namespace episodic::text {

std::vector<std::int64_t> HfTokenizer::encode(std::string_view text, bool add_special) const {
  const TokenizerParts& p = parts_;
  std::vector<std::int64_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special) ids = p.prefix;
  std::visit([&](const auto& model) { encode(text, model, ids); }, p.model);
  if (add_special) ids.insert(ids.end(), p.suffix.begin(), p.suffix.end());
  return ids;
}

template <class Model>
void HfTokenizer::encode(std::string_view text, const Model& model,
                         std::vector<std::int64_t>& ids) const {
  const TokenizerParts& p = parts_;
  Arena arena;  // outlives the encoder, which may remember views
  typename Model::Encoder encoder(model, ids);
  Growth growth("normalizer", text.size());
  const auto word = [&](const Piece& piece) { encoder.add(piece.text); };
  const auto special = [&](std::int64_t id) { ids.push_back(id); };
  p.raw_added.split(
      text,
      [&](std::string_view raw) {
        const bool at_start = raw.data() == text.data();
        if (!p.normalizer.empty()) {
          arena.push_back(p.normalizer(std::string(raw), growth));
          raw = arena.back();
          growth.keep(raw.size());
        }
        const char* begin = raw.data();
        p.normalized_added.split(
            raw,
            [&](std::string_view gap) {
              p.pre_tokenizer.apply({gap, at_start && gap.data() == begin}, arena, word);
            },
            special);
      },
      special);
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
