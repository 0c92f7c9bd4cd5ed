// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of timeline/segmenter.hpp; how they become functions: base/inline.hpp.
#include "episodic/timeline/segmenter.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/timeline/key_segmenter.hpp"
#include "episodic/timeline/surprise.hpp"

namespace EPISODIC_NAMESPACE {
namespace segmenter_detail {

inline void check_lengths(const StepSignal& signal, std::span<float> threshold,
                          std::span<std::uint8_t> flags) {
  if (signal.surprise.size() != flags.size() || threshold.size() != flags.size())
    throw DataError(concat("segmenter: ", signal.surprise.size(), " surprise values, ",
                           threshold.size(), " thresholds and ", flags.size(),
                           " flags; give one of each per token"));
}

class SurpriseSegmenter final : public Segmenter {
 public:
  explicit SurpriseSegmenter(const MemoryConfig& c)
      : threshold_(c.window, c.effective_tau(), c.gamma, c.n_init) {}

  void prepare(const StepSignal& signal, std::span<float> threshold,
               std::span<std::uint8_t> flags) override {
    check_lengths(signal, threshold, flags);
    if (signal.first != threshold_.tokens())
      throw DataError(concat("segmenter: the step starts at token ", signal.first, ", but ",
                             threshold_.tokens(), " tokens came so far; give the steps in order"));
    threshold_.prepare(signal.surprise.data(), static_cast<std::int64_t>(flags.size()),
                       threshold.data());
    for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = signal.surprise[i] > threshold[i];
  }
  void commit() noexcept override { threshold_.commit(); }

  std::unique_ptr<Segmenter> clone() const override {
    return std::make_unique<SurpriseSegmenter>(*this);
  }

  std::vector<float> recent_surprise() const override { return threshold_.recent(); }
  void resume(std::int64_t tokens, std::span<const float> recent) override {
    threshold_.resume(tokens, recent);
  }

 private:
  SurpriseThreshold threshold_;
};

/// Flags that depend on the token number alone.
template <class IsBoundary>
class PositionSegmenter final : public Segmenter {
 public:
  explicit PositionSegmenter(IsBoundary is_boundary) : is_boundary_(std::move(is_boundary)) {}

  void prepare(const StepSignal& signal, std::span<float> threshold,
               std::span<std::uint8_t> flags) override {
    check_lengths(signal, threshold, flags);
    std::fill(threshold.begin(), threshold.end(), std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < flags.size(); ++i)
      flags[i] = is_boundary_(signal.first + static_cast<std::int64_t>(i));
  }

  std::unique_ptr<Segmenter> clone() const override {
    return std::make_unique<PositionSegmenter>(*this);
  }

 private:
  IsBoundary is_boundary_;
};

template <class IsBoundary>
std::unique_ptr<Segmenter> by_position(IsBoundary is_boundary) {
  return std::make_unique<PositionSegmenter<IsBoundary>>(std::move(is_boundary));
}

/// A KeySegmenter over the rings that keys lie in.
class RingSegmenter final : public Segmenter {
 public:
  RingSegmenter(const MemoryConfig& c, const KeyShape& keys)
      : now_({c.segmenter == SegmenterKind::gaussian ? KeySignal::gaussian : KeySignal::similarity,
              c.gamma, c.effective_min_count(), c.var_floor, c.n_init},
             keys.n_layers * keys.n_kv_heads, keys.head_dim),
        next_(now_),
        key_(static_cast<std::size_t>(keys.n_layers * keys.n_kv_heads * keys.head_dim)) {}

  void prepare(const StepSignal& signal, std::span<float> threshold,
               std::span<std::uint8_t> flags) override {
    if (threshold.size() != flags.size())
      throw DataError(concat("segmenter: ", threshold.size(), " thresholds and ", flags.size(),
                             " flags; give one of each per token"));
    if (signal.first != now_.tokens())
      throw DataError(concat("segmenter: the step starts at token ", signal.first, ", but ",
                             now_.tokens(), " tokens came so far; give the steps in order"));
    std::fill(threshold.begin(), threshold.end(), std::numeric_limits<float>::infinity());
    next_ = now_;  // of equal sizes: nothing is allocated
    for (std::size_t i = 0; i < flags.size(); ++i) {
      gather(signal, signal.first + static_cast<std::int64_t>(i));
      flags[i] = next_.next(key_).opens;
    }
  }
  void commit() noexcept override { std::swap(now_, next_); }

  std::unique_ptr<Segmenter> clone() const override {
    return std::make_unique<RingSegmenter>(*this);
  }

  void save(ByteWriter& to) const override { now_.save(to); }
  void load(ByteReader& from) override { now_.load(from); }

 private:
  /// The token's keys of all layers and heads, side by side.
  void gather(const StepSignal& signal, std::int64_t token) {
    std::size_t at = 0;
    const auto d = static_cast<std::size_t>(signal.head_dim);
    for (const KeyRing& ring : signal.keys)
      for (std::int64_t g = 0; g < signal.n_kv_heads; ++g, at += d) {
        if (at + d > key_.size()) throw_keys(signal);
        cpu::kernels().to_float(ring.row(g, token), ring.dtype, signal.head_dim, key_.data() + at);
      }
    if (at != key_.size()) throw_keys(signal);
  }

  [[noreturn]] void throw_keys(const StepSignal& signal) const {
    throw DataError(concat("segmenter: keys of ", signal.keys.size(), " layers with ",
                           signal.n_kv_heads, " heads of ", signal.head_dim, " channels, expected ",
                           key_.size(), " numbers a token; lend it the keys that it was made for"));
  }

  KeySegmenter now_, next_;
  std::vector<float> key_;  // of one token
};

/// SplitMix64's output function: a bijection that mixes all bits.
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace segmenter_detail

EPISODIC_INLINE bool reads_keys(SegmenterKind kind) {
  return kind == SegmenterKind::k_similarity || kind == SegmenterKind::gaussian;
}

EPISODIC_INLINE std::unique_ptr<Segmenter> make_segmenter(const MemoryConfig& config,
                                                          std::vector<std::int64_t> given,
                                                          const KeyShape& keys) {
  using namespace segmenter_detail;
  if (!given.empty() && config.segmenter != SegmenterKind::given)
    throw ConfigError(concat("segmenter \"", name_of(config.segmenter),
                             "\" takes no list of boundaries, but ", given.size(),
                             " were given; use segmenter \"given\" or leave the list out"));
  switch (config.segmenter) {
    case SegmenterKind::surprise:
      return std::make_unique<SurpriseSegmenter>(config);
    case SegmenterKind::fixed:
      return by_position([first = config.n_init, step = config.max_block](std::int64_t t) {
        return t > first && (t - first) % step == 0;
      });
    case SegmenterKind::random:
      return by_position(
          [key = mix(config.seed),
           share = 2.0 / static_cast<double>(config.min_block + config.max_block)](std::int64_t t) {
            const std::uint64_t bits = mix(key ^ mix(static_cast<std::uint64_t>(t)));
            return static_cast<double>(bits >> 11) * 0x1p-53 < share;
          });
    case SegmenterKind::given:
      if (!std::is_sorted(given.begin(), given.end()) || (!given.empty() && given.front() < 0))
        throw DataError(
            "segmenter \"given\": boundaries must be token numbers >= 0 in ascending order");
      return by_position(
          [list = std::make_shared<const std::vector<std::int64_t>>(std::move(given))](
              std::int64_t t) { return std::binary_search(list->begin(), list->end(), t); });
    case SegmenterKind::k_similarity:
    case SegmenterKind::gaussian:
      return std::make_unique<RingSegmenter>(config, keys);
  }
  throw ConfigError("segmenter: unknown kind");
}

}  // namespace EPISODIC_NAMESPACE
