// SPDX-License-Identifier: Apache-2.0
#include "report/result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <tuple>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic::suites {
namespace {

/// Of one method's results; settings are told apart later.
std::string label_of(const Result& r, std::size_t index) {
  if (!r.settings.is_object()) {
    const std::string file = text_or(r.json, "preds", "");
    return file.empty() ? fmt::format("file {}", index + 1) : file;
  }
  std::string label = text_or(r.settings, "method", "?");
  if (const std::string preset = text_or(r.settings, "preset", ""); !preset.empty())
    label += " " + preset;
  return label;
}

/// A value of a result, or of an object in it. \throws ConfigError where it is of another kind
const Json& checked(const Json& object, const char* name, bool (Json::*kind)() const noexcept,
                    std::size_t index) {
  static const Json none;
  const Json& value = object.contains(name) ? object[name] : none;
  if (!(value.*kind)())
    throw ConfigError(fmt::format("result file {}: not of `score --json`: \"{}\" is {}", index + 1,
                                  name, value.is_null() ? "missing" : printable_value(value)));
  return value;
}

/// What the report reads of a run's settings and cost, where they are there.
void check_run(const Result& r, std::size_t index) {
  const auto if_there = [&](const Json& object, const char* name,
                            bool (Json::*kind)() const noexcept) {
    if (object.is_object() && object.contains(name)) checked(object, name, kind, index);
  };
  if_there(r.settings, "question_step", &Json::is_boolean);
  if (r.settings.is_object())
    if_there(r.settings.value("prompt", Json()), "chat_format", &Json::is_boolean);
  if_there(r.settings, "later_environments", &Json::is_array);
  if (!r.cost.is_object()) return;
  for (const char* name : {"event_bytes", "peak_resident_bytes"})
    checked(r.cost, name, &Json::is_number_integer, index);
  if_there(r.cost, "new_tokens", &Json::is_number);
  const Json& seconds = checked(r.cost, "seconds", &Json::is_object, index);
  for (const char* name : {"read", "answer", "retrieve"}) if_there(seconds, name, &Json::is_number);
}

Result read_result(const Json& json, std::size_t index) {
  if (!json.is_object() || !json.contains("task") || !json.contains("examples"))
    throw ConfigError(fmt::format("result file {}: not of `score --json`", index + 1));
  Result r;
  r.json = json;
  r.suite = text_or(json, "suite", "");
  r.task = checked(json, "task", &Json::is_string, index).get<std::string>();
  r.settings = json.value("settings", Json());
  r.data = text_or(r.settings, "data", "");
  r.label = label_of(r, index);
  r.cost = json.value("cost", Json());
  check_run(r, index);
  double sum = 0;
  for (const Json& e : checked(json, "examples", &Json::is_array, index)) {
    const auto score = checked(e, "score", &Json::is_number, index).get<double>();
    sum += score;
    r.scores[checked(e, "id", &Json::is_string, index).get<std::string>()] = score;
    const Json depth = e.value("depth", Json()), tokens = e.value("tokens", Json());
    if (depth.is_number() && tokens.is_number())
      r.cells.push_back({depth.get<double>(), tokens.get<double>(), score});
  }
  if (r.scores.empty())
    throw ConfigError(fmt::format("result file {}: holds no example", index + 1));
  const Json percent = json.value("score", Json());
  r.percent = percent.is_number() ? percent.get<double>()
                                  : 100 * sum / static_cast<double>(r.scores.size());
  return r;
}

std::string shown(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

using DataKey = std::tuple<std::string, std::string, std::string>;  // suite, task, data
DataKey data_key(const Result& r) { return {r.suite, r.task, r.data}; }

/// Labels that name what results of the same row differ in.
void tell_apart(std::vector<Result>& results) {
  std::map<std::pair<std::string, DataKey>, std::vector<const Result*>> same;
  for (const Result& r : results) same[{r.label, data_key(r)}].push_back(&r);
  // As few settings as tell a row's results apart, by label: --entries also changes the memory's.
  std::map<std::string, std::set<std::string>> differing;
  const auto value_of = [](const std::map<std::string, std::string>& ways,
                           const std::string& name) {
    const auto found = ways.find(name);
    return found == ways.end() ? std::string("none") : found->second;
  };
  for (const auto& [key, group] : same) {
    std::set<std::string> names;
    std::vector<std::map<std::string, std::string>> ways;
    for (const Result* r : group) {
      ways.push_back(ways_of(*r));
      for (const auto& [name, value] : ways.back()) names.insert(name);
    }
    // By the model first, whose settings differ too.
    std::vector<std::string> order(names.begin(), names.end());
    std::stable_partition(order.begin(), order.end(),
                          [](const std::string& name) { return name == "model"; });
    std::vector<std::string> told(group.size());  // what is named of each so far
    for (const std::string& name : order) {
      std::vector<std::string> more = told;
      for (std::size_t i = 0; i < ways.size(); ++i) more[i] += "\n" + value_of(ways[i], name);
      const auto kinds = [](const std::vector<std::string>& of) {
        return std::set<std::string>(of.begin(), of.end()).size();
      };
      if (kinds(more) == kinds(told)) continue;
      told = std::move(more);
      differing[key.first].insert(name);
    }
  }
  for (Result& r : results) {
    const auto names = differing.find(r.label);
    if (names == differing.end()) continue;
    const auto ways = ways_of(r);
    for (const std::string& name : names->second) {
      std::string value = value_of(ways, name);
      if (name.ends_with("fingerprint") || name.ends_with("sha256"))
        value.resize(std::min<std::size_t>(value.size(), 16));  // enough of a hash
      r.label += fmt::format(", {} {}", name, value);
    }
  }
}

}  // namespace

std::string text_or(const Json& json, const char* key, const std::string& otherwise) {
  return json.is_object() && json.contains(key) && json[key].is_string()
             ? json[key].get<std::string>()
             : otherwise;
}

std::map<std::string, std::string> ways_of(const Result& r) {
  std::map<std::string, std::string> ways;
  for (const char* name : {"scorer", "code_sim"})
    if (r.json.contains(name)) ways[name] = shown(r.json[name]);
  if (!r.settings.is_object()) return ways;
  for (const char* name : {"model", "model_fingerprint", "lora", "quantize", "limits",
                           "question_step", "max_length", "entries", "reader"})
    if (r.settings.contains(name)) ways[name] = shown(r.settings[name]);
  const auto add = [&](const char* of, std::initializer_list<const char*> names) {
    const Json part = r.settings.value(of, Json());
    if (!part.is_object()) return;
    if (names.size() == 0)
      for (const auto& [name, value] : part.items()) ways[name] = shown(value);
    for (const char* name : names)
      if (part.contains(name)) ways[fmt::format("{} {}", of, name)] = shown(part[name]);
  };
  add("memory", {});
  add("retrieval", {"encoder", "fingerprint"});
  add("prompt", {"source", "sha256", "chat_format"});
  return ways;
}

std::vector<Result> read_results(const std::vector<Json>& json) {
  std::vector<Result> results;
  for (std::size_t i = 0; i < json.size(); ++i) results.push_back(read_result(json[i], i));
  tell_apart(results);
  return results;
}

std::string named_by_data(const Result& r) {
  const std::string name = std::filesystem::path(r.data).stem().string();
  return name.starts_with(r.task) ? name : fmt::format("{} ({})", r.task, name);
}

std::pair<std::string, double> series_of(const Result& r) {
  std::string name = std::filesystem::path(r.data).stem().string();
  double length = 0;
  const std::size_t end = name.find_last_not_of("0123456789");
  if (end != std::string::npos && end + 1 < name.size() && name[end] == '-') {
    length = std::strtod(name.c_str() + end + 1, nullptr);
    name.resize(end);
  }
  return {name.empty() ? r.task : name, length};
}

}  // namespace episodic::suites
