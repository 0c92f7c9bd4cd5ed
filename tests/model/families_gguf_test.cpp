// SPDX-License-Identifier: Apache-2.0
// GGUF files of the dense families as llama.cpp's converter writes them, and what llama.cpp
// computes with them (models/reference/make_family_gguf_vectors.py).

#include "support/test.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
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

namespace families_gguf_test {

using Json = nlohmann::json;

Json cases() {
  std::ifstream in(std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/model/families_gguf.json");
  return Json::parse(in);
}

void put(GgufWriter& w, const std::string& key, const Json& value) {
  if (value.is_boolean())
    w.put(key, value.get<bool>());
  else if (value.is_string())
    w.put(key, value.get<std::string>());
  else if (value.is_number_integer())
    w.put(key, value.get<std::uint32_t>());
  else if (value.is_number())
    w.put(key, value.get<float>());
  else if (value[0].is_boolean())
    w.put_array(key, GgufWriter::boolean, value.get<std::vector<std::uint8_t>>());
  else if (value[0].is_number_integer())
    w.put_array(key, GgufWriter::u32, value.get<std::vector<std::uint32_t>>());
  else
    w.put_array(key, GgufWriter::f32, value.get<std::vector<float>>());
}

/// A tensor's numbers: of each head, rows j and half + j become rows 2 j and 2 j + 1.
std::vector<float> numbers_of(const StoredTensor& t, std::int64_t heads, float added) {
  std::vector<float> x(static_cast<std::size_t>(t.elements()));
  std::memcpy(x.data(), t.data, x.size() * sizeof(float));
  for (float& v : x) v += added;
  if (heads == 0) return x;
  const std::int64_t columns = t.shape[1], half = t.shape[0] / heads / 2;
  std::vector<float> out;
  for (std::int64_t row = 0; row < t.shape[0]; ++row) {
    const std::int64_t head = row / (2 * half), at = row % (2 * half);
    const std::int64_t from = head * 2 * half + at / 2 + at % 2 * half;
    out.insert(out.end(), x.begin() + from * columns, x.begin() + (from + 1) * columns);
  }
  return out;
}

/// \param leave_out a key that is not written
std::string file_of(const Json& c, const std::string& leave_out = "") {
  const SafetensorsFile checkpoint(family_checkpoint(c["name"].get<std::string>().c_str()) /
                                   "model.safetensors");
  const auto architecture = c["architecture"].get<std::string>();
  GgufWriter w;
  w.put("general.architecture", architecture);
  for (const auto& [key, value] : c["values"].items())
    if (key != leave_out) put(w, key.starts_with("xielu.") ? key : architecture + "." + key, value);
  w.put("tokenizer.ggml.model", "no_vocab");
  for (const auto& [name, of] : c["tensors"].items()) {
    const StoredTensor& t = checkpoint.at(of[0].get<std::string>());
    w.floats(name, {t.shape.begin(), t.shape.end()},
             numbers_of(t, of[1].get<std::int64_t>(), of[2].get<float>()));
  }
  for (const auto& [name, numbers] : c["floats"].items())
    w.floats(name, {numbers.size()}, numbers.get<std::vector<float>>());
  return w.bytes();
}

TEST_CASE("families: GGUF files of llama.cpp's converter give llama.cpp's logits", "[proof]") {
  const TempDir dir;
  std::set<std::string> architectures;
  for (const Json& c : cases()) {
    INFO(c["name"].get<std::string>());
    dir.write("m.gguf", file_of(c));
    Decoder model = Decoder::load(dir / "m.gguf");
    const ExpectedLogits expected(family_checkpoint(c["name"].get<std::string>().c_str()));
    const LogitsView got = model.forward(expected.ids);
    const auto of_llama = c["logits"].get<std::vector<float>>();
    const std::span<const float> last = got.row(got.rows - 1);
    REQUIRE(last.size() == of_llama.size());
    // llama.cpp's attention has halves in it; the reference's logits are those of one float
    const std::size_t first = expected.logits.size() - last.size();
    for (std::size_t i = 0; i < last.size(); ++i) {
      REQUIRE(std::abs(last[i] - of_llama[i]) <= 3e-3f * expected.largest());
      REQUIRE(std::abs(last[i] - expected.logits[first + i]) <= 1e-4f * expected.largest());
    }
    architectures.insert(c["architecture"].get<std::string>());
  }
  REQUIRE(architectures.size() >= 13);
}

TEST_CASE("families: a GGUF file that lacks what its architecture needs is refused by key") {
  const TempDir dir;
  const auto error_of = [&](const char* name, const char* key) {
    for (const Json& c : cases())
      if (c["name"] == name) {
        dir.write("m.gguf", file_of(c, key));
        return refusal<FileError>([&] { Decoder::load(dir / "m.gguf"); });
      }
    return std::string("no such case");
  };
  REQUIRE(mentions(error_of("apertus", "xielu.beta"), "xielu.beta"));
  REQUIRE(
      mentions(error_of("ministral3", "rope.scaling.type"), "attention.temperature_scale = 0.4"));
  REQUIRE(mentions(error_of("nemotron", "attention.layer_norm_epsilon"), "layer_norm_epsilon"));
  REQUIRE(mentions(error_of("cohere2", "attention.sliding_window"), "attention.sliding_window"));
  for (const char* key : {"attention.key_length", "attention.key_length_swa", "block_count",
                          "attention.head_count_kv", "feed_forward_length", "embedding_length",
                          "attention.sliding_window", "attention.layer_norm_rms_epsilon"})
    REQUIRE(mentions(error_of("gemma4", key), std::string("gemma4.") + key));
  REQUIRE(mentions(error_of("gemma4_moe", "expert_used_count"), "gemma4.expert_used_count"));
  REQUIRE(mentions(error_of("gemma4_moe", "expert_feed_forward_length"),
                   "gemma4.expert_feed_forward_length"));
}

TEST_CASE("gemma 4: a GGUF file that contradicts itself is refused by key or tensor") {
  const TempDir dir;
  const auto refused = [&](const auto& change) {
    for (Json c : cases())
      if (c["name"] == "gemma4") {
        change(c);
        dir.write("m.gguf", file_of(c));
        return refusal<FileError>([&] { Decoder::load(dir / "m.gguf"); });
      }
    return std::string("no such case");
  };
  const auto set = [](const char* key, const Json& value) {
    return [key, value](Json& c) { c["values"][key] = value; };
  };
  CHECK(mentions(refused(set("attention.shared_kv_layers", 7)), "attention.shared_kv_layers = 7"));
  CHECK(mentions(refused(set("attention.value_length", 8)), "attention.value_length"));
  CHECK(mentions(refused(set("rope.dimension_count_swa", 4)), "rope.dimension_count_swa"));
  CHECK(mentions(refused(set("feed_forward_length", Json{36, 36, 36, 40, 72, 72, 72})),
                 "feed_forward_length = 40 of layer 3"));
  CHECK(mentions(refused(set("feed_forward_length", Json{36, 36})), "feed_forward_length"));
  CHECK(mentions(refused(set("attention.head_count_kv", Json{2, 2, 1, 2, 2, 2, 2})),
                 "attention.head_count_kv differs between sliding layers"));
  CHECK(mentions(refused([](Json& c) { c["floats"].erase("rope_freqs.weight"); }),
                 "rope_freqs.weight is missing"));
  CHECK(mentions(refused([](Json& c) { c["floats"]["rope_freqs.weight"][1] = 2.5; }),
                 "holds 2.5 for pair 1"));
  CHECK(mentions(refused([](Json& c) { c["tensors"].erase("per_layer_token_embd.weight"); }),
                 "per_layer_token_embd.weight"));
  CHECK(mentions(refused([](Json& c) { c["tensors"].erase("blk.3.layer_output_scale.weight"); }),
                 "model.layers.3.layer_scalar"));
  CHECK(mentions(refused([](Json& c) {
                   c["tensors"]["blk.1.attn_q.scale"] = {"model.norm.weight", 0, 0};
                 }),
                 "blk.1.attn_q.scale"));
}

}  // namespace families_gguf_test
