// SPDX-License-Identifier: Apache-2.0
#include "episodic/recall/vector_tier.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <random>
#include <thread>

#include "episodic/base/error.hpp"
#include "episodic/recall/detail/exact_index.hpp"
#include "support/faulty_calls.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace vector_tier_test {

class Folder : public TempDir {
 public:
  std::int64_t files() const {
    return std::distance(fs::directory_iterator(path()), fs::directory_iterator());
  }
};

std::vector<float> random_rows(std::mt19937& rng, std::int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

// Vectors near a common mean, queries near one direction, as keys and mean queries are.
std::vector<float> near_mean(std::mt19937& rng, std::int64_t width, float centre, float spread) {
  std::vector<float> v = random_rows(rng, width);
  for (std::size_t c = 0; c < v.size(); ++c)
    v[c] = v[c] * spread + centre * std::sin(static_cast<float>(c));
  return v;
}

bool same(const std::vector<ScoredEvent>& a, const std::vector<ScoredEvent>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.event == y.event && x.score == y.score;
  });
}

TEST_CASE("a tier keeps slabs over a commit, and every changed byte is found") {
  std::mt19937 rng(61);
  const Folder folder;
  const std::int64_t width = 5, rows = 7;
  const VectorTierOptions options{folder.path(), true};
  std::vector<std::vector<float>> slabs;
  const std::vector<std::byte> codes(11, std::byte{3});
  VectorImage image;
  {
    const auto tier = make_vector_tier(width, options);
    for (std::int64_t s = 0; s < 4; ++s) {
      slabs.push_back(random_rows(rng, rows * width));
      tier->append(s % 2, rows, slabs.back().data(), codes);
    }
    image = tier->sync();
    tier->committed(image);
    tier->append(0, rows, slabs[0].data(), codes);  // never committed
    REQUIRE(tier->disk_bytes() > 5 * vector_block_bytes(rows, width, 11));
  }
  ByteWriter saved;
  image.save(saved);
  ByteReader reader(saved.bytes(), "image");
  image = VectorImage::load(reader);
  reader.finish();
  for (std::size_t cut = 0; cut < saved.bytes().size(); ++cut) {
    ByteReader broken(std::span(saved.bytes()).first(cut), "image");
    REQUIRE_THROWS_AS(VectorImage::load(broken), FileError);
  }
  const auto check = [&](const VectorTier& tier) {
    std::vector<float> got(static_cast<std::size_t>(rows * width));
    for (std::int64_t s = 0; s < 4; ++s) {
      tier.read(s % 2, s / 2, 0, rows, got.data());
      REQUIRE(got == slabs[static_cast<std::size_t>(s)]);
      tier.read(s % 2, s / 2, 3, 1, got.data());
      REQUIRE(std::equal(got.begin(), got.begin() + width,
                         slabs[static_cast<std::size_t>(s)].begin() + 3 * width));
      REQUIRE(tier.codes(s % 2, s / 2) == codes);
    }
  };
  {
    const auto tier = open_vector_tier(width, options, image);
    check(*tier);
    REQUIRE(tier->slabs(0) == 2);
    REQUIRE_THROWS_AS(tier->read(0, 2, 0, 1, slabs[0].data()), DataError);
    REQUIRE_THROWS_AS(tier->read(0, 0, 6, 2, slabs[0].data()), DataError);
    REQUIRE_THROWS_AS(open_vector_tier(width + 1, options, image), FileError);
    tier->append(1, rows, slabs[1].data(), codes);  // into a file of its own
    REQUIRE(folder.files() == 2);
  }
  REQUIRE(folder.files() == 1);

  const auto damages = [&] {
    return verify_vectors(width, folder.path(), image, io::system_calls(), [](auto&, auto&) {});
  };
  REQUIRE(damages() == 0);
  const fs::path path = folder.path() / vector_file_name(image.files[0].id);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (std::int64_t i = 0; i < image.files[0].bytes; ++i) {
    file.seekg(i);
    const char was = static_cast<char>(file.get());
    file.seekp(i);
    file.put(static_cast<char>(was ^ 0x10)).flush();
    INFO("byte " << i);
    REQUIRE(damages() == 1);
    file.seekp(i);
    file.put(was).flush();
  }
  REQUIRE(damages() == 0);

  // A damaged row is refused and counted, the others are served.
  const auto tier = open_vector_tier(width, options, image);
  const std::int64_t last = image.files[0].bytes - 9;
  file.seekp(last);
  file.put('x').flush();
  std::vector<float> row(static_cast<std::size_t>(width));
  REQUIRE_THROWS_AS(tier->read(1, 1, rows - 1, 1, row.data()), FileError);
  REQUIRE(tier->read_errors() == 1);
  tier->read(1, 1, 0, 1, row.data());
  // Two slabs in each other's place.
  std::swap(image.slabs[0].offset, image.slabs[1].offset);
  REQUIRE_THROWS_AS(open_vector_tier(width, options, image), FileError);
  fs::resize_file(path, static_cast<std::uintmax_t>(last));
  REQUIRE_THROWS_AS(open_vector_tier(width, options, image), FileError);
}

TEST_CASE("a tier without keep leaves no names, keeps its budget, and outlives a full disk") {
  std::mt19937 rng(62);
  const Folder folder;
  const std::int64_t width = 4, rows = 8, block = vector_block_bytes(rows, width, 0);
  FaultyCalls calls;
  const auto tier = make_vector_tier(width, {folder.path(), false, 3 * block, &calls});
  const std::vector<float> a = random_rows(rng, rows * width), b = random_rows(rng, rows * width);
  tier->append(0, rows, a.data(), {});
  REQUIRE(folder.files() == 0);
  calls.play({{io::Kind::vectors, io::Op::allocate}, FaultyCalls::Fault::error, ENOSPC, 0, true});
  REQUIRE_THROWS_AS(tier->append(0, rows, b.data(), {}), io::DiskFullError);
  calls.heal();
  REQUIRE(tier->slabs(0) == 1);
  tier->append(0, rows, b.data(), {});
  REQUIRE_THROWS_AS(tier->append(0, rows, b.data(), {}), BudgetError);
  REQUIRE(tier->disk_bytes() <= 3 * block);
  std::vector<float> got(a.size());
  tier->read(0, 0, 0, rows, got.data());
  REQUIRE(got == a);
  tier->read(0, 1, 0, rows, got.data());
  REQUIRE(got == b);
}

TEST_CASE("slabs are written behind, read meanwhile, and kept when that fails") {
  std::mt19937 rng(66);
  const Folder folder;
  const std::int64_t width = 6, rows = 9;
  FaultyCalls calls;
  const auto tier = make_vector_tier(width, {folder.path(), true, 0, &calls});
  std::vector<std::vector<float>> slabs;
  const std::vector<std::byte> codes(13, std::byte{5});
  const auto append = [&] {
    const std::vector<float> slab = random_rows(rng, rows * width);
    tier->append(1, rows, slab.data(), codes);
    slabs.push_back(slab);
  };
  const auto check = [&] {
    std::vector<float> got(static_cast<std::size_t>(rows * width));
    REQUIRE(tier->slabs(1) == static_cast<std::int64_t>(slabs.size()));
    for (std::size_t s = 0; s < slabs.size(); ++s) {
      tier->read(1, static_cast<std::int64_t>(s), 0, rows, got.data());
      REQUIRE(got == slabs[s]);
      REQUIRE(tier->codes(1, static_cast<std::int64_t>(s)) == codes);
    }
  };
  append();
  tier->committed(tier->sync());
  const FaultyCalls::Site write{io::Kind::vectors, io::Op::write};
  FaultyCalls::Script late{write, FaultyCalls::Fault::late, 0, 0, false};
  late.delay = std::chrono::seconds(1);
  calls.play(late);
  for (int i = 0; i < 5; ++i) append();
  CHECK(calls.calls(write) <= 1);  // nobody waited for the first of them
  check();
  tier->truncate(1, 4);
  slabs.resize(4);
  append();
  tier->committed(tier->sync());
  CHECK(calls.calls(write) > 1);
  check();

  calls.play({write, FaultyCalls::Fault::error, EIO, 0, true});
  append();
  CHECK_THROWS_AS(tier->sync(), FileError);
  CHECK_THROWS_AS(append(), FileError);  // tells that the one before could not be written
  check();
  calls.heal();
  tier->replace(1, 5, rows, slabs[0].data(), codes);
  slabs[5] = slabs[0];
  append();
  const VectorImage image = tier->sync();
  tier->committed(image);
  check();
  CHECK(verify_vectors(width, folder.path(), image, io::system_calls(), [](auto&, auto&) {}) == 0);
}

TEST_CASE("layers append to a tier, rewrite it and read from it on threads of their own") {
  const std::int64_t width = 16, rows = 32;
  for (const bool keep : {true, false}) {
    const Folder folder;
    const auto tier = make_vector_tier(width, {folder.path(), keep});
    std::atomic<bool> right{true};
    std::vector<std::thread> threads;
    for (unsigned layer = 0; layer < 4; ++layer)
      threads.emplace_back([&, layer] {
        std::mt19937 rng(layer);
        std::vector<std::vector<float>> slabs;
        std::vector<float> got(static_cast<std::size_t>(rows * width));
        for (int i = 0; i < 60; ++i) {
          slabs.push_back(random_rows(rng, rows * width));
          tier->append(layer, rows, slabs.back().data(), {});
          const std::size_t s = rng() % slabs.size();
          tier->read(layer, static_cast<std::int64_t>(s), 0, rows, got.data());
          if (got != slabs[s]) right = false;
          if (i % 20 == 19) tier->truncate(layer, i - 5), slabs.resize(tier->slabs(layer));
          if (i % 15 != 7 || slabs.size() < 5) continue;
          // Every other slab from the third on goes.
          const auto from = static_cast<std::int64_t>(2 + rng() % 2);
          const std::int64_t n = (tier->slabs(layer) - from) / 2;
          tier->rewrite(layer, from, n, rows,
                        [&](std::int64_t slab, float* out, std::vector<std::byte>& codes) {
                          tier->read(layer, 2 * slab - from, 0, rows, out);
                          codes.assign(3, std::byte{5});
                        });
          for (std::int64_t slab = from; slab < from + n; ++slab)
            slabs[static_cast<std::size_t>(slab)] =
                slabs[static_cast<std::size_t>(2 * slab - from)];
          slabs.resize(static_cast<std::size_t>(from + n));
          if (tier->slabs(layer) != from + n) right = false;
        }
        for (std::size_t s = 0; s < slabs.size(); ++s) {
          tier->read(layer, static_cast<std::int64_t>(s), 0, rows, got.data());
          if (got != slabs[s]) right = false;
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(right);
    const VectorImage image = tier->sync();
    if (!keep) continue;
    CHECK(verify_vectors(width, folder.path(), image, io::system_calls(), [](auto&, auto&) {}) ==
          0);
    // What no slab is in any more goes, and what is left of others is given up by compact.
    tier->compact(0.01);
    const VectorImage compacted = tier->sync();
    tier->committed(compacted);
    std::int64_t needed = 0;
    for (const VectorImage::Slab& slab : compacted.slabs)
      needed += vector_block_bytes(tier->rows(slab.layer, slab.slab), width, 3);
    std::int64_t counted = 0;
    for (const VectorImage::File& file : compacted.files) counted += file.bytes - 40;
    CHECK(counted <= needed);
  }
}

TEST_CASE("an index with its vectors in a tier lists what one in host memory lists") {
  std::mt19937 rng(63);
  const Folder folder;
  const std::int64_t width = 256, n = 5000;
  const IndexShape shape{4, 64, 4, RepresentativeScore::mean};
  const VectorTierOptions options{folder.path(), true};
  auto tier = make_vector_tier(width, options);
  const VectorPlace place{tier.get(), 2, std::int64_t{4} << 20};
  detail::ExactIndex index(shape, {0, 16, true, 4}, place),
      plain(shape, {std::int64_t{1} << 60, 1});
  const auto add = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::vector<float> v = near_mean(rng, width, 2.0f, 0.5f);
      index.add(v.data(), nullptr, 0);
      plain.add(v.data(), nullptr, 0);
    }
  };
  const auto compare = [&](RepresentativeIndex& a) {
    std::vector<ScoredEvent> got, want;
    for (int i = 0; i < 40; ++i) {
      const std::vector<float> q = near_mean(rng, width, 1.0f, i % 10 ? 0.05f : 1.0f);
      a.search(q.data(), 1 + i % 30, got);
      plain.search(q.data(), 1 + i % 30, want);
      REQUIRE(same(got, want));
    }
    for (std::int64_t e = 0; e < plain.size(); e += 97)
      if (!plain.forgotten(e)) REQUIRE(std::equal(a.mean(e), a.mean(e) + width, plain.mean(e)));
  };
  add(n);
  compare(index);
  REQUIRE(tier->slabs(2) == 4);
  REQUIRE(index.bytes() <= place.host_bytes);
  REQUIRE(plain.bytes() > place.host_bytes);
  for (int i = 0; i < 60; ++i) {
    const auto e = static_cast<EventId>(rng() % static_cast<std::uint64_t>(n));
    index.forget(e), plain.forget(e);
  }
  index.forget(17), plain.forget(17);
  compare(index);
  REQUIRE_THROWS_AS(index.mean(17), DataError);
  index.truncate(2500), plain.truncate(2500);
  compare(index);
  add(1700);
  index.forget(3000), plain.forget(3000);
  compare(index);

  const auto reopened = [&] {
    const VectorImage image = tier->sync();
    tier->committed(image);
    ByteWriter saved;
    index.save(saved);
    const auto other = open_vector_tier(width, options, image);
    detail::ExactIndex loaded(shape, {0, 16, true, 4}, {other.get(), 2, place.host_bytes});
    ByteReader reader(saved.bytes(), "state");
    loaded.load(reader);
    reader.finish();
    REQUIRE(loaded.size() == plain.size());
    compare(loaded);
    for (std::int64_t e = 0; e < plain.size(); ++e)
      REQUIRE(loaded.forgotten(e) == plain.forgotten(e));
    return saved.bytes().size();
  };
  REQUIRE(reopened() < 1200 * width * 4);  // the tail alone
  std::vector<float> row(static_cast<std::size_t>(width));
  tier->read(2, 0, 17, 1, row.data());
  REQUIRE(std::any_of(row.begin(), row.end(), [](float x) { return x != 0.0f; }));
  index.compact();
  tier->compact(0.5);
  reopened();
  REQUIRE(folder.files() == 1);  // the file with the erased vectors is gone
  tier->read(2, 0, 17, 1, row.data());
  REQUIRE(std::all_of(row.begin(), row.end(), [](float x) { return x == 0.0f; }));
  REQUIRE(tier->disk_bytes() < 5 * vector_block_bytes(1024, width, 300 * 1024));
  compare(index);
}

TEST_CASE(
    "going back into a slab that only the tier holds cannot fail; fetching it can, and again") {
  std::mt19937 rng(65);
  const Folder folder;
  const std::int64_t width = 256;
  const IndexShape shape{4, 64, 4, RepresentativeScore::mean};
  FaultyCalls calls;
  const auto tier = make_vector_tier(width, {folder.path(), true, 0, &calls});
  detail::ExactIndex index(shape, {0, 16, true, 4}, {tier.get(), 0, std::int64_t{4} << 20});
  detail::ExactIndex plain(shape, {std::int64_t{1} << 60, 1});
  const auto add = [&] {
    const std::vector<float> v = near_mean(rng, width, 2.0f, 0.5f);
    index.add(v.data(), nullptr, 0);
    plain.add(v.data(), nullptr, 0);
  };
  while (plain.size() < 5000) add();
  index.forget(490), plain.forget(490);
  FaultyCalls::Script script;
  script.site = {io::Kind::vectors, io::Op::read};
  script.for_ever = true;
  calls.play(script);
  REQUIRE_NOTHROW(index.truncate(500));
  plain.truncate(500);
  REQUIRE(calls.faults() == 0);  // no file was asked
  const std::vector<float> v = random_rows(rng, width);
  std::vector<ScoredEvent> got, want;
  REQUIRE_THROWS_AS(index.add(v.data(), nullptr, 0), FileError);
  REQUIRE_THROWS_AS(index.search(v.data(), 5, got), FileError);
  REQUIRE_THROWS_AS(index.finish_truncate(), FileError);
  REQUIRE(index.size() == 500);
  index.forget(491), plain.forget(491);
  REQUIRE_NOTHROW(index.truncate(495));  // and back once more before it is there
  plain.truncate(495);
  calls.heal();
  index.finish_truncate();
  REQUIRE(tier->slabs(0) == 0);
  while (plain.size() < 2200) add();
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> q = random_rows(rng, width);
    index.search(q.data(), 9, got);
    plain.search(q.data(), 9, want);
    REQUIRE(same(got, want));
    REQUIRE(index.score(q.data(), got[3].event) == got[3].score);
  }
  REQUIRE_THROWS_AS(index.mean(491), DataError);
  REQUIRE_THROWS_AS(index.score(v.data(), 491), DataError);
  REQUIRE_THROWS_AS(index.score(v.data(), 2200), DataError);
}

TEST_CASE("a budget that not even the codes fit into is refused, and nothing is added") {
  std::mt19937 rng(64);
  const Folder folder;
  const auto tier = make_vector_tier(256, {folder.path()});
  const auto index =
      make_exact_index({4, 64, 4, RepresentativeScore::mean}, {tier.get(), 0, 2 << 20});
  const std::vector<float> v = random_rows(rng, 256);
  bool refused = false;
  while (index->size() < 10000 && !refused) {
    const std::int64_t before = index->size();
    try {
      index->add(v.data(), nullptr, 0);
    } catch (const BudgetError& e) {
      refused = std::string(e.what()).find("repr_bytes") == 0;
      REQUIRE(index->size() == before);
    }
    REQUIRE(index->bytes() <= 2 << 20);
  }
  REQUIRE(refused);
  REQUIRE(index->size() >= 1024);
}

}  // namespace vector_tier_test
