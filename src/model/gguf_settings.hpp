// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of a GGUF file's metadata below the name of its architecture.

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "episodic/model/gguf.hpp"
#include "gguf_names.hpp"

namespace episodic {

/// A float32 of the file as the decimal number that was meant: 1e-6, not 9.99999997e-7.
inline double as_written(double x) {
  return std::strtod(fmt::format("{}", static_cast<float>(x)).c_str(), nullptr);
}

/// Keys below the architecture's name.
class GgufSettings {
 public:
  GgufSettings(const GgufFile& file, const GgufArchitecture& a) : file_(file), prefix_(a.gguf) {}

  std::string key(const char* name) const { return fmt::format("{}.{}", prefix_, name); }
  bool has(const char* name) const { return file_.value(key(name)) != nullptr; }
  [[noreturn]] void fail(const char* name, const std::string& what) const {
    file_.fail(key(name), what);
  }

  std::int64_t integer(const char* name) const {
    const auto value = file_.integer(key(name));
    if (!value) fail(name, "is missing; convert the file again");
    return in_range(name, *value);
  }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    return has(name) ? integer(name) : otherwise;
  }

  /// A number for each layer, or one for all. \throws FileError if the layers differ
  std::int64_t of_all_layers(const char* name, std::int64_t layers) const {
    const GgufValue* value = file_.value(key(name));
    const auto* list = value ? std::get_if<std::vector<std::int64_t>>(value) : nullptr;
    if (!list) return integer(name);
    if (static_cast<std::int64_t>(list->size()) != layers)
      fail(name, fmt::format("has {} numbers for {} layers; convert the file again", list->size(),
                             layers));
    for (const std::int64_t x : *list)
      if (x != list->front())
        fail(name, fmt::format("differs between layers ({} and {}), which is not supported",
                               list->front(), x));
    return in_range(name, list->front());
  }

  /// The same where 0 says that a layer has none.
  /// \param has which layers have some, written
  std::int64_t of_some_layers(const char* name, std::int64_t layers, std::vector<bool>& has) const {
    has.assign(static_cast<std::size_t>(layers), true);
    const GgufValue* value = file_.value(key(name));
    const auto* list = value ? std::get_if<std::vector<std::int64_t>>(value) : nullptr;
    if (!list) return integer(name);
    if (static_cast<std::int64_t>(list->size()) != layers)
      fail(name, fmt::format("has {} numbers for {} layers; convert the file again", list->size(),
                             layers));
    std::int64_t some = 0;
    for (std::size_t l = 0; l < has.size(); ++l) {
      const std::int64_t x = (*list)[l];
      has[l] = x != 0;
      if (x != 0 && some != 0 && x != some)
        fail(name,
             fmt::format("differs between layers ({} and {}), which is not supported", some, x));
      if (x != 0) some = x;
    }
    return in_range(name, some);
  }

  std::optional<double> number(const char* name) const {
    const auto value = file_.number(key(name));
    if (value && !std::isfinite(*value))
      fail(name, fmt::format("is {}; convert the file again", *value));
    return value ? std::optional(as_written(*value)) : std::nullopt;
  }
  void copy(const char* name, nlohmann::json& config, const char* to) const {
    if (const auto value = number(name)) config[to] = *value;
  }

  /// What the file says and this architecture does not compute by must say nothing.
  void require(const char* name, double nothing) const {
    const auto value = number(name);
    if (value && std::abs(*value - nothing) > 1e-6 * std::abs(nothing))
      fail(name, fmt::format("= {} is not supported for this architecture; convert the file again "
                             "without it",
                             *value));
  }

 private:
  std::int64_t in_range(const char* name, std::int64_t value) const {
    if (value < 1 || value > kMost)
      fail(name, fmt::format("= {} is out of range [1, {}]", value, kMost));
    return value;
  }

  static constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const GgufFile& file_;
  std::string prefix_;
};

/// Layers with a sliding window, and every n-th without. \param usual n, where it is not said
void add_gguf_windows(const GgufFile& file, const GgufSettings& in, std::int64_t usual,
                      nlohmann::json& config);

/// A number that a GGUF file has in a list of all layers, and Hugging Face as a tensor.
struct XieluRow {
  std::string name;
  std::vector<std::int64_t> shape;
  float value = 0;
};
/// Those of all layers; none for architectures without xIELU. \throws FileError naming the key
std::vector<XieluRow> xielu_rows(const GgufFile& file, const GgufArchitecture& a,
                                 const nlohmann::json& config);

/// config.json of a file of Gemma 4 (gguf_gemma4.cpp), but for its tokens.
nlohmann::json gguf_gemma4_config(const GgufFile& file, const GgufSettings& in);

/// What those with recurrences say (gguf_hybrid.cpp). \param attends which layers have heads of
/// keys
void add_hybrid_settings(const GgufFile& file, const GgufSettings& in, const GgufArchitecture& a,
                         const std::vector<bool>& attends, nlohmann::json& config);

/// A tensor of a recurrence in Hugging Face's shape.
/// \param t as the file has it \param view with Hugging Face's name, changed
/// \return its numbers where they are others; empty: they are as they lie
std::vector<std::byte> as_hugging_face(const GgufFile& file, const StoredTensor& t,
                                       StoredTensor& view);

/// What the architectures of gguf_dense.cpp say beyond llama's, as keys of config.json.
void add_dense_settings(const GgufFile& file, const GgufSettings& in, const GgufArchitecture& a,
                        nlohmann::json& config);

}  // namespace episodic
