// SPDX-License-Identifier: Apache-2.0
#include "data/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "data/sha256.hpp"
#include "episodic/base/error.hpp"

namespace episodic::suites {
namespace {

constexpr const char* kWhereToGet =
    "LongBench: LongBench/config/dataset2prompt.json of github.com/THUDM/LongBench; "
    "infinity-Bench: "
    "benchmark/config/dataset2prompt.json of github.com/em-llm/EM-LLM-model, or the templates of "
    "src/prompt.py of github.com/OpenBMB/InfiniteBench as JSON {family: {task: text}}";

/// First 16 digits of the SHA-256 of every published template, so that a result can say which one
/// it was made with.
struct Published {
  std::string_view task, sha256, source;
};
constexpr Published kPublished[] = {
    {"narrativeqa", "aada7ed24b06abac", "official"},
    {"qasper", "0fbdd123fe7f83d6", "official"},
    {"multifieldqa_en", "20b4666a2de8a1f7", "official"},
    {"multifieldqa_zh", "344b3a4e557cd547", "official"},
    {"hotpotqa", "9ec4ae308865bd0c", "official"},
    {"2wikimqa", "9ec4ae308865bd0c", "official"},
    {"musique", "9ec4ae308865bd0c", "official"},
    {"dureader", "ae53329f51b17908", "official"},
    {"gov_report", "91c25d585b189ced", "official"},
    {"qmsum", "dca23b678fe0183b", "official"},
    {"multi_news", "2af3f28c40b902e6", "official"},
    {"vcsum", "3e5d8241bc9b512e", "official"},
    {"trec", "0eff8bebdba99d91", "official"},
    {"triviaqa", "00a802e6377e72fc", "official"},
    {"samsum", "a68d884234907eef", "official"},
    {"lsht", "f3edabdf7fae53d6", "official"},
    {"passage_count", "986550b6c61009c6", "official"},
    {"passage_retrieval_en", "39b96b7fa52bdd2a", "official"},
    {"passage_retrieval_zh", "c1e2346e245eb365", "official"},
    {"lcc", "6a1f24cf0bb83cd9", "official"},
    {"repobench-p", "ee9ec182ea5ffeb7", "official"},
    {"passkey", "a1d265268f61d448", "official, gpt4"},
    {"number_string", "7f84f8637ed441f6", "official, gpt4"},
    {"kv_retrieval", "afa97419dd69cd74", "official, gpt4"},
    {"longbook_qa_eng", "3d0b2296b8712aaa", "official, gpt4"},
    {"longbook_choice_eng", "7df117e8c610080b", "official, gpt4"},
    {"longbook_sum_eng", "73463436d5d11a9a", "official, gpt4"},
    {"longbook_qa_chn", "751d02a1547551de", "official, gpt4"},
    {"math_find", "df2334891e94023e", "official, gpt4"},
    {"math_calc", "35f11b1c997f8699", "official, gpt4"},
    {"code_run", "e566fbaa9fa7dbcb", "official, gpt4"},
    {"code_debug", "94ffaeb0375fe01b", "official, gpt4"},
    {"longdialogue_qa_eng", "f6dadd7709f11572", "official, gpt4"},
    {"passkey", "32a0f730f8746b1a", "official, yarn-mistral"},
    {"number_string", "f519b51c90c40022", "official, yarn-mistral"},
    {"longbook_sum_eng", "897e95259c5b906a", "official, yarn-mistral"},
    {"longbook_choice_eng", "fddf5d8b4293a275", "official, yarn-mistral"},
    {"longbook_qa_eng", "6f24f4abaf415845", "official, yarn-mistral"},
    {"longbook_qa_chn", "121d4332c1cc5ee0", "official, yarn-mistral"},
    {"math_calc", "ebf0b348e08e938f", "official, yarn-mistral"},
    {"code_run", "8cfbec4288592e77", "official, yarn-mistral"},
    {"code_debug", "e485a37d7c9c193f", "official, yarn-mistral"},
    {"longdialogue_qa_eng", "0483f9f01c709be7", "official, yarn-mistral"},
    {"passkey", "ce8e0b83c8a9d0f7", "official, claude2"},
    {"number_string", "3d234bde73ebcd0d", "official, claude2"},
    {"kv_retrieval", "e255d748f6f381e9", "official, claude2"},
    {"longbook_qa_eng", "2a82237b0929c59f", "official, claude2"},
    {"math_calc", "56ed4b94375a1665", "official, claude2"},
    {"code_run", "34bf77f8ba6699de", "official, claude2"},
    {"code_debug", "0b810ec3a630e840", "official, claude2"},
    {"kv_retrieval", "a15dd4247e494134", "official, kimi"},
    {"longbook_sum_eng", "fa1d537db09c4bf5", "official, kimi"},
    {"longbook_choice_eng", "630b5caea26eeb50", "official, kimi"},
    {"longbook_qa_eng", "75b13c59480c61cf", "official, kimi"},
    {"longbook_qa_chn", "ec57f053851f4bd6", "official, kimi"},
    {"code_run", "8fffd53387dcb775", "official, kimi"},
    {"code_debug", "9b63ae3a037da389", "official, kimi"},
    {"longdialogue_qa_eng", "315f572baab5a704", "official, kimi"},
    {"kv_retrieval", "81fde57045db5c36", "EM-LLM"},
    {"longbook_qa_eng", "d662d24078a66944", "EM-LLM"},
    {"code_debug", "e8766342d03d6433", "EM-LLM"},
};

/// Our own wording, in the form that the shipped model was taught: the context, the question after
/// two empty lines (contexts of lines end with a line's end), and the answer's first words.
struct Own {
  std::string_view task, text;
};
constexpr Own kOwn[] = {
    {"passkey", "{context}\n\n{input}\n\nThe pass key is"},
    {"number_string", "{context}\n\n{input}\n\nThe sequence of digits is"},
    {"kv_retrieval", "{context}\n\n\nLook one key up in the JSON data above.\n{input}"},
    {"math_find", "A list of numbers:\n\n{context}\n\n\n{input}"},
    {"math_calc",
     "{context}\n\n\nThe value of the expression above after each operation, one after the other:"},
    {"code_run", "{context}\n\n\nWith the functions above, {func_call} returns the number"},
};

/// LongBench-E's tasks are asked as those without `_e` are.
std::string_view prompted_as(std::string_view task) {
  if (task.ends_with("_e")) task.remove_suffix(2);
  return task;
}

std::string bad_braces(const std::string& origin, const std::string& text) {
  return fmt::format("{}: the prompt \"{}\" is no text that Python's str.format takes", origin,
                     printable(text, 60));
}

struct FunctionCall {
  std::string text, name;  ///< "func_3(-7)", "func_3"
};

/// The first call of a function func_<number>. Not by a std::regex, which recurses over each
/// character that it takes.
std::optional<FunctionCall> first_call(std::string_view text) {
  constexpr std::string_view kName = "func_";
  const auto behind_digits = [&](std::size_t at) {
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
    return at;
  };
  const auto stands = [&](std::size_t at, char c) { return at < text.size() && text[at] == c; };
  for (std::size_t at = 0; (at = text.find(kName, at)) != std::string_view::npos;) {
    const std::size_t digits = at + kName.size(), name_end = behind_digits(digits);
    const std::size_t number = name_end + 1 + (stands(name_end + 1, '-') ? 1 : 0);
    const std::size_t end = behind_digits(number);
    if (name_end > digits && stands(name_end, '(') && end > number && stands(end, ')'))
      return FunctionCall{std::string(text.substr(at, end + 1 - at)),
                          std::string(text.substr(at, name_end - at))};
    at = digits;
  }
  return std::nullopt;
}

}  // namespace

Template::Template(std::string text, const std::string& origin)
    : text_(std::move(text)), origin_(origin) {
  std::string plain;
  for (std::size_t at = 0; at < text_.size(); ++at) {
    const char c = text_[at];
    if (c != '{' && c != '}') {
      plain.push_back(c);
    } else if (at + 1 < text_.size() && text_[at + 1] == c) {  // doubled: the brace itself
      plain.push_back(c);
      ++at;
    } else {
      const std::size_t end = c == '{' ? text_.find('}', at) : std::string::npos;
      if (end == std::string::npos) throw ConfigError(bad_braces(origin_, text_));
      pieces_.push_back({std::move(plain), false});
      plain.clear();
      pieces_.push_back({text_.substr(at + 1, end - at - 1), true});
      at = end;
    }
  }
  pieces_.push_back({std::move(plain), false});
}

Prompt Template::fill(const std::map<std::string, std::string>& slots) const {
  Prompt prompt;
  std::string* part = &prompt.question;  // without a context there is nothing but a question
  for (const Piece& piece : pieces_)
    if (piece.slot && piece.text == "context") part = &prompt.document;
  for (const Piece& piece : pieces_) {
    if (!piece.slot) {
      *part += piece.text;
      continue;
    }
    const auto value = slots.find(piece.text);
    if (value == slots.end())
      throw ConfigError(
          fmt::format("{}: the prompt's slot {{{}}} is none of this task's", origin_, piece.text));
    *part += value->second;
    if (piece.text == "context") part = &prompt.question;
  }
  return prompt;
}

std::string Template::sha256() const { return sha256_of(text_); }

std::string Template::published_as(std::string_view task) const {
  const std::string hash = sha256();
  for (const Published& p : kPublished)
    if (p.task == prompted_as(task) && hash.starts_with(p.sha256)) return std::string(p.source);
  return {};
}

Template load_template(const std::filesystem::path& file, const std::string& family,
                       const std::string& task) {
  Json all = tools::read_json(file);
  if (!all.is_object() || all.empty())
    throw FileError(
        fmt::format("{}: must be a JSON object of prompts; {}", file.string(), kWhereToGet));
  if (all.front().is_object()) {
    std::string families;
    for (const auto& [name, unused] : all.items())
      families += fmt::format("{}{}", families.empty() ? "" : ", ", printable(name));
    if (!all.contains(family))
      throw ConfigError(
          fmt::format("--prompt-family {}: {} has {}", family, file.string(), families));
    all = Json(all[family]);
  }
  const std::string name(all.is_object() && all.contains(task) ? task : prompted_as(task));
  if (!all.is_object() || !all.contains(name) || !all[name].is_string())
    throw FileError(
        fmt::format("{}: holds no prompt for the task {}; {}", file.string(), task, kWhereToGet));
  return Template(all[name].get<std::string>(), file.string());
}

Template own_template(const std::string& task) {
  for (const Own& own : kOwn)
    if (own.task == task) return Template(std::string(own.text), "built-in prompt");
  throw ConfigError(fmt::format(
      "--prompts: the task {} needs the official prompts, which are not part of this program; {}",
      task, kWhereToGet));
}

std::map<std::string, std::string> longbench_slots(const Example& example) {
  return {{"context", example.context}, {"input", example.input}};
}

std::map<std::string, std::string> infinitebench_slots(const Example& example,
                                                       std::string_view task) {
  std::map<std::string, std::string> slots{
      {"context", example.context}, {"input", example.input}, {"question", example.input}};
  const auto lacks = [&](const char* what) {
    throw DataError(
        fmt::format("{}: the input of example {} has no {}", task, printable(example.id), what));
  };
  for (std::size_t i = 0; i < example.options.size() && i < 4; ++i)
    slots[fmt::format("OPTION_{}", "ABCD"[i])] = example.options[i];
  if (task == "code_run") {
    const std::optional<FunctionCall> call = first_call(example.input);
    if (!call) lacks("call of a function func_<number>");
    slots["func_call"] = call->text;
    slots["func"] = call->name;
  }
  if (task == "math_find") {
    // "The <kind> of": the last " of" of the line
    const std::size_t start = example.input.find("The ");
    const std::size_t end = start == std::string::npos
                                ? start
                                : example.input.rfind(" of", example.input.find('\n', start));
    if (end == std::string::npos || end < start + 5) lacks("\"The ... of\"");
    std::string kind = example.input.substr(start, end - start);
    std::transform(kind.begin(), kind.end(), kind.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    slots["prefix"] = fmt::format("What is {} in the following list?", kind);
  }
  if (task == "kv_retrieval") {
    if (example.input.size() < 44 || example.input[6] != '"' || example.input[43] != '"')
      lacks("key in quotes at its 7th character");
    slots["key"] = example.input.substr(6, 38);
  }
  return slots;
}

}  // namespace episodic::suites
