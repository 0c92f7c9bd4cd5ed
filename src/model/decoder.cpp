// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/decoder.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "decoder_weights.hpp"
#include "elementwise.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "linear.hpp"
#include "lora_scale.hpp"

namespace episodic {
namespace {

/// The outputs of one step's stages, kept from step to step: row i belongs to token i.
struct StepBuffers {
  std::int64_t capacity = 0;
  at::Tensor hidden, normed;          // [capacity, hidden]
  at::Tensor q, k, v;                 // [capacity, heads, d]
  at::Tensor gate, up;                // [capacity, intermediate]
  at::Tensor q_rows, k_rows, v_rows;  // their first n rows
  at::Tensor low;                     // [capacity, the largest rank of an adapter]
  std::int64_t n = 0;

  void fit(const ModelConfig& c, std::int64_t rows, std::int64_t rank) {
    if (rank > 0 && (!low.defined() || low.size(0) < rows || low.size(1) < rank))
      low = at::empty({rows, rank}, at::kFloat);
    if (rows > capacity) {
      hidden = at::empty({rows, c.hidden_size}, at::kFloat);
      normed = at::empty({rows, c.hidden_size}, at::kFloat);
      q = at::empty({rows, c.n_heads, c.head_dim}, at::kFloat);
      k = at::empty({rows, c.n_kv_heads, c.head_dim}, at::kFloat);
      v = at::empty({rows, c.n_kv_heads, c.head_dim}, at::kFloat);
      gate = at::empty({rows, c.intermediate_size}, at::kFloat);
      up = at::empty({rows, c.intermediate_size}, at::kFloat);
      capacity = rows;
      n = 0;
    }
    if (rows != n) {
      q_rows = q.narrow(0, 0, rows);
      k_rows = k.narrow(0, 0, rows);
      v_rows = v.narrow(0, 0, rows);
      n = rows;
    }
  }
};

/// How the head is computed where only the last row of logits is asked for: for all rows, a piece
/// of the vocabulary at a time, which stays in cache while the log-sum-exp of each row is carried
/// on.
struct HeadPieces {
  at::Tensor tile;               // [n, longest piece]
  at::Tensor last;               // [1, vocab]
  SurpriseInPieces surprise;     // of all rows but the last, which has no successor
  std::vector<float> following;  // [n - 1]

  /// Logits of a piece for each of n rows, but for the last piece, which has up to twice as many.
  /// Large enough that products are cut as those of the whole head, so that the bits are the same.
  static std::int64_t width(std::int64_t n) {
    constexpr std::int64_t kTile = (2 << 20) / sizeof(float), kPiece = SurpriseInPieces::kPiece;
    return std::max(kPiece, kTile / n / kPiece * kPiece);
  }
};

float* rows_of(at::Tensor& t, std::int64_t first) {
  return t.mutable_data_ptr<float>() + first * (t.numel() / t.size(0));
}

/// What one adapter adds to a product: factor * B (A x).
struct LowRank {
  Linear a, b;
  float factor = 1;
};

LowRank low_rank_of(const LoraProduct& p, double scale) {
  const auto linear = [](const float* weight, std::int64_t out, std::int64_t in) {
    return Linear{TensorType::f32, reinterpret_cast<const std::byte*>(weight), nullptr, out, in};
  };
  return {linear(p.a, p.rank, p.in), linear(p.b, p.out, p.rank),
          static_cast<float>(scale * p.scaling)};
}

/// The weights that a role names; null if it is none of a product's.
const Linear* product_of(const DecoderWeights& w, WeightRole role, std::int64_t layer) {
  if (role == WeightRole::head) return &w.head;
  if (layer < 0 || layer >= static_cast<std::int64_t>(w.layers.size())) return nullptr;
  const DecoderLayer& l = w.layers[static_cast<std::size_t>(layer)];
  switch (role) {
    case WeightRole::q:
      return &l.q;
    case WeightRole::k:
      return &l.k;
    case WeightRole::v:
      return &l.v;
    case WeightRole::o:
      return &l.o;
    case WeightRole::gate:
      return &l.gate;
    case WeightRole::up:
      return &l.up;
    case WeightRole::down:
      return &l.down;
    default:
      return nullptr;
  }
}

}  // namespace

struct Decoder::Impl {
  std::shared_ptr<const DecoderWeights> weights;
  std::vector<std::shared_ptr<AttentionSlot>> slots;
  std::shared_ptr<SequenceState> state;
  StepBuffers step;
  at::Tensor logits;       // reused while nobody else holds it
  at::Tensor last_logits;  // what `step` left for `logits`
  HeadPieces head;
  std::vector<AppliedLora> adapters;
  std::map<const Linear*, std::vector<LowRank>> low_ranks;  // by what they are added to
  std::int64_t most_rank = 0;

  explicit Impl(std::shared_ptr<const DecoderWeights> w)
      : weights(std::move(w)), slots(weights->layers.size()) {}

  const ModelConfig& config() const { return weights->config; }

  void check_ids(std::span<const std::int64_t> ids) const {
    if (ids.empty()) throw DataError("Decoder::forward: no tokens; a step needs at least one");
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (ids[i] < 0 || ids[i] >= config().vocab_size)
        throw DataError(
            fmt::format("Decoder::forward: ids[{}] = {} is not in the vocabulary of {} "
                        "tokens; use the tokenizer of this model",
                        i, ids[i], config().vocab_size));
  }

  void embed(std::span<const std::int64_t> ids) {
    const Linear& table = weights->embedding;
    const auto multiplier = static_cast<float>(config().embedding_multiplier);
    float* to = step.hidden.mutable_data_ptr<float>();
    for (const std::int64_t id : ids) {
      widen(table.type, table.weight + id * table.row_bytes(), table.in, to);
      if (multiplier != 1.0f) scale(multiplier, to, table.in);
      to += table.in;
    }
  }

  void use_adapters(std::vector<AppliedLora> chosen) {
    decltype(low_ranks) added;
    std::int64_t rank = 0;
    for (const AppliedLora& applied : chosen) {
      if (!applied.adapter) throw ConfigError("Decoder::use_adapters: an adapter is null");
      const std::string name = applied.adapter->dir().string();
      require_scale(applied.adapter->dir(), applied.scale);
      for (const LoraProduct& p : applied.adapter->products()) {
        const Linear* to = product_of(*weights, p.role, p.layer);
        if (!to || to->in != p.in || to->out != p.out)
          throw ConfigError(
              fmt::format("{}: the adapter was loaded for another model: this one's {} of layer {} "
                          "does not fit it",
                          name, name_of(p.role), p.layer));
        added[to].push_back(low_rank_of(p, applied.scale));
        rank = std::max(rank, p.rank);
      }
    }
    adapters = std::move(chosen);
    low_ranks = std::move(added);
    most_rank = rank;
  }

  /// All products of rows [first, first + n), with what the adapters add to them.
  void multiply_adapted(std::int64_t first, std::int64_t n, std::span<const Product> products,
                        Cut cut) {
    multiply(n, products, cut);
    if (low_ranks.empty()) return;
    for (const Product& p : products) {
      const auto found = low_ranks.find(p.linear);
      if (found == low_ranks.end()) continue;
      for (const LowRank& low : found->second) {
        float* between = rows_of(step.low, first);  // [n, rank], rows of these tokens alone
        const Product down{&low.a, p.x, between};
        multiply(n, {&down, 1}, cut);
        scale(low.factor, between, n * low.a.out);
        const Product up{&low.b, between, p.y, true};
        multiply(n, {&up, 1}, cut);
      }
    }
  }

  /// y = the RMS norm of n rows of x; y may be x.
  void norm(const std::vector<float>& weight, const float* x, std::int64_t n, float* y) const {
    const auto width = static_cast<std::int64_t>(weight.size());
    rms_norm(x, weight.data(), static_cast<float>(config().rms_norm_eps), n, width, y);
  }

  /// Rows of the residual stream, through the norm that a block reads them by, if it has one.
  const float* read_stream(const std::vector<float>& weight, std::int64_t first, std::int64_t n) {
    const float* hidden = rows_of(step.hidden, first);
    if (weight.empty()) return hidden;
    norm(weight, hidden, n, rows_of(step.normed, first));
    return rows_of(step.normed, first);
  }

  /// Adds a block's last product to the residual stream, through the norm behind it, if it has one.
  void add_to_stream(const Linear& w, const float* x, const std::vector<float>& weight,
                     std::int64_t first, std::int64_t n, Cut cut) {
    float* hidden = rows_of(step.hidden, first);
    const auto multiplier = static_cast<float>(config().residual_multiplier);
    const bool directly = weight.empty() && multiplier == 1.0f;
    float* to = directly ? hidden : rows_of(step.normed, first);
    const Product product{&w, x, to, directly};
    multiply_adapted(first, n, {&product, 1}, cut);
    if (directly) return;
    if (!weight.empty()) norm(weight, to, n, to);
    add_scaled(multiplier, to, hidden, n * config().hidden_size);
  }

  /// Norms of queries or keys: of each head, or of a token's whole row.
  void norm_heads(const std::vector<float>& weight, std::int64_t n, std::int64_t row_width,
                  float* x) const {
    if (weight.empty()) return;
    norm(weight, x, n * row_width / static_cast<std::int64_t>(weight.size()), x);
  }

  /// Rows [first, first + n) of the residual stream to rows of q, k and v.
  void before_attention(std::size_t l, std::int64_t first, std::int64_t n, Cut cut) {
    const DecoderLayer& w = weights->layers[l];
    const LayerSpec& spec = config().layers[l];
    const float* x = read_stream(w.input_norm, first, n);
    float* q = rows_of(step.q, first);
    float* k = rows_of(step.k, first);
    const Product qkv[] = {{&w.q, x, q}, {&w.k, x, k}, {&w.v, x, rows_of(step.v, first)}};
    multiply_adapted(first, n, qkv, cut);
    norm_heads(w.q_norm, n, w.q.out, q);
    norm_heads(w.k_norm, n, w.k.out, k);
    // slots scale by 1 / sqrt(head_dim)
    const double usual = 1 / std::sqrt(static_cast<double>(spec.head_dim));
    if (spec.scale != usual) scale(static_cast<float>(spec.scale / usual), q, n * w.q.out);
  }

  /// Adds what attention and the feed-forward network say to those rows.
  void after_attention(std::size_t l, const float* attended, std::int64_t first, std::int64_t n,
                       Cut cut) {
    const DecoderLayer& w = weights->layers[l];
    const LayerSpec& spec = config().layers[l];
    add_to_stream(w.o, attended + first * w.o.in, w.attended_norm, first, n, cut);
    const float* x = read_stream(w.feed_norm, first, n);
    float* gate = rows_of(step.gate, first);
    float* up = rows_of(step.up, first);
    const Product gate_up[] = {{&w.gate, x, gate}, {&w.up, x, up}};
    multiply_adapted(first, n, gate_up, cut);
    const auto activate = spec.activation == Activation::silu ? silu_times : gelu_times;
    activate(gate, up, n * spec.intermediate_size);
    add_to_stream(w.down, gate, w.fed_norm, first, n, cut);
  }

  /// Runs f(first, n, cut) over all rows. A small layer stays in the cache while blocks of rows
  /// pass through all its products, one block per thread; for a large one each product is cut
  /// instead.
  template <class F>
  void over_rows(std::int64_t n, F&& f) const {
    constexpr std::int64_t kRows = 64, kSmallLayer = 4'000'000;  // rows, weights
    const ModelConfig& c = config();
    const std::int64_t layer_size =
        c.hidden_size * (3 * c.intermediate_size + 2 * (c.n_heads + c.n_kv_heads) * c.head_dim);
    if (n <= kRows || layer_size > kSmallLayer) return f(0, n, Cut::blocks);
    parallel_for((n + kRows - 1) / kRows, [&](std::int64_t block) {
      f(block * kRows, std::min(kRows, n - block * kRows), Cut::whole);
    });
  }

  const float* attend(std::size_t layer, std::int64_t n, at::Tensor& attended) {
    if (!slots[layer])
      throw DataError(
          fmt::format("Decoder::forward: the attention slot of layer {} is empty; put "
                      "one there, or call use_full_attention",
                      layer));
    attended = slots[layer]->forward(step.q_rows, step.k_rows, step.v_rows);
    const std::int64_t width = config().n_heads * config().head_dim;
    if (!attended.defined() || attended.dim() != 2 || attended.size(0) != n ||
        attended.size(1) != width || attended.scalar_type() != at::kFloat ||
        !attended.device().is_cpu() || !attended.is_contiguous())
      throw DataError(
          fmt::format("Decoder::forward: the attention slot of layer {} must return a "
                      "contiguous float32 tensor [{}, {}] on the CPU",
                      layer, n, width));
    return attended.const_data_ptr<float>();
  }

  void run_layers(std::int64_t n) {
    const std::size_t layers = weights->layers.size();
    over_rows(n, [&](std::int64_t first, std::int64_t rows, Cut cut) {
      before_attention(0, first, rows, cut);
    });
    for (std::size_t l = 0; l < layers; ++l) {
      at::Tensor attended;
      const float* from = attend(l, n, attended);
      over_rows(n, [&](std::int64_t first, std::int64_t rows, Cut cut) {
        after_attention(l, from, first, rows, cut);
        if (l + 1 < layers) before_attention(l + 1, first, rows, cut);
      });
    }
  }

  /// What the model does to products with the head.
  void finish_logits(float* products, std::int64_t count) const {
    const ModelConfig& c = config();
    if (c.logit_multiplier != 1) scale(static_cast<float>(c.logit_multiplier), products, count);
    if (c.logit_soft_cap != 0) soft_cap(static_cast<float>(c.logit_soft_cap), products, count);
  }

  /// Surprise of tokens 1 to n - 1 of the step into head.following, and logits of its last row into
  /// head.last; the others are never there as a whole.
  void run_head_in_pieces(std::span<const std::int64_t> ids) {
    const ModelConfig& c = config();
    const auto n = static_cast<std::int64_t>(ids.size());
    const float* x = read_stream(weights->final_norm, 0, n);
    const std::int64_t width = HeadPieces::width(n);
    const std::int64_t longest = std::min(2 * width, c.vocab_size);
    if (!head.tile.defined() || head.tile.numel() < n * longest)
      head.tile = at::empty({n, longest}, at::kFloat);
    if (!head.last.defined() || head.last.use_count() > 1 || head.last.storage().use_count() > 1)
      head.last = at::empty({1, c.vocab_size}, at::kFloat);
    float* tile = head.tile.mutable_data_ptr<float>();
    float* last = head.last.mutable_data_ptr<float>();
    head.surprise.begin(n - 1, c.vocab_size, ids.data() + 1);
    Linear piece = weights->head;
    for (std::int64_t first = 0; first < c.vocab_size; first += piece.out) {
      const std::int64_t left = c.vocab_size - first;
      piece.weight = weights->head.weight + first * piece.row_bytes();
      piece.bias = weights->head.bias ? weights->head.bias + first : nullptr;
      piece.out = left < 2 * width ? left : width;
      const Product product{&piece, x, tile};
      multiply(n, {&product, 1}, Cut::blocks);
      finish_logits(tile, n * piece.out);
      head.surprise.add(tile, piece.out, piece.out);
      std::copy_n(tile + (n - 1) * piece.out, piece.out, last + first);
    }
    head.following.resize(static_cast<std::size_t>(n - 1));
    head.surprise.finish(head.following.data());
  }

  /// Logits of the last `rows` of n rows.
  void run_head(std::int64_t n, std::int64_t rows) {
    const ModelConfig& c = config();
    const float* x = read_stream(weights->final_norm, n - rows, rows);
    if (!logits.defined() || logits.size(0) != rows || logits.use_count() > 1 ||
        logits.storage().use_count() > 1)
      logits = at::empty({rows, c.vocab_size}, at::kFloat);
    float* to = rows_of(logits, 0);
    const Product product{&weights->head, x, to};
    multiply_adapted(0, rows, {&product, 1}, Cut::blocks);
    finish_logits(to, rows * c.vocab_size);
  }

  /// Whether a step ends by its surprise: not where someone wants all logits, nor where the head
  /// has an adapter, whose product is not cut as the head's is.
  bool ends_by_surprise() const {
    return state->takes_surprise() && !low_ranks.count(&weights->head);
  }

  /// A step up to its head.
  void run_body(std::span<const std::int64_t> ids, StepKind kind) {
    check_ids(ids);
    if (!state)
      throw DataError(
          "Decoder::forward: the model has no sequence state; put one there, or call "
          "use_full_attention");
    const auto n = static_cast<std::int64_t>(ids.size());
    step.fit(config(), n, most_rank);
    state->begin_step(ids, kind);
    embed(ids);
    run_layers(n);
  }

  /// The rest of a step of which nobody asked for more than the last row of logits, and perhaps the
  /// surprise of its tokens. \return logits [1, vocab]
  at::Tensor finish_by_surprise(std::span<const std::int64_t> ids) {
    run_head_in_pieces(ids);
    const std::span<const float> last(head.last.const_data_ptr<float>(),
                                      static_cast<std::size_t>(config().vocab_size));
    if (state->takes_surprise())
      state->end_step_by_surprise(ids, {head.following, last});
    else
      state->end_step(ids, head.last);
    return head.last;
  }
};

Decoder::Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

Decoder Decoder::load(const std::filesystem::path& path) { return load(open_model(path)); }

Decoder Decoder::load(const OpenModel& opened) {
  Decoder model;
  model.impl_ = std::make_unique<Impl>(load_decoder_weights(opened));
  if (!opened.merged) model.use_adapters(opened.adapters);
  use_full_attention(model);
  return model;
}

Decoder Decoder::share_weights() const {
  Decoder model;
  model.impl_ = std::make_unique<Impl>(impl_->weights);
  model.use_adapters(impl_->adapters);
  use_full_attention(model);
  return model;
}

void Decoder::use_adapters(std::vector<AppliedLora> adapters) {
  impl_->use_adapters(std::move(adapters));
}

const std::vector<AppliedLora>& Decoder::adapters() const { return impl_->adapters; }

const ModelConfig& Decoder::config() const { return impl_->config(); }

at::Tensor Decoder::forward(std::span<const std::int64_t> ids, LogitRows rows, StepKind kind) {
  const at::NoGradGuard no_grad;
  Impl& m = *impl_;
  const auto n = static_cast<std::int64_t>(ids.size());
  m.run_body(ids, kind);
  if (rows == LogitRows::last && n > 1 && m.ends_by_surprise()) return m.finish_by_surprise(ids);
  const bool all = rows == LogitRows::all || m.state->wants_all_logits();
  m.run_head(n, all ? n : 1);
  m.state->end_step(ids, m.logits);
  if (rows == LogitRows::last && m.logits.size(0) > 1)
    return m.logits.narrow(0, m.logits.size(0) - 1, 1).clone();
  return m.logits;
}

at::Tensor Decoder::forward_surprise(std::span<const std::int64_t> ids, std::span<float> following,
                                     StepKind kind) {
  const at::NoGradGuard no_grad;
  Impl& m = *impl_;
  if (following.size() + 1 != ids.size())
    throw DataError(fmt::format(
        "Decoder::forward_surprise: room for {} surprises, {} tokens have one less than tokens",
        following.size(), ids.size()));
  m.run_body(ids, kind);
  const bool in_pieces =
      m.state->wants_all_logits() ? m.ends_by_surprise() : !m.low_ranks.count(&m.weights->head);
  if (!in_pieces) {
    const auto n = static_cast<std::int64_t>(ids.size());
    m.run_head(n, n);
    token_surprise(m.logits.const_data_ptr<float>(), n - 1, m.config().vocab_size,
                   m.logits.stride(0), ids.data() + 1, following.data());
    m.state->end_step(ids, m.logits);
    return m.logits.narrow(0, n - 1, 1).clone();
  }
  at::Tensor last = m.finish_by_surprise(ids);
  std::copy(m.head.following.begin(), m.head.following.end(), following.begin());
  return last;
}

std::int64_t Decoder::chunk() const {
  if (!impl_->state)
    throw DataError("Decoder: the model has no sequence state; call use_full_attention");
  return impl_->state->chunk();
}

std::int64_t Decoder::tokens() const { return impl_->state ? impl_->state->tokens() : 0; }

void Decoder::step(std::span<const std::int64_t> ids, StepKind kind) {
  impl_->last_logits = at::Tensor();  // so that forward may write into the same storage again
  impl_->last_logits = forward(ids, LogitRows::last, kind);
}

std::span<const float> Decoder::logits() {
  // A state that keeps them has the right ones after it was restored, too.
  if (impl_->state)
    if (const std::span<const float> kept = impl_->state->last_logits(); !kept.empty()) return kept;
  const at::Tensor& last = impl_->last_logits;
  if (!last.defined() || tokens() == 0)
    throw DataError("Decoder::logits: no step was made yet; call step first");
  return {last.const_data_ptr<float>(), static_cast<std::size_t>(last.numel())};
}

std::shared_ptr<AttentionSlot>& Decoder::attention(std::int64_t layer) {
  if (layer < 0 || layer >= impl_->config().n_layers)
    throw DataError(fmt::format("Decoder::attention: layer = {}, must be in [0, {})", layer,
                                impl_->config().n_layers));
  return impl_->slots[static_cast<std::size_t>(layer)];
}

std::shared_ptr<SequenceState>& Decoder::state() { return impl_->state; }
const std::shared_ptr<SequenceState>& Decoder::state() const { return impl_->state; }

}  // namespace episodic
