// SPDX-License-Identifier: Apache-2.0
#include "rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace episodic {
namespace {

/// What a kind of rope scaling reads.
struct Scaling {
  const JsonObject& config;      // keys of the model
  const JsonObject& parameters;  // keys of rope_parameters or rope_scaling
  RopeAround around;
  double theta = 0;
  std::int64_t dim = 0;  // rotary channels

  /// Context of the first training: where the kinds that stretch it look for it.
  double original(bool required) const {
    const char* key = "original_max_position_embeddings";
    const JsonObject* object = parameters.has(key) ? &parameters
                               : config.has(key)   ? &config
                                                   : nullptr;
    if (!object && (required || around.max_positions == 0))
      parameters.fail(key, "is missing; expected a positive number");
    if (!object) return static_cast<double>(around.max_positions);
    constexpr double kMost = 1e12;
    const double value = object->positive(key);
    if (value < 1 || value > kMost)
      object->fail(key, fmt::format("is {}, must be in [1, {}]", value, kMost));
    return value;
  }
};

void scale_linear(const Scaling& s, Rope& rope) {
  const double factor = s.parameters.positive("factor");
  for (double& f : rope.table.inverse_frequency) f /= factor;
}

/// NTK: beyond the original context the base grows with the context (Rope::at).
void scale_dynamic(const Scaling& s, Rope& rope) {
  if (s.dim < 4) s.parameters.fail("rope_type", "= \"dynamic\" needs at least 4 rotary channels");
  rope.theta = s.theta;
  rope.factor = s.parameters.positive("factor");
  rope.original = static_cast<std::int64_t>(s.original(false));
}

/// Llama 3.1: wavelengths that are long for the original context are stretched by `factor`, short
/// ones kept, those between blended by where they lie.
void scale_llama3(const Scaling& s, Rope& rope) {
  const double factor = s.parameters.positive("factor");
  const double low = s.parameters.positive("low_freq_factor");
  const double high = s.parameters.positive("high_freq_factor");
  const double original = s.original(true);
  if (!(high > low))
    s.parameters.fail("high_freq_factor",
                      fmt::format("is {}, must exceed low_freq_factor = {}", high, low));
  for (double& f : rope.table.inverse_frequency) {
    const double turns = original * f / (2 * std::numbers::pi);  // of this channel over the context
    if (turns >= high) continue;
    const double kept = turns <= low ? 0.0 : (turns - low) / (high - low);
    f *= kept + (1 - kept) / factor;
  }
}

/// YaRN (arXiv 2309.00071): channels that turn more than beta_fast times over the original context
/// are kept, those that turn less than beta_slow times stretched, those between blended by their
/// number.
void scale_yarn(const Scaling& s, Rope& rope) {
  const double factor = s.parameters.positive("factor");
  const double original = s.original(false);
  const double fast = s.parameters.positive("beta_fast", 32.0);
  const double slow = s.parameters.positive("beta_slow", 1.0);
  if (!(s.theta > 1)) s.parameters.fail("rope_type", "= \"yarn\" needs a rope_theta above 1");
  const auto dim = static_cast<double>(s.dim);
  // number of the channel that turns so often
  const auto channel = [&](double turns) {
    return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(s.theta));
  };
  double first = channel(fast), last = channel(slow);
  if (s.parameters.boolean("truncate", true)) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, dim - 1);
  if (first == last) last += 0.001;
  auto& frequencies = rope.table.inverse_frequency;
  for (std::size_t c = 0; c < frequencies.size(); ++c) {
    const double stretched =
        std::clamp((static_cast<double>(c) - first) / (last - first), 0.0, 1.0);
    frequencies[c] *= 1 - stretched + stretched / factor;
  }
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  double attention = scale(1);
  if (s.parameters.has("mscale") && s.parameters.has("mscale_all_dim"))
    attention =
        scale(s.parameters.positive("mscale")) / scale(s.parameters.positive("mscale_all_dim"));
  rope.table.attention_factor = s.parameters.positive("attention_factor", attention);
}

/// LongRoPE (arXiv 2402.13753): a factor for each channel, of which there are two lists.
void scale_longrope(const Scaling& s, Rope& rope) {
  const double original = s.original(true);
  const auto pairs = s.dim / 2;
  const std::vector<double> shorts = s.parameters.positives("short_factor", pairs);
  const std::vector<double> longs = s.parameters.positives("long_factor", pairs);
  auto& frequencies = rope.table.inverse_frequency;
  rope.long_inverse_frequency = frequencies;
  for (std::size_t c = 0; c < frequencies.size(); ++c) {
    frequencies[c] /= shorts[c];
    rope.long_inverse_frequency[c] /= longs[c];
  }
  rope.original = static_cast<std::int64_t>(original);
  // Phi-3 states no factor: it is how far its positions were stretched
  const double factor = s.parameters.positive(
      "factor", std::max(1.0, static_cast<double>(s.around.max_positions) / original));
  const double attention =
      factor <= 1 || original <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
  rope.table.attention_factor = s.parameters.positive("attention_factor", attention);
}

void check_finite(const JsonObject& parameters, const Rope& rope) {
  const auto finite = [](double x) { return std::isfinite(x); };
  const auto all = [&](const std::vector<double>& x) {
    return std::all_of(x.begin(), x.end(), finite);
  };
  if (!all(rope.table.inverse_frequency) || !all(rope.long_inverse_frequency) ||
      !finite(rope.table.attention_factor))
    parameters.fail("factor", "gives frequencies beyond all numbers");
}

struct RopeKind {
  const char* name;
  void (*apply)(const Scaling& scaling, Rope& rope);  // null: nothing to do
};

constexpr RopeKind kRopeKinds[] = {
    {"default", nullptr},     {"linear", scale_linear}, {"dynamic", scale_dynamic},
    {"llama3", scale_llama3}, {"yarn", scale_yarn},     {"longrope", scale_longrope},
    {"su", scale_longrope},  // longrope's first name
};

}  // namespace

Rope read_rope(const JsonObject& config, const std::optional<JsonObject>& parameters,
               const RopeAround& around) {
  const JsonObject& inner = parameters ? *parameters : config;
  const auto either = [&](const char* key, double otherwise) {
    return inner.has(key) ? inner.positive(key) : config.positive(key, otherwise);
  };
  const double theta = either("rope_theta", around.theta);
  const double share = either("partial_rotary_factor", 1.0);
  const auto dim = static_cast<std::int64_t>(
      std::floor(static_cast<double>(around.head_dim) * std::min(share, 1.0)));
  if (share > 1 || dim < 2 || dim % 2 != 0)
    config.fail("head_dim",
                fmt::format("times partial_rotary_factor gives {} rotary channels; must be "
                            "even and in [2, {}]",
                            share * static_cast<double>(around.head_dim), around.head_dim));
  Rope rope;
  rope.table = plain_rotary(dim, theta);
  if (config.boolean(kRopeInterleaved, false)) rope.table.pairs = RotaryPairs::interleaved;
  if (!parameters) return rope;
  std::string kind = parameters->string("rope_type", parameters->string("type", "default"));
  // the first files of Phi-3 call longrope so, and yarn has no such list
  if (kind == "yarn" && parameters->has("short_factor")) kind = "longrope";
  std::string names;
  for (const RopeKind& known : kRopeKinds) {
    if (kind == known.name) {
      if (known.apply) known.apply({config, *parameters, around, theta, dim}, rope);
      check_finite(*parameters, rope);
      return rope;
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  }
  parameters->unsupported("rope_type", kind, names);
}

RotaryTable Rope::at(std::int64_t context) const {
  if (original == 0 || context <= original) return table;
  if (factor > 0) {
    const std::int64_t dim = table.rotary_dim();
    const double length = static_cast<double>(context) / static_cast<double>(original);
    const double growth = std::pow(factor * length - (factor - 1),
                                   static_cast<double>(dim) / static_cast<double>(dim - 2));
    RotaryTable grown = plain_rotary(dim, theta * growth);
    grown.pairs = table.pairs;
    return grown;
  }
  return {long_inverse_frequency, table.attention_factor, table.pairs};
}

bool Rope::operator==(const Rope& o) const {
  return table == o.table && original == o.original &&
         long_inverse_frequency == o.long_inverse_frequency && theta == o.theta &&
         factor == o.factor;
}

}  // namespace episodic
