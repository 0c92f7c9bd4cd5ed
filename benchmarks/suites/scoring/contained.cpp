// SPDX-License-Identifier: Apache-2.0
#include "scoring/contained.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "scoring/unicode.hpp"
#include "scoring/words.hpp"

namespace episodic::suites {
namespace {

std::u32string lower_of(std::string_view text) { return lower(to_code_points(text)); }

bool contains(const std::u32string& text, const std::u32string& part) {
  return text.find(part) != std::u32string::npos;
}

bool is_ascii_digit(std::string_view text, std::size_t i) {
  return i < text.size() && text[i] >= '0' && text[i] <= '9';
}

/// Whether a form stands in the text as whole words.
bool holds_form(const std::u32string& text, const std::u32string& form) {
  const auto word = [&](std::size_t i) {
    return i < text.size() && text[i] != U'_' && is_word(text[i]);
  };
  if (form.empty()) return false;
  for (std::size_t at = text.find(form); at != std::u32string::npos; at = text.find(form, at + 1))
    if ((at == 0 || !word(at - 1)) && !word(at + form.size())) return true;
  return false;
}

}  // namespace

double matched_share(std::string_view prediction, std::span<const std::string> answers) {
  const std::u32string text = lower_of(prediction);
  const auto found = std::count_if(answers.begin(), answers.end(), [&](const std::string& answer) {
    return contains(text, lower_of(answer));
  });
  return static_cast<double>(found) / static_cast<double>(answers.size());
}

bool matched_any(std::string_view prediction, std::span<const std::string> answers) {
  return matched_share(prediction, answers) > 0;
}

std::span<const std::string_view> babilong_labels(std::string_view task) {
  static constexpr std::array<std::string_view, 6> kPlaces{"bathroom", "bedroom", "garden",
                                                           "hallway",  "kitchen", "office"};
  static constexpr std::array<std::string_view, 7> kGifts{"Bill",  "Fred",     "Jeff", "Mary",
                                                          "apple", "football", "milk"};
  if (task == "qa5") return kGifts;
  return kPlaces;
}

bool babilong_right(std::string_view prediction, std::string_view target, std::string_view question,
                    std::span<const std::string_view> labels) {
  std::u32string text = lower_of(prediction);
  for (const std::u32string_view end : {U".", U"<context>", U"<example>"})
    text.resize(std::min(text.find(end), text.size()));
  const std::u32string asked = lower_of(question), wanted = lower_of(target);
  bool right = false;
  for (const std::string_view label : labels) {
    const std::u32string name = lower_of(label);
    if (contains(asked, name) || !contains(text, name)) continue;
    if (name != wanted) return false;
    right = true;
  }
  return right;
}

std::optional<char> stated_choice(std::string_view prediction, char last) {
  static constexpr std::string_view kStated = "The correct answer is ";
  std::string text(prediction);
  std::erase(text, '*');
  const auto letter = [&](std::size_t at) -> std::optional<char> {
    if (at < text.size() && text[at] >= 'A' && text[at] <= last) return text[at];
    return std::nullopt;
  };
  // in brackets first, wherever they are: that is what the model was asked for
  for (const bool brackets : {true, false})
    for (std::size_t at = text.find(kStated); at != std::string::npos;
         at = text.find(kStated, at + 1)) {
      const std::size_t behind = at + kStated.size();
      if (!brackets) {
        if (const auto found = letter(behind)) return found;
      } else if (behind + 2 < text.size() && text[behind] == '(' && text[behind + 2] == ')') {
        if (const auto found = letter(behind + 1)) return found;
      }
    }
  return std::nullopt;
}

bool holds_facts(std::string_view prediction, const std::vector<std::vector<std::string>>& lists) {
  std::string joined;
  for (std::size_t i = 0; i < prediction.size(); ++i) {
    const bool gap = prediction[i] == ',' || prediction[i] == ' ';
    if (gap && i > 0 && is_ascii_digit(prediction, i - 1) && is_ascii_digit(prediction, i + 1))
      continue;
    joined += prediction[i];
  }
  const std::u32string text = lower_of(joined);
  return std::all_of(lists.begin(), lists.end(), [&](const std::vector<std::string>& forms) {
    return std::any_of(forms.begin(), forms.end(),
                       [&](const std::string& form) { return holds_form(text, lower_of(form)); });
  });
}

bool holds_words(std::string_view prediction, std::string_view answer) {
  const std::vector<std::u32string> text = normalized_words(to_code_points(prediction)),
                                    wanted = normalized_words(to_code_points(answer));
  return !wanted.empty() &&
         std::search(text.begin(), text.end(), wanted.begin(), wanted.end()) != text.end();
}

bool declines(std::string_view prediction) {
  static constexpr const char* kPhrases[] = {
      "not mention",       "not provided",    "not enough information",
      "no information",    "not specified",   "did not say",
      "didn't mention",    "do not know",     "don't know",
      "cannot determine",  "can't determine", "cannot be determined",
      "cannot answer",     "not available",   "unknown",
      "haven't mentioned", "not have enough", "never mentioned",
      "is incomplete",     "doesn't mention"};
  const std::u32string text = lower_of(prediction);
  return std::any_of(std::begin(kPhrases), std::end(kPhrases),
                     [&](const char* phrase) { return contains(text, lower_of(phrase)); });
}

}  // namespace episodic::suites
