// SPDX-License-Identifier: Apache-2.0
#include "base/strict_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

/// Bytes of the character that begins here, if it is one that may be shown; 0 if not.
std::size_t shown(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  unsigned point = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3f);
  }
  const bool control = point < 0xa0;  // of a terminal
  const bool turns = (point >= 0x200e && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e) ||
                     (point >= 0x2066 && point <= 0x2069);  // the direction, or the line
  return control || turns ? 0 : length;
}

/// Refuses a text that is nested too deep, without a tree or a stack. What the parser takes from a
/// text up to where it refuses it is nested no deeper than this finds.
void check_depth(std::string_view text, std::string_view label, const JsonLimits& limits) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limits.depth)
        throw FileError(
            fmt::format("{}: nested more than {} deep; {}", label, limits.depth, limits.remedy));
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

/// What stands in for Python's NaN and infinities, for which the parser has no words: numbers that
/// nobody writes so, found again by their spelling.
struct PythonNumber {
  std::string_view python, spelling;
  double value;
};
constexpr PythonNumber kPythonNumbers[] = {
    {"-Infinity", "-1.0e-0000000000000000000000", -std::numeric_limits<double>::infinity()},
    {"Infinity", "1.0e-0000000000000000000000", std::numeric_limits<double>::infinity()},
    {"NaN", "2.0e-0000000000000000000000", std::numeric_limits<double>::quiet_NaN()}};

std::string without_python_numbers(std::string_view text) {
  const auto joins = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.';
  };
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) out += text[i++];
    if (c == '"') in_string = !in_string;
    const auto* known = std::end(kPythonNumbers);
    const bool begins = !in_string && (c == 'N' || c == 'I' || c == '-');
    if (begins && (i == 0 || !joins(text[i - 1])))
      known = std::find_if(std::begin(kPythonNumbers), std::end(kPythonNumbers),
                           [&](const PythonNumber& n) {
                             const std::size_t end = i + n.python.size();
                             return text.substr(i).starts_with(n.python) &&
                                    (end >= text.size() || !joins(text[end]));
                           });
    if (known == std::end(kPythonNumbers)) {
      out += text[i];
    } else {
      out += known->spelling;
      i += known->python.size() - 1;
    }
  }
  return out;
}

/// Empties a tree from its leaves up: an empty list or object is destroyed without taking memory,
/// while the destructor of a full one puts all that it holds into a list of its own first.
template <class Json>
void release_tree(Json& tree) noexcept {
  if (!tree.is_structured()) return;
  for (Json& child : tree) release_tree(child);
  tree.clear();
}

/// Makes the tree of what the parser reports as it meets it, so a hostile text is refused before
/// the tree that it describes has grown large.
template <class Json>
class Builder final : public nlohmann::json_sax<Json> {
 public:
  using Entry = std::function<void(const std::string& key, Json& value)>;

  Builder(std::string_view label, const JsonLimits& limits, const Entry* entry = nullptr)
      : label_(label), limits_(limits), entry_(entry) {}
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  ~Builder() override {
    release_tree(root_);
    release_tree(entry_value_);
  }

  Json take() { return std::move(root_); }

  /// The last entry, for it is known to be complete only now.
  void hand_over() {
    if (entry_key_) (*entry_)(*entry_key_, entry_value_);
    entry_key_.reset();
    release_tree(entry_value_);
  }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_unsigned(std::uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string& spelling) override {
    if (limits_.python_numbers)
      for (const PythonNumber& n : kPythonNumbers)
        if (spelling == n.spelling) return put(n.value);
    return put(value);
  }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return false; }  // there is none in a text

  bool start_object(std::size_t) override { return put(Json::object()) && enter(limits_.keys); }
  bool start_array(std::size_t) override {
    return put(Json::array()) && enter(limits_.array_length);
  }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(std::string& name) override {
    Json& object = *levels_.back().tree;
    if (entry_ && levels_.size() == 1) {
      hand_over();
      entry_key_ = name;
      newest_ = &entry_value_;
      return true;
    }
    if (!limits_.repeated_keys && object.contains(name))
      throw FileError(fmt::format("{}: the key '{}' stands twice; remove one of them", label_,
                                  printable(name)));
    newest_ = &object[name];
    return true;
  }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& error) override {
    throw FileError(fmt::format("{}: not valid JSON ({}); {}", label_, printable(error.what()),
                                limits_.remedy));
  }

 private:
  struct Level {
    Json* tree;  // the list or object; what it lies in does not grow before it ends
    std::size_t most, values = 0;
  };

  /// A value into the list that is open, or under the key that was read last.
  bool put(Json value) {
    if (levels_.empty()) {
      newest_ = &root_;
    } else {
      Level& level = levels_.back();
      if (++level.values > level.most)
        throw FileError(fmt::format("{}: a list or object with more than {} entries; {}", label_,
                                    level.most, limits_.remedy));
      if (level.tree->is_array()) newest_ = &level.tree->emplace_back();
    }
    newest_->swap(value);
    return true;
  }
  bool enter(std::size_t most) {
    levels_.push_back({newest_, most});
    return true;
  }
  bool leave() {
    levels_.pop_back();
    return true;
  }

  std::string_view label_;
  const JsonLimits& limits_;
  const Entry* entry_;  // who takes the entries of the root, one by one; null: they are kept
  std::optional<std::string> entry_key_;
  Json entry_value_;
  Json root_;
  Json* newest_ = nullptr;
  std::vector<Level> levels_;
};

void check(std::string_view text, std::string_view label, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    throw FileError(fmt::format("{}: {} bytes long, at most {} were expected; {}", label,
                                text.size(), limits.bytes, limits.remedy));
  check_depth(text, label, limits);
}

template <class Json>
Json parse(std::string_view text, std::string_view label, const JsonLimits& limits) {
  check(text, label, limits);
  Builder<Json> builder(label, limits);
  if (limits.python_numbers) {
    const std::string plain = without_python_numbers(text);
    Json::sax_parse(plain.begin(), plain.end(), &builder);
  } else {
    Json::sax_parse(text.begin(), text.end(), &builder);
  }
  return builder.take();
}

template <class Json>
std::string shown_value(const Json& value) {
  return printable(std::string_view(value.dump(-1, ' ', true, Json::error_handler_t::replace)));
}

}  // namespace

nlohmann::json parse_strict(std::string_view text, std::string_view label,
                            const JsonLimits& limits) {
  return parse<nlohmann::json>(text, label, limits);
}

void parse_entries(
    std::string_view text, std::string_view label, const JsonLimits& limits,
    const std::function<void(const std::string& key, nlohmann::json& value)>& entry) {
  check(text, label, limits);
  Builder<nlohmann::json> builder(label, limits, &entry);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  builder.hand_over();
  if (!builder.take().is_object())
    throw FileError(fmt::format("{}: is not a JSON object; {}", label, limits.remedy));
}

nlohmann::ordered_json parse_ordered(std::string_view text, std::string_view label,
                                     JsonLimits limits) {
  constexpr std::size_t kMostKeys = 4096;
  limits.keys = std::min(limits.keys, kMostKeys);
  return parse<nlohmann::ordered_json>(text, label, limits);
}

JsonGuard::~JsonGuard() { release_tree(tree_); }

std::string printable(std::string_view text, std::size_t longest) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = shown(text.substr(i));
    if (out.size() + std::max<std::size_t>(length, 1) > longest) return out + "...";
    out += length == 0 ? "?" : text.substr(i, length);
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

std::string printable_value(const nlohmann::json& value) { return shown_value(value); }
std::string printable_value(const nlohmann::ordered_json& value) { return shown_value(value); }

std::string json_string(std::string_view text) {
  using Json = nlohmann::json;
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace episodic
