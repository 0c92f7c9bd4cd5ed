// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet and Mamba2: the recurrence by its formula, and the settings and files of the
// families that have it.

#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "episodic/model/weight_plan.hpp"
#include "expected_logits.hpp"
#include "model/linear_recurrence.hpp"
#include "support/refusal.hpp"

using namespace episodic;

namespace recurrence_test {

using Json = nlohmann::json;
using Numbers = std::vector<float>;

// -- the recurrence -------------------------------------------------------------------------------

/// A layer's numbers, and rows of its products.
struct Recurrence {
  LinearRecurrence of;
  std::int64_t n = 0;
  Numbers in, gate, step, write;

  Recurrence(const RecurrenceSpec& spec, std::int64_t tokens) : n(tokens) {
    std::mt19937 random(static_cast<unsigned>(spec.channels() * 31 + spec.taps));
    std::normal_distribution<float> normal;
    const auto draw = [&](std::int64_t count) {
      Numbers x(static_cast<std::size_t>(count));
      for (float& v : x) v = normal(random);
      return x;
    };
    of.spec = spec;
    of.tap = draw(spec.taps * spec.channels());
    if (spec.conv_bias) of.bias = draw(spec.channels());
    of.rate = draw(spec.heads);
    for (float& rate : of.rate) rate = -std::exp(rate - 2);
    of.step_bias = draw(spec.heads);
    if (!spec.delta()) of.skip = draw(spec.heads);
    of.norm = draw(spec.delta() ? spec.value_dim : spec.values());
    of.eps = 1e-6f;
    in = draw(n * spec.channels());
    gate = draw(n * spec.values());
    step = draw(n * spec.heads);
    write = draw(n * spec.heads);
    for (float& x : step) x *= 12;  // some beyond softplus's bend
  }

  struct Computed {
    Numbers out, state;
  };

  /// In steps of these many tokens.
  Computed computed(std::int64_t piece) const {
    const RecurrenceSpec& s = of.spec;
    Computed c;
    c.state.resize(static_cast<std::size_t>(s.floats()));
    c.out.resize(static_cast<std::size_t>(n * s.values()));
    Numbers after(c.state.size(), std::nanf(""));
    for (std::int64_t at = 0; at < n; at += piece) {
      const std::int64_t count = std::min(piece, n - at);
      const auto rows = [&](const Numbers& of_all, std::int64_t width) {
        return Numbers(of_all.begin() + at * width, of_all.begin() + (at + count) * width);
      };
      Numbers x = rows(in, s.channels()), z = rows(gate, s.values()), a = rows(step, s.heads),
              b = rows(write, s.heads);
      linear_recurrence(of, count,
                        {x.data(), z.data(), a.data(), b.data(), c.out.data() + at * s.values()},
                        c.state, after);
      c.state.swap(after);
    }
    return c;
  }

  /// By the formula of RecurrenceSpec, in double.
  std::vector<double> by_formula() const {
    const RecurrenceSpec& s = of.spec;
    const auto at = [](const Numbers& x, std::int64_t i) {
      return static_cast<double>(x[static_cast<std::size_t>(i)]);
    };
    const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
    const auto u = [&](std::int64_t t, std::int64_t c) {
      double sum = of.bias.empty() ? 0 : at(of.bias, c);
      for (std::int64_t i = 0; i < s.taps; ++i)
        if (const std::int64_t from = t - s.taps + 1 + i; from >= 0)
          sum += at(of.tap, i * s.channels() + c) * at(in, from * s.channels() + c);
      return silu(sum);
    };
    std::vector<double> matrix(static_cast<std::size_t>(s.matrix_floats()));
    std::vector<double> out(static_cast<std::size_t>(n * s.values()));
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        const std::int64_t key = s.key_head(h) * s.key_dim;
        const auto channels = [&](std::int64_t first, std::int64_t count) {
          std::vector<double> x;
          for (std::int64_t c = 0; c < count; ++c) x.push_back(u(t, first + c));
          return x;
        };
        std::vector<double> q = channels(s.first_query() + key, s.key_dim),
                            k = channels(s.first_key() + key, s.key_dim),
                            v = channels(s.first_value() + h * s.value_dim, s.value_dim);
        double time = std::log1p(std::exp(at(step, t * s.heads + h) + at(of.step_bias, h)));
        double weight = 1 / (1 + std::exp(-at(write, t * s.heads + h)));
        if (s.delta()) {
          for (std::vector<double>* x : {&q, &k}) {
            double squares = 0;
            for (const double e : *x) squares += e * e;
            for (double& e : *x) e /= std::sqrt(squares + 1e-6);
          }
          for (double& e : q) e /= std::sqrt(static_cast<double>(s.key_dim));
        } else {
          weight = time = std::clamp(time, s.least_step, s.most_step);
        }
        const double decay = std::exp(at(of.rate, h) * time);
        double* const m = matrix.data() + h * s.key_dim * s.value_dim;
        for (std::int64_t j = 0; j < s.value_dim; ++j) {
          double said = 0, y = 0;
          for (std::int64_t i = 0; i < s.key_dim; ++i) {
            m[i * s.value_dim + j] *= decay;
            said += k[static_cast<std::size_t>(i)] * m[i * s.value_dim + j];
          }
          const double own = v[static_cast<std::size_t>(j)];
          for (std::int64_t i = 0; i < s.key_dim; ++i) {
            m[i * s.value_dim + j] +=
                k[static_cast<std::size_t>(i)] * weight * (s.delta() ? own - said : own);
            y += q[static_cast<std::size_t>(i)] * m[i * s.value_dim + j];
          }
          out[static_cast<std::size_t>(t * s.values() + h * s.value_dim + j)] =
              y + (s.delta() ? 0 : at(of.skip, h) * own);
        }
      }
      for (std::int64_t first = 0; first < s.values(); first += s.norm_width()) {
        double squares = 0;
        for (std::int64_t c = first; c < first + s.norm_width(); ++c) {
          double& y = out[static_cast<std::size_t>(t * s.values() + c)];
          if (!s.delta()) y *= silu(at(gate, t * s.values() + c));
          squares += y * y;
        }
        const double scale = 1 / std::sqrt(squares / static_cast<double>(s.norm_width()) + 1e-6);
        for (std::int64_t c = first; c < first + s.norm_width(); ++c) {
          double& y = out[static_cast<std::size_t>(t * s.values() + c)];
          y *= scale * at(of.norm, s.delta() ? c - first : c);
          if (s.delta()) y *= silu(at(gate, t * s.values() + c));
        }
      }
    }
    return out;
  }
};

RecurrenceSpec spec_of(RecurrenceKind kind, std::int64_t heads, std::int64_t key_heads,
                       std::int64_t key_dim, std::int64_t value_dim, std::int64_t taps) {
  RecurrenceSpec s;
  s.kind = kind;
  s.heads = heads;
  s.key_heads = key_heads;
  s.key_dim = key_dim;
  s.value_dim = value_dim;
  s.taps = taps;
  s.tiled = taps % 2 == 1;
  s.conv_bias = kind == RecurrenceKind::mamba2;
  if (taps == 2) s.least_step = 0.05, s.most_step = 3;
  return s;
}

TEST_CASE("recurrence: what its formula says, to the bit in pieces of any size") {
  for (const RecurrenceKind kind : {RecurrenceKind::gated_delta, RecurrenceKind::mamba2})
    for (const RecurrenceSpec& s :
         {spec_of(kind, 1, 1, 1, 1, 1), spec_of(kind, 6, 3, 5, 7, 4),
          spec_of(kind, 4, 2, 16, 32, 3), spec_of(kind, 2, 2, 24, 70, 2)}) {
      INFO((s.delta() ? "delta rule, " : "Mamba2, ") << s.taps << " taps");
      const Recurrence r(s, 37);
      const Recurrence::Computed whole = r.computed(r.n);
      const std::vector<double> wanted = r.by_formula();
      double largest = 0;
      for (const double y : wanted) largest = std::max(largest, std::abs(y));
      REQUIRE(largest > 0.1);
      for (std::size_t i = 0; i < wanted.size(); ++i)
        REQUIRE(std::abs(whole.out[i] - wanted[i]) <= 2e-4 * (largest + std::abs(wanted[i])));
      for (const std::int64_t piece : {1, 2, 3, 17}) {
        const Recurrence::Computed pieces = r.computed(piece);
        REQUIRE(pieces.out == whole.out);
        REQUIRE(pieces.state == whole.state);
      }
    }
}

// -- settings -------------------------------------------------------------------------------------

/// As Qwen3.5's, but for sizes.
Json qwen() {
  return {{"model_type", "qwen3_5_text"}, {"vocab_size", 50},         {"hidden_size", 24},
          {"intermediate_size", 36},      {"num_hidden_layers", 8},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2},     {"head_dim", 16},           {"linear_num_value_heads", 4},
          {"linear_num_key_heads", 2},    {"linear_key_head_dim", 6}, {"linear_value_head_dim", 10},
          {"linear_conv_kernel_dim", 4}};
}

Json granite() {
  return {{"model_type", "granitemoehybrid"},
          {"vocab_size", 50},
          {"hidden_size", 24},
          {"intermediate_size", 36},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_local_experts", 0},
          {"layer_types", {"mamba", "attention", "mamba"}},
          {"mamba_n_heads", 6},
          {"mamba_n_groups", 2},
          {"mamba_d_state", 10},
          {"mamba_d_head", "auto"},
          {"shared_intermediate_size", 28},
          {"time_step_limit", {0.0, {{"__float__", "Infinity"}}}}};
}

Json with(Json json, const char* key, const Json& value) {
  json[key] = value;
  return json;
}

Json without(Json json, const char* key) {
  json.erase(key);
  return json;
}

ModelConfig parse(const Json& json) { return parse_model_config(json.dump(), "", "dir"); }

void refuses(const Json& json, const std::string& key) {
  const std::string error = refusal<FileError>([&] { parse(json); });
  INFO(json.dump() << " -> " << error);
  REQUIRE(mentions(error, "dir/config.json: " + key));
}

TEST_CASE("recurrence: the settings of Qwen3.5") {
  const ModelConfig c = parse(qwen());
  REQUIRE(c.memory_layers() == std::vector<std::int64_t>{3, 7});  // one in four
  REQUIRE(c.norm_offset == 1);
  REQUIRE(c.ropes[0].table.rotary_dim() == 4);  // a quarter of a head
  for (const std::size_t l : {0, 1, 2, 4}) {
    const LayerSpec& layer = c.layers[l];
    REQUIRE(layer.mixer == Mixer::recurrence);
    REQUIRE(layer.recurrence.delta());
    REQUIRE(layer.recurrence.channels() == 2 * 2 * 6 + 4 * 10);
    REQUIRE(recurrent_floats(c, layer) == 3 * 64 + 4 * 6 * 10);
    REQUIRE(!layer.output_gate);
  }
  REQUIRE(c.layers[3].mixer == Mixer::attention);
  REQUIRE(c.layers[3].output_gate);
  REQUIRE(c.layers[3].qk_norm == QkNorm::head);
  REQUIRE(!c.layers[3].recurrence);
  REQUIRE(parse(with(qwen(), "full_attention_interval", 2)).memory_layers().size() == 4);
  // as released models say it, and with the names of both generations
  Json said = with(qwen(), "num_hidden_layers", 2);
  said["layer_types"] = {"linear_attention", "full_attention"};
  REQUIRE(parse(said).memory_layers() == std::vector<std::int64_t>{1});
  said["rope_parameters"] = {{"rope_type", "default"},
                             {"rope_theta", 1e7},
                             {"partial_rotary_factor", 0.5},
                             {"mrope_section", {11, 11, 10}},
                             {"mrope_interleaved", true}};
  REQUIRE(parse(said).ropes[0].table.rotary_dim() == 8);
}

TEST_CASE("recurrence: settings of Qwen3.5 that make no sense are refused by key") {
  refuses(with(qwen(), "layer_types", {"linear_attention", "full_attention"}),
          "layer_types has 2 entries");
  Json types = Json::array();
  for (int l = 0; l < 8; ++l) types.push_back(l % 2 ? "linear_attention" : "sliding_attention");
  refuses(with(qwen(), "layer_types", types), "layer_types = \"sliding_attention\"");
  refuses(with(qwen(), "full_attention_interval", 9), "full_attention_interval names no layer");
  refuses(with(qwen(), "full_attention_interval", 0), "full_attention_interval");
  refuses(with(qwen(), "linear_num_key_heads", 3), "linear_num_key_heads = 3 does not divide");
  refuses(with(qwen(), "linear_num_value_heads", 0), "linear_num_value_heads");
  refuses(with(qwen(), "linear_num_value_heads", -4), "linear_num_value_heads");
  refuses(with(qwen(), "linear_key_head_dim", 0), "linear_key_head_dim");
  refuses(with(qwen(), "linear_value_head_dim", 1 << 20), "linear_value_head_dim");
  refuses(with(qwen(), "linear_conv_kernel_dim", 0), "linear_conv_kernel_dim");
  refuses(with(qwen(), "linear_conv_kernel_dim", 1 << 20), "linear_conv_kernel_dim");
  // a layer too wide, and matrices too large, before any tensor is looked at
  refuses(with(with(qwen(), "linear_num_value_heads", 1 << 14), "linear_value_head_dim", 1 << 14),
          "linear_num_value_heads = 16384 and the sizes");
  refuses(with(with(with(qwen(), "linear_num_value_heads", 64), "linear_value_head_dim", 1 << 12),
               "linear_key_head_dim", 1 << 12),
          "linear_key_head_dim = 4096 times 64 heads");
  Json many = with(with(qwen(), "linear_num_value_heads", 64), "linear_value_head_dim", 1 << 10);
  many["linear_key_head_dim"] = 1 << 9;
  parse(many);
  refuses(with(many, "num_hidden_layers", 64), "num_hidden_layers = 64: 48 layers");
  refuses(with(qwen(), "hidden_act", "gelu_pytorch_tanh"), "hidden_act");
  refuses(with(qwen(), "attention_bias", 1), "attention_bias");
  Json mixed = with(qwen(), "model_type", "qwen3_5_moe_text");
  mixed["num_experts"] = 2;
  refuses(with(mixed, "num_experts_per_tok", 3), "num_experts_per_tok = 3 exceeds");
}

TEST_CASE("recurrence: the settings of Granite 4") {
  const ModelConfig c = parse(granite());
  REQUIRE(c.memory_layers() == std::vector<std::int64_t>{1});
  REQUIRE(c.layers[1].rope == -1);
  REQUIRE(!c.has_mixture());
  REQUIRE(c.layers[0].intermediate_size == 28);
  const RecurrenceSpec& r = c.layers[0].recurrence;
  REQUIRE(r.kind == RecurrenceKind::mamba2);
  REQUIRE(r.value_dim == 8);  // 2 * 24 / 6
  REQUIRE(r.channels() == 48 + 2 * 2 * 10);
  REQUIRE(std::isinf(r.most_step));
  REQUIRE(parse(with(granite(), "position_embedding_type", "rope")).layers[1].rope == 0);
  REQUIRE(parse(with(granite(), "time_step_limit", {0.1, 2})).layers[0].recurrence.most_step == 2);
  Json blocks = without(granite(), "layer_types");
  blocks["layers_block_type"] = {"mamba", "attention", "mamba"};
  REQUIRE(parse(blocks).layers == c.layers);
  // infinity as Python writes it
  std::string text = granite().dump();
  const std::string tagged = R"({"__float__":"Infinity"})";
  text.replace(text.find(tagged), tagged.size(), "Infinity");
  REQUIRE(parse_model_config(text, "", "dir").layers == c.layers);
  // Granite 4 micro has attention alone
  const ModelConfig micro =
      parse(with(granite(), "layer_types", {"attention", "attention", "attention"}));
  REQUIRE(!has_recurrent_layers(micro));
  REQUIRE(micro.memory_layers().size() == 3);
  const ModelConfig mixed = parse(with(granite(), "num_local_experts", 4));
  REQUIRE(mixed.has_mixture());
  REQUIRE(mixed.layers[2].mixture.shared_width == 28);
}

TEST_CASE("recurrence: settings of Granite 4 that make no sense are refused by key") {
  refuses(without(granite(), "layer_types"), "layers_block_type names no layer");
  refuses(with(granite(), "layer_types", {"mamba", "conv", "attention"}), "layer_types = \"conv\"");
  refuses(with(granite(), "mamba_n_heads", 5), "mamba_n_heads = 5 does not divide");
  refuses(with(granite(), "mamba_d_head", 9), "mamba_d_head times mamba_n_heads = 6");
  refuses(with(granite(), "mamba_d_head", "big"), "mamba_d_head");
  refuses(with(granite(), "mamba_n_groups", 4), "mamba_n_groups = 4 does not divide");
  refuses(with(granite(), "mamba_n_groups", 0), "mamba_n_groups");
  refuses(with(granite(), "mamba_d_state", 0), "mamba_d_state");
  refuses(with(granite(), "mamba_d_conv", 0), "mamba_d_conv");
  refuses(with(granite(), "mamba_expand", 0), "mamba_expand");
  refuses(with(granite(), "time_step_limit", {2.0, 1.0}), "time_step_limit has its least 2");
  refuses(with(granite(), "time_step_limit", {-1.0, 1.0}), "time_step_limit");
  refuses(with(granite(), "time_step_limit", {1.0}), "time_step_limit has 1 entries");
  refuses(with(granite(), "position_embedding_type", "alibi"), "position_embedding_type = \"alibi");
  refuses(with(granite(), "shared_intermediate_size", 0), "shared_intermediate_size");
}

// -- files ----------------------------------------------------------------------------------------

TEST_CASE("recurrence: tensors are missed by their names") {
  const auto refused = [](const char* family, const char* key, const Json& value) {
    OpenModel model = open_model(family_checkpoint(family));
    model.config = parse(with(Json::parse(model.config_json), key, value));
    return refusal<FileError>([&] { Decoder::load(model); });
  };
  REQUIRE(mentions(
      refused("qwen3_5", "layer_types",
              {"linear_attention", "full_attention", "linear_attention", "full_attention"}),
      "'model.layers.1.self_attn.q_proj.weight'"));
  REQUIRE(mentions(refused("qwen3_5", "linear_key_head_dim", 8), "in_proj_qkv.weight' has shape"));
  REQUIRE(mentions(refused("qwen3_5", "linear_conv_kernel_dim", 3), "conv1d.weight' has shape"));
  REQUIRE(mentions(refused("qwen3_5", "linear_num_value_heads", 8), "recurrent heads"));
  REQUIRE(mentions(refused("qwen3_5", "attention_bias", true), "attention_bias"));
  REQUIRE(mentions(refused("granite4", "mamba_d_state", 8), "mamba.in_proj.weight' has shape"));
  REQUIRE(mentions(refused("granite4", "mamba_proj_bias", true), "mamba_proj_bias"));
  REQUIRE(mentions(refused("granite4", "mamba_conv_bias", false), "conv1d.bias' has no place"));
  // of Qwen3-Next, whose products are parted when it is opened
  const OpenModel next = open_model(family_checkpoint("qwen3_next"));
  REQUIRE(next.tensors->find("model.layers.0.linear_attn.in_proj_qkvz.weight") == nullptr);
  REQUIRE(next.tensors->find("model.layers.0.linear_attn.in_proj_z.weight")->shape ==
          std::vector<std::int64_t>{40, 24});
}

TEST_CASE("recurrence: what attends only says so by name") {
  const auto refused = [](const char* family) {
    const ModelConfig c = load_model_config(family_checkpoint(family));
    return refusal<ConfigError>([&] { require_attention_in_all_layers(c, "training"); });
  };
  REQUIRE(mentions(refused("qwen3_5"), "training: layer 0 of this qwen3_5_text model has a rec"));
  REQUIRE(mentions(refused("granite4"), "has a recurrence in place of attention"));
  ModelConfig gated = parse(with(qwen(), "full_attention_interval", 1));
  REQUIRE(mentions(
      refusal<ConfigError>([&] { require_attention_in_all_layers(gated, "training"); }), "a gate"));
}

TEST_CASE("recurrence: products may be rounded, what decays and convolves is not") {
  OpenModel model = open_model(family_checkpoint("qwen3_5_biases"));  // 32 wide
  quantize_weights(model, TensorType::q8_0);
  const auto type = [&](const char* name) {
    return model.tensors->find(std::string("model.layers.0.linear_attn.") + name)->type;
  };
  REQUIRE(type("in_proj_qkv.weight") == TensorType::q8_0);
  REQUIRE(type("in_proj_z.weight") == TensorType::q8_0);
  for (const char* name : {"in_proj_a.weight", "in_proj_b.weight", "conv1d.weight", "A_log"})
    REQUIRE(type(name) == TensorType::f32);
  const ExpectedLogits expected(family_checkpoint("qwen3_5_biases"));
  Decoder rounded = Decoder::load(model);
  const LogitsView logits = rounded.forward(expected.ids);
  double off = 0, size = 0;
  for (std::size_t i = 0; i < expected.logits.size(); ++i) {
    off += std::abs(logits.floats()[i] - expected.logits[i]);
    size += std::abs(expected.logits[i]);
  }
  REQUIRE(off < 0.1 * size);
  REQUIRE(off > 0);
}

TEST_CASE("recurrence: tensors that guess further tokens are passed over") {
  OpenModel model = open_model(family_checkpoint("qwen3_5_sees"));
  REQUIRE(model.config.model_type == "qwen3_5_text");
  REQUIRE(model.config.text_part_of == "qwen3_5");
  REQUIRE(std::any_of(model.notes.begin(), model.notes.end(), [](const std::string& note) {
    return note.find("visual") != std::string::npos;
  }));
  struct WithGuesses final : TensorSource {
    std::shared_ptr<const TensorSource> from;
    StoredTensor extra;
    const StoredTensor* find(std::string_view name) const override {
      return name == extra.name ? &extra : from->find(name);
    }
    std::vector<const StoredTensor*> tensors() const override {
      auto all = from->tensors();
      all.push_back(&extra);
      return all;
    }
    std::filesystem::path file_of(std::string_view name) const override {
      return from->file_of(name);
    }
  };
  auto more = std::make_shared<WithGuesses>();
  more->from = model.tensors;
  more->extra = *model.tensors->find("model.norm.weight");
  more->extra.name = "mtp.norm.weight";
  model.tensors = more;
  Decoder::load(model);
  more->extra.name = "mtq.norm.weight";
  REQUIRE(mentions(refusal<FileError>([&] { Decoder::load(model); }), "'mtq.norm.weight'"));
}

}  // namespace recurrence_test
