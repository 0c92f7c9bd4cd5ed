// SPDX-License-Identifier: Apache-2.0
// One step of a DeviceMemory up to its end: what it enqueues, in order.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "episodic/base/detail/view_checks.hpp"
#include "episodic/base/error.hpp"
#include "memory_impl.hpp"
#include "views.hpp"

namespace episodic {

using device::emptied;
using device::kViewAlignment;
using device::kViewRow;
using device::LowerTiers;

/// Whether the two can make a step together: what one launch of several sequences must share
/// (kernels/batch.hpp).
bool DeviceMemory::Impl::shares_launches(const Impl& other) const {
  const device::MemorySizes &a = sizes, &b = other.sizes;
  return device == other.device && stream == other.stream && a.options.dtype == b.options.dtype &&
         a.options.representatives == b.options.representatives &&
         a.event_dtype() == b.event_dtype() && a.shape.n_layers == b.shape.n_layers &&
         a.shape.n_heads == b.shape.n_heads && a.shape.n_kv_heads == b.shape.n_kv_heads &&
         a.shape.head_dim == b.shape.head_dim && a.recalling == b.recalling &&
         a.lanes.per_layer == b.lanes.per_layer && a.by_head() == b.by_head() &&
         a.most_repr() == b.most_repr() && a.config.score == b.config.score &&
         (a.config.reweight == Reweighting::none) == (b.config.reweight == Reweighting::none);
}

void DeviceMemory::begin_step(std::int64_t n, StepKind kind) {
  Impl& m = *impl_;
  if (n < 1 || n > m.sizes.config.chunk)
    throw DataError(
        fmt::format("begin_step: n = {} tokens, must be in [1, chunk = {}]; feed longer "
                    "texts in several steps",
                    n, m.sizes.config.chunk));
  if (m.step.tokens + n > m.sizes.options.max_tokens)
    throw BudgetError(fmt::format(
        "CUDA memory: it has room for max_tokens = {}, {} are there and {} more come; make it with "
        "more",
        m.sizes.options.max_tokens, m.step.tokens, n));
  if (m.broken)
    throw DataError(
        "CUDA memory: an earlier step could be neither kept nor taken back, as was said then; "
        "reset "
        "it");
  m.step.open = false;  // whatever fails from here on
  const device::CurrentDevice current(m.device);
  Impl::forget_due(std::array{impl_.get()});
  m.make_room(n);
  m.snapshots.kept_rows.before_step(m.step.tokens, n, m.stream);
  m.snapshots.state_now.reset();
  if (LowerTiers* const files = m.tiers.files()) files->begin_step(m.step.tokens);
  m.step.has_angles = m.step.has_thresholds = false;
  m.step.n = n;
  m.step.next_layer = 0;
  m.step.far = m.step.tokens + n > m.sizes.config.n_local;
  const RecallTurn turn =
      recall_turn(n, kind, m.step.steps_since_recall, m.sizes.config.recall_every);
  m.step.recalls_now = turn.recalls;
  m.step.next_since_recall = turn.since;
  // The stream waits here rather than where it must: for a layer of a step that is now begun anew,
  // and before a step of one token, which may be a graph. A graph waits for nothing outside it.
  if (m.tiers.fetches_ahead() || n == 1) m.tiers.join(m.stream);
  m.step.open = true;
}

std::optional<std::uint32_t> DeviceMemory::step_kind() const {
  const Impl& m = *impl_;
  if (!m.step.open || m.timeline.by_token_number() || m.tiers.files() ||
      (m.tiers.has_host_tier() && m.step.n > 1))
    return std::nullopt;
  const bool lists = m.step.far && m.sizes.recalling > 0;
  std::uint32_t kind = 0;
  for (const bool bit :
       {m.step.far, lists && m.step.recalls_now, lists && m.retention.has_forgotten()})
    kind = kind << 1 | static_cast<std::uint32_t>(bit);
  return kind | m.tiers.homes() << 3;
}

void DeviceMemory::Impl::check_turn(const char* call, std::int64_t l) const {
  if (!step.open || l != step.next_layer || l >= sizes.shape.n_layers)
    throw DataError(
        fmt::format("{}: layer {} out of turn; call begin_step, then attend for layers "
                    "0 to {} in order, then end_step",
                    call, l, sizes.shape.n_layers - 1));
}

device::HeadPlace DeviceMemory::head_place(std::int64_t l) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.check_turn("head_place", l);
  if (m.step.n != 1)
    throw DataError(
        fmt::format("head_place: a step of {} tokens, must be of one; give attend the keys and "
                    "values of more",
                    m.step.n));
  enqueue_angles(std::array{this});
  return m.layers.head_place(m.layers.at(l), m.step);
}

void DeviceMemory::enqueue_angles(std::span<DeviceMemory* const> memories) {
  if (memories.empty()) return;
  const Impl& first = *memories.front()->impl_;
  auto& angles = emptied(first.of_layer.angles);
  for (DeviceMemory* const memory : memories) {
    Impl& m = *memory->impl_;
    if (!m.step.has_angles) m.layers.add_angles(m.step.n, angles);
    m.step.has_angles = true;
  }
  if (angles.empty()) return;
  const device::CurrentDevice current(first.device);
  device::launch_batch(kernels::rotary_angles_batch, angles, first.stream, "rotary angles");
}

/// \throws DataError for a view that no kernel takes
void DeviceMemory::Impl::check_view(const char* name, const TensorView& view,
                                    std::int64_t heads) const {
  const TensorSizes size{step.n, heads, sizes.shape.head_dim};
  episodic::detail::check_view("attend", name, view, size, MemoryKind::cuda);
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("attend: {} {}", name, what));
  };
  if (view.dtype != sizes.options.dtype)
    fail(fmt::format("is {}, but the memory was made for {}", name_of(view.dtype),
                     name_of(sizes.options.dtype)));
  if (reinterpret_cast<std::uintptr_t>(view.data) % kViewAlignment != 0)
    fail(fmt::format("begins at an address that is no multiple of {} bytes", kViewAlignment));
  if (heads > 1 && view.strides.head != size.dim)
    fail(
        fmt::format("has head stride {}; on a device the heads of a token lie side by side, {} "
                    "elements from one to the next",
                    view.strides.head, size.dim));
  if (step.n > 1 && (view.strides.row < heads * size.dim || view.strides.row % kViewRow != 0))
    fail(fmt::format("has row stride {}; on a device it must be a multiple of {}, at least {}",
                     view.strides.row, kViewRow, heads * size.dim));
}

void DeviceMemory::Impl::check_layer_step(std::int64_t l, const LayerStep& of) const {
  const auto check_before = [&](const char* name, const TensorView& view, std::int64_t heads) {
    check_view(name, view, heads);
    if (view.rotary == Rotary::before) return;
    const auto refuse = [&](const std::string& why) {
      throw DataError(fmt::format("attend: {} comes after rotary embedding, {}", name, why));
    };
    if (!sizes.options.turns_back)
      refuse(
          "but the device takes queries and keys before rotary embedding; make the memory with "
          "DeviceMemoryOptions::turns_back, or hand them over before it");
    const RotaryTable& table = layers.rotary(layers.at(l)).table;
    if (table.rotary_dim() == 0)
      refuse(fmt::format("but layer {} has no rotary table to turn it back by", l));
    if (!std::isfinite(table.attention_factor) || table.attention_factor == 0.0)
      refuse(
          fmt::format("but nothing turns back an attention_factor of {}, which the table of "
                      "layer {} has",
                      table.attention_factor, l));
  };
  check_before("q", of.q, sizes.shape.n_heads);
  if (!of.appended) {
    check_before("k", of.k, sizes.shape.n_kv_heads);
    check_view("v", of.v, sizes.shape.n_kv_heads);
  }
  check_view("out", of.out, sizes.shape.n_heads);
  if (!of.out.packed())
    throw DataError(
        fmt::format("attend: out has row stride {}; on a device it is packed", of.out.strides.row));
}

void DeviceMemory::attend(std::int64_t l, const TensorView& q, const TensorView& k,
                          const TensorView& v, const MutableTensorView& out) {
  attend(l, LayerStep{q, k, v, out});
}

void DeviceMemory::attend(std::int64_t l, const LayerStep& step) {
  attend_batch(l, std::array{SequenceStep{this, step}});
}

void DeviceMemory::attend_batch(std::int64_t l, std::span<const SequenceStep> steps) {
  for (const SequenceStep& s : steps) {
    s.memory->impl_->check_turn("attend", l);
    s.memory->impl_->check_layer_step(l, s.step);
  }
  for_sharing(
      steps,
      [](const SequenceStep& a, const SequenceStep& b) {
        return a.memory->impl_->shares_launches(*b.memory->impl_);
      },
      [&](std::span<const SequenceStep> part) { part.front().memory->impl_->attend(l, part); });
}

/// The steps with queries and keys as they are before rotary embedding: those that come after it
/// are turned back where `turned_q` and `turned_k` are.
std::span<const DeviceMemory::SequenceStep> DeviceMemory::Impl::before_rotary(
    std::int64_t l, std::span<const SequenceStep> steps) const {
  const auto comes_after = [](const SequenceStep& s) {
    return s.step.q.rotary == Rotary::after ||
           (!s.step.appended && s.step.k.rotary == Rotary::after);
  };
  if (std::none_of(steps.begin(), steps.end(), comes_after)) return steps;
  auto& with_angles = emptied(of_layer.without_angles);
  auto& turned = emptied(of_layer.turned);
  auto& same = emptied(of_layer.before_rotary);
  for (const SequenceStep& s : steps) {
    same.push_back(s);
    if (!comes_after(s)) continue;
    const Impl& m = *s.memory->impl_;
    with_angles.push_back(s.memory);
    const device::DeviceRotary& of = m.layers.rotary(m.layers.at(l));
    const auto turn = [&](TensorView& view, std::byte* to) {
      if (view.rotary == Rotary::before) return;
      const TensorSizes& size = view.sizes;
      turned.push_back({m.sizes.options.dtype, size.n, size.heads, size.dim, of.dim(),
                        of.interleaved(), view.data, device::row_stride(view), of.cos, of.sin,
                        of.table.attention_factor, to});
      view = TensorView(to, m.sizes.options.dtype, size, MemoryKind::cuda);
    };
    turn(same.back().step.q, m.layers.turned_q());
    if (!s.step.appended) turn(same.back().step.k, m.layers.turned_k());
  }
  enqueue_angles(with_angles);
  device::launch_batch(kernels::turn_back_batch, turned, stream, "turning queries and keys back");
  return same;
}

/// A layer of memories that share their launches, this one the first.
void DeviceMemory::Impl::attend(std::int64_t l, std::span<const SequenceStep> asked) {
  const device::CurrentDevice current(device);
  const std::span<const SequenceStep> steps = before_rotary(l, asked);
  auto& without_angles = emptied(of_layer.without_angles);
  auto& appended = emptied(of_layer.appended);
  for (const SequenceStep& s : steps) {
    if (s.step.appended) continue;
    const Impl& m = *s.memory->impl_;
    without_angles.push_back(s.memory);
    appended.push_back(m.layers.append_params(m.layers.at(l), m.step.n, s.step.k.data,
                                              s.step.v.data, device::row_stride(s.step.k),
                                              device::row_stride(s.step.v)));
  }
  enqueue_angles(without_angles);
  device::launch_batch(kernels::append_window_batch, appended, stream, "appending keys and values");
  recall(l, steps);
  auto& attention = emptied(of_layer.attention);
  for (const SequenceStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    const Layer& layer = m.layers.at(l);
    attention.push_back(m.layers.attention_params(layer, m.step, s.step, m.workspace));
    if (m.retention.counts(layer, m.step)) attention.back().maybe_lse = m.retention.lse();
  }
  device::launch_batch(kernels::segmented_attention_batch, attention, stream, "attention");
  auto& masses = emptied(of_layer.masses);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Impl& m = *steps[i].memory->impl_;
    const Layer& layer = m.layers.at(l);
    if (m.retention.counts(layer, m.step))
      masses.push_back(
          m.retention.mass_params(layer, attention[i], m.lists_of_step(layer), m.workspace));
    ++m.step.next_layer;
  }
  device::launch_batch(kernels::event_masses_batch, masses, stream, "what events received");
  // The one wait for what files hold: before anything that the step leaves is made of its outputs.
  if (l + 1 < sizes.shape.n_layers) return;
  for (const SequenceStep& s : steps)
    if (LowerTiers* const files = s.memory->impl_->tiers.files()) files->wait_and_rethrow();
}

}  // namespace episodic
