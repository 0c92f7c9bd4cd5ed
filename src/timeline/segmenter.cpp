// SPDX-License-Identifier: Apache-2.0
#include "episodic/timeline/segmenter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/timeline/surprise.hpp"

namespace episodic {
namespace {

void check_lengths(const StepSignal& signal, std::span<float> threshold,
                   std::span<std::uint8_t> flags) {
  if (signal.surprise.size() != flags.size() || threshold.size() != flags.size())
    throw DataError(fmt::format(
        "segmenter: {} surprise values, {} thresholds and {} flags; give one of each per token",
        signal.surprise.size(), threshold.size(), flags.size()));
}

class SurpriseSegmenter final : public Segmenter {
 public:
  explicit SurpriseSegmenter(const MemoryConfig& c)
      : threshold_(c.window, c.effective_tau(), c.gamma, c.n_init) {}

  void prepare(const StepSignal& signal, std::span<float> threshold,
               std::span<std::uint8_t> flags) override {
    check_lengths(signal, threshold, flags);
    if (signal.first != threshold_.tokens())
      throw DataError(
          fmt::format("segmenter: the step starts at token {}, but {} tokens came so far; "
                      "give the steps in order",
                      signal.first, threshold_.tokens()));
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

/// SplitMix64's output function: a bijection that mixes all bits.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::unique_ptr<Segmenter> make_segmenter(const MemoryConfig& config,
                                          std::vector<std::int64_t> given) {
  if (!given.empty() && config.segmenter != SegmenterKind::given)
    throw ConfigError(
        fmt::format("segmenter \"{}\" takes no list of boundaries, but {} were given; use "
                    "segmenter \"given\" or leave the list out",
                    name_of(config.segmenter), given.size()));
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
  }
  throw ConfigError("segmenter: unknown kind");
}

}  // namespace episodic
