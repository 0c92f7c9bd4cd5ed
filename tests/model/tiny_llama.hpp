// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random LLaMA directories written by the tests, and what they compute in float64.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "episodic/base/dtype.hpp"
#include "episodic/model/safetensors.hpp"

inline std::vector<std::int64_t> random_ids(std::int64_t n, std::int64_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
  for (auto& id : ids) id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocab));
  return ids;
}

struct TinyShape {
  std::int64_t vocab = 61, hidden = 24, inner = 44, layers = 2, heads = 4, kv_heads = 2, dim = 12;
  bool tied = false, attention_bias = false, mlp_bias = false;
  episodic::TensorType type = episodic::TensorType::f32;
  double theta = 500.0, eps = 1e-5;
};

class TinyLlama {
 public:
  TinyLlama(const TinyShape& s, unsigned seed) : shape(s), random_(seed) {
    add("model.embed_tokens.weight", {s.vocab, s.hidden}, 1.0);
    for (std::int64_t l = 0; l < s.layers; ++l) {
      const std::string at = "model.layers." + std::to_string(l) + ".";
      add(at + "input_layernorm.weight", {s.hidden}, 1.0, 1.0);
      add(at + "post_attention_layernorm.weight", {s.hidden}, 1.0, 1.0);
      linear(at + "self_attn.q_proj", s.heads * s.dim, s.hidden, s.attention_bias);
      linear(at + "self_attn.k_proj", s.kv_heads * s.dim, s.hidden, s.attention_bias);
      linear(at + "self_attn.v_proj", s.kv_heads * s.dim, s.hidden, s.attention_bias);
      linear(at + "self_attn.o_proj", s.hidden, s.heads * s.dim, s.attention_bias);
      linear(at + "mlp.gate_proj", s.inner, s.hidden, s.mlp_bias);
      linear(at + "mlp.up_proj", s.inner, s.hidden, s.mlp_bias);
      linear(at + "mlp.down_proj", s.hidden, s.inner, s.mlp_bias);
    }
    add("model.norm.weight", {s.hidden}, 1.0, 1.0);
    if (!s.tied) linear("lm_head", s.vocab, s.hidden, false);
  }

  nlohmann::json config() const {
    const TinyShape& s = shape;
    return {{"model_type", "llama"},
            {"vocab_size", s.vocab},
            {"hidden_size", s.hidden},
            {"intermediate_size", s.inner},
            {"num_hidden_layers", s.layers},
            {"num_attention_heads", s.heads},
            {"num_key_value_heads", s.kv_heads},
            {"head_dim", s.dim},
            {"rms_norm_eps", s.eps},
            {"rope_theta", s.theta},
            {"tie_word_embeddings", s.tied},
            {"attention_bias", s.attention_bias},
            {"mlp_bias", s.mlp_bias}};
  }

  std::vector<episodic::TensorToWrite> tensors() const {
    std::vector<episodic::TensorToWrite> out;
    for (const auto& [name, t] : tensors_)
      out.push_back({name, shape.type, t.shape, t.stored.data()});
    return out;
  }

  void write(const std::filesystem::path& dir) const {
    std::ofstream(dir / "config.json") << config().dump();
    write_safetensors(dir / "model.safetensors", tensors());
  }

  /// Logits [n][vocab] of a whole sequence, plain causal attention, all in float64.
  std::vector<std::vector<double>> logits(const std::vector<std::int64_t>& ids) const {
    const TinyShape& s = shape;
    const std::size_t n = ids.size();
    std::vector<std::vector<double>> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = row("model.embed_tokens.weight", ids[i]);
    for (std::int64_t l = 0; l < s.layers; ++l) {
      const std::string at = "model.layers." + std::to_string(l) + ".";
      std::vector<std::vector<double>> q(n), k(n), v(n);
      for (std::size_t i = 0; i < n; ++i) {
        const auto y = norm(x[i], at + "input_layernorm.weight");
        q[i] = rotated(apply(at + "self_attn.q_proj", y), i);
        k[i] = rotated(apply(at + "self_attn.k_proj", y), i);
        v[i] = apply(at + "self_attn.v_proj", y);
      }
      for (std::size_t i = 0; i < n; ++i) {
        add_to(x[i], apply(at + "self_attn.o_proj", attention(q[i], k, v, i)));
        const auto y = norm(x[i], at + "post_attention_layernorm.weight");
        auto gate = apply(at + "mlp.gate_proj", y);
        const auto up = apply(at + "mlp.up_proj", y);
        for (std::size_t c = 0; c < gate.size(); ++c)
          gate[c] = gate[c] / (1 + std::exp(-gate[c])) * up[c];
        add_to(x[i], apply(at + "mlp.down_proj", gate));
      }
    }
    std::vector<std::vector<double>> out(n);
    for (std::size_t i = 0; i < n; ++i)
      out[i] = apply(s.tied ? "model.embed_tokens" : "lm_head", norm(x[i], "model.norm.weight"));
    return out;
  }

  const TinyShape shape;

 private:
  struct Tensor {
    std::vector<std::int64_t> shape;
    std::vector<double> value;  // what the file holds, exactly
    std::vector<char> stored;
  };

  void add(const std::string& name, const std::vector<std::int64_t>& size, double spread,
           double centre = 0) {
    std::normal_distribution<double> draw(centre, spread * 0.3);
    Tensor t{size, {}, {}};
    std::int64_t count = 1;
    for (const auto d : size) count *= d;
    for (std::int64_t i = 0; i < count; ++i) {
      float x = static_cast<float>(draw(random_));
      char bytes[4];
      if (shape.type == episodic::TensorType::f32) {
        std::memcpy(bytes, &x, 4);
      } else if (shape.type == episodic::TensorType::bf16) {
        const std::uint16_t bits = episodic::to_bfloat16(x);
        x = episodic::from_bfloat16(bits);
        std::memcpy(bytes, &bits, 2);
      } else {  // some normal and some subnormal halves, made from their bits
        const auto bits = static_cast<std::uint16_t>((random_() % 2 << 15) |
                                                     (i % 7 == 0 ? 0 : (8 + random_() % 7) << 10) |
                                                     random_() % 1024);
        const int exponent = bits >> 10 & 31;
        const double m = bits & 1023;
        x = static_cast<float>((bits >> 15 ? -1 : 1) * (exponent
                                                            ? std::ldexp(m + 1024, exponent - 25)
                                                            : std::ldexp(m, -24)));
        std::memcpy(bytes, &bits, 2);
      }
      t.value.push_back(x);
      t.stored.insert(t.stored.end(), bytes, bytes + episodic::block_bytes(shape.type));
    }
    tensors_[name] = std::move(t);
  }

  void linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
    add(name + ".weight", {out, in}, 3 / std::sqrt(static_cast<double>(in)));
    if (bias) add(name + ".bias", {out}, 1.0);
  }

  std::vector<double> row(const std::string& name, std::int64_t i) const {
    const Tensor& t = tensors_.at(name);
    const auto from = t.value.begin() + i * t.shape[1];
    return {from, from + t.shape[1]};
  }

  std::vector<double> apply(const std::string& name, const std::vector<double>& x) const {
    const Tensor& w = tensors_.at(name + ".weight");
    const auto bias = tensors_.find(name + ".bias");
    std::vector<double> y(static_cast<std::size_t>(w.shape[0]));
    for (std::size_t o = 0; o < y.size(); ++o) {
      if (bias != tensors_.end()) y[o] = bias->second.value[o];
      for (std::size_t c = 0; c < x.size(); ++c) y[o] += w.value[o * x.size() + c] * x[c];
    }
    return y;
  }

  std::vector<double> norm(const std::vector<double>& x, const std::string& name) const {
    double sum = 0;
    for (const double a : x) sum += a * a;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + shape.eps);
    std::vector<double> y = tensors_.at(name).value;
    for (std::size_t c = 0; c < x.size(); ++c) y[c] *= x[c] * scale;
    return y;
  }

  std::vector<double> rotated(std::vector<double> x, std::size_t position) const {
    const auto d = static_cast<std::size_t>(shape.dim), half = d / 2;
    for (std::size_t at = 0; at < x.size(); at += d)
      for (std::size_t c = 0; c < half; ++c) {
        const double angle =
            static_cast<double>(position) *
            std::pow(shape.theta, -2.0 * static_cast<double>(c) / static_cast<double>(d));
        const double a = x[at + c], b = x[at + c + half];
        x[at + c] = a * std::cos(angle) - b * std::sin(angle);
        x[at + c + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    return x;
  }

  std::vector<double> attention(const std::vector<double>& q,
                                const std::vector<std::vector<double>>& k,
                                const std::vector<std::vector<double>>& v, std::size_t last) const {
    const auto d = static_cast<std::size_t>(shape.dim);
    const auto share = static_cast<std::size_t>(shape.heads / shape.kv_heads);
    std::vector<double> out(q.size());
    for (std::size_t h = 0; h < static_cast<std::size_t>(shape.heads); ++h) {
      const std::size_t g = h / share;
      std::vector<double> p(last + 1);
      double sum = 0;
      for (std::size_t j = 0; j <= last; ++j) {
        double dot = 0;
        for (std::size_t c = 0; c < d; ++c) dot += q[h * d + c] * k[j][g * d + c];
        p[j] = std::exp(dot / std::sqrt(static_cast<double>(d)));
        sum += p[j];
      }
      for (std::size_t j = 0; j <= last; ++j)
        for (std::size_t c = 0; c < d; ++c) out[h * d + c] += p[j] / sum * v[j][g * d + c];
    }
    return out;
  }

  static void add_to(std::vector<double>& x, const std::vector<double>& y) {
    for (std::size_t c = 0; c < x.size(); ++c) x[c] += y[c];
  }

  std::mt19937 random_;
  std::map<std::string, Tensor> tensors_;
};
