// SPDX-License-Identifier: Apache-2.0
// Reweighted attention (EpMAN 3.2) of one layer and chunk against an independent float64 oracle:
// the whole room at once, from unrotated queries and keys to outputs and masses.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "attend_reference.hpp"
#include "episodic/attention/rotary.hpp"
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

void check_case(const fs::path& folder) {
  const Json given = load(folder / "case.json");
  const SafetensorsFile inputs(folder / "inputs.safetensors");
  const SafetensorsFile expected(folder / "expected.safetensors");
  const auto& q_shape = inputs.at("q").shape;
  const std::int64_t n = q_shape[0], H = q_shape[1], d = q_shape[2];
  const std::int64_t G = inputs.at("k").shape[1];
  const std::int64_t start = given["start"], n_local = given["n_local"], tokens = start + n;
  const float* keys = floats(inputs, "k");

  const RotaryTable table = plain_rotary(d, given["rope_theta"]);
  RotaryAngles all, fixed;
  all.compute(table, 0, tokens);
  fixed.compute_fixed(table, n_local);
  std::vector<float> rotated(static_cast<std::size_t>(tokens * G * d));
  rotate(table, all.rows(), {keys, {tokens, G, d}}, {rotated.data(), {tokens, G, d}});
  std::vector<float> relative(static_cast<std::size_t>(n * H * d)), same(relative.size());
  AttendWorkspace workspace;
  rotate_queries(table, all.rows(start, n), fixed.rows(), {floats(inputs, "q"), {n, H, d}},
                 {relative.data(), same.data(), nullptr}, workspace);

  std::vector<KvSegment> list;
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

  AttendShape shape;
  shape.n_queries = n;
  shape.n_heads = H;
  shape.n_kv_heads = G;
  shape.head_dim = d;
  shape.first_position = start;
  shape.n_local = n_local;
  const std::span<const KvSegment> lists[] = {list};
  std::vector<float> out(relative.size()), mass(static_cast<std::size_t>(n * H));
  AttendOutput output;
  output.out = {out.data(), shape.of_outputs()};
  output.weighted_mass = mass.data();
  const TensorSizes sizes = shape.of_queries();
  attend(shape, {{relative.data(), sizes}, {same.data(), sizes}, lists}, output, workspace);
  REQUIRE(row_error(out.data(), floats(expected, "out"), n * H, d) <=
          given["tolerance"]["out"].get<double>());
  REQUIRE(row_error(mass.data(), floats(expected, "mass"), n, H) <=
          given["tolerance"]["mass"].get<double>());
}

TEST_CASE("reweighted attention equals the golden cases of kind epman, given their weights") {
  const auto shared = shared_dir();
  if (!shared || !fs::is_directory(*shared / "golden")) EPISODIC_SKIP("no shared/golden");
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(*shared / "golden")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("epman", 0) != 0) continue;
    INFO(name);
    check_case(entry.path());
    ++cases;
  }
  REQUIRE(cases > 0);
}

}  // namespace
}  // namespace episodic
