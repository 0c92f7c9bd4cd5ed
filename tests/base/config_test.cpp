// SPDX-License-Identifier: Apache-2.0
#include "support/test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/presets.hpp"
#include "episodic/base/rules/fp8.hpp"
#include "support/fp8_reference.hpp"

using namespace episodic;

namespace {

/// The message with which a configuration is refused; empty if it is taken.
std::string refusal(const std::string& json) {
  try {
    parse_memory_config(json);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

bool refused_naming(const std::string& json, const std::string& what) {
  return refusal(json).find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("the configuration survives its JSON", "[base][config]") {
  MemoryConfig c;
  CHECK(parse_memory_config("{}") == c);
  c.n_init = 7;
  c.n_local = 99;
  c.n_mem = 0;
  c.chunk = 3;
  c.segmenter = SegmenterKind::random;
  c.gamma = 0.1;
  c.window = ThresholdWindow::chunked;
  c.tau = 55;
  c.min_block = 2;
  c.max_block = 2;
  c.seed = 18446744073709551615ull;
  c.refine = Refinement::intra_inter;
  c.refine_layers = 4;
  c.n_repr = 9;
  c.contiguity = 1.0;
  c.neighbours = 3;
  c.recall = false;
  c.recall_layers = {{0, 2}};
  c.recall_every = 4;
  c.score = RepresentativeScore::max;
  c.exact_up_to = 10;
  c.host_bytes = 1 << 20;
  c.repr_bytes = 1 << 21;
  c.disk_bytes = 1 << 22;
  c.disk_dir = "/somewhere";
  for (const DType dtype :
       {DType::bfloat16, DType::float16, DType::int8, DType::fp8, DType::float32}) {
    c.kv_dtype = dtype;
    CHECK(parse_memory_config(to_json(c)) == c);
  }
  CHECK(parse_memory_config(R"({"kv_dtype": "int8"})").kv_dtype == DType::int8);
  CHECK(parse_memory_config(R"({"kv_dtype": "fp8"})").kv_dtype == DType::fp8);
  CHECK(parse_memory_config(R"({"kv_dtype": "float16"})").kv_dtype == DType::float16);
}

TEST_CASE("what a configuration may not say is refused by name", "[base][config]") {
  CHECK(refused_naming("", "JSON"));
  CHECK(refused_naming("[1]", "object"));
  CHECK(refused_naming(R"({"n_locale": 4})", "n_locale"));
  CHECK(refused_naming(R"({"n_local": "4"})", "n_local"));
  CHECK(refused_naming(R"({"n_local": 4.5})", "n_local"));
  CHECK(refused_naming(R"({"n_local": 0})", "n_local"));
  CHECK(refused_naming(R"({"n_local": 18446744073709551615})", "n_local"));
  CHECK(refused_naming(R"({"min_block": 9, "max_block": 8})", "min_block"));
  CHECK(refused_naming(R"({"contiguity": 1.5})", "contiguity"));
  CHECK(refused_naming(R"({"gamma": true})", "gamma"));
  CHECK(refused_naming(R"({"refine": "magic"})", "modularity"));
  for (const char* known : {"kv_dtype", "float32", "bfloat16", "float16", "int8", "fp8"})
    CHECK(refused_naming(R"({"kv_dtype": "int4"})", known));
  CHECK(refused_naming(R"({"recall_layers": [1.5]})", "recall_layers"));
  CHECK(refused_naming(R"({"recall": 1})", "recall"));
  CHECK(refused_naming(R"({"seed": -1})", "seed"));
  CHECK(refused_naming(R"({"scope": "layer"})", "scope"));
  CHECK(refused_naming(R"({"min_count": -1})", "min_count"));
  CHECK(refused_naming(R"({"var_floor": 0})", "var_floor"));
  CHECK(refused_naming(R"({"recall_groups": 0})", "recall_groups"));
  CHECK(refused_naming(R"({"index": "faiss", "score": "max"})", "faiss"));
  CHECK(refused_naming(R"({"index": "faiss", "repr_bytes": 1000})", "repr_bytes"));
  CHECK(refused_naming(R"({"disk_dir": 5})", "disk_dir"));
  CHECK(refused_naming(R"({"disk_bytes": -1})", "disk_bytes"));
}

TEST_CASE("min_count 0 is what the segmenter needs, and no other setting than that number",
          "[base][config]") {
  MemoryConfig c, one, four;
  one.min_count = 1, four.min_count = 4;
  CHECK(c.effective_min_count() == 1);
  CHECK(c.same_results(one));  // a memory of before this default
  CHECK(!c.same_results(four));
  for (MemoryConfig* m : {&c, &one, &four}) m->segmenter = SegmenterKind::gaussian;
  CHECK(c.effective_min_count() == 4);
  CHECK(one.effective_min_count() == 1);
  CHECK(c.same_results(four));
  CHECK(!c.same_results(one));
  CHECK(parse_memory_config(to_json(c)) == c);
}

TEST_CASE("Memoria's defaults are those printed for language modelling", "[base][config]") {
  const MemoryConfig c = parse_memory_config(R"({"retention": {}})");
  const MemoriaConfig& m = c.retention->memoria;
  CHECK((m.n_short == 50 && m.n_long == 50 && m.short_term_capacity == 400));  // D.2
  CHECK((m.depth == 10 && m.initial_lifespan == 9 && m.alpha == 8));
  CHECK((m.search == LongTermSearch::graph && m.wiring == Wiring::hebbian));
  CHECK(c.retention->recall == EngramRecall::graph);
  for (const char* changed :
       {R"({"retention": {"recall": "attended"}})", R"({"retention": {"search": "full"}})",
        R"({"retention": {"wiring": "random", "N_ltm": 0}})"}) {
    const MemoryConfig other = parse_memory_config(changed);
    CHECK(other != c);
    CHECK(parse_memory_config(to_json(other)) == other);
  }
}

TEST_CASE("every preset is a valid change of settings that leaves the model's lengths",
          "[base][config]") {
  for (const Preset& preset : presets()) {
    INFO(preset.name);
    MemoryConfig c;
    c.n_local = 777;
    c.n_mem = 555;
    c.chunk = 99;
    c.n_init = 33;
    // What another system has set is gone.
    c.contiguity = 0.9;
    c.refine = Refinement::conductance;
    apply_preset(c, preset.name);
    c.validate();
    CHECK(c.n_local == 777);
    CHECK(c.n_mem == 555);
    CHECK(c.chunk == 99);
    CHECK(c.n_init == 33);
    CHECK(c.contiguity != 0.9);
    CHECK(c.refine != Refinement::conductance);
    MemoryConfig again = c;
    for (const Preset& other : presets()) {
      MemoryConfig changed = again;
      apply_preset(changed, other.name);
      changed.validate();
      apply_preset(changed, preset.name);
      changed.max_block = c.max_block;
      CHECK(changed == c);
    }
  }
  MemoryConfig c;
  try {
    apply_preset(c, "em-lm");
    FAIL("an unknown preset was taken");
  } catch (const ConfigError& e) {
    CHECK(std::string(e.what()).find("em-llm-sm+c") != std::string::npos);
  }
}

TEST_CASE("budgets and places change no result, everything else does", "[base][config]") {
  const MemoryConfig a;
  const auto changed = [&](auto change) {
    MemoryConfig b = a;
    change(b);
    REQUIRE(!(b == a));
    REQUIRE(a.same_results(b) == b.same_results(a));
    return a.same_results(b);
  };
  CHECK(a.same_results(a));
  CHECK(changed([](MemoryConfig& c) { c.device_bytes += 4096; }));
  CHECK(changed([](MemoryConfig& c) { c.host_bytes += 4096; }));
  CHECK(changed([](MemoryConfig& c) { c.repr_bytes += 4096; }));
  CHECK(changed([](MemoryConfig& c) { c.disk_bytes += 4096; }));
  CHECK(changed([](MemoryConfig& c) { c.disk_dir = "elsewhere"; }));
  CHECK_FALSE(changed([](MemoryConfig& c) { c.n_local += 1; }));
  CHECK_FALSE(changed([](MemoryConfig& c) { c.n_mem += 1; }));
  CHECK_FALSE(changed([](MemoryConfig& c) { c.gamma += 0.5; }));
  CHECK_FALSE(changed([](MemoryConfig& c) { c.min_block += 1; }));
  CHECK_FALSE(changed([](MemoryConfig& c) { c.neighbours += 1; }));
  CHECK_FALSE(changed([](MemoryConfig& c) { c.kv_dtype = DType::bfloat16; }));
}

TEST_CASE("docs/settings.md names every setting and every preset", "[base][config]") {
  std::ifstream file(EPISODIC_SOURCE_DIR "/docs/settings.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  REQUIRE(!page.empty());
  const std::string json = to_json(MemoryConfig{});
  std::int64_t keys = 0;
  // Keys stand in quotation marks before a colon.
  for (std::size_t at = json.find('"'); at != std::string::npos; at = json.find('"', at + 1)) {
    const std::size_t end = json.find('"', at + 1);
    const std::string key = json.substr(at + 1, end - at - 1);
    if (json[end + 1] == ':') {
      INFO(key);
      CHECK(page.find('`' + key + '`') != std::string::npos);
      ++keys;
    }
    at = end;
  }
  CHECK(keys > 30);
  for (const Preset& preset : presets()) {
    INFO(preset.name);
    CHECK(page.find('`' + std::string(preset.name) + '`') != std::string::npos);
  }
}

TEST_CASE("settings that contradict each other are refused with the reason", "[base][config]") {
  for (const auto& [json, reason] : {
           std::pair{R"({"scope": "head", "recall_groups": 2})", "recall_groups"},
           {R"({"reweight": "exact", "score": "max"})", "cosine"},
           {R"({"reweight": "narrow", "contiguity": 0.3})", "broad"},
           {R"({"reweight": "broad", "contiguity": 0.3})", "contiguity"},
           {R"({"retention": {}, "scope": "head"})", "one table"},
           {R"({"retention": {}, "recall": false})", "recall = true"},
           {R"({"retention": {}, "score": "max"})", "one vector"},
           {R"({"retention": {"alpha": -1}})", "alpha"},
           {R"({"retention": {"stm_capacity": 0}})", "(stm_capacity) = 0"},
           {R"({"retention": {"N_depth": -1}})", "(N_depth) = -1"},
           {R"({"retention": {"N_smt": 5}})", "N_stm"},
           {R"({"retention": {"recall": "all"}})", "\"attended\""},
           {R"({"retention": {"search": "deep"}})", "\"full\""},
           {R"({"retention": {"wiring": "none"}})", "\"hebbian\""},
           {R"({"retention": {"recall": "attended", "search": "full"}})", "attended"},
           {R"({"retention": 5})", "retention"},
           {R"({"retention": {"layer": -2}})", "layer"},
           {R"({"reweight": "some"})", "narrow"},
       }) {
    INFO(json);
    CHECK(refused_naming(json, reason));
  }
  // Every other combination is taken.
  std::int64_t taken = 0, refused = 0;
  for (const char* segmenter : {"surprise", "fixed", "random", "given", "k_similarity", "gaussian"})
    for (const char* refine : {"null", R"("modularity")", R"("conductance")", R"("intra_inter")"})
      for (const std::string scope : {"sequence", "head"})
        for (const std::string score : {"mean", "max"})
          for (const std::string index : {"exact", "faiss"})
            for (const std::string recall : {"true", "false"})
              for (const std::string reweight : {"null", R"("exact")", R"("narrow")", R"("broad")"})
                for (const std::string retention : {"null", R"({"N_stm": 3, "layer": 1})"}) {
                  const bool forgets = retention != "null";
                  const bool contradicts =
                      (forgets && (scope == "head" || recall == "false" || score == "max")) ||
                      (score == "max" && (reweight != "null" || index == "faiss"));
                  const std::string json = fmt::format(
                      R"({{"segmenter": "{}", "scope": "{}", "refine": {}, "reweight": {}, "retention": {},
                           "score": "{}", "index": "{}", "recall": {}}})",
                      segmenter, scope, refine, reweight, retention, score, index, recall);
                  INFO(json);
                  CHECK((refusal(json) == "") == !contradicts);
                  ++(contradicts ? refused : taken);
                  if (contradicts) continue;
                  const MemoryConfig c = parse_memory_config(json);
                  CHECK(parse_memory_config(to_json(c)) == c);
                  CHECK(c.retention.has_value() == forgets);
                }
  // Of scope and recall four without retention, one with it: 4 reweightings and 2 indexes with the
  // mean, and one with the best of several, without retention alone.
  CHECK(taken == 6 * 4 * ((4 + 1) * 4 * 2 + 4));
  CHECK(taken + refused == 6 * 4 * 2 * 2 * 2 * 2 * 4 * 2);
}

TEST_CASE("bfloat16 rounds to nearest even", "[base][dtype]") {
  CHECK(from_bfloat16(to_bfloat16(1.0f)) == 1.0f);
  CHECK(from_bfloat16(to_bfloat16(-0.0f)) == 0.0f);
  CHECK(to_bfloat16(1.00390625f) == 0x3f80);  // half way between two: the even one
  CHECK(to_bfloat16(1.01171875f) == 0x3f82);
  CHECK(std::isnan(from_bfloat16(to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(std::isinf(from_bfloat16(to_bfloat16(std::numeric_limits<float>::max()))));
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 1000; ++i) {
    const float x = normal(generator);
    CHECK(std::fabs(from_bfloat16(to_bfloat16(x)) - x) <= std::fabs(x) / 256);
  }
}

TEST_CASE("float16 is exact one way, and rounds to nearest even the other", "[base][dtype]") {
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const int exponent = static_cast<int>(h >> 10 & 31u), mantissa = static_cast<int>(h & 1023u);
    const float x = from_float16(half);
    const bool negative = h >= 0x8000u;
    if (exponent == 31) {
      if (mantissa == 0 ? x != (negative ? -INFINITY : INFINITY) : !std::isnan(x)) FAIL(h);
      if (mantissa == 0 ? to_float16(x) != half : !std::isnan(from_float16(to_float16(x)))) FAIL(h);
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (x != (negative ? -magnitude : magnitude) || std::signbit(x) != negative) FAIL(h);
    if (to_float16(x) != half) FAIL(h);
    // half way to the next one away from zero, whose number is one more
    const double unit = std::ldexp(1.0, exponent == 0 ? -24 : exponent - 25);
    const auto middle = static_cast<float>((magnitude + unit / 2) * (negative ? -1 : 1));
    if (to_float16(middle) != (h % 2 == 0 ? h : h + 1)) FAIL(h);
    if (to_float16(std::nextafter(middle, 0.0f)) != h) FAIL(h);
    if (to_float16(std::nextafter(middle, 2 * middle)) != h + 1) FAIL(h);
  }
  CHECK(to_float16(65519.0f) == 0x7bff);
  CHECK(to_float16(65520.0f) == 0x7c00);
  CHECK(to_float16(-1e30f) == 0xfc00);
  CHECK(to_float16(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(std::isnan(from_float16(to_float16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST_CASE("fp8 is exact one way, and rounds to nearest even the other", "[base][dtype]") {
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<std::uint8_t>(c);
    const float x = rules::from_fp8(code);
    if (x != testing::fp8_number(code) || std::signbit(x) != (c >= 0x80)) FAIL(c);
    if ((c & 0x7f) == 0x7f) {  // never made
      if (rules::to_fp8(x) != code - 1) FAIL(c);
      continue;
    }
    if (rules::to_fp8(x) != code) FAIL(c);
    if ((c & 0x7f) == 0x7e) continue;
    // half way to the next one away from zero, whose number is one more
    const float next = rules::from_fp8(static_cast<std::uint8_t>(c + 1)), middle = (x + next) / 2;
    if (rules::to_fp8(middle) != (c % 2 == 0 ? c : c + 1)) FAIL(c);
    if (rules::to_fp8(std::nextafter(middle, x)) != c) FAIL(c);
    if (rules::to_fp8(std::nextafter(middle, next)) != c + 1) FAIL(c);
  }
  for (const float x : {448.0f, 463.9f, 464.0f, 480.0f, 1e30f, INFINITY}) {
    CHECK(rules::to_fp8(x) == 0x7e);
    CHECK(rules::to_fp8(-x) == 0xfe);
  }
  CHECK(rules::to_fp8(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(rules::to_fp8(-0.0f) == 0x80);
  std::mt19937 generator(2);
  std::uniform_real_distribution<float> exponent(-14.0f, 9.5f);
  for (int i = 0; i < 2000; ++i) {
    const float x = std::exp2(exponent(generator)) * (i % 2 == 0 ? 1.0f : -1.0f);
    if (rules::to_fp8(x) != testing::nearest_fp8(x)) FAIL(x);
  }
}

TEST_CASE("an fp8 scale is the least power of two that does not saturate", "[base][dtype]") {
  const auto check = [](float largest) {
    CAPTURE(largest);
    const rules::Fp8Scale s = rules::fp8_scale(largest);
    CHECK(s.scale == testing::fp8_scale_of(largest));
    CHECK(s.inverse == (s.scale > 0.0f ? 1.0 / static_cast<double>(s.scale) : 0.0));
    CHECK(std::isfinite(s.scale * rules::kLargestFp8));
  };
  for (int e = -149; e < 128; ++e)
    for (const float factor : {1.0f, 1.5f, 1.75f, 1.7500001f, 1.9999999f})
      check(std::ldexp(factor, e));
  check(0.0f);
  check(std::numeric_limits<float>::max());
}

TEST_CASE("names and sizes of dtypes", "[base][dtype]") {
  CHECK(size_of(DType::float32) == 4);
  CHECK(size_of(DType::bfloat16) == 2);
  CHECK(size_of(DType::float16) == 2);
  CHECK(size_of(DType::int8) == 1);
  CHECK(size_of(DType::fp8) == 1);
  CHECK(std::string(name_of(DType::fp8)) == "fp8");
  CHECK(std::string(name_of(DType::float16)) == "float16");
  CHECK(std::string(name_of(DType::int8)) == "int8");
}

TEST_CASE("parallel_for runs every task once and hands on an exception", "[base][parallel]") {
  const int threads = max_threads();
  for (const int t : {1, 2, 3}) {
    set_max_threads(t);
    std::vector<int> runs(1000, 0);
    parallel_for(1000, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    CHECK(std::count(runs.begin(), runs.end(), 1) == 1000);
    parallel_for(0, [&](std::int64_t) { FAIL(); });
    CHECK_THROWS_AS(parallel_for(100,
                                 [](std::int64_t i) {
                                   if (i == 50) throw DataError("x");
                                 }),
                    DataError);
  }
  set_max_threads(threads);
}
