// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/generation_defaults.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <system_error>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/open_model.hpp"
#include "json_object.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostTopK = std::numeric_limits<std::int32_t>::max();
constexpr double kMostTemperature = 100, kLeastPenalty = 1e-3, kMostPenalty = 1e3;

GenerationDefaults defaults_of(const GgufFile& file) {
  GenerationDefaults d;
  const auto number = [&](const char* key, double least, double most, double otherwise) {
    const std::optional<double> x = file.number(key);
    if (!x) return otherwise;
    if (!(*x >= least && *x <= most))
      file.fail(key, fmt::format("is {}, expected a number in [{}, {}]", *x, least, most));
    d.source = file.path().filename().string();
    return *x;
  };
  d.temperature = number("general.sampling.temp", 0, kMostTemperature, 0);
  d.top_p = number("general.sampling.top_p", 0, 1, 1);
  d.min_p = number("general.sampling.min_p", 0, 1, 0);
  d.repetition_penalty = number("general.sampling.penalty_repeat", kLeastPenalty, kMostPenalty, 1);
  const double k = number("general.sampling.top_k", -1, static_cast<double>(kMostTopK), 0);
  if (k != std::floor(k)) file.fail("general.sampling.top_k", "is no whole number");
  d.top_k = k < 0 ? 0 : static_cast<std::int64_t>(k);
  return d;
}

}  // namespace

GenerationDefaults parse_generation_defaults(std::string_view text, const std::string& file) {
  constexpr std::int64_t kTopK = 50;  // transformers' own
  const nlohmann::json json =
      parse_strict(text, file, {.depth = 12, .array_length = 1 << 16, .keys = 1 << 16});
  const JsonObject in(json, file);
  const bool draws = in.boolean("do_sample", false);
  const double temperature = in.number("temperature", 0, kMostTemperature, 1);
  const std::int64_t top_k = in.integer("top_k", -1, kMostTopK, kTopK);
  const double top_p = in.number("top_p", 0, 1, 1), min_p = in.number("min_p", 0, 1, 0);
  GenerationDefaults d;
  d.repetition_penalty = in.number("repetition_penalty", kLeastPenalty, kMostPenalty, 1);
  if (draws) {
    d.temperature = temperature;
    d.top_k = top_k < 0 ? 0 : top_k;
    d.top_p = top_p;
    d.min_p = min_p;
  }
  if (d != GenerationDefaults()) d.source = fs::path(file).filename().string();
  return d;
}

GenerationDefaults generation_defaults(const fs::path& model) {
  if (is_model_file(model)) return defaults_of(GgufFile(model));
  constexpr std::size_t kLongest = 16 << 20;
  const fs::path path = model / "generation_config.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  const MappedFile file(path);
  if (file.bytes().size() > kLongest)
    throw FileError(
        fmt::format("{}: {} bytes are too many for a configuration; is it the right file?",
                    path.string(), file.bytes().size()));
  return parse_generation_defaults(
      {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string());
}

}  // namespace episodic
