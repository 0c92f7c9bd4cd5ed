// SPDX-License-Identifier: Apache-2.0
// That the search by bounds is what runs, not the scan that would list the same: vectors in a tier
// that counts show which rows it asks for.
#include <atomic>
#include <cmath>
#include <random>

#include "episodic/recall/detail/exact_index.hpp"
#include "episodic/recall/vector_tier.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

/// Another tier, with the rows counted that are read from it.
class CountingTier final : public VectorTier {
 public:
  explicit CountingTier(std::unique_ptr<VectorTier> tier) : tier_(std::move(tier)) {}

  std::int64_t width() const override { return tier_->width(); }
  bool keep() const override { return tier_->keep(); }
  void append(std::int64_t layer, std::int64_t n_rows, const float* rows,
              std::span<const std::byte> codes) override {
    tier_->append(layer, n_rows, rows, codes);
  }
  void replace(std::int64_t layer, std::int64_t slab, std::int64_t n_rows, const float* rows,
               std::span<const std::byte> codes) override {
    tier_->replace(layer, slab, n_rows, rows, codes);
  }
  void rewrite(std::int64_t layer, std::int64_t first, std::int64_t n_slabs, std::int64_t n_rows,
               const Fill& fill) override {
    tier_->rewrite(layer, first, n_slabs, n_rows, fill);
  }
  void read(std::int64_t layer, std::int64_t slab, std::int64_t first, std::int64_t n,
            float* out) const override {
    rows_read += n;
    tier_->read(layer, slab, first, n, out);
  }
  std::vector<std::byte> codes(std::int64_t layer, std::int64_t slab) const override {
    return tier_->codes(layer, slab);
  }
  std::string where(std::int64_t layer, std::int64_t slab) const override {
    return tier_->where(layer, slab);
  }
  std::int64_t slabs(std::int64_t layer) const override { return tier_->slabs(layer); }
  std::int64_t rows(std::int64_t layer, std::int64_t slab) const override {
    return tier_->rows(layer, slab);
  }
  void truncate(std::int64_t layer, std::int64_t n_slabs) override {
    tier_->truncate(layer, n_slabs);
  }
  VectorImage sync() override { return tier_->sync(); }
  void committed(const VectorImage& image) override { tier_->committed(image); }
  void compact(double dead_share) override { tier_->compact(dead_share); }
  std::int64_t disk_bytes() const override { return tier_->disk_bytes(); }
  std::int64_t read_errors() const override { return tier_->read_errors(); }

  mutable std::atomic<std::int64_t> rows_read{0};  // by several threads

 private:
  std::unique_ptr<VectorTier> tier_;
};

std::vector<float> near(std::mt19937& rng, std::size_t width, float centre, float spread) {
  std::normal_distribution<float> normal;
  std::vector<float> v(width);
  for (std::size_t c = 0; c < width; ++c)
    v[c] = normal(rng) * spread + centre * std::sin(static_cast<float>(c));
  return v;
}

}  // namespace

TEST_CASE("a search by bounds asks for few vectors, those that it lists among them") {
  std::mt19937 rng(71);
  const TempDir folder;
  constexpr std::int64_t kWidth = 256, kEvents = 8 * 1024, kBest = 10;
  const IndexShape shape{4, 64, 4, RepresentativeScore::mean};
  CountingTier tier(make_vector_tier(kWidth, {folder.path(), false}));
  // room for codes and one slab of vectors: the others lie in files
  detail::ExactIndex index(shape, {0, 16, true, 4}, {&tier, 0, std::int64_t{5} << 20});
  std::vector<std::vector<float>> vectors;
  for (std::int64_t i = 0; i < kEvents; ++i) {
    vectors.push_back(near(rng, kWidth, 2.0f, 0.5f));
    index.add(vectors.back().data(), nullptr, 0);
  }
  REQUIRE(tier.slabs(0) == kEvents / 1024);
  REQUIRE(index.bytes() <= std::int64_t{5} << 20);
  std::vector<ScoredEvent> got;
  std::int64_t listed_in_files = 0;
  constexpr int kSearches = 40;
  for (int i = 0; i < kSearches + 20; ++i) {
    if (i == 20) tier.rows_read = listed_in_files = 0;  // it has learned by then
    const std::vector<float> q = near(rng, kWidth, 1.0f, 0.05f);
    index.search(q.data(), kBest, got);
    REQUIRE(static_cast<std::int64_t>(got.size()) == kBest);
    for (const ScoredEvent& e : got) listed_in_files += e.event < 2 * 1024;  // surely not in memory
  }
  INFO(tier.rows_read << " rows read by " << kSearches << " searches of " << kEvents << " events");
  REQUIRE(listed_in_files > 0);
  REQUIRE(tier.rows_read >= listed_in_files);  // exact scores come from the vectors themselves
  REQUIRE(tier.rows_read < kSearches * kEvents / 10);
}
