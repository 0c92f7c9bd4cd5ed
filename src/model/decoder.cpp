// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <utility>

#include "base/rethrow.hpp"
#include "decoder_adapters.hpp"
#include "decoder_blocks.hpp"
#include "decoder_buffers.hpp"
#include "decoder_checks.hpp"
#include "decoder_weights.hpp"
#include "elementwise.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "episodic/model/weight_plan.hpp"
#include "linear.hpp"
#include "mixture_block.hpp"
#include "per_layer_inputs.hpp"

namespace episodic {

struct Decoder::Impl {
  /// One sequence's part of a step, and the model that holds its attention.
  struct SequencePart {
    Impl* impl;
    std::span<const std::int64_t> ids;
    StepKind kind;
  };

  std::shared_ptr<const DecoderWeights> weights;
  std::vector<std::shared_ptr<AttentionSlot>> slots;
  std::shared_ptr<SequenceState> state;
  StepBuffers step;
  AlignedBuffer logits;  // of the head, [logit_rows, vocab]
  std::int64_t logit_rows = 0;
  std::span<const float> last_logits;  // [vocab] after the sequence's last token, empty if unknown
  std::vector<float> own_last;         // those of a step in a batch
  HeadPieces head;
  Mixture mixture;
  PerLayerInputs inputs;  // of the layers, where they have such
  DecoderAdapters adapters;
  std::vector<std::int64_t> lengths;         // of a step's sequences
  std::vector<std::exception_ptr> failures;  // what each of several threw in this step
  std::int64_t computed = 0;                 // rows of the step that hold numbers of its own
  bool headed = false;                       // the step came to its head
  bool has_heads = false;                    // and to queries, keys and values

  explicit Impl(std::shared_ptr<const DecoderWeights> w)
      : weights(std::move(w)), slots(weights->layers.size()) {}

  const ModelConfig& config() const { return weights->config; }

  /// Rows of the residual stream, through the norm that a block reads them by, if it has one.
  const float* read_stream(const DecoderNorm& norm, std::int64_t first, std::int64_t n) {
    const float* hidden = step.hidden.from(first);
    if (norm.empty()) return hidden;
    norm_rows(config(), norm, hidden, n, step.normed.from(first));
    return step.normed.from(first);
  }

  /// Adds a block's last product to the residual stream, through the norm behind it, if it has one.
  /// In a group a rank multiplies by its columns, and the products of all ranks are added up.
  /// \param divided among ranks; else each has the whole product
  void add_to_stream(const Linear& w, const float* x, const DecoderNorm& norm, std::int64_t first,
                     std::int64_t n, Cut cut, bool divided = true) {
    float* hidden = step.hidden.from(first);
    const auto multiplier = static_cast<float>(config().residual_multiplier);
    Group* const group = divided ? weights->group.get() : nullptr;
    const bool directly = !group && norm.empty() && multiplier == 1.0f;
    // a parallel block still reads what is in `normed`
    float* to = directly ? hidden : group ? step.partial.from(first) : step.normed.from(first);
    const Product product{&w, x, to, directly};
    step.multiply(first, n, {&product, 1}, cut);
    if (directly) return;
    if (group) group->sum({to, static_cast<std::size_t>(n * config().hidden_size)});
    if (!norm.empty()) norm_rows(config(), norm, to, n, to);
    add_scaled(multiplier, to, hidden, n * config().hidden_size);
  }

  /// What a layer's attention, or what it has in place of that, writes.
  RowBuffer& mixed(std::size_t l) {
    return config().layers[l].mixer == Mixer::attention ? step.attended : step.mixed;
  }

  /// Rows [first, first + n) of the residual stream to rows of q, k and v, or to what a layer
  /// reads in their place.
  void before_attention(std::size_t l, std::int64_t first, std::int64_t n, Cut cut) {
    const DecoderLayer& w = weights->layers[l];
    const LayerSpec& spec = config().layers[l];
    const float* x = read_stream(w.input_norm, first, n);
    if (spec.mixer != Mixer::attention) return step.multiply_mixer(w, x, first, n, cut);
    attention_heads(config(), spec, w, x, first, n, cut, step);
  }

  /// Adds what attention and the feed-forward network say to those rows.
  void after_attention(std::size_t l, std::int64_t first, std::int64_t n, Cut cut) {
    const DecoderLayer& w = weights->layers[l];
    const LayerSpec& spec = config().layers[l];
    if (spec.output_gate) step.gate_attended(spec, first, n);
    const float* given = spec.latent ? latent_values(spec.latent, w.latent, first, n, cut, step)
                                     : mixed(l).from(first);
    add_to_stream(w.o, given, w.attended_norm, first, n, cut, spec.mixer == Mixer::attention);
    // a parallel block reads what attention read, which is still there
    const float* x = spec.parallel ? step.normed.from(first) : read_stream(w.feed_norm, first, n);
    if (spec.mixture && !spec.dense_beside)
      return add_mixture(config(), l, w, x, first, n, mixture, step, weights->group.get());
    float* gate = step.gate.from(first);
    float* up = step.up.from(first);
    const Product both[] = {{&w.gate, x, gate}, {&w.up, x, up}}, alone[] = {{&w.up, x, gate}};
    if (spec.gated)
      step.multiply(first, n, both, cut);
    else
      step.multiply(first, n, alone, cut);
    activate(spec, w.xielu, gate, up, n * spec.intermediate_size);
    if (spec.dense_beside)
      add_beside_mixture(config(), l, w, gate, first, n, cut, mixture, step, weights->group.get());
    else
      add_to_stream(w.down, gate, w.fed_norm, first, n, cut);
    if (config().per_layer_width > 0) add_own_input(l, first, n, cut);
    if (w.scalar != 1) scale(w.scalar, step.hidden.from(first), n * config().hidden_size);
  }

  /// What follows from the layer's own input, gated by the residual stream.
  void add_own_input(std::size_t l, std::int64_t first, std::int64_t n, Cut cut) {
    const DecoderLayer& w = weights->layers[l];
    float* gate = step.gate.from(first);
    const Product product{&w.per_layer_gate, step.hidden.from(first), gate};
    step.multiply(first, n, {&product, 1}, cut);
    activate(config().layers[l], {}, gate, inputs.of(l, first), n * config().per_layer_width);
    add_to_stream(w.per_layer_out, gate, w.per_layer_norm, first, n, cut);
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
    // a mixture wants all rows: an expert is read once for those that chose it; a group sums them
    if (n <= kRows || layer_size > kSmallLayer || c.has_mixture() || weights->group)
      return f(0, n, Cut::blocks);
    parallel_for((n + kRows - 1) / kRows, [&](std::int64_t block) {
      f(block * kRows, std::min(kRows, n - block * kRows), Cut::whole);
    });
  }

  /// What the slots of all sequences give for their rows. Of several sequences, one whose attention
  /// throws (NaN, a file that cannot be read) is out of the step from there on.
  void attend_all(std::size_t layer, std::span<const SequencePart> parts) {
    const LayerSpec& spec = config().layers[layer];
    const std::int64_t kv_heads = spec.keys_of < 0 ? spec.n_kv_heads : 0;
    step.attended.set_width(spec.n_heads * spec.head_dim);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const SequenceRows& s = step.sequences[i];
      const auto rows_of = [&](RowBuffer& x, std::int64_t heads) {
        return MutableTensorView(x.from(s.first), DType::float32, {s.n, heads, spec.head_dim});
      };
      try {
        if (failures[i]) continue;
        if (spec.mixer != Mixer::attention) {
          step.mix(weights->layers[layer], layer, s, *parts[i].impl->state->recurrent());
          continue;
        }
        has_heads = true;
        parts[i].impl->slots[layer]->forward(rows_of(step.q, spec.n_heads),
                                             rows_of(step.k, kv_heads), rows_of(step.v, kv_heads),
                                             rows_of(step.attended, spec.n_heads));
      } catch (...) {
        if (parts.size() == 1) throw;  // of a step alone all is undone
        failures[i] = std::current_exception();
        // nobody looks at them
        std::fill_n(mixed(layer).from(s.first), s.n * mixed(layer).width(), 0.0f);
      }
    }
  }

  void run_layers(std::int64_t n, std::span<const SequencePart> parts) {
    const std::size_t layers = weights->layers.size();
    step.begin_heads(config().layers[0]);
    over_rows(n, [&](std::int64_t first, std::int64_t rows, Cut cut) {
      before_attention(0, first, rows, cut);
    });
    computed = n;
    for (std::size_t l = 0; l < layers; ++l) {
      attend_all(l, parts);
      if (l + 1 < layers) step.begin_heads(config().layers[l + 1]);
      over_rows(n, [&](std::int64_t first, std::int64_t rows, Cut cut) {
        after_attention(l, first, rows, cut);
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

  /// Surprise of tokens 1 to n - 1 of a sequence's rows, which begin at `row`, into head.following,
  /// and logits of the last into head.last; the others are never there as a whole.
  void run_head_in_pieces(std::int64_t row, std::span<const std::int64_t> ids) {
    const ModelConfig& c = config();
    const auto n = static_cast<std::int64_t>(ids.size());
    headed = true;
    const float* x = read_stream(weights->final_norm, row, n);
    const std::int64_t width = HeadPieces::width(n);
    const std::int64_t longest = std::min(2 * width, c.vocab_size);
    float* tile = head.tile.floats(n * longest);
    float* last = head.last.floats(c.vocab_size);
    head.surprise.begin(n - 1, c.vocab_size, ids.data() + 1);
    Linear piece = weights->head;
    for (std::int64_t first = 0; first < c.vocab_size; first += piece.out) {
      const std::int64_t left = c.vocab_size - first;
      piece.weight = weights->head.weight + first * piece.row_bytes();
      piece.bias = weights->head.bias ? weights->head.bias + first : nullptr;
      piece.out = left < 2 * width ? left : width;
      const Product product{&piece, x, tile};
      multiply(n, {&product, 1}, Cut::blocks, class_of(n));
      finish_logits(tile, n * piece.out);
      head.surprise.add(tile, piece.out, piece.out);
      std::copy_n(tile + (n - 1) * piece.out, piece.out, last + first);
    }
    head.following.resize(static_cast<std::size_t>(n - 1));
    head.surprise.finish(head.following.data());
  }

  /// Logits of rows [first, first + rows), in `logits`.
  /// \param as how the rows are multiplied: as `few` those of steps of one token each
  LogitsView run_head(std::int64_t first, std::int64_t rows, RowClass as) {
    const ModelConfig& c = config();
    headed = true;
    const float* x = read_stream(weights->final_norm, first, rows);
    float* to = logits.floats(rows * c.vocab_size);
    logit_rows = rows;
    const Product product{&weights->head, x, to};
    multiply(rows, {&product, 1}, Cut::blocks, as);
    for (const SequenceRows& s : step.sequences) {
      const std::int64_t from = std::max(first, s.first), end = std::min(first + rows, s.end());
      if (end > from && !s.low_ranks->empty())
        step.add_low_ranks(*s.low_ranks, first, {&product, 1}, from, end, Cut::blocks, as);
    }
    finish_logits(to, rows * c.vocab_size);
    return {to, rows, c.vocab_size};
  }

  /// Whether a step ends by its surprise: not where someone wants all logits, nor where the head
  /// has an adapter, whose product is not cut as the head's is.
  bool ends_by_surprise() const {
    return state->takes_surprise() && !adapters.low_ranks.count(&weights->head);
  }

  /// Opens the step of a sequence. \throws DataError for ids out of the vocabulary, a model without
  /// attention, or a length that its state refuses
  static void begin(const SequencePart& part) {
    require_ids(part.ids, part.impl->config().vocab_size);
    require_attention(part.impl->slots, part.impl->state, part.impl->config());
    part.impl->state->begin_step(part.ids, part.kind);
  }

  /// Opens the step of a sequence and makes the rest of it.
  template <class F>
  static LogitsView begun(const SequencePart& part, F&& rest) {
    begin(part);
    try {
      part.impl->last_logits = {};
      return rest();
    } catch (...) {
      part.impl->state->abandon_step();
      throw;
    }
  }

  /// A step up to its head, of one sequence or of several that share these weights. They have
  /// begun.
  void run_body(std::span<const SequencePart> parts) {
    lengths.clear();
    std::int64_t rank = 0;
    for (const SequencePart& part : parts) {
      lengths.push_back(static_cast<std::int64_t>(part.ids.size()));
      rank = std::max(rank, part.impl->adapters.most_rank);
    }
    failures.assign(parts.size(), nullptr);
    const std::int64_t n = step.fit(config(), lengths, rank);
    const bool has_inputs = config().per_layer_width > 0;
    if (has_inputs) inputs.fit(config(), n);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      SequenceRows& rows = step.sequences[i];
      rows.low_ranks = &parts[i].impl->adapters.low_ranks;
      rows.position = parts[i].impl->state->tokens();
      rows.last_position = parts[i].impl->state->last_position();
      embed(*weights, parts[i].ids, step.hidden.from(rows.first));
      if (has_inputs) inputs.look_up(*weights, parts[i].ids, rows.first);
    }
    if (has_inputs) inputs.add_projected(*weights, step);
    run_layers(n, parts);
  }

  /// The head and the end of a sequence's step, whose body `from` has computed. \return logits
  /// [n, vocab] or [1, vocab], of the last row, in buffers of `from`
  LogitsView finish(Impl& from, std::int64_t row, std::span<const std::int64_t> ids,
                    LogitRows rows) {
    const auto n = static_cast<std::int64_t>(ids.size());
    if (rows == LogitRows::last && n > 1 && ends_by_surprise())
      return finish_by_surprise(from, row, ids);
    const bool all = rows == LogitRows::all || state->wants_all_logits();
    const LogitsView made =
        all ? from.run_head(row, n, class_of(n)) : from.run_head(row + n - 1, 1, RowClass::few);
    state->end_step(ids, made);
    return rows == LogitRows::last ? last_of(made) : made;
  }

  static LogitsView last_of(const LogitsView& logits) {
    return {logits.row(logits.rows - 1).data(), 1, logits.vocab};
  }

  /// The same where nobody asked for more than the last row of logits, and perhaps the surprise of
  /// its tokens. \return logits [1, vocab]
  LogitsView finish_by_surprise(Impl& from, std::int64_t row, std::span<const std::int64_t> ids) {
    from.run_head_in_pieces(row, ids);
    HeadPieces& pieces = from.head;
    const LogitsView last(pieces.last.floats(), 1, config().vocab_size);
    if (state->takes_surprise())
      state->end_step_by_surprise(ids, {pieces.following, last.row(0)});
    else
      state->end_step(ids, last);
    return last;
  }

  /// A step that hands out the surprise of its tokens behind the first.
  LogitsView run_with_surprise(const SequencePart& part, std::span<float> following) {
    const std::span<const std::int64_t> ids = part.ids;
    run_body({&part, 1});
    const bool in_pieces =
        state->wants_all_logits() ? ends_by_surprise() : !adapters.low_ranks.count(&weights->head);
    if (!in_pieces) {
      const auto n = static_cast<std::int64_t>(ids.size());
      const LogitsView made = run_head(0, n, class_of(n));
      token_surprise(made.row(0).data(), n - 1, made.vocab, made.row_stride, ids.data() + 1,
                     following.data());
      state->end_step(ids, made);
      return last_of(made);
    }
    const LogitsView last = finish_by_surprise(*this, 0, ids);
    std::copy(head.following.begin(), head.following.end(), following.begin());
    return last;
  }

  void require_finite_weights() const {
    PlannedWeights(config(), weights->source).require_finite();
  }

  /// Whether the step that failed had computed numbers that are not finite.
  bool went_wrong() const {
    if (!step.finite(computed, has_heads)) return true;
    if (!headed) return false;
    const std::int64_t vocab = config().vocab_size;
    if (!all_finite(logits.floats(), logit_rows * vocab)) return true;
    if (head.last.size() > 0 && !all_finite(head.last.floats(), vocab)) return true;
    return !all_finite(head.following.data(), static_cast<std::int64_t>(head.following.size()));
  }

  void begin_trace() {
    computed = logit_rows = 0;
    headed = has_heads = false;
  }

  /// Makes a step. Numbers that it refuses are traced to the weights where those are at fault:
  /// reading all of them takes long, and a caller's mistake has nothing to do with them.
  template <class F>
  auto traced(F&& step_of) {
    try {
      begin_trace();
      return step_of();
    } catch (const DataError&) {
      if (went_wrong()) require_finite_weights();
      throw;
    }
  }

  /// Ends the step of every sequence that is still in it. What one's state refuses (NaN logits)
  /// does not undo the others' steps.
  void finish_all(std::span<const SequencePart> parts) {
    // Those of one token come first and read the head once.
    const auto ones = std::find_if(lengths.begin(), lengths.end(), [](auto n) { return n > 1; });
    const auto n_ones = static_cast<std::size_t>(ones - lengths.begin());
    LogitsView together;
    if (n_ones > 0) together = run_head(0, static_cast<std::int64_t>(n_ones), RowClass::few);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const SequencePart& part = parts[i];
      Impl& m = *part.impl;
      try {
        if (failures[i]) continue;
        std::span<const float> last;
        if (i < n_ones) {
          last = together.row(static_cast<std::int64_t>(i));
          m.state->end_step(part.ids, {last.data(), 1, together.vocab});
        } else {
          last = m.finish(*this, step.sequences[i].first, part.ids, LogitRows::last).row(0);
        }
        if (!m.state->last_logits().empty()) continue;  // it keeps them itself
        m.own_last.assign(last.begin(), last.end());
        m.last_logits = m.own_last;
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  }

  /// Of errors that may come of weights that are not finite, that one instead.
  void trace_failures() {
    const bool any = std::any_of(failures.begin(), failures.end(),
                                 [](const auto& f) { return f && is_data_error(f); });
    if (!any || !went_wrong()) return;
    try {
      require_finite_weights();
    } catch (...) {
      for (std::exception_ptr& failure : failures)
        if (failure && is_data_error(failure)) failure = std::current_exception();
    }
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
  model.use_adapters(impl_->adapters.applied);
  use_full_attention(model);
  return model;
}

void Decoder::use_adapters(std::vector<AppliedLora> adapters) {
  impl_->adapters = DecoderAdapters(std::move(adapters), *impl_->weights);
}

const std::vector<AppliedLora>& Decoder::adapters() const { return impl_->adapters.applied; }

const ModelConfig& Decoder::config() const { return impl_->config(); }

const std::shared_ptr<Group>& Decoder::group() const { return impl_->weights->group; }

void Decoder::explain_not_finite() const { impl_->require_finite_weights(); }

LogitsView Decoder::forward(std::span<const std::int64_t> ids, LogitRows rows, StepKind kind) {
  Impl& m = *impl_;
  const Impl::SequencePart part{&m, ids, kind};
  const LogitsView logits = m.traced([&] {
    return on_all_ranks(group().get(), m.state.get(), ids, kind, [&] {
      return Impl::begun(part, [&] {
        m.run_body({&part, 1});
        return m.finish(m, 0, ids, rows);
      });
    });
  });
  m.last_logits = logits.row(logits.rows - 1);
  return logits;
}

LogitsView Decoder::forward_surprise(std::span<const std::int64_t> ids, std::span<float> following,
                                     StepKind kind) {
  Impl& m = *impl_;
  if (following.size() + 1 != ids.size())
    throw DataError(fmt::format(
        "Decoder::forward_surprise: room for {} surprises, {} tokens have one less than tokens",
        following.size(), ids.size()));
  const Impl::SequencePart part{&m, ids, kind};
  const LogitsView logits = m.traced([&] {
    return on_all_ranks(group().get(), m.state.get(), ids, kind, [&] {
      return Impl::begun(part, [&] { return m.run_with_surprise(part, following); });
    });
  });
  m.last_logits = logits.row(0);
  return logits;
}

void Decoder::step_batch(std::span<const SequenceStep> batch) {
  if (batch.size() == 1) return batch[0].sequence->step(batch[0].ids, batch[0].kind);
  rethrow_first_of_batch(try_step_batch(batch));
}

std::vector<std::exception_ptr> Decoder::try_step_batch(std::span<const SequenceStep> batch) {
  std::vector<std::exception_ptr> errors(batch.size());
  std::vector<Impl::SequencePart> parts;
  std::vector<std::size_t> at;  // of each part in the batch
  parts.reserve(batch.size());
  at.reserve(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Impl* m = batch[i].sequence->impl_.get();
    if (m->weights != batch[0].sequence->impl_->weights)
      throw DataError(
          fmt::format("Decoder::step_batch: sequence {} of the batch has weights of its own; make "
                      "it by share_weights of the first one",
                      i));
    for (std::size_t j = 0; j < i; ++j)
      if (batch[j].sequence->impl_.get() == m)
        throw DataError(fmt::format(
            "Decoder::step_batch: sequences {} and {} of the batch are the same", j, i));
  }
  if (!batch.empty() && batch[0].sequence->group()) return try_in_turn(batch);
  for (const std::size_t i : by_length(batch)) {
    const Impl::SequencePart part{batch[i].sequence->impl_.get(), batch[i].ids, batch[i].kind};
    try {
      Impl::begin(part);
      parts.push_back(part);
      at.push_back(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  }
  if (parts.empty()) return errors;
  Impl& first = *parts[0].impl;
  first.failures.assign(parts.size(), nullptr);
  try {
    for (const Impl::SequencePart& part : parts) part.impl->last_logits = {};
    first.begin_trace();
    first.run_body(parts);
    first.finish_all(parts);
    first.trace_failures();
  } catch (...) {  // none has ended its step: there is no room for it, or the one part failed
    for (std::exception_ptr& failure : first.failures) failure = std::current_exception();
    first.trace_failures();
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (first.failures[p]) parts[p].impl->state->abandon_step();
    errors[at[p]] = first.failures[p];
  }
  return errors;
}

std::int64_t Decoder::chunk() const {
  if (!impl_->state)
    throw DataError("Decoder: the model has no sequence state; call use_full_attention");
  return impl_->state->chunk();
}

std::int64_t Decoder::tokens() const { return impl_->state ? impl_->state->tokens() : 0; }

void Decoder::step(std::span<const std::int64_t> ids, StepKind kind) {
  forward(ids, LogitRows::last, kind);
}

std::span<const float> Decoder::logits() {
  // A state that keeps them has the right ones after it was restored, too.
  if (impl_->state)
    if (const std::span<const float> kept = impl_->state->last_logits(); !kept.empty()) return kept;
  if (impl_->last_logits.empty() || tokens() == 0)
    throw DataError("Decoder::logits: no step was made yet; call step first");
  return impl_->last_logits;
}

std::shared_ptr<AttentionSlot>& Decoder::attention(std::int64_t layer) {
  if (layer < 0 || layer >= impl_->config().n_layers)
    throw DataError(fmt::format("Decoder::attention: layer = {}, must be in [0, {})", layer,
                                impl_->config().n_layers));
  return impl_->slots[static_cast<std::size_t>(layer)];
}

const std::vector<float>& Decoder::sink_logits(std::int64_t layer) const {
  return impl_->weights->layers.at(static_cast<std::size_t>(layer)).sink_logits;
}

std::shared_ptr<SequenceState>& Decoder::state() { return impl_->state; }
const std::shared_ptr<SequenceState>& Decoder::state() const { return impl_->state; }

}  // namespace episodic
