// SPDX-License-Identifier: Apache-2.0
// A GGUF file's settings one by one: what llama.cpp computes with them
// (models/reference/make_gguf_rope_vectors.py), or a refusal by the setting's name.

#include "support/test.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/gguf.hpp"
#include "support/gguf_writer.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace gguf_settings_test {

using Json = nlohmann::json;
using W = GgufWriter;

const fs::path kDir = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/gguf_settings";

Json cases() {
  std::ifstream in(kDir / "cases.json");
  return Json::parse(in);
}

void put(W& w, const std::string& key, const Json& value) {
  if (value.is_boolean())
    w.put(key, value.get<bool>());
  else if (value.is_string())
    w.put(key, value.get<std::string>());
  else if (value.is_number_integer())
    w.put(key, value.get<std::uint32_t>());
  else if (value.is_number())
    w.put(key, value.get<float>());
  else if (value.is_array())
    w.put_array(key, W::i32, value.get<std::vector<std::int32_t>>());
}

/// The base with other values and more tensors, as the script wrote it for llama.cpp.
std::string file_of(const Json& base, const Json& c) {
  const GgufFile tensors(kDir / "base.gguf");
  const auto architecture = c["architecture"].get<std::string>();
  Json values = base;
  values.update(c["values"]);
  W w;
  w.put("general.architecture", architecture);
  for (const auto& [key, value] : values.items()) put(w, architecture + "." + key, value);
  w.put("tokenizer.ggml.model", "no_vocab");
  for (const StoredTensor* t : tensors.tensors()) {
    std::vector<std::uint64_t> shape(t->shape.begin(), t->shape.end());
    w.tensor(
        t->name, 0, shape,
        std::string(reinterpret_cast<const char*>(t->data), static_cast<std::size_t>(t->bytes)));
  }
  for (const auto& [name, numbers] : c["tensors"].items())
    w.floats(name, {numbers.size()}, numbers.get<std::vector<float>>());
  return w.bytes();
}

std::vector<float> last_logits(const fs::path& file, const std::vector<std::int64_t>& ids) {
  Decoder model = Decoder::load(file);
  const LogitsView logits = model.forward(ids, LogitRows::last);
  return {logits.floats().begin(), logits.floats().end()};
}

TEST_CASE("gguf settings: each gives llama.cpp's logits or is refused by its name", "[proof]") {
  const Json all = cases();
  const auto ids = all["ids"].get<std::vector<std::int64_t>>();
  // what llama.cpp passes over for these architectures, and we do not
  const std::set<std::string> stricter{
      "yarn with a beta", "yarn with ext_factor", "yarn with yarn_attn_factor",
      "attention.scale where it is not read", "logit_scale where it is not read"};
  const TempDir dir;
  std::size_t compared = 0;
  for (const Json& c : all["cases"]) {
    const auto name = c["name"].get<std::string>();
    dir.write("m.gguf", file_of(all["values"], c));
    std::vector<float> got;
    const std::string error = refusal<FileError>([&] { got = last_logits(dir / "m.gguf", ids); });
    INFO(name << ": " << error);
    if (error != "no error") {
      CHECK((c.contains("refused") || stricter.count(name) == 1));
      bool named = false;
      for (const auto& [key, value] : c["values"].items()) named = named || mentions(error, key);
      CHECK(named);
      continue;
    }
    CHECK(stricter.count(name) == 0);
    REQUIRE_FALSE(c.contains("refused"));
    const auto expected = c["logits"].get<std::vector<float>>();
    REQUIRE(got.size() == expected.size());
    float largest = 0, off = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      const float d = std::abs(got[i] - expected[i]);
      off = std::isnan(d) ? 1e30f : std::max(off, d);
    }
    REQUIRE(largest > 0.1f);
    // llama.cpp's attention has halves in it; of two settings the logits are 0.1 apart
    CHECK(off < 1e-2f * largest);
    ++compared;
  }
  REQUIRE(compared > 30);
}

TEST_CASE("gguf settings: numbers that are none, and lists that differ, are refused by name") {
  const Json all = cases();
  const TempDir dir;
  const auto attempt = [&](const std::string& key, const auto& value) {
    Json values = all["values"];
    values.erase(key);
    Json c{{"architecture", "llama"}, {"values", Json::object()}, {"tensors", Json::object()}};
    const GgufFile tensors(kDir / "base.gguf");
    W w;
    w.put("general.architecture", "llama");
    for (const auto& [name, v] : values.items()) put(w, "llama." + name, v);
    w.put("tokenizer.ggml.model", "no_vocab");
    value(w, "llama." + key);
    for (const StoredTensor* t : tensors.tensors())
      w.tensor(
          t->name, 0, {t->shape.begin(), t->shape.end()},
          std::string(reinterpret_cast<const char*>(t->data), static_cast<std::size_t>(t->bytes)));
    dir.write("m.gguf", w.bytes());
    return refusal<FileError>([&] { Decoder::load(dir / "m.gguf"); });
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const char* key :
       {"rope.freq_base", "attention.layer_norm_rms_epsilon", "rope.scaling.factor",
        "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast"})
    for (const float number : {nan, infinity, -infinity}) {
      INFO(key << ' ' << number);
      const std::string error =
          attempt(key, [&](W& w, const std::string& name) { w.put(name, number); });
      INFO(error);
      CHECK(mentions(error, key));
    }
  for (const char* key :
       {"attention.head_count", "attention.head_count_kv", "feed_forward_length"}) {
    INFO(key);
    for (const std::vector<std::int32_t>& list :
         {std::vector<std::int32_t>{4, 2}, {4}, {4, 4, 4}, {0, 0}, {-1, -1}, {}}) {
      const std::string error =
          attempt(key, [&](W& w, const std::string& name) { w.put_array(name, W::i32, list); });
      INFO(error);
      CHECK(mentions(error, key));
    }
  }
  CHECK(mentions(attempt("rope.dimension_count", [](W& w, const std::string& n) { w.put(n, 16u); }),
                 "rope.dimension_count"));
  CHECK(mentions(attempt("attention.causal", [](W& w, const std::string& n) { w.put(n, false); }),
                 "attention.causal"));
  CHECK(mentions(attempt("expert_count", [](W& w, const std::string& n) { w.put(n, 8u); }),
                 "expert_used_count"));
}

TEST_CASE("gguf settings: a list of frequencies that is none, or only one of two") {
  const Json all = cases();
  const TempDir dir;
  const auto attempt = [&](const Json& tensors) {
    dir.write("m.gguf", file_of(all["values"], {{"architecture", "llama"},
                                                {"values", Json::object()},
                                                {"tensors", tensors}}));
    return refusal<FileError>([&] { Decoder::load(dir / "m.gguf"); });
  };
  CHECK(mentions(attempt({{"rope_factors_long.weight", {1, 2, 3, 4}}}),
                 "rope_factors_short.weight is missing"));
  CHECK(mentions(attempt({{"rope_freqs.weight", {1, 2, 0, 4}}}), "rope_freqs.weight holds 0"));
  CHECK(mentions(attempt({{"rope_freqs.weight", {1, 2, -3, 4}}}), "rope_freqs.weight holds -3"));
  CHECK(mentions(attempt({{"rope_freqs.weight", {1, 2, 3}}}), "has 3 entries, expected 4"));
}

}  // namespace gguf_settings_test
