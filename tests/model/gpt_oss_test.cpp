// SPDX-License-Identifier: Apache-2.0
// gpt-oss: its experts as its files hold them, sinks in the model's own attention, and files that
// are wrong.
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/safetensors.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace gpt_oss_test {

using Json = nlohmann::json;

fs::path family(const char* name) {
  return fs::path(EPISODIC_SOURCE_DIR) / "tests/model/families" / name;
}

/// A directory's files, to be written anew with others.
struct Copy {
  explicit Copy(const fs::path& from) : file(from / "model.safetensors") {
    std::ifstream in(from / "config.json");
    config = Json::parse(in);
    for (const StoredTensor& t : file.tensors())
      tensors.push_back({t.name, t.type, t.shape, t.data});
  }
  TensorToWrite& at(const std::string& name) {
    for (TensorToWrite& t : tensors)
      if (t.name == name) return t;
    FAIL("no tensor " << name);
    return tensors[0];
  }
  void drop(const std::string& name) {
    std::erase_if(tensors, [&](const TensorToWrite& t) { return t.name == name; });
  }
  void write(const fs::path& to) const {
    std::ofstream(to / "config.json") << config.dump();
    write_safetensors(to / "model.safetensors", tensors);
  }

  SafetensorsFile file;
  Json config;
  std::vector<TensorToWrite> tensors;
};

std::vector<float> widened(const StoredTensor& t) {
  std::vector<float> x(static_cast<std::size_t>(t.elements()));
  cpu::widen_row(t.type, t.data, t.elements(), x.data());
  return x;
}

/// Number c of row r of an expert's matrix [out, in], as the reference reads the file.
double stored_at(const SafetensorsFile& file, const std::string& name, std::int64_t expert,
                 std::int64_t r, std::int64_t c) {
  if (const StoredTensor* t = file.find(name)) {  // [experts, in, out]
    const std::vector<float> x = widened(*t);
    return x[static_cast<std::size_t>((expert * t->shape[1] + c) * t->shape[2] + r)];
  }
  const double numbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const StoredTensor &blocks = *file.find(name + "_blocks"), &scales = *file.find(name + "_scales");
  const std::int64_t block = (expert * blocks.shape[1] + r) * blocks.shape[2] + c / 32;
  const auto byte = static_cast<int>(blocks.data[block * 16 + c % 32 / 2]);
  const int code = c % 2 == 0 ? byte & 15 : byte >> 4;
  const double number = code < 8 ? numbers[code] : -numbers[code - 8];
  return std::ldexp(number, static_cast<int>(scales.data[block]) - 127);
}

TEST_CASE("gpt-oss: experts become the rows of their products, gates apart from ups") {
  for (const char* name : {"gpt_oss", "gpt_oss_mxfp4"}) {
    const SafetensorsFile file(family(name) / "model.safetensors");
    const OpenModel model = open_model(family(name));
    REQUIRE(model.notes.empty());
    const std::string layer = "model.layers.1.mlp.experts.";
    for (const char* product : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = product[0] == 'd';
      const std::int64_t parts = down ? 1 : 2, part = product[0] == 'u';
      const std::string stored = layer + (down ? "down_proj" : "gate_up_proj");
      const StoredTensor& t = *model.tensors->find(layer + product + ".weight");
      INFO(name << " " << t.name);
      REQUIRE(t.type == (name == std::string("gpt_oss") ? TensorType::f32 : TensorType::mxfp4));
      REQUIRE(t.shape.size() == 3);
      const std::vector<float> got = widened(t);
      const std::int64_t out = t.shape[1], in = t.shape[2];
      bool same = true;
      double largest = 0;
      // expert 0, 1 in full; of MXFP4 each number is looked up by itself
      for (std::int64_t e = 0; e < 2; ++e)
        for (std::int64_t r = 0; r < out; r += 5)
          for (std::int64_t c = 0; c < in; c += 3) {
            const double want = stored_at(file, stored, e, r * parts + part, c);
            same &= got[static_cast<std::size_t>((e * out + r) * in + c)] == want;
            largest = std::max(largest, std::abs(want));
          }
      REQUIRE(same);
      REQUIRE(largest > 0.1);
      const std::vector<float> bias = widened(*model.tensors->find(layer + product + ".bias"));
      const std::vector<float> both = widened(*file.find(stored + "_bias"));
      REQUIRE(bias.size() * static_cast<std::size_t>(parts) == both.size());
      for (std::size_t i = 0; i < bias.size(); ++i)
        REQUIRE(bias[i] ==
                both[i * static_cast<std::size_t>(parts) + static_cast<std::size_t>(part)]);
    }
    REQUIRE_FALSE(model.tensors->find(layer + "gate_up_proj_bias"));
    REQUIRE_FALSE(model.tensors->find("model.layers.1.mlp.router.weight"));
    REQUIRE(model.tensors->file_of(layer + "up_proj.weight").filename() == "model.safetensors");
  }
}

TEST_CASE("gpt-oss: what is missing or wrong is refused by its key or tensor") {
  const TempDir dir;
  const auto refused = [&](const char* name, const std::function<void(Copy&)>& change) {
    Copy copy(family(name));
    change(copy);
    copy.write(dir.path());
    return refusal<FileError>([&] { Decoder::load(dir.path()); });
  };
  const auto with = [&](const char* key, const Json& value) {
    return refused("gpt_oss", [&](Copy& c) { c.config[key] = value; });
  };
  const auto without = [&](const char* name, const std::string& tensor) {
    return refused(name, [&](Copy& c) {
      static_cast<void>(c.at(tensor));
      c.drop(tensor);
    });
  };
  const std::string mlp = "model.layers.1.mlp.", experts = mlp + "experts.";
  for (const char* end : {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"})
    CHECK(mentions(without("gpt_oss", experts + end), experts + end));
  for (const char* end : {"gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_scales"})
    CHECK(mentions(without("gpt_oss_mxfp4", experts + end), experts + end));
  CHECK(mentions(without("gpt_oss", mlp + "router.weight"), mlp + "gate.weight"));
  CHECK(mentions(without("gpt_oss", mlp + "router.bias"), mlp + "gate.bias"));
  CHECK(mentions(without("gpt_oss", "model.layers.0.self_attn.sinks"), "layers.0.self_attn.sinks"));
  CHECK(mentions(without("gpt_oss", "model.layers.0.self_attn.o_proj.bias"), "o_proj.bias"));
  CHECK(
      mentions(refused("gpt_oss_mxfp4",
                       [&](Copy& c) { c.at(experts + "down_proj_scales").type = TensorType::i8; }),
               "expected U8"));
  CHECK(
      mentions(refused("gpt_oss_mxfp4", [&](Copy& c) { c.config["hidden_size"] = 48; }), "MXFP4"));
  CHECK(mentions(with("num_local_experts", 6), "has shape [5, 24, 72]"));
  CHECK(mentions(with("num_experts_per_tok", 6), "num_experts_per_tok"));
  CHECK(mentions(with("intermediate_size", 35), "gate_up_proj"));
  CHECK(mentions(with("layer_types", Json::array({"full_attention", "chunked_attention"})),
                 "layer_types"));
  CHECK(mentions(with("swiglu_limit", 0), "swiglu_limit"));
  CHECK(mentions(with("sliding_window", nullptr), "sliding_window"));
  CHECK(mentions(refused("gpt_oss", [](Copy& c) { c.config.erase("rope_parameters"); }),
                 "rope_parameters"));
  std::vector<float> bad(4, 0.0f);
  bad[2] = std::numeric_limits<float>::quiet_NaN();
  CHECK(mentions(refused("gpt_oss",
                         [&](Copy& c) {
                           c.at("model.layers.0.self_attn.sinks").data =
                               reinterpret_cast<const std::byte*>(bad.data());
                         }),
                 "layers.0.self_attn.sinks"));
}

TEST_CASE("gpt-oss: it is not written as GGUF, and rounded weights are not rounded again") {
  const TempDir dir;
  const OpenModel model = open_model(family("gpt_oss"));
  CHECK(mentions(refusal<ConfigError>([&] { write_gguf(model, dir / "m.gguf"); }),
                 "self_attn.sinks"));
  REQUIRE_FALSE(fs::exists(dir / "m.gguf"));
  OpenModel rounded = open_model(family("gpt_oss_mxfp4"));
  CHECK(mentions(refusal<ConfigError>([&] { quantize_weights(rounded, TensorType::q8_0); }),
                 "MXFP4"));
}

TEST_CASE("gpt-oss: without their sinks its layers attend otherwise") {
  const TempDir dir;
  Copy copy(family("gpt_oss"));
  const std::vector<float> none(4, -1e30f);
  for (const int layer : {0, 1})
    copy.at("model.layers." + std::to_string(layer) + ".self_attn.sinks").data =
        reinterpret_cast<const std::byte*>(none.data());
  copy.write(dir.path());
  const std::vector<std::int64_t> ids{5, 9, 33, 61, 7};
  Decoder with = Decoder::load(family("gpt_oss")), without = Decoder::load(dir.path());
  const auto a = with.forward(ids, LogitRows::last).row(0);
  const auto b = without.forward(ids, LogitRows::last).row(0);
  float off = 0;
  for (std::size_t i = 0; i < a.size(); ++i) off = std::max(off, std::abs(a[i] - b[i]));
  REQUIRE(off > 0.05f);
}

}  // namespace gpt_oss_test
