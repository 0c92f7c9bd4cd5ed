// SPDX-License-Identifier: Apache-2.0
// What an answer in a model's format needs: its marks, and what it may be held to.
#include <fmt/format.h>

#include <algorithm>

#include "answer_text.hpp"
#include "base/strict_json.hpp"
#include "channel_reader.hpp"
#include "episodic/base/error.hpp"
#include "episodic/text/tool_calls.hpp"
#include "tool_call_format.hpp"

namespace episodic {

void AnswerTexts::add(std::span<const ToolCallEvent> events) {
  for (const ToolCallEvent& event : events) {
    if (event.kind == ToolCallEvent::Kind::content) content += event.text;
    if (event.kind == ToolCallEvent::Kind::reasoning) reasoning += event.text;
  }
}

bool ToolCallFormat::parts_answers() const {
  return impl_->reasoning != nullptr || impl_->form->channels;
}

bool ToolCallFormat::begins_thinking(std::string_view prompt) const {
  return !impl_->form->channels &&
         text::without_spaces(prompt).ends_with(text::without_spaces(impl_->marks().open));
}

std::string ToolCallFormat::held_opening(std::string_view prompt) const {
  if (impl_->form->channels) return std::string(text::kFinalChannel);
  if (!begins_thinking(prompt)) return {};
  return fmt::format("{}{}\n\n", prompt.ends_with('\n') ? "" : "\n", impl_->marks().close);
}

std::vector<std::int64_t> ToolCallFormat::shown_tokens(const Tokenizer& tokenizer) const {
  const text::ToolCallForm& form = *impl_->form;
  std::vector<std::int64_t> ids;
  const auto add = [&](std::string_view token) {
    const std::int64_t id = token.empty() ? -1 : tokenizer.id_of(token);
    if (id < 0 || std::find(ids.begin(), ids.end(), id) != ids.end()) return;
    if (tokenizer.decode({id}, true) != tokenizer.decode({id}, false)) ids.push_back(id);
  };
  const auto add_parts = [&](std::string_view text) {
    add(text);
    // one of several tokens
    for (std::size_t begin = 0; begin < text.size(); ++begin) {
      if (text[begin] != '<' && text[begin] != '[') continue;
      const std::size_t end = text.find(text[begin] == '<' ? '>' : ']', begin);
      if (end != std::string_view::npos) add(text.substr(begin, end + 1 - begin));
    }
  };
  for (const std::string_view text : form.opens) add_parts(text);
  for (const std::string_view text : form.closes) add_parts(text);
  for (const std::string_view text : form.after_name) add_parts(text);
  add_parts(form.before_name);
  add_parts(form.id_mark);
  add_parts(form.quote);
  if (form.channels)
    for (const std::string_view mark : text::kChannelMarks) add(mark);
  add_parts(impl_->marks().open);
  add_parts(impl_->marks().close);
  std::sort(ids.begin(), ids.end());
  return ids;
}

ForcedCalls ToolCallFormat::forced_calls(std::span<const Tool> tools,
                                         const ToolChoice& choice) const {
  if (!impl_->refusal.empty()) throw DataError(impl_->refusal + "; leave the tools out");
  const text::ToolCallForm& form = *impl_->form;
  ForcedCalls forced;
  for (const Tool& tool : tools)
    if (choice.name.empty() || tool.name == choice.name)
      forced.calls.push_back({tool.name, tool.name, tool.parameters, std::string(form.call_end)});
  if (forced.calls.empty())
    throw ConfigError(choice.name.empty()
                          ? std::string("tool_choice asks for a call, but there are no tools")
                          : fmt::format("tool_choice asks for a call of '{}', which is none of "
                                        "the tools",
                                        printable(choice.name, 64)));
  std::string before(form.call);  // each call
  if (forced.calls.size() == 1) {
    before += forced.calls.front().prefix + std::string(form.arguments);
    forced.calls.front().prefix.clear();
  } else {
    for (ForcedCalls::Call& call : forced.calls)
      call.prefix += form.one_call ? form.constrained_arguments : form.arguments;
  }
  forced.begin = std::string(form.begin) + before;
  if (!form.one_call) forced.separator = std::string(form.separator) + before;
  forced.end = form.end;
  return forced;
}

}  // namespace episodic
