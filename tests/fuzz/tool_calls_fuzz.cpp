// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "episodic/base/error.hpp"
#include "episodic/text/tool_calls.hpp"
#include "target.hpp"
#include "text/tool_call_answers.hpp"

using namespace episodic;
using namespace episodic::test;

namespace {

constexpr const char* kForms[] = {"hermes",      "general", "llama",   "mistral",  "mistral_named",
                                  "functionary", "phi4",    "granite", "deepseek", "deepseek_v3"};

std::vector<ToolCallEvent> read_answer(const ToolCallFormat& format, std::string_view text,
                                       std::size_t piece, const ToolCallOptions& options) {
  ToolCallParser parser(format, answer_tools(), options);
  std::vector<ToolCallEvent> events;
  for (std::size_t at = 0; at < text.size(); at += piece)
    for (ToolCallEvent& e : parser.push(text.substr(at, piece))) events.push_back(std::move(e));
  for (ToolCallEvent& e : parser.finish()) events.push_back(std::move(e));
  return joined_events(events);
}

/// \param parted what is thought is told apart, without the marks around it
void check_answer(const ToolCallFormat& format, std::string_view text, bool early, bool parted) {
  ToolCallOptions options = fixed_ids();
  options.early_arguments = early;
  options.part_reasoning = parted;
  options.longest_call = 4096;
  const std::vector<ToolCallEvent> events = read_answer(format, text, text.size() + 1, options);
  fuzz::require(read_answer(format, text, 1, options) == events,
                "cut at every byte it is the same");
  fuzz::require(read_answer(format, text, 7, options) == events, "cut at 7 bytes it is the same");
  std::string content, arguments;
  bool calls = false;
  for (const ToolCallEvent& e : events) switch (e.kind) {
      case ToolCallEvent::Kind::content:
        content += e.text;
        break;
      case ToolCallEvent::Kind::reasoning:
        fuzz::require(parted, "what is thought is content where that is asked for");
        break;
      case ToolCallEvent::Kind::begun:
        arguments.clear();
        break;
      case ToolCallEvent::Kind::arguments:
        arguments += e.text;
        break;
      case ToolCallEvent::Kind::ended:
        calls = true;
        fuzz::require(nlohmann::json::accept(arguments), "arguments are JSON");
        break;
      case ToolCallEvent::Kind::broken:
        fuzz::require(early, "a call is taken back only where it came early");
        break;
    }
  fuzz::require(parted || calls || content == text, "no text is lost");
}

/// A request: tools, after a zero byte a list of messages.
void check_request(const ToolCallFormat& format, std::string_view text) {
  const std::size_t zero = std::min(text.find('\0'), text.size());
  try {
    const std::vector<Tool> tools = read_tools(text.substr(0, zero));
    std::vector<ChatMessage> messages;
    std::string_view lines = text.substr(std::min(zero + 1, text.size()));
    while (!lines.empty() && messages.size() < 20) {
      const std::size_t end = std::min(lines.find('\n'), lines.size());
      const bool result = lines.substr(0, end).find("\"tool\"") != std::string_view::npos;
      const bool answer = lines.substr(0, end).find("assistant") != std::string_view::npos;
      messages.push_back({result   ? "tool"
                          : answer ? "assistant"
                                   : "user",
                          "x", std::string(lines.substr(0, end))});
      lines.remove_prefix(std::min(end + 1, lines.size()));
    }
    const RenderedPrompt prompt = format.render(messages, {}, tools);
    std::size_t at = 0;
    for (const TextSpan& span : prompt.input) {
      fuzz::require(span.begin >= at && span.begin < span.end, "its spans are in order");
      at = span.end;
    }
    fuzz::require(at <= prompt.text.size(), "its spans are within the text");
  } catch (const Error&) {
  }
}

}  // namespace

// Input: a byte that names the form and the kind, then an answer or a request.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const ToolCallFormat& format = format_named(kForms[data[0] % std::size(kForms)]);
  const int kind = data[0] / std::size(kForms) % 3;
  if (kind == 2)
    check_request(format, text);
  else
    for (const bool parted : {false, true}) check_answer(format, text, kind == 1, parted);
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  std::vector<std::string> inputs;
  for (const Answer& answer : answers())
    for (std::size_t i = 0; i < std::size(kForms); ++i)
      if (std::string_view(answer.form) == kForms[i])
        for (const std::size_t early : {std::size_t{0}, std::size(kForms)})
          inputs.push_back(static_cast<char>(i + early) + answer.text);
  std::ifstream file(EPISODIC_SOURCE_DIR "/tests/text/vectors/tools.json");
  const auto all = nlohmann::ordered_json::parse(file);
  for (const auto& c : all["cases"]) {
    std::string request(1, static_cast<char>(2 * std::size(kForms) + inputs.size() % 10));
    request += all["tools"].dump() + std::string(1, '\0');
    for (const auto& message : c["messages"]) request += message.dump() + "\n";
    inputs.push_back(request);
  }
  return inputs;
}

void repair(std::string&) {}

}  // namespace fuzz
