// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Events by what a sentence encoder says of the text about them: the cosine of the question's
/// vector and that of a window of tokens. Windows overlap by half, and an event has the one whose
/// middle is nearest to its own. They cost half of what each event with its neighbours would.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/model/sentence_encoder.hpp"
#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic {

class EncoderVoice {
 public:
  static constexpr std::int64_t kWindow = 48, kStep = 24;  ///< tokens

  /// \param encoder must outlive it
  explicit EncoderVoice(const SentenceEncoder& encoder) : encoder_(&encoder) {}

  /// Encodes the windows whose tokens are not those of the last call.
  /// \param ids of the text from its first token on; negative: no text
  /// \param progress in windows. Where it says false those that are left wait for the next call,
  ///        and are in no place till then
  void update(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
              const ProgressCallback& progress);
  /// Of each event, in [-1, 1]; -1 where nothing is known of its text.
  std::vector<double> score(std::string_view question, std::span<const TokenRange> events) const;
  std::int64_t bytes() const;

  /// Windows of a text of so many tokens: the last one is the first that reaches its end.
  static std::int64_t windows(std::int64_t tokens);
  /// The window of an event, of so many.
  static std::int64_t window_of(const TokenRange& event, std::int64_t windows);

 private:
  const SentenceEncoder* encoder_;
  std::vector<std::int32_t> ids_;
  std::vector<std::vector<float>> vectors_;  // of each window; empty: not encoded, or no text
};

}  // namespace episodic
