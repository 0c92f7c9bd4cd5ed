// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a model thinks before its answer, and the answer behind it, in a text that comes in pieces.

#include <cstdint>
#include <string>
#include <string_view>

#include "reasoning_form.hpp"

namespace episodic::text {

/// Texts that became certain.
struct PartedText {
  std::string thought;  ///< without marks, and without white space at both ends
  std::string answer;
};

/// A thought stands at an answer's beginning. What looks like one elsewhere is the answer's.
class ThoughtReader {
 public:
  /// \param inside the answer begins within a thought
  /// \param whole a thought is told as it was written, with its marks
  explicit ThoughtReader(const ReasoningForm& form, bool inside = false, bool whole = false)
      : form_(&form), whole_(whole), stage_(inside ? Stage::thought : Stage::start) {}

  PartedText push(std::string_view piece, bool last = false);

 private:
  enum class Stage : std::uint8_t {
    start,    ///< of the answer: a thought may begin
    thought,  ///< until its closing mark
    behind,   ///< white space behind it, and a mark that the answer is put between
    wrapped,  ///< an answer between such marks
    answer    ///< all else
  };

  bool read(PartedText& out, bool last);
  bool read_start(PartedText& out, bool last);
  bool read_thought(PartedText& out, bool last);
  bool read_behind(bool last);
  bool read_wrapped(PartedText& out, bool last);

  const ReasoningForm* form_;
  bool whole_;
  Stage stage_;
  bool told_ = false;  // some of the thought
  std::string held_;   // what is not certain yet
};

}  // namespace episodic::text
