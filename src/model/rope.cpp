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

  /// Context of the first training. As transformers has it the key beside the settings goes before
  /// the one among them, and the trained window stands in for both.
  double original() const {
    const char* key = "original_max_position_embeddings";
    constexpr double kMost = 1e12;
    if (!around.of_layer_type && config.has(key)) return config.number(key, 1, kMost);
    if (around.original > 0) return static_cast<double>(around.original);
    if (parameters.has(key)) return parameters.number(key, 1, kMost);
    return static_cast<double>(trained());
  }

  std::int64_t trained() const {
    if (around.max_positions == 0)
      config.fail("max_position_embeddings", "is missing; this rope_type is made for a length");
    return around.max_positions;
  }

  /// Far wider than any model's.
  double factor() const { return parameters.number("factor", 1e-3, 1e6); }
  double attention_factor(double otherwise) const {
    return parameters.number("attention_factor", 1e-6, 1e6, otherwise);
  }
};

void scale_linear(const Scaling& s, Rope& rope) {
  const double factor = s.factor();
  for (double& f : rope.table.inverse_frequency) f /= factor;
}

/// NTK: beyond the trained window the base grows with the context (Rope::at). An
/// original_max_position_embeddings says nothing here, as in transformers (docs/models.md).
void scale_dynamic(const Scaling& s, Rope& rope) {
  if (s.dim < 4) s.parameters.fail("rope_type", "= \"dynamic\" needs at least 4 rotary channels");
  rope.theta = s.theta;
  rope.factor = s.factor();
  rope.original = s.trained();
}

/// Llama 3.1: wavelengths that are long for the original context are stretched by `factor`, short
/// ones kept, those between blended by where they lie.
void scale_llama3(const Scaling& s, Rope& rope) {
  const double factor = s.factor();
  const double low = s.parameters.number("low_freq_factor", 1e-6, 1e6);
  const double high = s.parameters.number("high_freq_factor", 1e-6, 1e6);
  const double original = s.original();
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
  const double original = s.original();
  // null says: as far as the window was stretched
  const double factor =
      s.parameters.null("factor") ? static_cast<double>(s.trained()) / original : s.factor();
  const double fast = s.parameters.number_or("beta_fast", 1e6, 32.0);
  const double slow = s.parameters.number_or("beta_slow", 1e6, 1.0);
  if (!(s.theta > 1)) s.parameters.fail("rope_type", "= \"yarn\" needs a rope_theta above 1");
  const auto dim = static_cast<double>(s.dim);
  // number of the channel that turns so often
  const auto channel = [&](double turns) {
    return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(s.theta));
  };
  double first = channel(fast), last = channel(slow);
  // what settings of one layer type say of it, transformers does not look at
  const bool whole = s.around.of_layer_type ||
                     (s.parameters.boolean("truncate", true) && !s.parameters.null("truncate"));
  if (whole) {
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
  constexpr double kMost = 1e6;
  const double mscale = s.parameters.number_or("mscale", kMost, 0);
  const double all_dim = s.parameters.number_or("mscale_all_dim", kMost, 0);
  if (mscale > 0 && all_dim > 0) attention = scale(mscale) / scale(all_dim);
  rope.table.attention_factor = s.attention_factor(attention);
}

/// LongRoPE (arXiv 2402.13753): a factor for each channel, of which there are two lists.
void scale_longrope(const Scaling& s, Rope& rope) {
  const double original = s.original();
  const auto pairs = s.dim / 2;
  const auto factors = [&](const char* key) { return s.parameters.numbers(key, pairs, 1e-6, 1e9); };
  const std::vector<double> shorts = factors("short_factor"), longs = factors("long_factor");
  auto& frequencies = rope.table.inverse_frequency;
  rope.long_inverse_frequency = frequencies;
  for (std::size_t c = 0; c < frequencies.size(); ++c) {
    frequencies[c] /= shorts[c];
    rope.long_inverse_frequency[c] /= longs[c];
  }
  rope.original = static_cast<std::int64_t>(original);
  // Phi-3 states no factor: it is how far its positions were stretched
  const double stretched = static_cast<double>(s.around.max_positions) / original;
  const double factor = s.parameters.number("factor", 1e-3, 1e6, std::max(1.0, stretched));
  const double attention =
      factor <= 1 || original <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
  rope.table.attention_factor = s.attention_factor(attention);
}

/// Part of the pairs turn, by the frequencies of a whole head; the others stand still.
void scale_proportional(const Scaling& s, Rope& rope) {
  const double factor = s.parameters.number("factor", 1e-3, 1e6, 1.0);
  const auto turned = rope.table.inverse_frequency.size();
  rope.table.inverse_frequency = plain_rotary(s.around.head_dim, s.theta).inverse_frequency;
  auto& frequencies = rope.table.inverse_frequency;
  for (std::size_t c = 0; c < frequencies.size(); ++c)
    frequencies[c] = c < turned ? frequencies[c] / factor : 0.0;
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
    {"default", nullptr},
    {"linear", scale_linear},
    {"dynamic", scale_dynamic},
    {"llama3", scale_llama3},
    {"yarn", scale_yarn},
    {"longrope", scale_longrope},
    {"proportional", scale_proportional},
    {"su", scale_longrope},  // longrope's first name
};

}  // namespace

Rope read_rope(const JsonObject& config, const std::optional<JsonObject>& parameters,
               const RopeAround& around) {
  const JsonObject& inner = parameters ? *parameters : config;
  const auto either = [&](const char* key, double least, double most, double otherwise) {
    if (inner.has(key) && (parameters || !around.of_layer_type))
      return inner.number(key, least, most);
    return around.of_layer_type ? otherwise : config.number(key, least, most, otherwise);
  };
  const double theta = either("rope_theta", 1e-3, 1e18, around.theta);
  const double share = either("partial_rotary_factor", 0, 1, around.share);
  std::string kind = parameters
                         ? parameters->string("rope_type", parameters->string("type", "default"))
                         : "default";
  // the first files of Phi-3 call longrope so, and yarn has no such list
  if (kind == "yarn" && parameters->has("short_factor")) kind = "longrope";
  if (share != 1 && !around.partial && kind != "proportional")
    (inner.has("partial_rotary_factor") ? inner : config)
        .fail("partial_rotary_factor",
              fmt::format("= {} is not supported for this model_type, whose heads turn as a whole; "
                          "take it out",
                          share));
  const auto dim =
      static_cast<std::int64_t>(std::floor(static_cast<double>(around.head_dim) * share));
  if (dim < 2 || dim % 2 != 0)
    config.fail("head_dim",
                fmt::format("times partial_rotary_factor gives {} rotary channels; must be "
                            "even and in [2, {}]",
                            share * static_cast<double>(around.head_dim), around.head_dim));
  Rope rope;
  rope.table = plain_rotary(dim, theta);
  if (config.boolean(kRopeInterleaved, around.interleaved))
    rope.table.pairs = RotaryPairs::interleaved;
  if (!parameters) return rope;
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
