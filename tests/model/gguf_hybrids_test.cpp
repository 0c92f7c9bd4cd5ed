// SPDX-License-Identifier: Apache-2.0
// GGUF files of models with recurrences as llama.cpp's converter writes them, and what llama.cpp
// computes with them (models/reference/make_hybrid_gguf_vectors.py); and bad ones by key or tensor.

#include "support/test.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/gguf.hpp"
#include "expected_logits.hpp"
#include "support/gguf_writer.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;

namespace gguf_hybrids_test {

using Json = nlohmann::json;

Json hybrids() {
  std::ifstream in(std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/model/gguf_hybrids.json");
  return Json::parse(in);
}

Json hybrid(const char* name) {
  for (Json& c : hybrids())
    if (c["name"] == name) return c;
  throw std::runtime_error("no such case");
}

void put_value(GgufWriter& w, const std::string& key, const Json& value) {
  if (value.is_boolean())
    w.put(key, value.get<bool>());
  else if (value.is_number_integer())
    w.put(key, value.get<std::uint32_t>());
  else if (value.is_number())
    w.put(key, value.get<float>());
  else
    w.put_array(key, GgufWriter::i32, value.get<std::vector<std::int32_t>>());
}

/// What the script's `array` makes of a tensor.
std::vector<float> array_of(const SafetensorsFile& checkpoint, const Json& t) {
  std::vector<std::vector<float>> rows;
  for (const Json& run : t["rows"]) {
    const StoredTensor& from = checkpoint.at(run[0].get<std::string>());
    const std::int64_t columns = from.shape.size() > 1 ? from.shape.back() : 1;
    std::vector<float> all(static_cast<std::size_t>(from.elements()));
    std::memcpy(all.data(), from.data, all.size() * sizeof(float));
    const std::int64_t first = run[1].get<std::int64_t>(), count = run[2].get<std::int64_t>();
    for (std::int64_t r = first; r < first + count; ++r)
      rows.emplace_back(all.begin() + r * columns, all.begin() + (r + 1) * columns);
  }
  if (t["columns"].is_array())
    for (std::vector<float>& row : rows) {
      std::vector<float> ordered;
      for (const Json& run : t["columns"]) {
        const auto begin = row.begin() + run[0].get<std::int64_t>();
        ordered.insert(ordered.end(), begin, begin + run[1].get<std::int64_t>());
      }
      row = ordered;
    }
  const auto heads = t["pairs"].get<std::size_t>();
  const std::size_t half = heads > 0 ? rows.size() / heads / 2 : 0;
  std::vector<float> out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::size_t from = r;
    if (heads > 0) from = r / (2 * half) * 2 * half + r % (2 * half) / 2 + r % 2 * half;
    out.insert(out.end(), rows[from].begin(), rows[from].end());
  }
  for (float& x : out) {
    if (t["op"] == "1+") x += 1.0f;
    if (t["op"] == "-exp") x = -std::exp(x);
  }
  return out;
}

/// \param change of its values and tensors, before it is written
std::string file_of(Json c, const std::function<void(Json& c)>& change = {}) {
  if (change) change(c);
  const SafetensorsFile checkpoint(family_checkpoint(c["name"].get<std::string>().c_str()) /
                                   "model.safetensors");
  const auto architecture = c["architecture"].get<std::string>();
  GgufWriter w;
  w.put("general.architecture", architecture);
  for (const auto& [key, value] : c["values"].items())
    put_value(w, architecture + "." + key, value);
  w.put("tokenizer.ggml.model", "no_vocab");
  for (const auto& [name, t] : c["tensors"].items())
    w.floats(name, t["shape"].get<std::vector<std::uint64_t>>(), array_of(checkpoint, t));
  return w.bytes();
}

TEST_CASE("gguf hybrids: files of llama.cpp's converter give its logits, and the reference's",
          "[proof]") {
  const TempDir dir;
  std::set<std::string> architectures;
  for (const Json& c : hybrids()) {
    const auto name = c["name"].get<std::string>();
    INFO(name);
    REQUIRE_FALSE(c.contains("refused"));
    dir.write("m.gguf", file_of(c));
    Decoder model = Decoder::load(dir / "m.gguf");
    const ExpectedLogits expected(family_checkpoint(name.c_str()));
    const LogitsView got = model.forward(expected.ids);
    const auto of_llama = c["logits"].get<std::vector<float>>();
    const std::span<const float> last = got.row(got.rows - 1);
    REQUIRE(last.size() == of_llama.size());
    const std::size_t first = expected.logits.size() - last.size();
    for (std::size_t i = 0; i < last.size(); ++i) {
      // llama.cpp's attention has halves in it; the reference's logits are those of one float
      REQUIRE(std::abs(last[i] - of_llama[i]) <= 3e-3f * expected.largest());
      REQUIRE(std::abs(last[i] - expected.logits[first + i]) <= 1e-4f * expected.largest());
    }
    architectures.insert(c["architecture"].get<std::string>());
  }
  REQUIRE(architectures ==
          std::set<std::string>{"granitehybrid", "qwen35", "qwen35moe", "qwen3next"});
}

TEST_CASE("gguf hybrids: what older and newer converters write is read too") {
  const TempDir dir;
  const auto same = [&](const char* name, const std::function<void(Json & c)>& change) {
    dir.write("m.gguf", file_of(hybrid(name), change));
    Decoder model = Decoder::load(dir / "m.gguf");
    const ExpectedLogits expected(family_checkpoint(name));
    const LogitsView got = model.forward(expected.ids);
    for (std::size_t i = 0; i < expected.logits.size(); ++i)
      REQUIRE(std::abs(got.floats()[i] - expected.logits[i]) <= 1e-4f * expected.largest());
  };
  // all products of a layer of Qwen3-Next in the order of its checkpoint
  same("qwen3_next", [](Json& c) {
    for (int l = 0; l < 3; ++l) {
      const std::string at = "blk." + std::to_string(l) + ".";
      Json fused = c["tensors"][at + "ssm_ba.weight"];
      fused["shape"] = {120, 24};
      fused["rows"] = {
          {"model.layers." + std::to_string(l) + ".linear_attn.in_proj_qkvz.weight", 0, 120}};
      c["tensors"].erase(at + "attn_qkv.weight");
      c["tensors"].erase(at + "attn_gate.weight");
      c["tensors"][at + "ssm_in.weight"] = fused;
    }
  });
  // layers behind the model's, which guess further tokens
  same("qwen3_5", [](Json& c) {
    c["values"]["block_count"] = 5;
    c["values"]["nextn_predict_layers"] = 1;
    c["tensors"]["blk.4.nextn.eh_proj.weight"] = c["tensors"]["blk.3.ffn_up.weight"];
    c["tensors"]["blk.4.attn_norm.weight"] = c["tensors"]["blk.3.attn_norm.weight"];
    c["values"].erase("full_attention_interval");  // 4 unless it is said
  });
}

TEST_CASE("gguf hybrids: a key or a tensor that is wrong is refused by its name") {
  const TempDir dir;
  const auto refused = [&](const char* name, const std::function<void(Json & c)>& change) {
    dir.write("m.gguf", file_of(hybrid(name), change));
    return refusal<FileError>([&] { Decoder::load(dir / "m.gguf"); });
  };
  const auto with = [&](const char* name, const char* key, const Json& value) {
    return refused(name, [&](Json& c) { c["values"][key] = value; });
  };
  const auto without = [&](const char* name, const char* key) {
    return refused(name, [&](Json& c) { REQUIRE(c["values"].erase(key) == 1); });
  };
  for (const char* key : {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
                          "ssm.time_step_rank", "ssm.inner_size"}) {
    CHECK(mentions(without("qwen3_5", key), key));
    CHECK(mentions(without("granite4", key), key));
    CHECK(mentions(with("qwen3_5", key, 0), key));
    CHECK(mentions(with("granite4", key, 4'000'000'000u), "m.gguf"));
  }
  CHECK(mentions(with("qwen3_5", "ssm.inner_size", 41), "ssm.inner_size = 41 is no multiple"));
  CHECK(mentions(with("qwen3_5", "ssm.group_count", 3), "linear_num_key_heads"));
  CHECK(mentions(with("qwen3_5", "ssm.state_size", 8), "has shape"));
  CHECK(mentions(with("qwen3_5", "full_attention_interval", 3), "layers.2.self_attn"));
  CHECK(mentions(with("qwen3_5", "full_attention_interval", 9), "full_attention_interval"));
  CHECK(mentions(with("qwen3_5", "nextn_predict_layers", 4), "nextn_predict_layers"));
  CHECK(mentions(with("granite4", "ssm.inner_size", 47), "ssm.inner_size = 47 is no multiple"));
  CHECK(mentions(with("granite4", "ssm.time_step_rank", 5), "mamba_n_heads"));
  CHECK(mentions(with("granite4", "attention.head_count_kv", {0, 0, 0}), "head_count_kv"));
  CHECK(mentions(with("granite4", "attention.head_count_kv", {2, 2, 0}), "layers.0.self_attn"));
  CHECK(
      mentions(refused("granite4", [](Json& c) { c["tensors"].erase("blk.0.ssm_d"); }), "mamba.D"));
  CHECK(mentions(refused("qwen3_5",
                         [](Json& c) {  // numbers about 1
                           Json& t = c["tensors"]["blk.0.ssm_a"];
                           t["op"] = "1+";
                           t["rows"] = {{"model.layers.0.input_layernorm.weight", 0, 4}};
                         }),
                 "blk.0.ssm_a holds"));
  CHECK(mentions(refused("qwen3_5",
                         [](Json& c) {
                           c["tensors"]["blk.0.ssm_x.weight"] =
                               c["tensors"]["blk.0.ssm_out.weight"];
                         }),
                 "'blk.0.ssm_x.weight' is not known"));
}

}  // namespace gguf_hybrids_test
