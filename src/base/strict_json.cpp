// SPDX-License-Identifier: Apache-2.0
#include "base/strict_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
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
  Builder(std::string_view label, const JsonLimits& limits) : label_(label), limits_(limits) {}
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  ~Builder() override { release_tree(root_); }

  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_unsigned(std::uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
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
  Json root_;
  Json* newest_ = nullptr;
  std::vector<Level> levels_;
};

template <class Json>
Json parse(std::string_view text, std::string_view label, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    throw FileError(fmt::format("{}: {} bytes long, at most {} were expected; {}", label,
                                text.size(), limits.bytes, limits.remedy));
  check_depth(text, label, limits);
  Builder<Json> builder(label, limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
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
