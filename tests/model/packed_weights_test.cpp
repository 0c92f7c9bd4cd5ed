// SPDX-License-Identifier: Apache-2.0
// Weights that other programs quantised: against what the integers mean (models/reference/
// make_packed_weights.py), in a whole model, and damaged.
#include "support/test.hpp"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "episodic/base/dtype.hpp"
#include "episodic/base/error.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/model/activations.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/safetensors.hpp"
#include "model/packed_weights.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "tiny_llama.hpp"

using namespace episodic;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace packed_weights_test {

const fs::path kPacked = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/packed";

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> floats_of(const StoredTensor& t) {
  std::vector<float> x(static_cast<std::size_t>(t.elements()));
  cpu::widen_row(t.type, t.data, t.elements(), x.data());
  return x;
}

/// Files of a scheme, to be changed.
struct Packed {
  explicit Packed(const std::string& scheme)
      : file(std::make_shared<SafetensorsFile>(kPacked / scheme / "model.safetensors")),
        config(Json::parse(text_of(kPacked / scheme / "config.json"))) {
    for (const StoredTensor& t : file->tensors())
      tensors[t.name] = {t.type, t.shape, {t.data, t.data + t.bytes}};
  }
  struct Tensor {
    TensorType type;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::shared_ptr<const TensorSource> unpacked() const {
    const TempDir dir;
    std::vector<TensorToWrite> all;
    for (const auto& [name, t] : tensors) all.push_back({name, t.type, t.shape, t.bytes.data()});
    write_safetensors(dir / "model.safetensors", all);
    return unpacked_weights(std::make_shared<const Weights>(dir.path()), config.dump(), {},
                            "config.json");
  }
  std::shared_ptr<SafetensorsFile> file;
  Json config;
  std::map<std::string, Tensor> tensors;
};

TEST_CASE("packed weights: every scheme's numbers, in the type that holds them") {
  using T = TensorType;
  const std::map<std::string, std::map<std::string, T>> expected{
      {"gptq", {{"a", T::q4_0}, {"b", T::q4_1}, {"d", T::bf16}, {"e", T::bf16}}},
      {"gptq_8", {{"a", T::q8_0}, {"b", T::bf16}, {"d", T::bf16}, {"e", T::bf16}}},
      {"gptq_v2", {{"a", T::q4_0}, {"b", T::q4_1}, {"d", T::bf16}, {"e", T::bf16}}},
      {"awq", {{"a", T::q4_1}, {"b", T::q4_1}, {"c", T::bf16}}},
      {"compressed",
       {{"a", T::q4_0},
        {"b", T::q4_1},
        {"c", T::q8_0},
        {"d", T::bf16},
        {"e", T::bf16},
        {"g", T::q8_0}}},
      {"fp8", {{"a", T::bf16}, {"b", T::bf16}, {"c", T::bf16}, {"d", T::bf16}}},
      {"nvfp4", {{"a", T::bf16}, {"b", T::bf16}}},
      {"modelopt", {{"a", T::bf16}, {"b", T::bf16}}},
      {"mxfp4", {{"a", T::mxfp4}, {"b", T::mxfp4}}}};
  for (const auto& [scheme, matrices] : expected) {
    CAPTURE(scheme);
    const auto source = std::make_shared<const Weights>(kPacked / scheme);
    const auto unpacked =
        unpacked_weights(source, text_of(kPacked / scheme / "config.json"), {}, "config.json");
    REQUIRE(unpacked);
    std::size_t left = 0;
    for (const StoredTensor* t : unpacked->tensors()) {
      CAPTURE(t->name);
      // what belongs to the packing is gone, and so is a bias of zeros that nobody asked for
      const bool known = t->name.ends_with(".weight") || t->name.ends_with(".expected");
      REQUIRE(known);
      left += t->name.ends_with(".weight");
    }
    REQUIRE(left == matrices.size());
    for (const auto& [name, type] : matrices) {
      CAPTURE(name);
      const StoredTensor* w = unpacked->find(name + ".weight");
      const StoredTensor* e = unpacked->find(name + ".expected");
      REQUIRE((w && e));
      REQUIRE(w->type == type);
      REQUIRE(w->shape == e->shape);
      const std::vector<float> got = floats_of(*w), want = floats_of(*e);
      for (std::size_t i = 0; i < got.size(); ++i) {
        // the largest scale is 0.021; a minimum is at most 16 of them, rounded to 11 bits
        const float bound = type == T::q4_1   ? 0.021f * 16 / 2048
                            : type == T::bf16 ? std::abs(want[i]) / 256
                                              : 0;
        REQUIRE(std::abs(got[i] - want[i]) <= bound);
      }
    }
  }
}

/// A matrix of a model as GPTQ stores it: 4 bits, groups of 32, zero points 8.
struct AsGptq {
  std::vector<std::int32_t> words, zeros;
  std::vector<std::uint16_t> scales;
  std::vector<float> meaning;

  AsGptq(const float* x, std::size_t out, std::size_t in)
      : words(in / 8 * out), zeros(in / 32 * out / 8, 0x77777777), scales(in / 32 * out) {
    meaning.resize(out * in);
    for (std::size_t o = 0; o < out; ++o)
      for (std::size_t g = 0; g < in / 32; ++g) {
        float most = 0;
        for (std::size_t i = 0; i < 32; ++i)
          most = std::max(most, std::abs(x[o * in + g * 32 + i]));
        scales[g * out + o] = to_float16(most / 7);
        const float scale = from_float16(scales[g * out + o]);
        for (std::size_t i = g * 32; i < (g + 1) * 32; ++i) {
          const int code = 8 + static_cast<int>(std::lround(x[o * in + i] / scale));
          const std::uint32_t bits = static_cast<std::uint32_t>(code & 15) << (i % 8 * 4);
          words[i / 8 * out + o] =
              static_cast<std::int32_t>(static_cast<std::uint32_t>(words[i / 8 * out + o]) | bits);
          meaning[o * in + i] = scale * static_cast<float>((code & 15) - 8);
        }
      }
  }
};

TEST_CASE("packed weights: a model of 4 bits computes what its numbers mean") {
  TinyShape shape;
  shape.hidden = 64;
  shape.inner = 96;
  shape.dim = 16;
  const TinyLlama tiny(shape, 5);
  const TempDir packed, plain;
  std::vector<AsGptq> matrices;
  std::vector<std::uint16_t> no_bias(128, 0);
  std::vector<TensorToWrite> gptq, floats;
  const std::vector<TensorToWrite> tensors = tiny.tensors();
  matrices.reserve(tensors.size());
  for (const TensorToWrite& t : tensors) {
    if (!t.name.ends_with("_proj.weight")) {
      gptq.push_back(t);
      floats.push_back(t);
      continue;
    }
    const std::int64_t out = t.shape[0], in = t.shape[1];
    const AsGptq& m =
        matrices.emplace_back(static_cast<const float*>(t.data), static_cast<std::size_t>(out),
                              static_cast<std::size_t>(in));
    const std::string at = t.name.substr(0, t.name.size() - std::string(".weight").size());
    gptq.push_back({at + ".qweight", TensorType::i32, {in / 8, out}, m.words.data()});
    gptq.push_back({at + ".qzeros", TensorType::i32, {in / 32, out / 8}, m.zeros.data()});
    gptq.push_back({at + ".scales", TensorType::f16, {in / 32, out}, m.scales.data()});
    gptq.push_back({at + ".bias", TensorType::f16, {out}, no_bias.data()});
    floats.push_back({t.name, TensorType::f32, t.shape, m.meaning.data()});
  }
  Json config = tiny.config();
  std::ofstream(plain / "config.json") << config.dump();
  config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
  std::ofstream(packed / "config.json") << config.dump();
  write_safetensors(plain / "model.safetensors", floats);
  write_safetensors(packed / "model.safetensors", gptq);

  const OpenModel model = open_model(packed.path()), same = open_model(plain.path());
  REQUIRE(model.notes.empty());
  REQUIRE(model.config.quantization.empty());
  REQUIRE(model.tensors->find("model.layers.0.mlp.up_proj.weight")->type == TensorType::q4_0);
  REQUIRE(model.tensors->find("model.layers.0.mlp.up_proj.bias") == nullptr);
  // who it is follows from its files
  REQUIRE(identity_of(model).weights == identity_of(packed.path()).weights);
  REQUIRE(identity_of(model).weights != identity_of(same).weights);
  REQUIRE(model.stored->find("model.layers.0.mlp.up_proj.qweight") != nullptr);

  const std::vector<std::int64_t> ids = random_ids(23, shape.vocab, 9);
  const cpu::Activations before = activations();
  set_activations(cpu::Activations::exact);
  Decoder a = Decoder::load(model), b = Decoder::load(same);
  const LogitsView got = a.forward(ids), want = b.forward(ids);
  set_activations(before);
  for (std::int64_t i = 0; i < got.rows; ++i)
    for (std::int64_t v = 0; v < got.vocab; ++v)
      REQUIRE(got.row(i)[static_cast<std::size_t>(v)] ==
              Approx(want.row(i)[static_cast<std::size_t>(v)]).margin(2e-4));
}

TEST_CASE("packed weights: what does not fit is refused by the tensor or the key") {
  struct Damage {
    std::string scheme;
    std::function<void(Packed&)> change;
    std::vector<std::string> says;
  };
  const auto shape = [](const std::string& name, std::vector<std::int64_t> to) {
    return [=](Packed& p) {
      Packed::Tensor& t = p.tensors.at(name);
      t.shape = to;
      std::size_t n = t.type == TensorType::i32 || t.type == TensorType::f32 ? 4 : 2;
      if (t.type == TensorType::f8_e4m3 || t.type == TensorType::i8 || t.type == TensorType::u8)
        n = 1;
      if (t.type == TensorType::i64) n = 8;
      for (const std::int64_t d : to) n *= static_cast<std::size_t>(d);
      t.bytes.resize(n);
    };
  };
  const auto drop = [](const std::string& name) {
    return [=](Packed& p) { p.tensors.erase(name); };
  };
  const auto say = [](const char* key, Json value) {
    return [=](Packed& p) { p.config["quantization_config"][key] = value; };
  };
  const auto fill = [](const std::string& name, unsigned char byte) {
    return [=](Packed& p) {
      for (std::byte& b : p.tensors.at(name).bytes) b = std::byte{byte};
    };
  };
  const std::vector<Damage> table{
      {"gptq", drop("a.scales"), {"'a.qweight' of GPTQ", "a.scales"}},
      {"gptq", drop("b.qzeros"), {"b.qzeros"}},
      {"gptq", shape("a.scales", {3, 23}), {"'a.scales' of GPTQ", "[3, 23]", "[3, 24]"}},
      {"gptq", shape("a.scales", {}), {"'a.scales'"}},
      {"gptq", shape("a.qweight", {12}), {"'a.qweight'", "[12]"}},
      {"gptq", shape("a.qweight", {0, 24}), {"'a.qweight'", "[0, 24]"}},
      {"gptq", shape("a.qzeros", {3, 2}), {"'a.qzeros'", "[3, 2]"}},
      {"gptq", shape("a.g_idx", {5}), {"'a.g_idx'", "[5]"}},
      {"gptq", fill("e.g_idx", 1), {"'e.g_idx'", "names group"}},
      {"gptq", fill("a.scales", 0x7c), {"'a.scales'"}},
      {"gptq", say("bits", 3), {"quantization_config.bits", "= 3"}},
      {"gptq", say("bits", "four"), {"quantization_config.bits"}},
      {"gptq", say("checkpoint_format", "marlin"), {"checkpoint_format", "marlin", "gptq_v2"}},
      {"awq", drop("a.scales"), {"'a.qweight' of AWQ", "a.scales"}},
      {"awq", say("version", "gemv"), {"version", "gemv", "gemm"}},
      {"awq", say("bits", 8), {"bits"}},
      {"awq", shape("c.scales", {5, 8}), {"group"}},
      {"compressed", drop("a.weight_shape"), {"'a.weight_packed'", "a.weight_shape"}},
      {"compressed", shape("a.weight_shape", {1}), {"'a.weight_shape'"}},
      {"compressed", fill("a.weight_shape", 0xff), {"'a.weight_packed'", "4 and 8"}},
      {"compressed", fill("a.weight_shape", 0x7f), {"'a.weight_packed'"}},
      {"compressed", drop("a.weight_scale"), {"a.weight_scale"}},
      {"compressed", shape("b.weight_zero_point", {1, 2}), {"'b.weight_zero_point'"}},
      {"compressed", shape("g.weight", {12}), {"'g.weight'", "no matrix"}},
      {"nvfp4", drop("a.weight_scale"), {"'a.weight_packed'", "a.weight_scale"}},
      {"nvfp4", drop("a.weight_global_scale"), {"'a.weight_packed'", "a.weight_scale_2"}},
      {"nvfp4", shape("a.weight_packed", {24}), {"'a.weight_packed'", "no matrix"}},
      {"nvfp4", shape("a.weight_packed", {24, 4}), {"'a.weight_packed'", "8 inputs"}},
      {"nvfp4", shape("a.weight_scale", {24, 5}), {"'a.weight_scale'", "[24, 5]", "[24, 6]"}},
      {"nvfp4", fill("a.weight_scale", 0xff), {"'a.weight_scale'", "NaN"}},
      {"nvfp4", fill("a.weight_global_scale", 0), {"'a.weight_global_scale'", "above 0"}},
      {"modelopt", drop("b.weight_scale"), {"ModelOpt", "b.weight_scale"}},
      {"modelopt", fill("b.weight_scale_2", 0xff), {"'b.weight_scale_2'", "NaN"}},
      {"mxfp4", shape("a.weight_scale", {24, 2}), {"'a.weight_scale'", "[24, 2]", "[24, 3]"}},
      {"mxfp4", shape("b.weight_packed", {9, 24}), {"'b.weight_packed'", "48 inputs"}},
      {"compressed", shape("g.weight_scale", {5, 1}), {"'g.weight_scale'"}},
      {"fp8", shape("a.weight_scale_inv", {1, 2}), {"'a.weight_scale_inv' of FP8"}},
      {"fp8", say("weight_block_size", Json{0, 32}), {"weight_block_size"}},
      {"fp8", say("weight_block_size", Json{16}), {"weight_block_size"}},
      {"fp8", fill("c.weight", 0xff), {"'c.weight'", "NaN"}},
      {"fp8", shape("b.weight", {2, 3, 4}), {"'b.weight'", "no matrix"}},
  };
  for (const Damage& damage : table) {
    Packed p(damage.scheme);
    damage.change(p);
    const std::string error = refusal<FileError>([&] { p.unpacked(); });
    CAPTURE(damage.scheme, damage.says[0], error);
    for (const std::string& part : damage.says) REQUIRE(mentions(error, part));
  }
}

TEST_CASE("packed weights: files without such are left as they are") {
  const TempDir dir;
  const TinyLlama tiny({}, 3);
  tiny.write(dir.path());
  const auto source = std::make_shared<const Weights>(dir.path());
  REQUIRE(unpacked_weights(source, tiny.config().dump(), {}, "config.json") == nullptr);
}

}  // namespace packed_weights_test
