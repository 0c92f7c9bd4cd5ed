// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "episodic/session/session.hpp"

namespace episodic {

namespace {

/// \param encode makes tokens of the text behind another one, which may be empty
template <class Encode>
std::vector<std::int64_t> continuation(const Tokenizer& tokenizer, bool empty, Encode encode) {
  std::vector<std::int64_t> alone = encode("");
  if (empty) return alone;
  // Where the vocabulary writes a space as U+2581, a text of its own gets one in front. Behind
  // another text it gets none: so it is encoded behind one, whose tokens are then taken away. That
  // works with every text that stays a token of its own there; line feeds do in the vocabularies
  // of this kind, the others are tried where they do not.
  constexpr std::string_view kSpace = "\xE2\x96\x81";
  const std::vector<std::int64_t> probe = tokenizer.encode("a", false);
  if (probe.empty() || !tokenizer.token(probe.front()).starts_with(kSpace)) return alone;
  for (const std::string_view before : {"\n", ".", "a", "\t"}) {
    const std::vector<std::int64_t> first = tokenizer.encode(before, false);
    const std::vector<std::int64_t> all = encode(before);
    if (all.size() > first.size() && std::equal(first.begin(), first.end(), all.begin()))
      return {all.begin() + static_cast<std::ptrdiff_t>(first.size()), all.end()};
  }
  return alone;
}

}  // namespace

std::vector<std::int64_t> encode_continuation(const Tokenizer& tokenizer, std::string_view text) {
  return continuation(tokenizer, text.empty(), [&](std::string_view before) {
    std::string both(before);
    both += text;
    return tokenizer.encode(both, false);
  });
}

std::vector<std::int64_t> encode_continuation(const Tokenizer& tokenizer,
                                              const RenderedPrompt& prompt) {
  return continuation(tokenizer, prompt.text.empty(), [&](std::string_view before) {
    RenderedPrompt both{std::string(before) + prompt.text, prompt.input};
    for (TextSpan& span : both.input) {
      span.begin += before.size();
      span.end += before.size();
    }
    return encode_prompt(tokenizer, both);
  });
}

}  // namespace episodic
