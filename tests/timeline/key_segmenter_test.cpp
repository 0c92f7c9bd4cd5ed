// SPDX-License-Identifier: Apache-2.0
// Segmentation from keys against a reference that keeps the keys of the event and computes every
// mean and variance from them, as HEM 2.3 defines them, instead of updating them.
#include "episodic/timeline/key_segmenter.hpp"

#include <array>
#include <random>

#include "support/test.hpp"

using namespace episodic;

namespace {

struct Reference {
  KeySegmenterSettings s;
  std::int64_t heads, d, token = 0;
  std::vector<std::vector<double>> event;  // its keys
  std::vector<double> recorded;

  /// \return whether the key opens an event; signal and threshold NaN where there is none
  bool next(const std::vector<float>& key, double& signal, double& threshold) {
    signal = threshold = std::nan("");
    if (token++ < s.n_init) return false;
    const std::vector<double> k(key.begin(), key.end());
    if (!event.empty() && static_cast<std::int64_t>(event.size()) >= s.min_count) {
      signal = 0;
      for (std::int64_t h = 0; h < heads; ++h) {
        double of_head = 0;
        for (std::int64_t i = h * d; i < (h + 1) * d; ++i) {
          const auto c = static_cast<std::size_t>(i);
          double mean = 0, var = 0;
          for (const auto& e : event) mean += e[c];
          mean /= static_cast<double>(event.size());
          for (const auto& e : event) var += (e[c] - mean) * (e[c] - mean);
          var = std::max(var / static_cast<double>(event.size()), s.var_floor);
          of_head += s.signal == KeySignal::similarity
                         ? mean * k[c]
                         : std::log(std::exp(-(k[c] - mean) * (k[c] - mean) / (2 * var)) /
                                    std::sqrt(2 * std::numbers::pi * var));
        }
        signal += of_head / static_cast<double>(heads);
      }
      if (recorded.size() >= 2) {
        double mean = 0, var = 0;
        for (const double x : recorded) mean += x / static_cast<double>(recorded.size());
        for (const double x : recorded) var += (x - mean) * (x - mean);
        threshold = mean - s.gamma * std::sqrt(var / static_cast<double>(recorded.size() - 1));
        if (signal < threshold) {
          event.assign(1, k);
          recorded.clear();
          return true;
        }
      }
      recorded.push_back(signal);
    }
    event.push_back(k);
    return false;
  }
};

bool close(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= 1e-9 * std::max(1.0, std::abs(b));
}

std::vector<float> drifting_key(std::mt19937& rng, std::int64_t token, std::int64_t width,
                                float scale = 1) {
  std::normal_distribution<float> normal;
  std::vector<float> key;
  for (std::int64_t c = 0; c < width; ++c)
    key.push_back(scale *
                  (std::sin(static_cast<float>((token / 9) * (c + 3))) + 0.3f * normal(rng)));
  return key;
}

}  // namespace

TEST_CASE("segmentation from keys equals its definition") {
  std::mt19937 rng(3);
  std::int64_t cuts = 0;
  for (int run = 0; run < 140; ++run) {
    KeySegmenterSettings s;
    s.signal = run % 2 ? KeySignal::gaussian : KeySignal::similarity;
    s.gamma = static_cast<double>(rng() % 200) / 100;
    s.min_count = static_cast<std::int64_t>(rng() % 5);
    s.var_floor = 0.01 + static_cast<double>(rng() % 10) / 100;
    s.n_init = static_cast<std::int64_t>(rng() % 6);
    const std::int64_t heads = 1 + static_cast<std::int64_t>(rng() % 3),
                       d = 1 + static_cast<std::int64_t>(rng() % (run % 7 == 0 ? 70 : 7));
    // Large and small ones: products of eight variances have no number at the outer two.
    const float scale =
        std::array{1.0f, 1e20f, 1e-25f, 3e18f, 1e-17f}[static_cast<std::size_t>(run % 5)];
    s.var_floor *= static_cast<double>(scale) * scale;
    KeySegmenter segmenter(s, heads, d);
    Reference reference{s, heads, d, 0, {}, {}};
    for (std::int64_t t = 0; t < 120; ++t) {
      const auto key = drifting_key(rng, t, heads * d, scale);
      double signal = 0, threshold = 0;
      const bool opens = reference.next(key, signal, threshold);
      const KeySegmenter::Verdict v = segmenter.next(key);
      REQUIRE(v.opens == opens);
      REQUIRE(close(v.signal, signal));
      REQUIRE(close(v.threshold, threshold));
      cuts += opens;
    }
  }
  REQUIRE(cuts > 200);
}

TEST_CASE("a key segmenter that was saved goes on to the bit") {
  std::mt19937 rng(5);
  for (const KeySignal signal : {KeySignal::similarity, KeySignal::gaussian}) {
    KeySegmenter whole({.signal = signal, .gamma = 0.5, .n_init = 2}, 2, 3);
    for (std::int64_t t = 0; t < 50; ++t) whole.next(drifting_key(rng, t, 6));
    ByteWriter to;
    whole.save(to);
    KeySegmenter back({.signal = signal, .gamma = 0.5, .n_init = 2}, 2, 3);
    ByteReader from(to.bytes(), "state");
    back.load(from);
    from.finish();
    for (std::int64_t t = 50; t < 150; ++t) {
      const auto key = drifting_key(rng, t, 6);
      const KeySegmenter::Verdict a = whole.next(key), b = back.next(key);
      REQUIRE(a.opens == b.opens);
      REQUIRE((a.signal == b.signal || (std::isnan(a.signal) && std::isnan(b.signal))));
    }
    KeySegmenter narrow({.signal = signal, .gamma = 0.5, .n_init = 2}, 1, 3);
    ByteReader again(to.bytes(), "state");
    REQUIRE_THROWS_AS(narrow.load(again), FileError);
  }
}

TEST_CASE("gamma is calibrated to the nearest count, ties to the smallest") {
  // counts fall by one every 0.5
  const auto count = [](double gamma) { return 20 - static_cast<std::int64_t>(gamma * 2 + 1e-9); };
  REQUIRE(calibrate_gamma(17, count).gamma == 1.5);
  REQUIRE(calibrate_gamma(17, count).boundaries == 17);
  REQUIRE(calibrate_gamma(17, count).reached);
  REQUIRE(calibrate_gamma(0, count).gamma == 8.0);  // 4 is the nearest there is
  REQUIRE_FALSE(calibrate_gamma(0, count).reached);
  const auto two = [](double gamma) { return gamma < 3 ? std::int64_t{12} : std::int64_t{8}; };
  REQUIRE(calibrate_gamma(10, two).gamma == 0.0);
  REQUIRE(calibrate_gamma(10, two).reached);
}

TEST_CASE("gamma is calibrated over both signs where 0 gives too few boundaries") {
  const auto count = [](double gamma) {
    return static_cast<std::int64_t>(std::floor(20 - gamma * 2 + 1e-9));
  };
  REQUIRE(calibrate_gamma(24, count).gamma == -2.49);  // the smallest of those that give 24
  REQUIRE(calibrate_gamma(24, count).boundaries == 24);
  REQUIRE(calibrate_gamma(24, count).reached);
  REQUIRE(calibrate_gamma(100, count).gamma == -4.0);  // 28 is the most there is
  REQUIRE_FALSE(calibrate_gamma(100, count).reached);
  // The golden cases' grid begins at 0.
  REQUIRE(calibrate_gamma(24, count, 0).gamma == 0.0);
  REQUIRE_FALSE(calibrate_gamma(24, count, 0).reached);
}

TEST_CASE("a key segmenter refuses what cannot be") {
  REQUIRE_THROWS_AS(KeySegmenter({}, 0, 4), ConfigError);
  REQUIRE_THROWS_AS(KeySegmenter({.min_count = -1}, 1, 4), ConfigError);
  REQUIRE_THROWS_AS(KeySegmenter({.gamma = NAN}, 1, 4), ConfigError);
  REQUIRE_THROWS_AS(KeySegmenter({.signal = KeySignal::gaussian, .var_floor = 0}, 1, 4),
                    ConfigError);
  KeySegmenter segmenter({}, 1, 2);
  const std::vector<float> good{1, 2}, three{1, 2, 3}, nan{NAN, 1};
  REQUIRE_THROWS_AS(segmenter.next(three), DataError);
  segmenter.next(good);
  REQUIRE_THROWS_AS(segmenter.next(nan), DataError);
}
