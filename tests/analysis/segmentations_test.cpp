// SPDX-License-Identifier: Apache-2.0
// Boundaries of a text by each segmentation, against the memory's own parts and the golden cases.
#include "analysis/segmentations.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "episodic/base/error.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/timeline/surprise.hpp"
#include "some_keys.hpp"
#include "support/shared.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::analysis;

namespace {

/// What KeySegmenter says, key by key.
Boundaries by_segmenter(KeySegmenterSettings settings, double gamma, const RecordedKeys& keys,
                        TokenRange text, std::int64_t unit) {
  settings.gamma = gamma;
  KeySegmenter segmenter(settings, 1, keys.head_dim);
  Boundaries found;
  for (std::int64_t t = text.start; t < text.end; ++t)
    if (segmenter.next(keys.key(unit, t)).opens) found.push_back(t);
  return found;
}

}  // namespace

TEST_CASE("key cuts are the segmenter's at every gamma, in any order of asking") {
  const RecordedKeys keys = some_keys(150, 1, 2, 6, 17);
  const TokenRange text{3, 148};
  for (const KeySignal signal : {KeySignal::similarity, KeySignal::gaussian})
    for (const std::int64_t min_count : {0, 1, 4}) {
      KeySegmenterSettings settings;
      settings.signal = signal;
      settings.min_count = min_count;
      KeyCuts cuts(settings, 1, keys.head_dim, text,
                   [&](std::int64_t t) { return keys.key(1, t); });
      std::set<std::size_t> numbers;
      for (const double gamma : {1.0, 0.0, 3.0, 0.5, 8.0, 1.5, -1.0, 0.0}) {
        const Boundaries found = cuts.boundaries(gamma);
        CHECK(found == by_segmenter(settings, gamma, keys, text, 1));
        numbers.insert(found.size());
      }
      CHECK(numbers.size() > 3);
      CHECK_THROWS_AS(cuts.boundaries(std::nan("")), ConfigError);
    }
}

TEST_CASE("key cuts end an event where equal keys change, whatever gamma is") {
  RecordedKeys keys = some_keys(12, 1, 1, 2);
  for (std::size_t i = 0; i < keys.layers[0].size(); ++i)
    keys.layers[0][i] = i < 12 ? 1.0f : -1.0f;  // from token 6 on
  KeyCuts cuts({}, 1, 2, {0, 12}, [&](std::int64_t t) { return keys.key(0, t); });
  for (const double gamma : {0.0, 8.0}) {
    CHECK(cuts.boundaries(gamma) == Boundaries{6});
    CHECK(cuts.boundaries(gamma) == by_segmenter({}, gamma, keys, {0, 12}, 0));
  }
}

TEST_CASE("calibration finds the golden case's gamma through the cuts") {
  const auto shared = shared_dir();
  if (!shared || !std::filesystem::is_directory(*shared / "golden"))
    EPISODIC_SKIP("../shared/golden is not there");
  int calibrated = 0;
  for (const char* name :
       {"hem01_k_similarity_sequence", "hem02_gaussian_head", "hem03_stories_k_similarity_head"}) {
    const auto folder = *shared / "golden" / name;
    const auto json = [&](const char* file) {
      std::ifstream in(folder / file);
      return nlohmann::json::parse(in);
    };
    const auto test = json("case.json"), expected = json("expected.json");
    if (!test.contains("calibrate_to")) continue;
    ++calibrated;
    const SafetensorsFile file(folder / "inputs.safetensors");
    const StoredTensor& view = file.at("keys");
    const std::int64_t n = view.shape[0], layers = view.shape[1], heads = view.shape[2];
    const std::int64_t d = view.shape[3], row = layers * heads * d;
    std::vector<float> all(static_cast<std::size_t>(n * row));
    std::memcpy(all.data(), view.data, all.size() * sizeof(float));
    const bool by_head = test["level"] == "head";
    const std::int64_t units = by_head ? layers * heads : 1, width = row / units;
    KeySegmenterSettings settings;
    settings.signal = test["method"] == "gaussian" ? KeySignal::gaussian : KeySignal::similarity;
    settings.min_count = test["min_count"];
    settings.var_floor = test["var_floor"];
    const TokenRange text{test["n_init"], n};
    std::vector<KeyCuts> cuts;
    for (std::int64_t u = 0; u < units; ++u)
      cuts.emplace_back(settings, by_head ? 1 : layers * heads, d, text, [&, u](std::int64_t t) {
        return std::span<const float>(all).subspan(static_cast<std::size_t>(t * row + u * width),
                                                   static_cast<std::size_t>(width));
      });
    const CalibratedGamma found =
        calibrate_gamma(test["calibrate_to"].get<std::int64_t>(), [&](double gamma) {
          std::int64_t count = 0;
          for (KeyCuts& c : cuts) count += static_cast<std::int64_t>(c.boundaries(gamma).size());
          return count;
        });
    INFO(name);
    CHECK(found.gamma == Approx(expected["calibrated_gamma"].get<double>()));
    CHECK(found.boundaries == expected["calibrated_boundaries"].get<std::int64_t>());
  }
  CHECK(calibrated > 0);
}

TEST_CASE("surprise boundaries are those of the threshold, inside the text") {
  std::mt19937 random(2);
  std::exponential_distribution<float> draw(0.4f);
  std::vector<float> surprise(200);
  for (float& s : surprise) s = draw(random);
  MemoryConfig config;
  config.tau = 40;
  config.chunk = 16;
  for (const ThresholdWindow window : {ThresholdWindow::moving, ThresholdWindow::chunked}) {
    config.window = window;
    config.n_init = 5;
    SurpriseThreshold threshold(window, 40, 0.7, 5);
    std::vector<float> limits(190);
    for (std::int64_t first = 0; first < 190; first += 16)
      threshold.step(surprise.data() + first, std::min<std::int64_t>(16, 190 - first),
                     limits.data() + first);
    Boundaries expected;
    for (std::int64_t t = 11; t < 190; ++t)
      if (surprise[static_cast<std::size_t>(t)] > limits[static_cast<std::size_t>(t)])
        expected.push_back(t);
    REQUIRE(expected.size() > 5);
    CHECK(surprise_boundaries(surprise, config, 0.7, {10, 190}) == expected);
  }
  CHECK_THROWS_AS(surprise_boundaries(surprise, config, 1, {0, 201}), DataError);
}

TEST_CASE("refined boundaries move to where the keys change, and no further than back") {
  const RecordedKeys keys = some_keys(120, 2, 2, 8, 20);
  MemoryConfig config;
  config.min_block = 4;
  config.chunk = 60;
  const Boundaries raw{23, 44, 64, 82, 83, 104};  // 83 is too near to where 82 goes
  for (const Refinement r : {Refinement::modularity, Refinement::conductance}) {
    const Boundaries moved = refined_boundaries(keys, raw, config, r, 0, {0, 120});
    CHECK(moved == Boundaries{20, 40, 60, 80, 100});
  }
}

TEST_CASE("fixed boundaries lie at equal distances, random ones anywhere once") {
  CHECK(fixed_boundaries(3, {0, 100}) == Boundaries{25, 50, 75});
  CHECK(fixed_boundaries(1, {10, 20}) == Boundaries{15});
  CHECK(fixed_boundaries(0, {0, 10}).empty());
  CHECK(fixed_boundaries(9, {0, 4}).size() == 3);  // no more than there are tokens
  std::mt19937_64 a(7), b(7);
  CHECK(random_boundaries(10, {5, 50}, a) == random_boundaries(10, {5, 50}, b));
  CHECK(random_boundaries(10, {5, 50}, a).size() == 10);
  CHECK(random_boundaries(99, {5, 9}, a) == Boundaries{6, 7, 8});
  CHECK(random_boundaries(3, {5, 5}, a).empty());
  std::vector<int> hits(20);
  for (int i = 0; i < 4000; ++i)
    for (const std::int64_t t : random_boundaries(5, {0, 20}, a))
      ++hits[static_cast<std::size_t>(t)];
  CHECK(hits[0] == 0);
  for (std::size_t t = 1; t < 20; ++t) CHECK(std::abs(hits[t] - 4000 * 5 / 19) < 200);
}

TEST_CASE("boundaries out of the text or out of order are refused") {
  CHECK(events_between({2, 9}, Boundaries{4}) == std::vector<TokenRange>{{2, 4}, {4, 9}});
  for (const Boundaries& bad : {Boundaries{2}, Boundaries{9}, Boundaries{4, 4}, Boundaries{5, 3}})
    CHECK_THROWS_AS(events_between({2, 9}, bad), DataError);
}
