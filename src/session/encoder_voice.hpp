// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Events by what a sentence encoder says of the text about them: the cosine of the question's
/// vector and that of a window of tokens. Windows overlap by half, and an event has the one whose
/// middle is nearest to its own. They cost half of what each event with its neighbours would.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/session/window_vectors.hpp"
#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/event_table.hpp"
#include "window_store.hpp"

namespace episodic {

class EncoderVoice {
 public:
  static constexpr std::int64_t kWindow = 48, kStep = 24;  ///< tokens

  /// \param vectors not null
  explicit EncoderVoice(std::shared_ptr<WindowVectors> vectors) : vectors_(std::move(vectors)) {}
  ~EncoderVoice() { cut(0); }
  EncoderVoice(const EncoderVoice&) = delete;
  EncoderVoice& operator=(const EncoderVoice&) = delete;

  /// Vectors are read from there and left there, from the next `encode` on.
  void keep_in(VectorFolder folder) {
    folder_ = std::move(folder);
    leaves_ = true;
  }

  /// The text is this from now on.
  /// \param ids of the text from its first token on; negative: no text
  /// \param same tokens at its beginning that are those of the last call
  void follow(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, std::int64_t same);
  /// Encodes the windows whose vectors are not known yet.
  /// \param progress in windows. Where it says false those that are left wait for the next call,
  ///        and are in no place till then
  /// \return whether all windows have their vectors
  bool encode(const ProgressCallback& progress);
  /// Of each event, in [-1, 1]; -1 where nothing is known of its text.
  std::vector<double> score(std::string_view question, std::span<const TokenRange> events) const;
  /// Of the vectors that it holds, which others may hold too.
  std::int64_t bytes() const;

  /// Windows of a text of so many tokens: the last one is the first that reaches its end.
  static std::int64_t windows(std::int64_t tokens);
  /// The window of an event, of so many.
  static std::int64_t window_of(const TokenRange& event, std::int64_t windows);

 private:
  struct Window {
    TextDigest digest;
    const HeldVector* vector = nullptr;  // null: not encoded, or no text
  };
  /// A window with text whose vector is not known.
  struct Missing {
    std::size_t window = 0;
    std::string text;
  };

  void cut(std::size_t windows);
  void take_from_folder();
  void leave_in_folder();
  void encode_some(std::span<const Missing> some);

  std::shared_ptr<WindowVectors> vectors_;
  VectorFolder folder_;
  bool leaves_ = true;    // nothing was refused there
  bool unsaved_ = false;  // there are vectors that are not there yet
  std::vector<Window> windows_;
  std::vector<Missing> missing_;  // in order of the text
};

}  // namespace episodic
