// SPDX-License-Identifier: Apache-2.0
#include "report/origin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common.hpp"
#include "episodic/base/config.hpp"

namespace episodic::suites {
namespace {

/// Distinct values in the order they were met: "official / em-llm".
class Values {
 public:
  void add(const std::string& value) {
    if (std::find(all_.begin(), all_.end(), value) == all_.end()) all_.push_back(value);
  }
  std::string text() const {
    std::string text;
    for (const std::string& v : all_) text += (text.empty() ? "" : " / ") + v;
    return text.empty() ? "-" : text;
  }
  bool several() const { return all_.size() > 1; }

 private:
  std::vector<std::string> all_;
};

/// Items by name in the order they were met.
template <class T>
class Ordered {
 public:
  T& at(const std::string& name) {
    for (auto& [n, item] : items_)
      if (n == name) return item;
    return items_.emplace_back(name, T()).second;
  }
  const std::vector<std::pair<std::string, T>>& items() const { return items_; }

 private:
  std::vector<std::pair<std::string, T>> items_;
};

std::string prompt_of(const Json& settings) {
  const Json prompt = settings.value("prompt", Json());
  if (!prompt.is_object()) return "?";
  return fmt::format("{}, {}", text_or(prompt, "source", "?"),
                     prompt.value("chat_format", false) ? "in the chat format" : "raw");
}

std::string new_tokens_of(const Json& settings) {
  return fmt::format("{} ({})", settings.value("max_new", Json()).dump(),
                     text_or(settings, "limits", "?"));
}

std::string tasks_section(const std::vector<Result>& results) {
  struct Asked {
    Values prompt, scorer, tokens;
    bool several() const { return prompt.several() || scorer.several() || tokens.several(); }
  };
  Ordered<Asked> tasks;
  for (const Result& r : results) {
    Asked& a = tasks.at(r.task);
    std::string scorer = text_or(r.json, "scorer", "?");
    if (r.json.contains("code_sim")) scorer += ", " + text_or(r.json, "code_sim", "?");
    a.scorer.add(scorer);
    a.prompt.add(r.settings.is_object() ? prompt_of(r.settings) : "not known");
    a.tokens.add(r.settings.is_object() ? new_tokens_of(r.settings) : "not known");
  }
  std::string text =
      "\n# How it was asked and scored\n\n| task | prompt | scorer | generated tokens, at most |\n"
      "|---|---|---|---|\n";
  bool several = false;
  for (const auto& [task, a] : tasks.items()) {
    text += fmt::format("| {} | {} | {} | {} |\n", task, a.prompt.text(), a.scorer.text(),
                        a.tokens.text());
    several |= a.several();
  }
  if (several)
    text += "\n**A cell with several values: the task's scores are not all of one kind.**\n";
  return text;
}

/// Of a memory's settings those that are not the defaults.
std::string memory_text(const Json& memory) {
  if (!memory.is_object()) return "none";
  const Json defaults = tools::settings_json(MemoryConfig());
  std::string text;
  for (const auto& [name, value] : memory.items())
    if (!defaults.contains(name) || defaults[name] != value)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                          value.is_string() ? value.get<std::string>() : value.dump());
  return text.empty() ? "the defaults" : text;
}

std::string methods_section(const std::vector<Result>& results) {
  struct Set {
    Values model, memory, question, other;
  };
  Ordered<Set> methods;
  for (const Result& r : results) {
    if (!r.settings.is_object()) continue;
    Set& m = methods.at(r.label);
    std::string model = text_or(r.settings, "model", "?");
    if (const std::string f = text_or(r.settings, "model_fingerprint", ""); !f.empty())
      model += fmt::format(" ({})", f.substr(0, 8));
    if (const std::string q = text_or(r.settings, "quantize", ""); !q.empty())
      model += fmt::format(", rounded to {}", q);
    if (r.settings.contains("lora")) model += ", lora " + r.settings["lora"].dump();
    m.model.add(model);
    m.memory.add(memory_text(r.settings.value("memory", Json())));
    m.question.add(r.settings.value("question_step", true) ? "the question" : "its last token");
    for (const char* name : {"entries", "reader", "max_length"})
      if (r.settings.contains(name))
        m.other.add(fmt::format("{} {}", name, r.settings[name].dump()));
    if (const Json found = r.settings.value("retrieval", Json()); found.is_object())
      m.other.add("encoder " + text_or(found, "encoder", "?"));
  }
  if (methods.items().empty()) return {};
  std::string text =
      "\n# How the methods were set\n\n| method | model | memory, where not the default | last "
      "step "
      "| besides |\n|---|---|---|---|---|\n";
  for (const auto& [method, m] : methods.items())
    text += fmt::format("| {} | {} | {} | {} | {} |\n", method, m.model.text(), m.memory.text(),
                        m.question.text(), m.other.text());
  return text;
}

std::string notes_section(const std::vector<Result>& results) {
  const std::pair<const char*, const char*> notes[] = {
      {"missing", "without a prediction, not in the score"},
      {"doubled", "predictions of an id that had one; the first counts"},
      {"unknown", "predictions of ids that the data has not, left out"},
      {"guessed", "scored by the authors' random letter"},
      {"undefined", "scored 0 where the published program fails"}};
  std::string text;
  for (const Result& r : results)
    for (const auto& [name, what] : notes)
      if (const Json ids = r.json.value(name, Json()); ids.is_array() && !ids.empty())
        text += fmt::format("- {}, {}: {} {}\n", r.data.empty() ? r.task : named_by_data(r),
                            r.label, ids.size(), what);
  return text.empty() ? text : "\n# What is missing, doubled or guessed\n\n" + text;
}

std::string made_with_section(const std::vector<Result>& results) {
  struct Made {
    Values dates;
    int results = 0;
  };
  Ordered<Made> places;
  const auto add = [&](const Json& e) {
    if (!e.is_object()) return;
    const std::string device = text_or(e, "device", "");
    Made& m =
        places.at(fmt::format("{} | {}{}", text_or(e, "commit", "?"),
                              device.empty() ? "" : device + " beside ", text_or(e, "cpu", "?")));
    m.dates.add(text_or(e, "date", "?").substr(0, 10));
    ++m.results;
  };
  for (const Result& r : results) {
    if (!r.settings.is_object()) continue;
    add(r.settings.value("environment", Json()));
    for (const Json& e : r.settings.value("later_environments", Json::array())) add(e);
  }
  if (places.items().empty()) return {};
  std::string text = "\n# Made with\n\n| commit | machine | date | results |\n|---|---|---|---|\n";
  for (const auto& [place, m] : places.items())
    text += fmt::format("| {} | {} | {} |\n", place, m.dates.text(), m.results);
  return text;
}

}  // namespace

std::string origin_sections(const std::vector<Result>& results) {
  return tasks_section(results) + methods_section(results) + notes_section(results) +
         made_with_section(results);
}

}  // namespace episodic::suites
