// SPDX-License-Identifier: Apache-2.0
#include "episodic/attention/state.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "attend_stream.hpp"
#include "episodic/base/error.hpp"
#include "support/test.hpp"

namespace episodic {
namespace state_test {

using testing::Attended;
using testing::for_each_table;
using testing::Random;
using testing::slice;
using testing::state_of;
using testing::Stream;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The lists of an input, each key in one of `n_parts` parts; parts may be empty.
struct Parts {
  std::vector<std::vector<std::vector<KvSegment>>> lists;  // [part][list]
  std::vector<std::vector<std::span<const KvSegment>>> spans;
  std::vector<AttendInput> inputs;

  Parts(const AttendInput& whole, std::size_t n_parts, Random& random)
      : lists(n_parts, std::vector<std::vector<KvSegment>>(whole.segments.size())), spans(n_parts) {
    // every list cuts a segment at the same places: column sums are shared by the lists
    for (std::size_t l = 0; l < whole.segments.size(); ++l) {
      Random places(17);
      for (const KvSegment& s : whole.segments[l]) {
        Random& cuts = s.position == Position::relative ? places : random;
        std::int64_t at = 0;
        for (std::size_t p = 0; p < n_parts; ++p) {
          const std::int64_t end =
              p + 1 == n_parts ? s.length : testing::uniform(cuts, at, s.length);
          lists[p][l].push_back(slice(s, at, end));
          at = end;
        }
      }
    }
    for (std::size_t p = 0; p < n_parts; ++p) {
      for (const auto& list : lists[p]) spans[p].emplace_back(list);
      AttendInput& input = inputs.emplace_back(whole);
      input.segments = spans[p];
    }
  }
};

Attended merged(const std::vector<Attended>& parts, const std::vector<std::size_t>& order,
                std::int64_t width) {
  Attended result = parts[order[0]];
  for (std::size_t i = 1; i < order.size(); ++i) {
    Attended part = parts[order[i]];
    merge_states(state_of(result, width), state_of(part, width));
  }
  return result;
}

std::int64_t width_of(const AttendShape& shape) {
  return shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
}

void require_state(const Attended& got, const Attended& want) {
  REQUIRE(testing::difference(got.out, want.out) < 2e-5);
  REQUIRE(testing::difference(got.lse, want.lse) < 4e-6);
  REQUIRE(testing::difference(got.weighted_mass, want.weighted_mass) < 4e-6);
}

Stream random_stream(Random& random, int i) {
  const std::int64_t counts[] = {1, 1, 2, 7, 17, 40, 150};
  const std::int64_t dims[] = {12, 64, 8, 33, 1};
  const std::int64_t heads[][2] = {{4, 2}, {3, 1}, {2, 2}, {8, 2}, {1, 1}};
  const auto& h = heads[i % 5];
  return Stream(random, counts[i % 7], h[0], h[1], dims[i % 5],
                i % 6 == 0 ? 0 : testing::uniform(random, 0, 300), testing::uniform(random, 1, 90),
                i % 3 == 1 ? h[1] : 1, i % 4 == 3 ? DType::bfloat16 : DType::float32,
                i % 7 == 0 ? 4.0f : 1.0f, DType::float32, i % 5 == 2 ? 20 : 0);
}

TEST_CASE("states of any parts of the keys merge to the state of all, in any order") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(3);
    for (int i = 0; i < 42; ++i) {
      Stream s = random_stream(random, i);
      if (i % 5 == 3) s.shape.softcap = 20.0f;
      const std::int64_t width = width_of(s.shape);
      const Attended whole = testing::attend_reference(s.shape, s.input, 0.0);
      const auto n_parts = static_cast<std::size_t>(testing::uniform(random, 1, 5));
      const Parts parts(s.input, n_parts, random);
      std::vector<Attended> states;
      for (const AttendInput& input : parts.inputs)
        states.push_back(testing::run_attend(s.shape, input, 0.0f, workspace));
      std::vector<std::size_t> order(n_parts);
      std::iota(order.begin(), order.end(), std::size_t{0});
      for (int k = 0; k < 3; ++k) {
        INFO("case " << i << " in " << n_parts << " parts, order " << k);
        require_state(merged(states, order, width), whole);
        std::shuffle(order.begin(), order.end(), random);
      }
    }
  });
}

TEST_CASE("with the lse of the other parts, outputs, column sums and masses are the whole's") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(5);
    for (int i = 0; i < 42; ++i) {
      Stream s = random_stream(random, i);
      const std::int64_t width = width_of(s.shape);
      const Attended whole = testing::attend_reference(s.shape, s.input, 0.0);
      const auto n_parts = static_cast<std::size_t>(testing::uniform(random, 2, 4));
      Parts parts(s.input, n_parts, random);
      std::vector<Attended> states;
      for (const AttendInput& input : parts.inputs)
        states.push_back(testing::run_attend(s.shape, input, 0.0f, workspace));
      Attended sum = whole;
      std::fill(sum.out.begin(), sum.out.end(), 0.0f);
      std::fill(sum.weighted_mass.begin(), sum.weighted_mass.end(), 0.0f);
      std::fill(sum.segment_mass.begin(), sum.segment_mass.end(), 0.0);
      std::vector<std::vector<float>> columns(whole.column_sums.size());
      INFO("case " << i << " in " << n_parts << " parts");
      for (std::size_t p = 0; p < n_parts; ++p) {
        std::vector<std::size_t> others;
        for (std::size_t o = 0; o < n_parts; ++o)
          if (o != p) others.push_back(o);
        const std::vector<float> other_lse = merged(states, others, width).lse;
        parts.inputs[p].other_lse = other_lse.data();
        const Attended share = testing::run_attend(s.shape, parts.inputs[p], 0.0f, workspace);
        REQUIRE(testing::difference(share.lse, whole.lse) < 4e-6);
        for (std::size_t k = 0; k < sum.out.size(); ++k) sum.out[k] += share.out[k];
        for (std::size_t k = 0; k < sum.weighted_mass.size(); ++k)
          sum.weighted_mass[k] += share.weighted_mass[k];
        for (std::size_t k = 0; k < sum.segment_mass.size(); ++k)
          sum.segment_mass[k] += share.segment_mass[k];
        for (std::size_t c = 0; c < columns.size(); ++c)  // parts of a segment, in order
          columns[c].insert(columns[c].end(), share.column_sums[c].begin(),
                            share.column_sums[c].end());
      }
      REQUIRE(testing::difference(sum.out, whole.out) < 3e-5);
      REQUIRE(testing::difference(sum.weighted_mass, whole.weighted_mass) < 1e-5);
      REQUIRE(testing::difference(sum.segment_mass, whole.segment_mass) < 3e-5);
      for (std::size_t c = 0; c < columns.size(); ++c)
        REQUIRE(testing::difference(columns[c], whole.column_sums[c]) < 3e-5);
    }
  });
}

TEST_CASE("of one query, sums of a part are rescaled to the whole's") {
  AttendWorkspace workspace;
  Random random(9);
  for (int i = 0; i < 30; ++i) {
    Stream s = random_stream(random, i % 2 == 0 ? 0 : 1);  // n = 1
    const std::int64_t heads = s.shape.n_heads, width = width_of(s.shape);
    const Attended whole = testing::attend_reference(s.shape, s.input, 0.0);
    const Parts parts(s.input, 2, random);
    std::vector<Attended> states;
    for (const AttendInput& input : parts.inputs)
      states.push_back(testing::run_attend(s.shape, input, 0.0f, workspace));
    const std::vector<float> lse = merged(states, {1, 0}, width).lse;
    std::vector<double> masses(whole.segment_mass.size(), 0.0);
    std::vector<std::vector<float>> columns(whole.column_sums.size());
    for (Attended& part : states) {
      const auto n_lists = static_cast<std::int64_t>(s.input.segments.size());
      const std::int64_t list_heads = heads / n_lists;
      double* of_list = part.segment_mass.data();
      for (std::int64_t l = 0; l < n_lists; ++l) {
        const auto n = static_cast<std::int64_t>(s.input.segments[l].size());
        rescale_sums(n, list_heads, part.lse.data() + l * list_heads, lse.data() + l * list_heads,
                     of_list);
        of_list += n * list_heads;
      }
      for (std::size_t k = 0; k < masses.size(); ++k) masses[k] += part.segment_mass[k];
      for (std::size_t c = 0; c < columns.size(); ++c) {
        std::vector<float>& sums = part.column_sums[c];
        rescale_sums(static_cast<std::int64_t>(sums.size()) / heads, heads, part.lse.data(),
                     lse.data(), sums.data());
        columns[c].insert(columns[c].end(), sums.begin(), sums.end());
      }
    }
    REQUIRE(testing::difference(masses, whole.segment_mass) < 2e-5);
    for (std::size_t c = 0; c < columns.size(); ++c)
      REQUIRE(testing::difference(columns[c], whole.column_sums[c]) < 2e-5);
  }
}

TEST_CASE("a sink logit of each head takes its share of attention and gives nothing") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(11);
    for (int i = 0; i < 21; ++i) {
      Stream s = random_stream(random, i);
      std::vector<float> sinks = testing::normal(random, s.shape.n_queries * s.shape.n_heads, 5.0f);
      if (i % 3 == 0) sinks[0] = -kInfinity;                    // none
      if (i % 3 == 1) sinks.back() = i % 2 ? 300.0f : -300.0f;  // all, or as good as none
      s.input.other_lse = sinks.data();
      INFO("case " << i);
      const Attended want = testing::attend_reference(s.shape, s.input, 0.5);
      const Attended got = testing::run_attend(s.shape, s.input, 0.5f, workspace);
      require_state(got, want);
      REQUIRE(testing::difference(got.segment_mass, want.segment_mass) < 2e-5);
      for (std::size_t c = 0; c < got.column_sums.size(); ++c)
        REQUIRE(testing::difference(got.column_sums[c], want.column_sums[c]) < 2e-5);
    }
  });
}

/// A sink for each head of case i: among them none, one that outweighs every key, and one that
/// weighs nothing.
std::vector<float> random_sinks(Random& random, std::int64_t n_heads, int i) {
  std::vector<float> sinks = testing::normal(random, n_heads, 5.0f);
  if (i % 3 == 0) sinks[0] = -kInfinity;
  if (i % 3 == 1) sinks.back() = i % 2 ? 300.0f : -300.0f;
  return sinks;
}

TEST_CASE("sinks of the heads are an extra score of every query") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(12);
    for (int i = 0; i < 42; ++i) {
      Stream s = random_stream(random, i);
      const std::vector<float> sinks = random_sinks(random, s.shape.n_heads, i);
      s.input.sink_logits = sinks.data();
      std::vector<float> elsewhere;
      if (i % 4 == 3) {  // and keys that are attended elsewhere
        elsewhere = testing::normal(random, s.shape.n_queries * s.shape.n_heads, 5.0f);
        s.input.other_lse = elsewhere.data();
      }
      INFO("case " << i);
      const Attended want = testing::attend_reference(s.shape, s.input, 0.5);
      const Attended got = testing::run_attend(s.shape, s.input, 0.5f, workspace);
      require_state(got, want);
      REQUIRE(testing::difference(got.segment_mass, want.segment_mass) < 2e-5);
      for (std::size_t c = 0; c < got.column_sums.size(); ++c)
        REQUIRE(testing::difference(got.column_sums[c], want.column_sums[c]) < 2e-5);
    }
  });
}

TEST_CASE("sinks of -inf leave every bit") {
  AttendWorkspace workspace;
  Random random(13);
  for (int i = 0; i < 21; ++i) {
    Stream s = random_stream(random, i);
    const Attended want = testing::run_attend(s.shape, s.input, 0.5f, workspace);
    const std::vector<float> none(static_cast<std::size_t>(s.shape.n_heads), -kInfinity);
    s.input.sink_logits = none.data();
    const Attended got = testing::run_attend(s.shape, s.input, 0.5f, workspace);
    INFO("case " << i);
    REQUIRE(got.out == want.out);
    REQUIRE(got.lse == want.lse);
    REQUIRE(got.column_sums == want.column_sums);
    REQUIRE(got.segment_mass == want.segment_mass);
  }
}

TEST_CASE("sinks count once where one part of the keys has them") {
  AttendWorkspace workspace;
  for_each_table([&] {
    Random random(14);
    for (int i = 0; i < 21; ++i) {
      Stream s = random_stream(random, i);
      const std::vector<float> sinks = random_sinks(random, s.shape.n_heads, i);
      s.input.sink_logits = sinks.data();
      const Attended whole = testing::attend_reference(s.shape, s.input, 0.0);
      const auto n_parts = static_cast<std::size_t>(testing::uniform(random, 2, 4));
      Parts parts(s.input, n_parts, random);
      std::vector<std::size_t> order(n_parts);
      std::iota(order.begin(), order.end(), std::size_t{0});
      const std::size_t with = order[static_cast<std::size_t>(i) % n_parts];
      std::vector<Attended> states;
      for (std::size_t p = 0; p < n_parts; ++p) {
        parts.inputs[p].sink_logits = p == with ? sinks.data() : nullptr;
        states.push_back(testing::run_attend(s.shape, parts.inputs[p], 0.0f, workspace));
      }
      std::shuffle(order.begin(), order.end(), random);
      INFO("case " << i << " in " << n_parts << " parts");
      require_state(merged(states, order, width_of(s.shape)), whole);
    }
  });
}

TEST_CASE("a sink that is no number is refused by its head") {
  AttendWorkspace workspace;
  Random random(15);
  Stream s = random_stream(random, 0);
  std::vector<float> sinks(static_cast<std::size_t>(s.shape.n_heads), 0.0f);
  s.input.sink_logits = sinks.data();
  for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    sinks.back() = bad;
    std::string said;
    try {
      testing::run_attend(s.shape, s.input, 0.0f, workspace);
    } catch (const DataError& e) {
      said = e.what();
    }
    REQUIRE(said.find("sink_logits[" + std::to_string(s.shape.n_heads - 1) + "]") !=
            std::string::npos);
  }
}

TEST_CASE("keys elsewhere are those of a query that sees none here") {
  AttendWorkspace workspace;
  for (const std::int64_t n : {1, 40}) {
    AttendShape shape{.n_queries = n, .n_heads = 2, .n_kv_heads = 1, .head_dim = 4, .n_local = 8};
    const std::vector<float> q(static_cast<std::size_t>(n * 2 * 4), 1.0f);
    const std::vector<float> other(static_cast<std::size_t>(n * 2), 3.25f);
    const std::vector<KvSegment> none;
    const std::span<const KvSegment> list(none);
    const TensorView queries(q.data(), shape.of_queries());
    AttendInput input{queries, queries, {&list, 1}};
    input.other_lse = other.data();
    const Attended got = testing::run_attend(shape, input, 0.0f, workspace);
    for (const float x : got.out) CHECK(x == 0.0f);
    for (const float x : got.lse) CHECK(x == 3.25f);
    for (const float x : got.weighted_mass) CHECK(x == 0.0f);
  }
}

TEST_CASE("rows without a key take no part in a merge, whatever their output holds") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out = {1.5f, -2.0f, kNan, kNan, kNan, kNan};
  std::vector<float> lse = {0.7f, -kInfinity, -kInfinity}, mass = {1.0f, kNan, kNan};
  std::vector<float> other = {kNan, kNan, 4.0f, 5.0f, kNan, kNan};
  std::vector<float> other_lse = {-kInfinity, 9.0f, -kInfinity}, other_mass = {kNan, 0.25f, kNan};
  merge_states({3, 2, out.data(), lse.data(), mass.data()},
               {3, 2, other.data(), other_lse.data(), other_mass.data()});
  CHECK(out[0] == 1.5f);
  CHECK(out[1] == -2.0f);
  CHECK(lse[0] == 0.7f);
  CHECK(mass[0] == 1.0f);
  CHECK(out[2] == 4.0f);
  CHECK(out[3] == 5.0f);
  CHECK(lse[1] == 9.0f);
  CHECK(mass[1] == 0.25f);
  CHECK(lse[2] == -kInfinity);
  merge_states({}, {});  // no rows
}

TEST_CASE("numbers far apart merge without overflow, and NaN is not hidden") {
  float a = 1.0f, a_lse = 300.0f, b = 3.0f, b_lse = -300.0f;
  merge_states({1, 1, &a, &a_lse}, {1, 1, &b, &b_lse});
  CHECK(a == 1.0f);
  CHECK(a_lse == 300.0f);
  merge_states({1, 1, &b, &b_lse}, {1, 1, &a, &a_lse});
  CHECK(b == 1.0f);
  CHECK(b_lse == 300.0f);
  float c = 2.0f, c_lse = std::numeric_limits<float>::quiet_NaN();
  merge_states({1, 1, &a, &a_lse}, {1, 1, &c, &c_lse});
  CHECK(std::isnan(a));
  CHECK(std::isnan(a_lse));
}

TEST_CASE("states that do not fit are refused by name, and left as they were") {
  float x[4] = {1, 2, 3, 4}, lse[2] = {0, 0};
  const AttentionState good{2, 2, x, lse};
  const auto refused = [&](const AttentionState& into, const AttentionState& part) {
    try {
      merge_states(into, part);
    } catch (const DataError& error) {
      CHECK(x[0] == 1.0f);
      return std::string(error.what());
    }
    return std::string("taken");
  };
  CHECK(refused(good, {1, 2, x, lse}).find("n_rows") != std::string::npos);
  CHECK(refused(good, {2, 1, x, lse}).find("value_dim") != std::string::npos);
  CHECK(refused({-1, 2, x, lse}, {-1, 2, x, lse}).find("n_rows") != std::string::npos);
  CHECK(refused(good, {2, 2, x, nullptr}).find("lse is null") != std::string::npos);
  CHECK(refused(good, {2, 2, nullptr, lse}).find("out is null") != std::string::npos);
  CHECK(refused(good, {2, 2, x, lse, lse}).find("weighted_mass") != std::string::npos);
  CHECK_THROWS_AS(rescale_sums(-1, 1, lse, lse, x), DataError);
  CHECK_THROWS_AS(rescale_sums(1, 1, nullptr, lse, x), DataError);
}

}  // namespace state_test
}  // namespace episodic
