// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "episodic/session/session.hpp"

namespace episodic {

std::vector<std::int64_t> encode_continuation(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int64_t> alone = tokenizer.encode(text, false);
  if (text.empty()) return alone;
  // Where the vocabulary writes a space as U+2581, a text of its own gets one in front. Behind
  // another text it gets none: so it is encoded behind one, whose tokens are then taken away. That
  // works with every text that stays a token of its own there; line feeds do in the vocabularies
  // of this kind, the others are tried where they do not.
  constexpr std::string_view kSpace = "\xE2\x96\x81";
  const std::vector<std::int64_t> probe = tokenizer.encode("a", false);
  if (probe.empty() || !tokenizer.token(probe.front()).starts_with(kSpace)) return alone;
  for (const std::string_view before : {"\n", ".", "a", "\t"}) {
    const std::vector<std::int64_t> first = tokenizer.encode(before, false);
    std::string both(before);
    both += text;
    const std::vector<std::int64_t> all = tokenizer.encode(both, false);
    if (all.size() > first.size() && std::equal(first.begin(), first.end(), all.begin()))
      return {all.begin() + static_cast<std::ptrdiff_t>(first.size()), all.end()};
  }
  return alone;
}

}  // namespace episodic
