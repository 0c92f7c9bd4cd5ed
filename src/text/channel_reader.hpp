// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Answers in the channels of gpt-oss ("harmony"): an answer is several messages, each with a
/// header that names its channel.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/text/tool_calls.hpp"
#include "json_scanner.hpp"

namespace episodic::text {

/// The marks of this form.
inline constexpr std::string_view kChannelMarks[] = {"<|start|>",   "<|channel|>", "<|constrain|>",
                                                     "<|message|>", "<|end|>",     "<|call|>",
                                                     "<|return|>"};

/// What a prompt ends with whose answer is to be the final message alone.
inline constexpr std::string_view kFinalChannel = "<|channel|>final<|message|>";

/// Parts one answer, piece by piece. Its events do not depend on where it is cut.
///
/// - The channel `final` is content, and so is `commentary` without a recipient: what a model says
///   before it calls.
/// - `analysis` is what it thinks. So is a message to a tool that nobody offers, and a call that is
///   none.
/// - Text without any header is content.
class ChannelReader {
 public:
  /// \param seed of the calls' ids
  ChannelReader(std::vector<std::string> names, const ToolCallOptions& options, std::uint64_t seed);

  std::vector<ToolCallEvent> push(std::string_view piece);
  std::vector<ToolCallEvent> finish();
  std::size_t calls() const { return calls_; }

 private:
  enum class Mode : std::uint8_t {
    start,   ///< of the answer, behind the header that the prompt has begun
    header,  ///< until <|message|>
    body,    ///< a message's text
    call,    ///< a message's text that is to be arguments
    between  ///< behind a message
  };
  using Kind = ToolCallEvent::Kind;

  void read(bool last);
  bool read_start(bool last);
  bool read_header(bool last);
  bool read_body(bool last);
  bool read_call(bool last);
  bool read_between(bool last);
  void open_message();
  void tell(std::string text);
  void tell_arguments();
  bool break_off();
  /// Where the first of the marks that end a message stands in what is held; npos: none.
  std::size_t end_of_message(std::size_t& mark_bytes) const;

  std::vector<std::string> names_;
  ToolCallOptions options_;
  std::uint64_t seed_;
  Mode mode_ = Mode::start;
  std::string held_;    // what no event has told of
  std::string header_;  // of the message of now
  Kind kind_ = Kind::content;
  bool told_content_ = false, told_reasoning_ = false, fresh_ = true;  // of a message
  std::string name_;                                                   // of its call
  JsonScanner scanner_;
  std::size_t at_ = 0, sent_ = 0;  // of the arguments: read, told
  bool begun_ = false;
  std::size_t calls_ = 0, next_ = 0;
  std::vector<ToolCallEvent> events_;
};

}  // namespace episodic::text
