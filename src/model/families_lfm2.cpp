// SPDX-License-Identifier: Apache-2.0
#include "families_lfm2.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace episodic {
namespace {

constexpr std::int64_t kWidest = 1 << 20;  // as of other families
constexpr std::int64_t kMostTaps = 256;

/// The reference names one width and computes another.
std::int64_t feed_forward_width(const JsonObject& in) {
  const char* key = in.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
  const std::int64_t named = in.integer(key, 1, kWidest);
  if (!in.boolean("block_auto_adjust_ff_dim", true)) return named;
  auto width = static_cast<std::int64_t>(2 * static_cast<double>(named) / 3);
  if (!in.null("block_ffn_dim_multiplier")) {
    const double multiplier = in.number("block_ffn_dim_multiplier", 1e-6, 1e6, 1.0);
    const std::int64_t multiple = in.integer("block_multiple_of", 1, kWidest, 256);
    const double scaled = multiplier * static_cast<double>(width);
    if (scaled > static_cast<double>(kWidest))
      in.fail(
          "block_ffn_dim_multiplier",
          fmt::format("= {} makes the feed-forward network wider than {}", multiplier, kWidest));
    width = static_cast<std::int64_t>(scaled);
    width = (width + multiple - 1) / multiple * multiple;
  }
  if (width < 1 || width > kWidest)
    in.fail(key, fmt::format("= {} makes a feed-forward network {} wide, must be in [1, {}]", named,
                             width, kWidest));
  return width;
}

}  // namespace

JsonObject lfm2_usual_keys(const JsonObject& in) {
  JsonObject::Json usual = {
      {"intermediate_size", feed_forward_width(in)},
      {"rms_norm_eps", in.number("norm_eps", 1e-30, 1, 1e-5)},
      {"tie_word_embeddings", in.boolean("tie_embedding", in.boolean("tie_word_embeddings", true))},
  };
  return in.changed_by(JsonObject(usual, ""));
}

void read_lfm2(const JsonObject& in, LayerSpec& each) {
  each.qk_norm = QkNorm::head;
  each.conv_taps = in.integer("conv_L_cache", 1, kMostTaps, 3);
  each.conv_bias = in.boolean("conv_bias", false);
}

void read_lfm2_layers(const JsonObject& in, ModelConfig& c) {
  std::vector<bool> attends(c.layers.size(), true);
  const char* key = "layer_types";
  if (const auto types = in.strings("layer_types", c.n_layers)) {
    for (std::size_t l = 0; l < attends.size(); ++l) {
      attends[l] = (*types)[l] == "full_attention";
      if (!attends[l] && (*types)[l] != "conv")
        in.unsupported("layer_types", (*types)[l], "full_attention, conv");
    }
  } else if (in.has("full_attn_idxs")) {
    key = "full_attn_idxs";
    attends.assign(attends.size(), false);
    for (const std::int64_t l : in.tokens("full_attn_idxs")) {
      if (l < 0 || l >= c.n_layers)
        in.fail("full_attn_idxs", fmt::format("names layer {} of {}", l, c.n_layers));
      attends[static_cast<std::size_t>(l)] = true;
    }
  }
  if (std::find(attends.begin(), attends.end(), true) == attends.end())
    in.fail(key, "names no layer of full attention, which a memory would serve");
  for (std::size_t l = 0; l < attends.size(); ++l) {
    LayerSpec& layer = c.layers[l];
    if (attends[l]) {
      layer.conv_taps = 0;
      layer.conv_bias = false;
    } else {
      layer.mixer = Mixer::short_convolution;
      layer.qk_norm = QkNorm::none;
      layer.rope = -1;
    }
  }
}

}  // namespace episodic
