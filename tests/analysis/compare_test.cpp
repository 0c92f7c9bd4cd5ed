// SPDX-License-Identifier: Apache-2.0
// A whole story: every method is there, at the counts that were wanted, beside random ones.
#include "analysis/compare.hpp"

#include <cmath>
#include <map>

#include "analysis/agreement.hpp"
#include "some_keys.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::analysis;

namespace {

/// Events of 20 tokens that begin with a surprise; people mark them two tokens late.
StoryMaterial some_story() {
  StoryMaterial story;
  story.name = "some";
  story.text = {1, 241};
  story.keys = some_keys(241, 2, 2, 6, 20);
  std::mt19937 random(4);
  std::uniform_real_distribution<float> low(0.5f, 1.5f);
  for (std::int64_t t = 0; t < 241; ++t) story.surprise.push_back(t % 20 == 0 ? 6.0f : low(random));
  for (std::int64_t t = 20; t < 241; t += 20) story.people.push_back(t + (t < 240 ? 2 : 0));
  story.clauses = {10, 20, 30, 40};
  story.rated = {20, 60, 100};
  story.rated_changes = {1, 2.5, 1};
  return story;
}

CompareOptions some_options() {
  CompareOptions options;
  options.config.n_local = 64;
  options.config.chunk = 60;
  options.config.min_block = 4;
  options.draws = 40;
  options.deviation = 5;
  options.tolerance = 3;
  return options;
}

}  // namespace

TEST_CASE("a story is cut by every method at the numbers of people and of surprise") {
  const StoryMaterial story = some_story();
  std::int64_t done = 0, parts = 0;
  const StoryResult r =
      compare(story, some_options(), [&](std::int64_t d, std::int64_t p) { done = d, parts = p; });
  CHECK((done == 2 && parts == 2));
  std::map<std::string, int> methods;
  for (const Segmented& s : r.sequence) ++methods[s.method];
  for (const char* both : {"S", "SM", "SC", "SI", "F", "FM", "FC", "FI", "K", "G"})
    CHECK(methods[both] == 2);
  CHECK((methods["people"] == 1 && methods["clauses"] == 1));
  REQUIRE(r.heads.size() == 2 * 2 * 4);

  for (const Segmented& s : r.sequence) {
    INFO(s.method << " " << s.count);
    REQUIRE(s.people);
    REQUIRE(s.raters);
    CHECK(!s.raters->matched);
    CHECK(s.random.people_deviation->wasserstein > 0);
    CHECK(s.random.layers.size() == 2);
    CHECK(std::isfinite(s.cohesion.all.ratio_of_means));
    if (s.count == "people" && (s.method == "S" || s.method == "F"))
      CHECK(s.boundaries.size() == story.people.size());
    if (s.method == "people") {
      CHECK(s.people->wasserstein == 0);
      CHECK(*s.people->matched == 1);
      CHECK(s.people->correlation == Approx(1));
    }
    if (s.method == "S" && s.count == "people") {  // surprise opens the events that the keys have
      CHECK(s.people->wasserstein < s.random.people->wasserstein);
      CHECK(*s.people->matched == 1);
      CHECK(s.cohesion.all.modularity >
            s.random.mean.modularity + 3 * s.random.deviation.modularity);
    }
  }
  for (const SegmentedHead& h : r.heads) {
    CHECK(h.to_people.has_value());
    CHECK(h.to_surprise.has_value());
    CHECK((h.layer < 2 && h.head < 2));
  }
  double sum = 0;
  for (const double x : r.people_density) sum += x;
  CHECK(sum == Approx(1));
}

TEST_CASE("a number of events that no gamma gives is said beside the nearest one") {
  StoryMaterial story = some_story();
  story.people.clear();
  for (std::int64_t t = 7; t < 241; t += 4) story.people.push_back(t);  // 59
  const StoryResult r = compare(story, some_options());
  const auto wanted = static_cast<std::int64_t>(story.people.size());
  int sequences = 0, heads = 0;
  for (const Segmented& s : r.sequence) {
    if (s.count != "people") continue;
    INFO(s.method << ", gamma " << s.gamma.value_or(99) << ", " << s.boundaries.size());
    const auto n = static_cast<std::int64_t>(s.boundaries.size());
    if (s.method == "G") {  // events of six keys at least: 4, and two that record a value
      CHECK(s.missed == wanted);
      CHECK(n <= 40);
      CHECK(*s.gamma < 0);
      ++sequences;
    } else if (s.method == "K") {
      CHECK(!s.missed);
      CHECK(std::abs(n - wanted) <= 3);
      ++sequences;
    } else if (s.method != "S") {
      CHECK(!s.missed);
    }
  }
  for (const SegmentedHead& h : r.heads)
    if (h.count == "people") {
      CHECK(h.missed.has_value() == (h.method == "GH"));
      ++heads;
    }
  CHECK((sequences == 2 && heads == 8));
}

TEST_CASE("the random level is the mean of the draws at the same number") {
  const StoryMaterial story = some_story();
  const CompareOptions options = some_options();
  const StoryResult r = compare(story, options);
  const Segmented& f = r.sequence[4];
  REQUIRE(f.method == "F");
  const KeySums sums(story.keys);
  const auto count = static_cast<std::int64_t>(f.boundaries.size());
  std::mt19937_64 other(99);
  double modularity = 0, distance = 0;
  constexpr int kDraws = 400;
  for (int i = 0; i < kDraws; ++i) {
    const Boundaries b = random_boundaries(count, story.text, other);
    modularity += cohesion_of_all(sums, story.text, b).modularity / kDraws;
    distance += wasserstein_points(b, story.people) / kDraws;
  }
  // Two means of draws that differ: within five standard errors of the smaller one.
  const double error = 5 / std::sqrt(static_cast<double>(options.draws));
  CHECK(std::abs(f.random.mean.modularity - modularity) < error * f.random.deviation.modularity);
  CHECK(std::abs(f.random.people->wasserstein - distance) <
        error * f.random.people_deviation->wasserstein);
}

TEST_CASE("a story that no one marked is cut at surprise's number alone") {
  StoryMaterial story = some_story();
  story.people.clear();
  story.rated.clear();
  story.rated_changes.clear();
  const StoryResult r = compare(story, some_options());
  for (const Segmented& s : r.sequence) {
    CHECK(s.count != "people");
    CHECK(!s.people);
    CHECK(!s.raters);
  }
  for (const SegmentedHead& h : r.heads) CHECK(!h.to_people);
  CHECK(r.people_density.empty());
  CHECK(!r.surprise_density.empty());
}

TEST_CASE("the same seed gives the same, another one other draws") {
  const StoryMaterial story = some_story();
  CompareOptions options = some_options();
  const StoryResult a = compare(story, options), b = compare(story, options);
  CHECK(a.sequence[0].random.mean.modularity == b.sequence[0].random.mean.modularity);
  options.seed = 2;
  const StoryResult c = compare(story, options);
  CHECK(a.sequence[0].random.mean.modularity != c.sequence[0].random.mean.modularity);
}
