// SPDX-License-Identifier: Apache-2.0
// An index gives up the rows of forgotten events. Beside it stands one that keeps them as zeros and
// scans them all: nothing but bytes may differ.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/recall/detail/exact_index.hpp"
#include "episodic/recall/vector_tier.hpp"
#include "support/faulty_calls.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace shrinking_index_test {

constexpr std::int64_t kHeads = 4, kDim = 256, kWidth = kHeads * kDim, kSlab = 256, kRepr = 3;
constexpr std::int64_t kNever = std::int64_t{1} << 60;

std::vector<float> random_vector(std::mt19937& rng, std::int64_t n = kWidth) {
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

struct Pair {
  IndexShape shape;
  detail::ExactTuning bounds{0, 16, true, 4}, plain_tuning{kNever, 1};
  VectorPlace place;
  std::unique_ptr<detail::ExactIndex> index, plain;
  std::mt19937 rng;

  Pair(RepresentativeScore score, const VectorPlace& at, unsigned seed)
      : shape{kHeads, kDim, kRepr, score}, place(at), rng(seed) {
    plain_tuning.shrinks = false;
    index = std::make_unique<detail::ExactIndex>(shape, bounds, place);
    plain = std::make_unique<detail::ExactIndex>(shape, plain_tuning);
  }

  void add(std::int64_t n) {
    for (; n > 0; --n) {
      const std::vector<float> mean = random_vector(rng), each = random_vector(rng, 3 * kWidth);
      const auto count = static_cast<std::int64_t>(1 + rng() % kRepr);
      index->add(mean.data(), each.data(), count);
      plain->add(mean.data(), each.data(), count);
    }
  }
  void forget(EventId event) { index->forget(event), plain->forget(event); }
  /// All but one in so many.
  void forget_most(EventId from, EventId end, unsigned one_in) {
    for (EventId e = from; e < end; ++e)
      if (rng() % one_in != 0) forget(e);
  }
  void truncate(std::int64_t n) { index->truncate(n), plain->truncate(n); }
  void compare(RepresentativeIndex& a) {
    REQUIRE(a.size() == plain->size());
    std::vector<ScoredEvent> got, want;
    for (int i = 0; i < 12; ++i) {
      const std::vector<float> q = random_vector(rng);
      const std::int64_t k = i == 0 ? 5000 : 1 + static_cast<std::int64_t>(rng() % 40);
      a.search(q.data(), k, got);
      plain->search(q.data(), k, want);
      REQUIRE(got.size() == want.size());
      for (std::size_t r = 0; r < got.size(); ++r) {
        REQUIRE(got[r].event == want[r].event);
        REQUIRE(got[r].score == want[r].score);
        if (r < 3) REQUIRE(a.score(q.data(), got[r].event) == got[r].score);
      }
    }
    for (EventId e = 0; e < a.size(); ++e) {
      REQUIRE(a.forgotten(e) == plain->forgotten(e));
      if (a.forgotten(e) || e % 3 != 0) continue;
      REQUIRE(std::equal(a.mean(e), a.mean(e) + kWidth, plain->mean(e)));
      REQUIRE(a.each(e) == plain->each(e));
    }
  }
  void compare() { compare(*index); }
  std::int64_t remembered() const {
    std::int64_t n = 0;
    for (EventId e = 0; e < plain->size(); ++e) n += !plain->forgotten(e);
    return n;
  }
};

TEST_CASE("an index gives up what it forgets, and lists what one lists that does not",
          "[index][shrink]") {
  const TempDir folder;
  for (const auto score : {RepresentativeScore::mean, RepresentativeScore::max})
    for (const bool filed : {false, true}) {
      CAPTURE(static_cast<int>(score), filed);
      std::unique_ptr<VectorTier> tier;
      if (filed) tier = make_vector_tier(kWidth, {folder.path(), false});
      Pair p(score, {tier.get(), 1, filed ? std::int64_t{4} << 20 : 0}, 7);
      if (score == RepresentativeScore::max) p.place.host_bytes = 0;
      if (score == RepresentativeScore::max) p = Pair(score, {tier.get(), 1, 0}, 7);
      std::int64_t most = 0;
      for (int round = 0; round < 12; ++round) {
        const std::int64_t from = p.plain->size();
        p.add(150);
        p.forget_most(std::max<EventId>(0, from - 80), p.plain->size() - 20, 12);
        p.index->shrink();
        most = std::max(most, p.index->bytes());
        if (round % 3 == 2) p.compare();
      }
      REQUIRE(p.remembered() < 400);
      // Rows of what is remembered, once more, and slabs that are not full.
      CHECK(most < p.plain->bytes() * 3 / 4);
      if (filed && score == RepresentativeScore::mean) {
        CHECK(tier->slabs(1) <= 3);
        CHECK(tier->disk_bytes() < 5 * vector_block_bytes(kSlab, kWidth, 300 * kSlab) + (1 << 20));
      }
      // Numbers are given anew behind a rewind, also where rows of earlier ones are gone.
      p.truncate(p.plain->size() - 170);
      p.compare();
      p.add(300);
      p.compare();
      p.forget_most(0, p.plain->size(), 1000);
      p.index->shrink();
      p.add(2);
      p.compare();
      p.truncate(1);
      p.add(5);
      p.compare();
      p.truncate(0);
      p.add(3);
      p.compare();
    }
}

TEST_CASE("an index that forgets everything begins anew", "[index][shrink]") {
  Pair p(RepresentativeScore::mean, {}, 11);
  p.add(600);
  for (EventId e = 0; e < 600; ++e) p.forget(e);
  p.index->shrink();
  p.compare();
  ByteWriter saved;
  p.index->save(saved);
  REQUIRE(saved.bytes().size() < 64 * kWidth);  // no row
  detail::ExactIndex loaded(p.shape, p.bounds);
  ByteReader from(saved.bytes(), "state");
  loaded.load(from);
  from.finish();
  p.compare(loaded);
  p.add(40);
  p.compare();
  REQUIRE(p.index->mean(600) != nullptr);
  REQUIRE_THROWS_AS(p.index->mean(599), DataError);
}

TEST_CASE("a kept tier's rows move when they are told to, and a commit before it stands",
          "[index][shrink]") {
  const TempDir folder;
  const VectorTierOptions options{folder.path(), true};
  auto tier = make_vector_tier(kWidth, options);
  Pair p(RepresentativeScore::mean, {tier.get(), 0, std::int64_t{4} << 20}, 13);
  p.add(6 * kSlab + 10);
  const auto saved = [&] {
    VectorImage image = tier->sync();
    ByteWriter to;
    p.index->save(to);
    return std::pair(std::move(image), to.take());
  };
  const auto reopened = [&](const std::pair<VectorImage, std::vector<std::byte>>& commit) {
    const auto other = open_vector_tier(kWidth, {folder.path(), false}, commit.first);
    auto loaded = std::make_unique<detail::ExactIndex>(
        p.shape, p.bounds, VectorPlace{other.get(), 0, p.place.host_bytes});
    ByteReader from(commit.second, "state");
    loaded->load(from);
    from.finish();
    p.compare(*loaded);
    loaded->forget(p.plain->size() - 1);
    loaded->truncate(loaded->size() / 2);
    std::vector<ScoredEvent> list;
    loaded->search(random_vector(p.rng).data(), 3, list);
    REQUIRE(list.size() == 3);
  };
  const auto before = saved();
  tier->committed(before.first);
  reopened(before);
  const auto bytes_before = tier->disk_bytes();

  p.forget_most(2 * kSlab, 6 * kSlab, 20);  // the first two slabs stay as they are
  p.add(kSlab);
  REQUIRE(tier->slabs(0) == 7);  // only shrink moves what a commit may come back to
  p.index->shrink();
  REQUIRE(tier->slabs(0) == p.remembered() / kSlab);
  p.compare();
  const auto after = saved();  // and a crash before it is committed finds all that was
  REQUIRE(verify_vectors(kWidth, folder.path(), before.first, io::system_calls(),
                         [](auto&, auto&) {}) == 0);
  tier->compact(0.5);
  const auto compacted = saved();
  tier->committed(compacted.first);
  reopened(compacted);
  REQUIRE(verify_vectors(kWidth, folder.path(), compacted.first, io::system_calls(),
                         [](auto&, auto&) {}) == 0);
  REQUIRE(compacted.first.slabs.size() == after.first.slabs.size());
  REQUIRE(tier->disk_bytes() < bytes_before * 3 / 4);

  // What is forgotten behind that is erased by compact, in place where it is little.
  const EventId one = 1;
  p.forget(one);
  p.index->compact();
  std::vector<float> row(kWidth, 1.0f);
  tier->read(0, 0, 1, 1, row.data());
  REQUIRE(std::all_of(row.begin(), row.end(), [](float x) { return x == 0.0f; }));
  p.compare();
}

TEST_CASE("an index whose files cannot be written stays as it was, and shrinks later",
          "[index][shrink]") {
  for (const io::Op op : {io::Op::write, io::Op::create, io::Op::allocate}) {
    CAPTURE(static_cast<int>(op));
    const TempDir folder;
    FaultyCalls calls;
    const auto tier = make_vector_tier(kWidth, {folder.path(), true, 0, &calls});
    Pair p(RepresentativeScore::mean, {tier.get(), 0, std::int64_t{4} << 20}, 17);
    p.add(5 * kSlab);
    tier->committed(tier->sync());
    p.forget_most(0, 5 * kSlab, 3);
    FaultyCalls::Script script;
    script.site = {io::Kind::vectors, op};
    script.for_ever = true;
    script.error = ENOSPC;
    calls.play(script);
    bool failed = false;
    try {
      p.index->shrink();
      tier->sync();  // what is written behind fails here
    } catch (const Error&) {
      failed = true;
    }
    REQUIRE(failed);
    p.compare();
    calls.heal();
    p.index->shrink();
    tier->committed(tier->sync());
    REQUIRE(tier->slabs(0) == p.remembered() / kSlab);
    p.compare();
  }
}

std::string all_bytes(const fs::path& folder) {
  std::string all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    all.append(std::istreambuf_iterator<char>(file), {});
  }
  return all;
}

TEST_CASE("nothing of a forgotten vector is left in files that were compacted", "[index][shrink]") {
  const TempDir folder;
  const auto tier = make_vector_tier(kWidth, {folder.path(), true});
  std::vector<std::unique_ptr<Pair>> lanes;
  for (const std::int64_t layer : {0, 1})
    lanes.push_back(std::make_unique<Pair>(RepresentativeScore::mean,
                                           VectorPlace{tier.get(), layer, 0},
                                           29 + static_cast<unsigned>(layer)));
  const auto commit = [&] { tier->committed(tier->sync()); };
  std::vector<std::string> gone;
  for (const bool both : {false, true}) {
    CAPTURE(both);
    // Slabs in one file before and behind the commit; those behind it, but for a few rows, go.
    const std::size_t n_lanes = both ? 2 : 1;
    for (std::size_t l = 0; l < n_lanes; ++l) lanes[l]->add(kSlab);
    commit();
    for (std::size_t l = 0; l < n_lanes; ++l) lanes[l]->add(3 * kSlab);
    for (std::size_t l = 0; l < n_lanes; ++l) {
      Pair& p = *lanes[l];
      for (EventId e = p.plain->size() - 3 * kSlab; e < p.plain->size(); ++e) {
        if (e % 3 == 0) continue;
        const float* row = p.plain->row(e);
        if (e % 7 == 0) gone.emplace_back(reinterpret_cast<const char*>(row), kWidth * 4);
        p.forget(e);
      }
      p.index->compact();
    }
    tier->compact(std::numeric_limits<double>::min());
    commit();
    for (std::size_t l = 0; l < n_lanes; ++l) lanes[l]->compare();
    const std::string left = all_bytes(folder.path());
    for (const std::string& row : gone) REQUIRE(left.find(row) == std::string::npos);
  }
}

TEST_CASE("files without names take what is remembered, whatever stays in place",
          "[index][shrink]") {
  const TempDir folder;
  const auto tier = make_vector_tier(kWidth, {folder.path(), false});
  Pair p(RepresentativeScore::mean, {tier.get(), 0, std::int64_t{6} << 20}, 31);
  std::int64_t live = 0;
  for (int round = 0; round < 6; ++round) {
    const EventId first = p.plain->size();
    p.add(6 * kSlab);
    for (EventId e = first; e < p.plain->size(); ++e)
      if (e % 8 != 0) p.forget(e);
    p.index->shrink();
    tier->compact(0.5);
    live = tier->slabs(0);
    CHECK(live <= 3 * (round + 1) / 2 + 1 + 6);
  }
  REQUIRE(p.remembered() < 5 * kSlab);
  p.compare();
  const std::int64_t block = vector_block_bytes(kSlab, kWidth, kSlab * (kWidth + 40) + 4 * kWidth);
  CHECK(tier->disk_bytes() < 2 * (live + 1) * block);
}

TEST_CASE("a damaged row hinders no shrinking but of its own, which takes no room at each try",
          "[index][shrink]") {
  const TempDir folder;
  auto tier = make_vector_tier(kWidth, {folder.path(), true});
  const VectorPlace bound{tier.get(), 0, std::int64_t{8} << 20};
  Pair p(RepresentativeScore::mean, bound, 37);
  p.add(16 * kSlab);
  for (EventId e = 0; e < p.plain->size(); ++e)
    if (e % 3 != 0) p.forget(e);
  const VectorImage image = tier->sync();
  ByteWriter saved;
  p.index->save(saved);
  const auto damage = [&](std::int64_t slab, std::int64_t row) {
    const VectorImage::Slab& at = image.slabs[static_cast<std::size_t>(slab)];
    // Rows lie at the end of a block, which is where the next begins.
    const std::int64_t end = image.slabs[static_cast<std::size_t>(slab + 1)].offset;
    std::fstream file(
        folder.path() / vector_file_name(image.files[static_cast<std::size_t>(at.file)].id),
        std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(end - (kSlab - row) * (kWidth * 4 + 8) + 5);
    file.put('\x55').put('\x2a');
  };
  damage(1, 1);  // event 257, forgotten
  const auto opened = [&](VectorTier& of) {
    auto index = std::make_unique<detail::ExactIndex>(p.shape, p.bounds,
                                                      VectorPlace{&of, 0, bound.host_bytes});
    ByteReader from(saved.bytes(), "state");
    index->load(from);
    return index;
  };
  {
    const auto other = open_vector_tier(kWidth, {folder.path(), false}, image);
    const auto index = opened(*other);
    index->shrink();
    REQUIRE(other->slabs(0) == p.remembered() / kSlab);
    p.compare(*index);
  }
  damage(12, 0);  // event 3072, remembered: of the fifth slab anew
  // Room for what a try writes, not for what several would leave.
  std::int64_t room = 8 * vector_block_bytes(kSlab, kWidth, kSlab * (kWidth + 40) + 4 * kWidth);
  for (const VectorImage::File& file : image.files) room += file.bytes;
  const auto other = open_vector_tier(kWidth, {folder.path(), false, room}, image);
  const auto index = opened(*other);
  for (int i = 0; i < 12; ++i) REQUIRE_THROWS_AS(index->shrink(), FileError);
  CHECK(other->slabs(0) == 16);
  REQUIRE_THROWS_AS(index->mean(3072), FileError);
  REQUIRE(std::equal(index->mean(3075), index->mean(3075) + kWidth, p.plain->mean(3075)));
}

TEST_CASE("a state from before rows had events of their own is read", "[index][shrink]") {
  std::mt19937 rng(19);
  const IndexShape shape{2, 8, 2, RepresentativeScore::mean};
  const std::vector<float> rows = random_vector(rng, 3 * 16);
  ByteWriter old;
  old.put(shape.n_heads);
  old.put(shape.head_dim);
  old.put(shape.n_repr);
  old.put(shape.score);
  old.put(std::int64_t{3});
  old.put(std::int64_t{0});  // slabs in a tier
  old.put_vector(std::vector<std::int64_t>());
  old.put_span(std::span<const float>(rows));
  old.put_vector(std::vector<std::uint8_t>{0, 1, 0});
  old.put(std::int64_t{0});  // queries
  old.put(std::int64_t{1});
  old.put_vector(std::vector<float>());
  detail::ExactIndex index(shape);
  ByteReader from(old.bytes(), "state", 4);
  index.load(from);
  from.finish();
  REQUIRE(index.size() == 3);
  REQUIRE(index.forgotten(1));
  REQUIRE(std::equal(index.mean(2), index.mean(2) + 16, rows.begin() + 32));
  detail::ExactIndex other(shape);
  ByteReader wrong(old.bytes(), "state");
  REQUIRE_THROWS_AS(other.load(wrong), FileError);
}

TEST_CASE("rows that are said to be of other events are refused", "[index][shrink]") {
  Pair p(RepresentativeScore::mean, {}, 23);
  p.add(400);
  for (EventId e = 0; e < 400; ++e)
    if (e % 80 != 0) p.forget(e);
  p.index->shrink();
  ByteWriter saved;
  p.index->save(saved);
  detail::ExactIndex in_place(p.shape, p.plain_tuning);
  ByteReader rows_of_some(saved.bytes(), "state");
  REQUIRE_THROWS_AS(in_place.load(rows_of_some), FileError);
  constexpr std::size_t kRows = 3 * 8 + sizeof(RepresentativeScore) + 8, kEvents = kRows + 8 + 8;
  const auto refused = [&](std::size_t at, std::int64_t value) {
    std::vector<std::byte> bytes = saved.bytes();
    std::memcpy(bytes.data() + at, &value, sizeof value);
    detail::ExactIndex index(p.shape, p.bounds);
    ByteReader from(bytes, "state");
    try {
      index.load(from);
    } catch (const FileError& e) {
      return std::string(e.what()).find("state: ") == 0;
    }
    return false;
  };
  std::int64_t first = 0;
  std::memcpy(&first, saved.bytes().data() + kEvents + 8, sizeof first);
  REQUIRE(first == 80);            // the second row's
  REQUIRE(refused(kEvents, 1));    // which was forgotten
  REQUIRE(refused(kEvents, 160));  // out of order
  REQUIRE(refused(kEvents, -1));
  REQUIRE(refused(kEvents + 4 * 8, 400));
  REQUIRE(refused(kRows, 6));
  REQUIRE(refused(kRows, -1));
}

}  // namespace shrinking_index_test
