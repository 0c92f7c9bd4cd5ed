// SPDX-License-Identifier: Apache-2.0
// Conversations with tools, as a chat template reads them.
#include "episodic/text/tool_calls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "json_option.hpp"
#include "tool_call_format.hpp"

namespace episodic {
namespace {

using MessageJson = nlohmann::ordered_json;

constexpr const char* kThoughtNames[] = {"reasoning_content", "thinking", "reasoning"};
constexpr int kDeepestArguments = 56;  // within a message they are four deep already

/// A message while it is being prepared.
struct ToolMessage {
  std::string role, content;
  MessageJson more = MessageJson::object();  // without role, content and tool_calls
  MessageJson calls = MessageJson::array();
  bool ours = false;  // written here: what follows it may be joined to it
};

/// Text of our own within messages, where a template takes it for a client's: special tokens are
/// read in it all the same. It passes the template as a mark, which nobody else has written.
class OwnTexts {
 public:
  /// \param others all that passes the template beside it
  explicit OwnTexts(const std::string& others) {
    for (int i = 0; others.find(mark_) != std::string::npos; ++i)
      mark_ = fmt::format("{}{}.", kBar, i);
  }

  std::string operator()(std::string_view text) {
    if (text.empty()) return {};
    texts_.emplace_back(text);
    return fmt::format("{}{}{}", mark_, texts_.size() - 1, kBar);
  }

  /// The prompt with the texts in the places of their marks, where they are no input.
  RenderedPrompt restore(const RenderedPrompt& prompt) const {
    if (texts_.empty()) return prompt;
    RenderedPrompt out;
    std::size_t at = 0, span = 0;
    const auto copy = [&](std::size_t end) {  // with its input
      const std::size_t base = out.text.size();
      while (span < prompt.input.size() && prompt.input[span].end <= at) ++span;
      for (std::size_t i = span; i < prompt.input.size() && prompt.input[i].begin < end; ++i) {
        const std::size_t from = std::max(prompt.input[i].begin, at);
        const std::size_t to = std::min(prompt.input[i].end, end);
        if (from < to) out.input.push_back({base + from - at, base + to - at});
      }
      out.text.append(prompt.text, at, end - at);
    };
    for (;;) {
      const std::size_t mark = prompt.text.find(mark_, at);
      if (mark == std::string::npos) break;
      copy(mark);
      const std::size_t number = mark + mark_.size();
      const std::size_t end = prompt.text.find(kBar, number);
      std::size_t index = texts_.size();
      if (end != std::string::npos)
        std::from_chars(prompt.text.data() + number, prompt.text.data() + end, index);
      if (index >= texts_.size())
        throw DataError("the chat template cuts the texts that describe tools apart");
      out.text += texts_[index];
      at = end + kBar.size();
    }
    copy(prompt.text.size());
    return out;
  }

 private:
  static constexpr std::string_view kBar = "\uf8ff";  // for private use, and no white space
  std::string mark_{kBar};
  std::vector<std::string> texts_;
};

std::uint64_t hashed(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// Ids of nine letters and digits stay; others get one that follows from them.
std::string nine_id(const std::string& id) {
  const bool fine =
      id.size() == 9 && std::all_of(id.begin(), id.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      });
  return fine ? id : text::short_call_id(hashed(id));
}

// What a client sent.

[[noreturn]] void wrong_message(const std::string& path, const char* what) {
  throw ConfigError(fmt::format("{} {}", path, what));
}

/// A text, or a list of parts that are texts.
std::string content_text(const MessageJson& content, const std::string& path) {
  if (content.is_null()) return {};
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) wrong_message(path, "must be a text or a list of parts");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const MessageJson& part = content[i];
    const std::string here = fmt::format("{}[{}]", path, i);
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    if (!part.is_object()) wrong_message(here, "must be an object");
    const auto type = part.find("type");
    constexpr std::string_view kTexts[] = {"text", "input_text", "output_text"};
    if (type == part.end() ||
        std::find(std::begin(kTexts), std::end(kTexts), *type) == std::end(kTexts))
      wrong_message(here + ".type", "must be \"text\"; no other part is supported");
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) wrong_message(here + ".text", "must be a text");
    text += value->get_ref<const std::string&>();
  }
  return text;
}

/// Arguments as an object, or as a text where they are none that a template could be given.
MessageJson arguments_of(const MessageJson& value, const std::string& path) {
  if (value.is_null() || value == "") return MessageJson::object();
  if (value.is_object()) return value;
  if (!value.is_string()) wrong_message(path, "must be a text of JSON, or an object");
  try {
    return text::read_option(value.get_ref<const std::string&>(), path, true, kDeepestArguments);
  } catch (const ConfigError&) {
    return value;  // a model's mistake of an earlier turn
  }
}

/// The id of a call, one that follows from its place where it has none.
std::string id_of_call(const MessageJson& call, const std::string& path) {
  const auto id = call.find("id");
  if (id == call.end() || id->is_null()) return text::short_call_id(hashed(path));
  if (!id->is_string()) wrong_message(path + ".id", "must be a text");
  return id->get<std::string>();
}

MessageJson calls_of(const MessageJson& list, const std::string& path) {
  MessageJson calls = MessageJson::array();
  if (list.is_null()) return calls;
  if (!list.is_array()) wrong_message(path, "must be a list");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", path, i);
    const MessageJson& given = list[i];
    if (!given.is_object()) wrong_message(here, "must be an object");
    const auto function = given.find("function");
    if (function == given.end() || !function->is_object())
      wrong_message(here + ".function", "must be an object with name and arguments");
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string() ||
        name->get_ref<const std::string&>().empty())
      wrong_message(here + ".function.name", "must be the name of a function");
    const auto arguments = function->find("arguments");
    MessageJson read = MessageJson::object();
    read["name"] = *name;
    read["arguments"] = arguments == function->end()
                            ? MessageJson::object()
                            : arguments_of(*arguments, here + ".function.arguments");
    MessageJson call = MessageJson::object();
    call["id"] = id_of_call(given, here);
    call["type"] = "function";
    call["function"] = std::move(read);
    calls.push_back(std::move(call));
  }
  return calls;
}

ToolMessage message_of(const ChatMessage& given, std::size_t index) {
  ToolMessage m;
  m.role = given.role;
  m.content = given.content;
  if (given.fields.empty()) return m;
  const std::string path = fmt::format("messages[{}]", index);
  m.more = text::read_option(given.fields, path, true);
  if (const auto role = m.more.find("role"); role != m.more.end() && *role != given.role)
    wrong_message(path + ".role", "is not the message's own");
  if (const auto content = m.more.find("content"); content != m.more.end())
    m.content = content_text(*content, path + ".content");
  if (const auto calls = m.more.find("tool_calls"); calls != m.more.end())
    m.calls = calls_of(*calls, path + ".tool_calls");
  if (const auto id = m.more.find("tool_call_id");
      id != m.more.end() && !id->is_null() && !id->is_string())
    wrong_message(path + ".tool_call_id", "must be a text");
  for (const char* name : {"role", "content", "tool_calls"}) m.more.erase(name);
  return m;
}

std::string tool_call_id(const ToolMessage& m) {
  const auto id = m.more.find("tool_call_id");
  return id != m.more.end() && id->is_string() ? id->get<std::string>() : std::string();
}

// What templates do not write.

using Messages = std::vector<ToolMessage>;

/// Results of functions get the names of these, which some templates write.
void name_results(Messages& messages) {
  std::vector<std::pair<std::string, std::string>> names;  // by the ids of the latest calls
  for (ToolMessage& m : messages) {
    if (!m.calls.empty()) {
      names.clear();
      for (const MessageJson& call : m.calls)
        names.emplace_back(call["id"].get<std::string>(),
                           call["function"]["name"].get<std::string>());
    }
    const auto name = m.more.find("name");
    if (m.role != "tool" || (name != m.more.end() && !name->is_null())) continue;
    const std::string id = tool_call_id(m);
    const auto at = std::find_if(names.begin(), names.end(),
                                 [&](const auto& known) { return known.first == id; });
    if (at != names.end()) m.more["name"] = at->second;
  }
}

/// One call a message, each with its result behind it.
Messages with_single_calls(Messages messages) {
  Messages out;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    ToolMessage& m = messages[i];
    if (m.calls.size() < 2) {
      out.push_back(std::move(m));
      continue;
    }
    std::size_t end = i + 1;
    while (end < messages.size() && messages[end].role == "tool") ++end;
    std::vector<bool> used(end - i - 1);
    for (std::size_t k = 0; k < m.calls.size(); ++k) {
      ToolMessage one;
      one.role = m.role;
      if (k == 0) one.content = m.content;
      one.more = m.more;
      if (k > 0)
        for (const char* name : kThoughtNames) one.more.erase(name);
      one.calls.push_back(m.calls[k]);
      out.push_back(std::move(one));
      for (std::size_t j = 0; j < used.size(); ++j)
        if (!used[j] && tool_call_id(messages[i + 1 + j]) == m.calls[k]["id"]) {
          used[j] = true;
          out.push_back(std::move(messages[i + 1 + j]));
          break;
        }
    }
    for (std::size_t j = 0; j < used.size(); ++j)
      if (!used[j]) out.push_back(std::move(messages[i + 1 + j]));
    i = end - 1;
  }
  return out;
}

std::string joined(std::string text, std::string_view between, const std::string& more) {
  if (text.empty()) return more;
  if (!more.empty()) text.append(between).append(more);
  return text;
}

/// The text before calls becomes the end of what was thought, where there is that.
void join_to_thought(ToolMessage& m) {
  for (const char* name : kThoughtNames) {
    const auto thought = m.more.find(name);
    if (thought == m.more.end() || !thought->is_string()) continue;
    *thought = joined(thought->get<std::string>(), "\n\n", std::exchange(m.content, {}));
    return;
  }
}

/// Calls as the form has them.
std::string written_calls(const text::ToolCallForm& form, const MessageJson& calls, OwnTexts& own) {
  std::string out = own(form.begin);
  if (form.notation == text::CallNotation::python) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const MessageJson& function = calls[i]["function"];
      const MessageJson& arguments = function["arguments"];
      out += own(i > 0 ? form.separator : std::string_view());
      out += text::python_call(
          function["name"].get<std::string>(),
          arguments.is_string() ? arguments.get<std::string>() : text::spaced_json(arguments));
    }
    return out + own(form.end);
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const MessageJson& function = calls[i]["function"];
    const MessageJson& arguments = function["arguments"];
    out += own(std::string(i > 0 ? form.separator : "") + std::string(form.call));
    out += function["name"].get<std::string>() + own(form.arguments);
    out += arguments.is_string() ? arguments.get<std::string>() : text::spaced_json(arguments);
    out += own(form.call_end);
  }
  return out + own(form.end);
}

/// What the model is told of tools.
std::string described_tools(const text::ToolCallForm& form, std::span<const Tool> tools,
                            OwnTexts& own) {
  std::string text =
      own("# Tools\n\nYou may call functions to help with the user's request. Their signatures are "
          "JSON objects within <tools></tools>:\n<tools>\n");
  for (const Tool& tool : tools)
    text += fmt::format("{{\"type\": \"function\", \"function\": {}}}\n", tool.definition);
  return text + own(fmt::format(
                    "</tools>\n\nTo call a function, answer with its name and a JSON object of its "
                    "arguments in this form:\n{}{}NAME{}{{\"ARGUMENT\": VALUE}}{}{}\nIts result "
                    "comes back within <tool_response></tool_response>.",
                    form.begin, form.call, form.arguments, form.call_end, form.end));
}

ToolMessage plain_message(std::string role, std::string content) {
  ToolMessage m;
  m.role = std::move(role);
  m.content = std::move(content);
  return m;
}

void tell_of_tools(Messages& messages, const std::string& text, bool in_system) {
  if (in_system && !messages.empty() && messages.front().role == "system") {
    messages.front().content = joined(messages.front().content, "\n\n", text);
  } else if (in_system) {
    messages.insert(messages.begin(), plain_message("system", text));
  } else {
    const auto user = std::find_if(messages.begin(), messages.end(),
                                   [](const ToolMessage& m) { return m.role == "user"; });
    if (user == messages.end())
      messages.insert(messages.begin(), plain_message("user", text));
    else
      user->content = joined(text, "\n\n", user->content);
  }
}

/// Results as a user's messages, joined to each other and to the user's next one: most templates
/// want user and assistant in turn.
Messages with_results_of_users(Messages messages, OwnTexts& own) {
  Messages out;
  for (ToolMessage& m : messages) {
    const bool behind_ours = !out.empty() && out.back().ours;
    if (m.role == "tool") {
      const std::string text = own("<tool_response>\n") + m.content + own("\n</tool_response>");
      if (!behind_ours) out.push_back(plain_message("user", {}));
      out.back().content = joined(out.back().content, "\n", text);
      out.back().ours = true;
    } else if (m.role == "user" && behind_ours) {
      out.back().content = joined(out.back().content, "\n\n", m.content);
      out.back().ours = false;
    } else {
      out.push_back(std::move(m));
    }
  }
  return out;
}

/// \param bare the functions themselves, without {"type": "function"} around each
std::string tools_json(std::span<const Tool> tools, bool bare) {
  std::string list;
  for (const Tool& tool : tools) {
    list += list.empty() ? "[" : ", ";
    list += bare ? tool.definition
                 : fmt::format("{{\"type\": \"function\", \"function\": {}}}", tool.definition);
  }
  return list + "]";
}

bool lacks_description(const Tool& tool) {
  return tool.description.empty() &&
         !text::read_option(tool.definition, tool.name, true).contains("description");
}

/// The same tools, with empty descriptions where there are none.
std::vector<Tool> with_descriptions(std::span<const Tool> tools) {
  std::vector<Tool> all(tools.begin(), tools.end());
  for (Tool& tool : all)
    if (lacks_description(tool))
      tool.definition = R"({"description": "", )" + tool.definition.substr(1);
  return all;
}

// What a template writes is found by having it write.

constexpr const char* kProbeTools =
    R"([{"type": "function", "function": {"name": "zqtool", "description": "zqtext", )"
    R"("parameters": {"type": "object", "properties": {"zqkey": {"type": "string", )"
    R"("description": "zqkey"}}, "required": ["zqkey"]}}}])";

/// What a template writes; nothing where it refuses.
std::string probed(const ChatTemplate& chat, std::span<const ChatMessage> messages,
                   const char* tools = "") {
  ChatOptions options;
  options.tools = tools;
  try {
    return chat.render(messages, options);
  } catch (const DataError&) {
    return {};
  }
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// A user, calls with their results, an answer, and the user again.
std::vector<ChatMessage> probe_turn(int calls, bool as_text) {
  MessageJson list = MessageJson::array();
  MessageJson arguments = MessageJson::object();
  arguments["zqkey"] = "zqvalue";
  if (as_text) arguments = R"({"zqkey": "zqvalue"})";
  std::vector<ChatMessage> turn{{"user", "zquser"}, {"assistant", ""}};
  for (int i = 0; i < calls; ++i) {
    MessageJson call = MessageJson::object();
    call["id"] = fmt::format("zqprobe0{}", i);
    call["type"] = "function";
    call["function"]["name"] = fmt::format("zqcall{}", i);
    call["function"]["arguments"] = arguments;
    list.push_back(std::move(call));
    turn.push_back({"tool", fmt::format("zqresult{}", i),
                    fmt::format(R"({{"name": "zqcall{}", "tool_call_id": "zqprobe0{}"}})", i, i)});
  }
  MessageJson fields = MessageJson::object();
  fields["tool_calls"] = std::move(list);
  turn[1].fields = fields.dump();
  turn.push_back({"assistant", "zqanswer"});
  turn.push_back({"user", "zqnext"});
  return turn;
}

/// Whether a call of the probe is written as the form's notation has it.
bool in_own_notation(const ToolCallFormat::Impl& format, const std::string& turn) {
  if (!format.form || format.form->notation == text::CallNotation::json) return false;
  const std::string_view open = format.form->opens[0], close = format.form->closes[0];
  static const std::vector<Tool> tools = [] {
    Tool tool;
    tool.name = "zqcall0";
    tool.parameters = "{}";
    return std::vector<Tool>{tool};
  }();
  // a template may show the form to the model before
  for (std::size_t at = turn.find(open); at != std::string::npos; at = turn.find(open, at + 1)) {
    const std::size_t begin = at + open.size(), end = turn.find(close, begin);
    if (end == std::string::npos) break;
    const auto calls = text::read_calls(format.form->notation,
                                        std::string_view(turn).substr(begin, end - begin), tools);
    if (calls && calls->size() == 1 && calls->front().arguments == R"({"zqkey": "zqvalue"})")
      return true;
  }
  return false;
}

void find_capabilities(ToolCallFormat::Impl& format) {
  const ChatTemplate& chat = format.chat;
  const std::string& source = chat.source();
  const ChatMessage user{"user", "zquser"};
  format.developer = contains(source, "developer");
  const std::string greeted = probed(chat, std::vector<ChatMessage>{{"system", "zqsystem"}, user});
  format.takes_system = contains(greeted, "zqsystem") && contains(greeted, "zquser");
  // A role that a template has never heard of may be written like any other: that is no support.
  if (!contains(source, "tool")) return;
  format.writes_tools = contains(probed(chat, std::vector{user}, kProbeTools), "zqtool");
  const ChatMessage listing{"system", "", R"({"tools": "zqtool"})"};
  format.tools_in_message =
      !format.writes_tools && contains(probed(chat, std::vector{listing, user}), "zqtool");
  const char* tools = format.writes_tools ? kProbeTools : "";
  for (const bool as_text : {false, true}) {
    const std::string turn = probed(chat, probe_turn(1, as_text), tools);
    format.writes_results = format.writes_results || contains(turn, "zqresult0");
    // as JSON: neither as Python writes it, nor within a text's quotation marks
    const bool as_json =
        contains(turn, R"("zqkey": "zqvalue")") || contains(turn, R"("zqkey":"zqvalue")");
    if (!contains(turn, "zqcall0") || !(as_json || in_own_notation(format, turn))) continue;
    format.writes_calls = true;
    format.arguments_as_text = as_text;
    const std::string both = probed(chat, probe_turn(2, as_text), tools);
    format.several_calls = contains(both, "zqcall0") && contains(both, "zqcall1");
    std::vector<ChatMessage> thoughtful = probe_turn(1, as_text);
    MessageJson fields = text::read_option(thoughtful[1].fields, "probe", true);
    fields["reasoning_content"] = "zqthought";
    thoughtful[1].fields = fields.dump();
    const bool thinks = !probed(chat, thoughtful, tools).empty();
    thoughtful[1].content = "zqcontent";
    format.one_text_before_calls = thinks && probed(chat, thoughtful, tools).empty();
    break;
  }
}

}  // namespace

std::string text::short_call_id(std::uint64_t number) {
  // splitmix64, so that neighbours differ everywhere
  number += 0x9e3779b97f4a7c15u;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
  number ^= number >> 31;
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id;
  for (int i = 0; i < 9; ++i, number /= kDigits.size()) id += kDigits[number % kDigits.size()];
  return id;
}

ToolCallFormat::ToolCallFormat(const ChatTemplate& chat) {
  auto impl = std::make_shared<Impl>(
      Impl{.chat = chat, .form = text::find_form(chat.source()), .refusal = {}});
  impl->reasoning = text::find_reasoning(chat.source());
  find_capabilities(*impl);
  const bool native = impl->writes_tools || impl->tools_in_message;
  if (impl->form)
    impl->refusal = impl->form->refusal;
  else if (native)
    impl->refusal = "the chat template writes tools, but calls in a form that is not supported";
  if (!impl->form || !impl->refusal.empty()) impl->form = &text::general_form();
  impl_ = std::move(impl);
}

std::string_view ToolCallFormat::name() const { return impl_->form->name; }
bool ToolCallFormat::native() const { return impl_->writes_tools || impl_->tools_in_message; }
const std::string& ToolCallFormat::refusal() const { return impl_->refusal; }

RenderedPrompt ToolCallFormat::render(std::span<const ChatMessage> messages,
                                      const ChatOptions& options,
                                      std::span<const Tool> tools) const {
  const Impl& format = *impl_;
  const text::ToolCallForm& form = *format.form;
  if (!tools.empty() && !format.refusal.empty())
    throw DataError(format.refusal + "; leave the tools out");
  if (!options.tools.empty())
    throw ConfigError("ChatOptions::tools must be empty where tools are given beside it");
  Messages list;
  std::string others = options.variables + options.documents;
  for (const Tool& tool : tools) others += tool.definition;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    list.push_back(message_of(messages[i], i));
    ToolMessage& m = list.back();
    if (m.role == "developer" && !format.developer) m.role = "system";
    others += m.role + m.content + m.more.dump() + m.calls.dump();
  }
  OwnTexts own(others);
  name_results(list);
  if (format.writes_calls && !format.several_calls) list = with_single_calls(std::move(list));
  for (ToolMessage& m : list) {
    if (m.calls.empty()) continue;
    if (format.one_text_before_calls) join_to_thought(m);
    if (!format.writes_calls) {
      if (!m.content.empty()) m.content += own("\n");
      m.content += written_calls(form, m.calls, own);
      m.calls.clear();
    } else if (format.arguments_as_text) {
      for (MessageJson& call : m.calls)
        if (MessageJson& arguments = call["function"]["arguments"]; !arguments.is_string())
          arguments = text::spaced_json(arguments);
    }
  }
  if (form.nine_ids)
    for (ToolMessage& m : list) {
      for (MessageJson& call : m.calls) call["id"] = nine_id(call["id"].get<std::string>());
      if (m.role == "tool") m.more["tool_call_id"] = nine_id(tool_call_id(m));
    }
  if (!format.writes_results) list = with_results_of_users(std::move(list), own);
  ChatOptions given = options;
  if (!tools.empty() && format.writes_tools) {
    given.tools = tools_json(tools, false);
  } else if (!tools.empty() && format.tools_in_message) {
    if (list.empty() || list.front().role != "system")
      list.insert(list.begin(), plain_message("system", {}));
    list.front().more["tools"] = tools_json(tools, true);
  } else if (!tools.empty()) {
    tell_of_tools(list, described_tools(form, tools, own), format.takes_system);
  }
  std::vector<ChatMessage> prepared;
  for (ToolMessage& m : list) {
    if (!m.calls.empty()) m.more["tool_calls"] = std::move(m.calls);
    prepared.push_back({m.role, m.content, m.more.empty() ? std::string() : m.more.dump()});
  }
  try {
    return own.restore(format.chat.render_prompt(prepared, given));
  } catch (const DataError&) {  // some formats add up what is said of a tool
    if (given.tools.empty() || std::none_of(tools.begin(), tools.end(), lacks_description)) throw;
    given.tools = tools_json(with_descriptions(tools), false);
    return own.restore(format.chat.render_prompt(prepared, given));
  }
}

}  // namespace episodic
