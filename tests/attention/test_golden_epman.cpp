// SPDX-License-Identifier: Apache-2.0
// Reweighted attention (EpMAN 3.2) of one layer and chunk against an independent float64 oracle:
// the whole room at once, from unrotated queries and keys to outputs and masses.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "attend_reference.hpp"
#include "episodic/attention/rotary.hpp"
#include "episodic/attention/state.hpp"
#include "episodic/model/safetensors.hpp"
#include "support/compare.hpp"
#include "support/shared.hpp"
#include "support/test.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json load(const fs::path& path) {
  std::ifstream in(path);
  REQUIRE(in);
  return Json::parse(in);
}

const float* floats(const SafetensorsFile& file, const char* name) {
  return reinterpret_cast<const float*>(file.at(name).data);
}

/// Largest error of a row against its largest element, over all rows.
double row_error(const float* got, const float* want, std::int64_t rows, std::int64_t width) {
  double worst = 0.0;
  for (std::int64_t r = 0; r < rows; ++r) {
    double largest = 0.0, error = 0.0;
    for (std::int64_t c = r * width; c < (r + 1) * width; ++c) {
      largest = std::max(largest, std::abs(static_cast<double>(want[c])));
      error = worse_of(error, std::abs(static_cast<double>(got[c]) - want[c]));
    }
    worst = worse_of(worst, error / largest);
  }
  return worst;
}

/// The attention of a golden case, and what it must give.
struct Case {
  explicit Case(const fs::path& folder)
      : given(load(folder / "case.json")),
        inputs(folder / "inputs.safetensors"),
        expected(folder / "expected.safetensors") {
    const auto& q_shape = inputs.at("q").shape;
    const std::int64_t n = q_shape[0], H = q_shape[1], d = q_shape[2];
    const std::int64_t G = inputs.at("k").shape[1];
    const std::int64_t start = given["start"], n_local = given["n_local"], tokens = start + n;
    const float* keys = floats(inputs, "k");

    const RotaryTable table = plain_rotary(d, given["rope_theta"]);
    RotaryAngles all, fixed;
    all.compute(table, 0, tokens);
    fixed.compute_fixed(table, n_local);
    rotated.resize(static_cast<std::size_t>(tokens * G * d));
    rotate(table, all.rows(), {keys, {tokens, G, d}}, {rotated.data(), {tokens, G, d}});
    relative.resize(static_cast<std::size_t>(n * H * d));
    same.resize(relative.size());
    AttendWorkspace scratch;
    rotate_queries(table, all.rows(start, n), fixed.rows(), {floats(inputs, "q"), {n, H, d}},
                   {relative.data(), same.data(), nullptr}, scratch);

    const auto add = [&](std::int64_t begin, std::int64_t end, Position position, float weight) {
      KvSegment s;
      s.key = (position == Position::fixed ? keys : rotated.data()) + begin * G * d;
      s.value = floats(inputs, "v") + begin * G * d;
      s.length = end - begin;
      s.first_token = begin;
      s.head_stride = d;
      s.row_stride = G * d;
      s.position = position;
      s.value_weight = weight;
      list.push_back(s);
    };
    add(0, given["n_init"], Position::fixed, 1.0f);
    const Json present = load(folder / "expected.json")["present"];
    for (std::size_t i = 0; i < present.size(); ++i) {
      const Json& event = given["events"][present[i].get<std::size_t>()];
      add(event[0], event[1], Position::fixed, floats(expected, "weight")[i]);
    }
    add(given["events"].back()[1], tokens, Position::fixed, 1.0f);  // pending
    add(std::max<std::int64_t>(0, start - n_local + 1), tokens, Position::relative, 1.0f);

    shape.n_queries = n;
    shape.n_heads = H;
    shape.n_kv_heads = G;
    shape.head_dim = d;
    shape.first_position = start;
    shape.n_local = n_local;
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  /// Over the keys of these segments. \param maybe_other_lse of keys that are elsewhere
  testing::Attended attend(const std::vector<KvSegment>& segments,
                           const float* maybe_other_lse = nullptr) {
    const std::span<const KvSegment> lists[] = {segments};
    const TensorSizes sizes = shape.of_queries();
    AttendInput input{{relative.data(), sizes}, {same.data(), sizes}, lists};
    input.other_lse = maybe_other_lse;
    return testing::run_attend(shape, input, 0.0f, workspace);
  }
  void require_expected(const std::vector<float>& out, const std::vector<float>& mass) const {
    const std::int64_t n = shape.n_queries, H = shape.n_heads;
    REQUIRE(row_error(out.data(), floats(expected, "out"), n * H, shape.head_dim) <=
            given["tolerance"]["out"].get<double>());
    REQUIRE(row_error(mass.data(), floats(expected, "mass"), n, H) <=
            given["tolerance"]["mass"].get<double>());
  }
  std::int64_t keys() const {
    std::int64_t n = 0;
    for (const KvSegment& s : list) n += s.length;
    return n;
  }
  /// Keys [begin, end) in the order of the list, in as many segments; some are empty.
  std::vector<KvSegment> part(std::int64_t begin, std::int64_t end) const {
    std::vector<KvSegment> segments;
    std::int64_t at = 0;
    for (const KvSegment& s : list) {
      const auto within = [&](std::int64_t key) {
        return std::min(std::max<std::int64_t>(key - at, 0), s.length);
      };
      segments.push_back(testing::slice(s, within(begin), within(end)));
      at += s.length;
    }
    return segments;
  }

  Json given;
  SafetensorsFile inputs, expected;
  AttendShape shape;
  std::vector<float> rotated, relative, same;
  std::vector<KvSegment> list;
  AttendWorkspace workspace;
};

/// check(case) of each golden case of attention.
template <class Check>
void for_golden_cases(const Check& check) {
  const auto shared = shared_dir();
  if (!shared || !fs::is_directory(*shared / "golden")) EPISODIC_SKIP("no shared/golden");
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(*shared / "golden")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("epman", 0) != 0) continue;
    INFO(name);
    Case golden(entry.path());
    check(golden);
    ++cases;
  }
  REQUIRE(cases > 0);
}

TEST_CASE("reweighted attention equals the golden cases of kind epman, given their weights") {
  for_golden_cases([](Case& golden) {
    const testing::Attended got = golden.attend(golden.list);
    golden.require_expected(got.out, got.weighted_mass);
  });
}

void require_state(const testing::Attended& got, const testing::Attended& want) {
  REQUIRE(testing::difference(got.out, want.out) < 5e-6);
  REQUIRE(testing::difference(got.lse, want.lse) < 2e-6);
  REQUIRE(testing::difference(got.weighted_mass, want.weighted_mass) < 2e-6);
}

TEST_CASE("golden attention cut at every key and merged in any order is the whole") {
  for_golden_cases([](Case& golden) {
    const testing::Attended whole = golden.attend(golden.list);
    const std::int64_t d = golden.shape.head_dim, keys = golden.keys();
    REQUIRE(keys > 60);
    for (std::int64_t cut = 0; cut <= keys; ++cut) {  // at both ends one part has no key
      INFO("cut before key " << cut << " of " << keys);
      const std::vector<KvSegment> lists[] = {golden.part(0, cut), golden.part(cut, keys)};
      testing::Attended parts[] = {golden.attend(lists[0]), golden.attend(lists[1])};
      for (const int first : {0, 1}) {
        testing::Attended merged = parts[first];
        merge_states(testing::state_of(merged, d), testing::state_of(parts[1 - first], d));
        require_state(merged, whole);
        golden.require_expected(merged.out, merged.weighted_mass);
      }
      // Column sums and masses: each part once more, told of the other's keys.
      testing::Attended sum = golden.attend(lists[0], parts[1].lse.data());
      const testing::Attended second = golden.attend(lists[1], parts[0].lse.data());
      REQUIRE(testing::difference(sum.lse, whole.lse) < 2e-6);
      REQUIRE(testing::difference(second.lse, whole.lse) < 2e-6);
      for (std::size_t i = 0; i < sum.out.size(); ++i) sum.out[i] += second.out[i];
      for (std::size_t i = 0; i < sum.weighted_mass.size(); ++i)
        sum.weighted_mass[i] += second.weighted_mass[i];
      for (std::size_t i = 0; i < sum.segment_mass.size(); ++i)
        sum.segment_mass[i] += second.segment_mass[i];
      REQUIRE(testing::difference(sum.out, whole.out) < 5e-6);
      REQUIRE(testing::difference(sum.weighted_mass, whole.weighted_mass) < 2e-6);
      REQUIRE(testing::difference(sum.segment_mass, whole.segment_mass) < 2e-5);
      for (std::size_t c = 0; c < whole.column_sums.size(); ++c) {
        std::vector<float> columns = sum.column_sums[c];
        columns.insert(columns.end(), second.column_sums[c].begin(), second.column_sums[c].end());
        REQUIRE(testing::difference(columns, whole.column_sums[c]) < 2e-5);
      }
    }
  });
}

TEST_CASE("golden attention with each key by itself, merged in any order, is the whole") {
  for_golden_cases([](Case& golden) {
    const testing::Attended whole = golden.attend(golden.list);
    const std::int64_t d = golden.shape.head_dim;
    std::vector<testing::Attended> keys;
    for (std::int64_t key = 0; key < golden.keys(); ++key)
      keys.push_back(golden.attend(golden.part(key, key + 1)));
    keys.push_back(golden.attend(golden.part(0, 0)));  // and no key
    testing::Random random(8);
    for (int order = 0; order < 20; ++order) {
      INFO("order " << order);
      testing::Attended merged = keys.front();
      for (std::size_t i = 1; i < keys.size(); ++i)
        merge_states(testing::state_of(merged, d), testing::state_of(keys[i], d));
      REQUIRE(testing::difference(merged.out, whole.out) < 3e-5);
      REQUIRE(testing::difference(merged.lse, whole.lse) < 1e-5);
      REQUIRE(testing::difference(merged.weighted_mass, whole.weighted_mass) < 1e-5);
      golden.require_expected(merged.out, merged.weighted_mass);
      std::shuffle(keys.begin(), keys.end(), random);
    }
  });
}

}  // namespace
}  // namespace episodic
