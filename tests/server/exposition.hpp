// SPDX-License-Identifier: Apache-2.0
#pragma once
// A strict reader of Prometheus's text form, version 0.0.4, with the complaints of `promtool check
// metrics` that matter: names, order, histograms.
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace exposition {

using Labels = std::map<std::string, std::string>;

struct Family {
  std::string type, help;
  std::vector<std::pair<std::string, std::pair<Labels, double>>> samples;  // name, labels, value
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  /// \throws std::runtime_error naming the line that breaks a rule
  std::map<std::string, Family> read() {
    if (text_.empty() || text_.back() != '\n') fail("does not end with a line feed");
    while (!text_.empty()) {
      ++line_number_;
      line_ = text_.substr(0, text_.find('\n'));
      text_.remove_prefix(line_.size() + 1);
      if (line_.starts_with("# HELP ")) {
        begin_family(line_.substr(7));
      } else if (line_.starts_with("# TYPE ")) {
        take_type(line_.substr(7));
      } else {
        take_sample();
      }
    }
    end_family();
    return families_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("line " + std::to_string(line_number_) + " " + what + ": " +
                             std::string(line_));
  }
  static bool is_name(std::string_view name, bool colon) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    for (const char c : name)
      if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
            c == '_' || (colon && c == ':')))
        return false;
    return true;
  }
  static double number(std::string_view text) {
    if (text == "+Inf") return HUGE_VAL;
    const std::string copy(text);
    char* end = nullptr;
    const double value = std::strtod(copy.c_str(), &end);
    if (copy.empty() || *end != '\0' || copy[0] == ' ' || !std::isfinite(value))
      throw std::runtime_error("no number: " + copy);
    return value;
  }

  void begin_family(std::string_view rest) {
    end_family();
    const std::size_t space = rest.find(' ');
    name_ = rest.substr(0, space);
    if (!is_name(name_, true)) fail("has no name");
    if (families_.count(name_) > 0) fail("has a family that was there before");
    if (space == rest.npos || rest.size() == space + 1) fail("says nothing");
    families_[name_].help = rest.substr(space + 1);
  }
  void take_type(std::string_view rest) {
    const std::size_t space = rest.find(' ');
    if (rest.substr(0, space) != name_) fail("is not behind its HELP");
    Family& family = families_[name_];
    if (!family.type.empty() || !family.samples.empty()) fail("comes too late");
    family.type = rest.substr(space + 1);
    if (family.type != "counter" && family.type != "gauge" && family.type != "histogram")
      fail("has an unknown type");
    if ((family.type == "counter") != name_.ends_with("_total"))
      fail("must end with _total where it is a counter, and only there");
  }
  Labels take_labels() {
    Labels labels;
    at_ = line_.find_first_of("{ ");
    if (at_ == line_.npos) fail("has no value");
    if (line_[at_] == ' ') return labels;
    do {
      const std::size_t equal = line_.find("=\"", ++at_);
      if (equal == line_.npos) fail("has a label without a value");
      const std::string label(line_.substr(at_, equal - at_));
      if (!is_name(label, false)) fail("has a label that is no name");
      std::string value;
      for (at_ = equal + 2; at_ < line_.size() && line_[at_] != '"'; ++at_) {
        if (line_[at_] == '\\') {
          const char c = ++at_ < line_.size() ? line_[at_] : ' ';
          if (c != '\\' && c != '"' && c != 'n') fail("has an unknown escape");
          value += c == 'n' ? '\n' : c;
        } else {
          value += line_[at_];
        }
      }
      if (++at_ >= line_.size()) fail("has a label that does not end");
      if (!labels.emplace(label, value).second) fail("has a label twice");
    } while (line_[at_] == ',');
    if (line_[at_] != '}') fail("has labels that do not end");
    ++at_;
    return labels;
  }
  void take_sample() {
    Family& family = families_[name_];
    if (family.type.empty()) fail("has no TYPE before it");
    const std::string name(line_.substr(0, line_.find_first_of("{ ")));
    const std::string suffix =
        name.starts_with(name_) ? name.substr(name_.size()) : std::string("?");
    const bool part = suffix == "_bucket" || suffix == "_sum" || suffix == "_count";
    if (family.type == "histogram" ? !part : !suffix.empty()) fail("is not of its family");
    Labels labels = take_labels();
    if (at_ >= line_.size() || line_[at_] != ' ') fail("has no value");
    const double value = number(line_.substr(at_ + 1));
    if (family.type != "gauge" && value < 0) fail("counts below nothing");
    if (!seen_.insert({name, labels}).second) fail("was there before");
    family.samples.push_back({name, {std::move(labels), value}});
  }
  void end_family() {
    if (name_.empty()) return;
    const Family& family = families_[name_];
    if (family.samples.empty()) fail("comes behind a family without a value");
    if (family.type != "histogram") return;
    double below = -1, bound = -HUGE_VAL, count = -1;
    bool sum = false;
    for (const auto& [name, sample] : family.samples) {
      if (name.ends_with("_bucket")) {
        const double le = number(sample.first.at("le"));
        if (le <= bound || sample.second < below) fail("comes behind a histogram that falls");
        bound = le;
        below = sample.second;
      }
      sum = sum || name.ends_with("_sum");
      if (name.ends_with("_count")) count = sample.second;
    }
    if (!sum || bound != HUGE_VAL || count != below)
      fail("comes behind a histogram without its sum, its last range or its count");
  }

  std::string_view text_, line_;
  std::string name_;  // of the family
  std::size_t at_ = 0, line_number_ = 0;
  std::map<std::string, Family> families_;
  std::set<std::pair<std::string, Labels>> seen_;
};

}  // namespace exposition
