// SPDX-License-Identifier: Apache-2.0
// What GGUF files of models with recurrences say in words of their own, and their tensors as
// Hugging Face has them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "family.hpp"
#include "gguf_settings.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

/// The sizes of a delta rule's heads, by their keys. One layer in `interval` attends.
void add_delta(const GgufSettings& in, bool tiled, Json& config) {
  const std::int64_t heads = in.integer("ssm.time_step_rank"), inner = in.integer("ssm.inner_size");
  if (inner % heads != 0)
    in.fail("ssm.inner_size",
            fmt::format("= {} is no multiple of ssm.time_step_rank = {}", inner, heads));
  config["linear_num_value_heads"] = heads;
  config["linear_num_key_heads"] = in.integer("ssm.group_count");
  config["linear_key_head_dim"] = in.integer("ssm.state_size");
  config["linear_value_head_dim"] = inner / heads;
  config["linear_conv_kernel_dim"] = in.integer("ssm.conv_kernel");
  config["full_attention_interval"] = in.integer("full_attention_interval", 4);
  config[kTiledHeads] = tiled;
}

/// Layers without key/value heads have Mamba2.
void add_granite_hybrid(const GgufFile& file, const GgufSettings& in,
                        const std::vector<bool>& attends, Json& config) {
  Json types = Json::array();
  bool bias = false, conv_bias = false, attention_bias = false;
  const auto has = [&](std::size_t l, const char* name) {
    return file.find(fmt::format("blk.{}.{}", l, name)) != nullptr;
  };
  for (std::size_t l = 0; l < attends.size(); ++l) {
    types.push_back(attends[l] ? "full_attention" : "linear_attention");
    bias = bias || has(l, "ssm_in.bias");
    conv_bias = conv_bias || has(l, "ssm_conv1d.bias");
    attention_bias = attention_bias || has(l, "attn_q.bias");
  }
  const std::int64_t inner = in.integer("ssm.inner_size"), hidden = config["hidden_size"];
  if (inner % hidden != 0)
    in.fail("ssm.inner_size",
            fmt::format("= {} is no multiple of embedding_length = {}", inner, hidden));
  config["layer_types"] = types;
  config["attention_bias"] = attention_bias;
  config["mamba_expand"] = inner / hidden;
  config["mamba_n_heads"] = in.integer("ssm.time_step_rank");
  config["mamba_n_groups"] = in.integer("ssm.group_count");
  config["mamba_d_state"] = in.integer("ssm.state_size");
  config["mamba_d_conv"] = in.integer("ssm.conv_kernel");
  config["mamba_conv_bias"] = conv_bias;
  config["mamba_proj_bias"] = bias;
  // what tells whether the positions were trained tells here whether there are any
  config["position_embedding_type"] =
      file.boolean(in.key("rope.scaling.finetuned")).value_or(true) ? "rope" : "nope";
  if (config.contains("num_local_experts")) return;
  config["num_local_experts"] = 0;
  config["shared_intermediate_size"] = config["intermediate_size"];
  config[kSplitGateUp] = true;
}

}  // namespace

void add_hybrid_settings(const GgufFile& file, const GgufSettings& in, const GgufArchitecture& a,
                         const std::vector<bool>& attends, Json& config) {
  if (a.traits.recurrence == GgufRecurrence::none) return;
  if (a.traits.recurrence == GgufRecurrence::mamba2)
    return add_granite_hybrid(file, in, attends, config);
  add_delta(in, a.traits.recurrence == GgufRecurrence::tiled_delta, config);
}

std::vector<std::byte> as_hugging_face(const GgufFile& file, const StoredTensor& t,
                                       StoredTensor& view) {
  const auto ends = [&](std::string_view end) { return view.name.ends_with(end); };
  if (ends(".conv1d.weight") && view.shape.size() == 2)
    view.shape.insert(view.shape.begin() + 1, 1);
  if (ends(".D") || ends(".A_log") || ends("mamba.norm.weight")) view.shape = {t.elements()};
  if (!ends(".A_log")) return {};
  if (t.type != TensorType::f32)
    file.fail(t.name,
              fmt::format("is {}; it must be F32: convert the file again", name_of(t.type)));
  std::vector<std::byte> out(static_cast<std::size_t>(t.bytes));
  for (std::int64_t i = 0; i < t.bytes; i += 4) {
    float x;
    std::memcpy(&x, t.data + i, 4);
    if (!(x < 0) || !std::isfinite(x))
      file.fail(t.name,
                fmt::format("holds {}, expected numbers below 0; convert the file again", x));
    x = std::log(-x);
    std::memcpy(out.data() + i, &x, 4);
  }
  return out;
}

}  // namespace episodic
