// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts in GGUF files: what llama.cpp computes
// (models/reference/make_gguf_mixture_vectors.py), and bad ones by key or tensor.
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/gguf.hpp"
#include "support/gguf_writer.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace gguf_mixtures_test {

using Json = nlohmann::json;
using W = GgufWriter;

Json vectors() {
  std::ifstream in(std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/model/gguf_mixtures.json");
  return Json::parse(in);
}

/// The script's `numbers`.
std::vector<float> numbers(const std::string& name, std::uint64_t n, double middle, double width) {
  std::uint32_t seed = 2166136261u;
  for (const char byte : name) seed = (seed ^ static_cast<unsigned char>(byte)) * 16777619u;
  std::vector<float> out;
  for (std::uint64_t i = 0; i < n; ++i) {
    std::uint32_t x = seed + static_cast<std::uint32_t>(i);
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    out.push_back(static_cast<float>(middle + width * (static_cast<double>(x) / 2147483648.0 - 1)));
  }
  return out;
}

/// The file of a case. \param change of its values and tensors, before it is written
std::string file_of(Json c, const std::function<void(Json& c)>& change = {}) {
  if (change) change(c);
  const auto architecture = c["architecture"].get<std::string>();
  W w;
  w.put("general.architecture", architecture);
  for (const auto& [key, value] : c["values"].items())
    if (value.is_number_integer())
      w.put(architecture + "." + key, value.get<std::uint32_t>());
    else if (value.is_string())
      w.put(architecture + "." + key, value.get<std::string>());
    else
      w.put(architecture + "." + key, value.get<float>());
  w.put("tokenizer.ggml.model", "no_vocab");
  for (const Json& t : c["tensors"]) {
    const auto shape = t[1].get<std::vector<std::uint64_t>>();
    std::uint64_t n = 1;
    for (const std::uint64_t d : shape) n *= d;
    const auto name = t[0].get<std::string>();
    w.floats(name, shape, numbers(name, n, t[2].get<double>(), t[3].get<double>()));
  }
  return w.bytes();
}

TEST_CASE("gguf mixtures: each architecture gives llama.cpp's logits", "[proof]") {
  const Json all = vectors();
  const auto ids = all["ids"].get<std::vector<std::int64_t>>();
  REQUIRE(all["cases"].size() >= 7);
  const TempDir dir;
  for (const Json& c : all["cases"]) {
    dir.write("m.gguf", file_of(c));
    Decoder model = Decoder::load(dir / "m.gguf");
    INFO(model.config().model_type);
    REQUIRE(model.config().has_mixture());
    REQUIRE_FALSE(c.contains("refused"));
    const std::span<const float> got = model.forward(ids, LogitRows::last).row(0);
    const auto wanted = c["logits"].get<std::vector<float>>();
    REQUIRE(got.size() == wanted.size());
    float largest = 0, off = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(wanted[i]));
      const float d = std::abs(got[i] - wanted[i]);
      off = std::isnan(d) ? 1e30f : std::max(off, d);
    }
    INFO("off by " << off << ", logits up to " << largest);
    REQUIRE(largest > 0.1f);
    CHECK(off < 1e-2f * largest);  // llama.cpp's attention has halves in it
  }
}

TEST_CASE("gguf mixtures: a key or a tensor that is wrong is refused by its name") {
  const Json all = vectors();
  const TempDir dir;
  const auto refused = [&](const char* architecture, const std::function<void(Json & c)>& change) {
    for (const Json& c : all["cases"]) {
      if (c["architecture"] != architecture) continue;
      dir.write("m.gguf", file_of(c, change));
      return refusal<FileError>([&] { Decoder::load(dir / "m.gguf"); });
    }
    return std::string("no such case");
  };
  const auto with = [&](const char* architecture, const char* key, std::uint32_t value) {
    return refused(architecture, [&](Json& c) { c["values"][key] = value; });
  };
  CHECK(mentions(with("qwen3moe", "expert_count", 0), "qwen3moe.expert_count"));
  CHECK(mentions(with("qwen3moe", "expert_count", 1), "num_experts_per_tok"));
  CHECK(mentions(with("qwen3moe", "expert_count", 6), "mlp.gate.weight' has shape [5, 32]"));
  CHECK(mentions(with("qwen3moe", "expert_count", 4'000'000'000u), "num_experts"));
  CHECK(mentions(with("qwen3moe", "expert_used_count", 6), "num_experts_per_tok"));
  CHECK(mentions(with("qwen3moe", "expert_used_count", 0), "expert_used_count"));
  CHECK(mentions(with("qwen3moe", "expert_feed_forward_length", 23), "has shape [5, 24, 32]"));
  CHECK(mentions(with("qwen3moe", "expert_group_count", 2), "expert_group_count"));
  CHECK(mentions(with("qwen3moe", "expert_gating_func", 2), "expert_gating_func"));
  CHECK(mentions(with("qwen3moe", "leading_dense_block_count", 1), "leading_dense_block_count"));
  CHECK(mentions(with("llama", "expert_feed_forward_length", 23), "expert_feed_forward_length"));
  CHECK(mentions(with("qwen2moe", "expert_shared_feed_forward_length", 39), "shared_expert"));
  CHECK(mentions(refused("qwen3moe", [](Json& c) { c["values"]["expert_weights_scale"] = 2.5; }),
                 "expert_weights_scale"));
  const auto without = [&](const char* architecture, const std::string& name) {
    return refused(architecture, [&](Json& c) {
      Json kept = Json::array();
      for (const Json& t : c["tensors"])
        if (t[0] != name) kept.push_back(t);
      REQUIRE(kept.size() + 1 == c["tensors"].size());
      c["tensors"] = kept;
    });
  };
  CHECK(mentions(without("llama", "blk.1.ffn_down_exps.weight"), "layers.1.mlp.experts.down_proj"));
  CHECK(mentions(without("olmoe", "blk.0.ffn_gate_inp.weight"), "layers.0.mlp.gate.weight"));
  CHECK(mentions(without("qwen2moe", "blk.1.ffn_gate_inp_shexp.weight"), "shared_expert_gate"));
}

}  // namespace gguf_mixtures_test
