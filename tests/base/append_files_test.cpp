// SPDX-License-Identifier: Apache-2.0
#include "base/append_files.hpp"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "episodic/base/error.hpp"
#include "support/faulty_calls.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::io;
namespace fs = std::filesystem;

namespace {

using Bytes = std::vector<std::byte>;

/// A header of 12 bytes: magic and the file's number.
FileFormat format_of() {
  const auto header = [](std::uint64_t id) {
    ByteWriter w;
    w.put(std::uint32_t{0x74736574});
    w.put(id);
    return w.take();
  };
  const auto fault = [header](std::uint64_t id, std::span<const std::byte> found) {
    return std::ranges::equal(found, header(id)) ? std::string() : "is no file of the test";
  };
  return {Kind::vectors, "part", "bin", 12, header, fault};
}

Bytes random_bytes(std::mt19937& rng, std::int64_t n) {
  Bytes bytes(static_cast<std::size_t>(n));
  for (std::byte& b : bytes) b = static_cast<std::byte>(1 + rng() % 255);  // no zeros
  return bytes;
}

AppendFiles::Place append(AppendFiles& files, const Bytes& bytes) {
  const auto n = static_cast<std::int64_t>(bytes.size());
  auto one = AppendFiles::make(n);
  std::ranges::copy(bytes, one.front().own.begin());
  files.admit(n);
  const auto place = files.place(n, {n, 1});
  files.write(place, std::move(one));
  return place;
}

void give_back(AppendFiles& files, const AppendFiles::Place& place, const Bytes& bytes) {
  auto lock = files.lock();
  files.reserve_holes(lock, 1);
  files.give_back(lock, place, static_cast<std::int64_t>(bytes.size()));
}

bool holds(const AppendFiles& files, const AppendFiles::Place& place, const Bytes& bytes) {
  Bytes got(bytes.size());
  files.read(place, got);
  return got == bytes;
}

std::vector<FileRef> commit(AppendFiles& files) {
  files.sync();
  std::vector<std::int32_t> number;
  const auto refs = files.refs(number);
  files.committed(refs);
  return refs;
}

std::int64_t files_in(const fs::path& dir) {
  return std::distance(fs::directory_iterator(dir), fs::directory_iterator());
}

struct Piece {
  AppendFiles::Place place;
  Bytes bytes;
};

}  // namespace

TEST_CASE("the smaller files become one, and each that stays is twice what is behind it",
          "[base][io]") {
  const auto first = [](std::vector<std::int64_t> bytes, std::size_t most) {
    return first_to_merge(bytes, most);
  };
  CHECK(first({}, 0) == 0);
  CHECK(first({7}, 0) == 1);
  CHECK(first({10, 10, 10}, 3) == 3);  // as many as there may be
  CHECK(first({10, 10, 10}, 2) == 0);
  CHECK(first({1000, 10, 10}, 2) == 1);
  CHECK(first({102, 40, 10}, 2) == 3);  // each is worth its place
  CHECK(first({10, 1000, 10}, 2) == 0);
  // runs of any length: few files, and no byte is copied often
  std::mt19937 rng(3);
  std::vector<std::int64_t> files;
  double copied = 0, all = 0;
  for (int run = 0; run < 5000; ++run) {
    files.push_back(rng() % 100 == 0 ? 100'000 : 1 + static_cast<std::int64_t>(rng() % 1000));
    all += static_cast<double>(files.back());
    const std::size_t from = first(files, 32);
    std::int64_t sum = 0;
    for (; files.size() > from; files.pop_back()) sum += files.back();
    if (sum > 0) files.push_back(sum);
    copied += static_cast<double>(sum);
    REQUIRE(files.size() <= 34);
  }
  CHECK(copied < 12 * all);
}

TEST_CASE("append files: a random life agrees with a plain account") {
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 rng(seed);
    const TempDir dir;
    const Directory folder(system_calls(), dir.path());
    AppendFiles::Options options;
    options.keep = seed % 3 != 0;
    options.page = seed % 2 ? 1 : 64;
    options.zero_holes = seed % 4 < 2;
    options.roll_bytes = 4000;
    options.reserve = seed % 5 != 0;
    options.queue_bytes = 1 + seed * 400;
    auto files = std::make_unique<AppendFiles>(format_of(), options, folder);
    std::vector<Piece> pieces;
    for (int op = 0; op < 300; ++op) {
      CAPTURE(seed, op);
      const auto dice = rng() % 100;
      if (dice < 60) {
        Bytes bytes = random_bytes(rng, 1 + static_cast<std::int64_t>(rng() % 700));
        const auto place = append(*files, bytes);
        pieces.push_back({place, std::move(bytes)});
      } else if (dice < 80 && !pieces.empty()) {
        // the last one most of the time, as when a step is taken back
        const std::size_t i = rng() % 3 ? pieces.size() - 1 : rng() % pieces.size();
        give_back(*files, pieces[i].place, pieces[i].bytes);
        pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(i));
      } else if (dice < 84) {
        files->close_current();
      } else if (dice < 90) {
        commit(*files);
      } else if (dice < 95 && options.keep) {
        std::vector<std::int32_t> number;
        commit(*files);
        const auto refs = files->refs(number);
        ByteWriter saved;
        save_files(saved, refs);
        ByteReader reader(saved.bytes(), "list");
        files.reset();
        files = std::make_unique<AppendFiles>(format_of(), options, folder);
        files->open(load_files(reader), folder);
        reader.finish();
        for (Piece& p : pieces) {
          p.place.file = static_cast<std::size_t>(number[p.place.file]);
          files->count(p.place.file, static_cast<std::int64_t>(p.bytes.size()));
        }
        REQUIRE(files_in(dir.path()) == static_cast<std::int64_t>(refs.size()));
      }
      if (!pieces.empty()) {
        const Piece& p = pieces[rng() % pieces.size()];
        REQUIRE(holds(*files, p.place, p.bytes));
      }
    }
    for (const Piece& p : pieces) REQUIRE(holds(*files, p.place, p.bytes));
    std::int64_t taken = 0;
    const auto refs = commit(*files);
    for (const FileRef& ref : refs)
      if (options.keep) REQUIRE(ref.bytes % options.page == 0);
    for (const Piece& p : pieces) REQUIRE(holds(*files, p.place, p.bytes));
    for (std::size_t i = 0; i < files->size(); ++i)
      if (files->has(i)) taken += files->file(i).allocated;
    if (options.reserve) REQUIRE(files->taken() == taken);
    if (!options.keep) REQUIRE(files_in(dir.path()) == 0);
  }
}

TEST_CASE("append files: bytes given up are zeros or what they were, never anything else") {
  for (const bool zeros : {false, true}) {
    std::mt19937 rng(3);
    const TempDir dir;
    const Directory folder(system_calls(), dir.path());
    AppendFiles::Options options;
    options.keep = true;
    options.page = 32;
    options.zero_holes = zeros;
    AppendFiles files(format_of(), options, folder);
    std::vector<Piece> pieces;
    for (int i = 0; i < 4; ++i) {
      Bytes bytes = random_bytes(rng, 50);
      pieces.push_back({append(files, bytes), bytes});
    }
    give_back(files, pieces[1].place, pieces[1].bytes);  // amid others
    give_back(files, pieces[3].place, pieces[3].bytes);  // at the end
    CHECK(files.dead_share(0) == 50.0 / 150.0);
    const auto refs = commit(files);
    REQUIRE(refs.size() == 1);
    CHECK(refs[0].bytes == 192);  // 12 + 150, in whole pages
    const Bytes all = folder.read(Kind::vectors, format_of().name(refs[0].id));
    REQUIRE(static_cast<std::int64_t>(all.size()) == refs[0].bytes);
    CHECK(std::equal(pieces[0].bytes.begin(), pieces[0].bytes.end(), all.begin() + 12));
    CHECK(std::equal(pieces[2].bytes.begin(), pieces[2].bytes.end(), all.begin() + 112));
    const Bytes dead = zeros ? Bytes(50) : pieces[1].bytes;
    CHECK(std::equal(dead.begin(), dead.end(), all.begin() + 62));
    CHECK(std::all_of(all.begin() + 162, all.end(), [](std::byte b) { return b == std::byte{}; }));
    // What is committed is not written again.
    give_back(files, pieces[2].place, pieces[2].bytes);
    CHECK(append(files, pieces[3].bytes).offset == 192);
  }
}

TEST_CASE("append files: going back to a mark gives back files, lengths and room") {
  std::mt19937 rng(4);
  const TempDir dir;
  AppendFiles::Options options;
  options.keep = true;
  options.roll_bytes = 1000;
  AppendFiles files(format_of(), options, Directory(system_calls(), dir.path()));
  const Bytes first = random_bytes(rng, 300);
  const auto place = append(files, first);
  const auto mark = files.mark();
  const std::int64_t taken = files.taken();
  std::vector<Piece> more;
  for (int i = 0; i < 9; ++i) {
    Bytes bytes = random_bytes(rng, 400);
    more.push_back({append(files, bytes), bytes});
  }
  REQUIRE(files_in(dir.path()) > 3);
  auto lock = files.lock();
  for (; !more.empty(); more.pop_back())
    files.give_back(lock, more.back().place, static_cast<std::int64_t>(more.back().bytes.size()));
  files.cut(lock, mark);
  lock.unlock();
  CHECK(files_in(dir.path()) == 1);
  CHECK(files.taken() <= taken);
  CHECK(append(files, first).offset == 312);
  CHECK(holds(files, place, first));
  CHECK(commit(files)[0].bytes == 612);
}

TEST_CASE("append files: a budget is kept, and its refusal names enough") {
  std::mt19937 rng(5);
  const TempDir dir;
  AppendFiles::Options options;
  options.most_bytes = 5000;
  options.unit = "blocks";
  const Bytes block = random_bytes(rng, 700);
  const auto fill = [&](AppendFiles& files) {
    for (int i = 0; i < 20; ++i) append(files, block);
  };
  const Directory folder(system_calls(), dir.path());
  AppendFiles files(format_of(), options, folder);
  REQUIRE_THROWS_AS(fill(files), BudgetError);
  CHECK(files.taken() <= 5000);
  CHECK(files.taken() > 4200);
  const std::string said = refusal<BudgetError>([&] { files.place(700, {13 * 700, 13}); });
  CHECK(mentions(said, "13 blocks"));
  const std::string mark = "set disk_bytes to at least ";
  REQUIRE(mentions(said, mark));
  options.most_bytes = std::stoll(said.substr(said.find(mark) + mark.size()));
  AppendFiles larger(format_of(), options, folder);
  for (int i = 0; i < 19; ++i) append(larger, block);
  CHECK(larger.taken() <= options.most_bytes);
}

TEST_CASE("append files: writes wait for nobody, are served meanwhile, and kept when they fail") {
  std::mt19937 rng(6);
  const TempDir dir;
  FaultyCalls calls;
  AppendFiles::Options options;
  options.keep = true;
  options.queue_bytes = 1000;
  std::vector<std::byte> gather(600);
  options.gather = gather;
  std::atomic<int> written{0};
  options.written = [&](const WriteQueue::Write&) { ++written; };
  AppendFiles files(format_of(), options, Directory(calls, dir.path()));
  const Bytes first = random_bytes(rng, 100);
  append(files, first);
  files.sync();
  REQUIRE(written == 1);

  // One write that takes a second holds up those that follow it, and nobody else.
  FaultyCalls::Script late{{Kind::vectors, Op::write}, FaultyCalls::Fault::late, 0, 0, false};
  late.delay = std::chrono::seconds(1);
  calls.play(late);
  std::vector<Piece> pieces;
  for (int i = 0; i < 10; ++i) {
    Bytes bytes = random_bytes(rng, 100);
    pieces.push_back({append(files, bytes), bytes});
  }
  CHECK(written == 1);
  for (const Piece& p : pieces) CHECK(holds(files, p.place, p.bytes));
  CHECK(calls.calls({Kind::vectors, Op::read}) == 0);
  Bytes more = random_bytes(rng, 100);
  pieces.push_back({append(files, more), more});  // above queue_bytes: waits for some to be written
  CHECK(written > 1);
  files.sync();
  CHECK(written == 12);
  CHECK(calls.calls({Kind::vectors, Op::write}) < 11);  // neighbours at once
  for (const Piece& p : pieces) CHECK(holds(files, p.place, p.bytes));
  CHECK(calls.calls({Kind::vectors, Op::read}) == 11);

  calls.play({{Kind::vectors, Op::write}, FaultyCalls::Fault::error, EIO, 0, true});
  more = random_bytes(rng, 100);
  pieces.push_back({append(files, more), more});
  CHECK(mentions(refusal<FileError>([&] { files.sync(); }), "part-"));
  CHECK_THROWS_AS(files.admit(1), FileError);
  CHECK_THROWS_AS(files.sync(), FileError);
  CHECK(holds(files, pieces.back().place, more));
  // What cannot be written can still be given up.
  const Bytes last = random_bytes(rng, 80);
  give_back(files, pieces.back().place, more);
  files.sync();
  pieces.back() = {append(files, last), last};
  CHECK_THROWS_AS(files.sync(), FileError);
  calls.heal();
  files.admit(1);  // tried again by the next call
  CHECK(written == 13);
  commit(files);
  for (const Piece& p : pieces) CHECK(holds(files, p.place, p.bytes));
}

TEST_CASE("append files: each call to the file system that fails loses nothing") {
  std::mt19937 rng(7);
  std::vector<Bytes> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(random_bytes(rng, 300));
  std::int64_t refused = 0;
  const auto life = [&](FaultyCalls& calls) {
    const TempDir dir;
    AppendFiles::Options options;
    options.keep = true;
    options.page = 16;
    options.roll_bytes = 1300;
    const auto attempt = [&](auto&& f) {
      try {
        f();
      } catch (const Error&) {
        ++refused;
        calls.heal();
        f();
      }
    };
    std::unique_ptr<AppendFiles> files;
    std::vector<Piece> pieces;
    const auto make = [&] {
      files = std::make_unique<AppendFiles>(format_of(), options, Directory(calls, dir.path()));
    };
    const auto add = [&](std::size_t n) {
      for (; n > 0; --n)
        attempt([&] {
          const Bytes& b = blocks[pieces.size()];
          pieces.push_back({append(*files, b), b});
        });
    };
    const auto remove_last = [&] {
      give_back(*files, pieces.back().place, pieces.back().bytes);
      pieces.pop_back();
    };
    std::vector<FileRef> refs;
    std::vector<std::int32_t> number;
    const auto keep = [&] {
      attempt([&] { files->sync(); });
      refs = files->refs(number);
      attempt([&] { files->committed(refs); });
    };
    attempt(make);
    add(6);
    keep();
    add(3);
    for (int i = 0; i < 4; ++i) remove_last();  // one of them committed
    files->close_current();
    add(2);
    keep();
    files.reset();
    {  // a crash's rest
      io::File tail = Directory(system_calls(), dir.path())
                          .open(Kind::vectors, format_of().name(refs[0].id), O_WRONLY);
      tail.write(blocks[0], refs[0].bytes);
    }
    attempt([&] {
      make();
      files->open(refs, files->folder());
    });
    for (Piece& p : pieces) {
      p.place.file = static_cast<std::size_t>(number[p.place.file]);
      files->count(p.place.file, 300);
    }
    add(3);
    keep();
    for (const Piece& p : pieces) {
      bool right = false;
      attempt([&] { right = holds(*files, p.place, p.bytes); });
      REQUIRE(right);
    }
    files.reset();
    calls.heal();
    const Directory folder(system_calls(), dir.path());
    for (const FileRef& ref : refs) open_file(folder, format_of(), ref);
    REQUIRE(files_in(dir.path()) >= static_cast<std::int64_t>(refs.size()));
  };
  FaultyCalls healthy;
  life(healthy);
  REQUIRE(refused == 0);
  CHECK(healthy.seen() ==
        std::vector<std::string>{"vectors open", "vectors create", "vectors read", "vectors write",
                                 "vectors sync", "vectors allocate", "vectors truncate",
                                 "vectors unlink", "directory open", "directory sync"});
  std::int64_t n = 0;
  for (const Site site : healthy.sites()) n += healthy.calls(site);
  for (const int error : {EIO, ENOSPC})
    for (const bool for_ever : {false, true})
      for (std::int64_t at = 0; at < n; ++at) {
        CAPTURE(error, for_ever, at);
        FaultyCalls calls;
        FaultyCalls::Script script;
        script.any = true;
        script.error = error;
        script.at = at;
        script.for_ever = for_ever;
        calls.play(script);
        life(calls);
      }
  CHECK(refused > n);
}

TEST_CASE("append files: what lies in a folder is believed only where it is right") {
  std::mt19937 rng(8);
  const TempDir dir;
  const Directory folder(system_calls(), dir.path());
  AppendFiles::Options options;
  options.keep = true;
  std::vector<FileRef> refs;
  const Bytes block = random_bytes(rng, 100);
  {
    AppendFiles files(format_of(), options, folder);
    append(files, block);
    refs = commit(files);
  }
  const fs::path path = dir.path() / format_of().name(refs[0].id);
  const auto refused = [&](const std::vector<FileRef>& list) {
    AppendFiles files(format_of(), options, folder);
    return refusal<FileError>([&] { files.open(list, folder); });
  };
  CHECK(mentions(refused({{refs[0].id, refs[0].bytes + 1}}), "truncated"));
  CHECK(mentions(refused({{refs[0].id, 11}}), "truncated"));
  CHECK(mentions(refused({{7, 100}}), "part-0000000000000007.bin"));
  fs::copy_file(path, dir.path() / format_of().name(7));
  CHECK(mentions(refused({{7, 100}}), "is no file of the test"));
  fs::create_symlink(path, dir.path() / format_of().name(8));
  CHECK(mentions(refused({{8, 100}}), "symbolic link"));

  // A tail is cut, unless the file has another name; what the list does not name goes at a commit,
  // if it has such a name.
  fs::copy_file(path, dir.path() / "part_0000000000000007.bin");
  fs::copy_file(path, dir.path() / "part-000000000000000G.bin");
  for (const bool shared : {true, false}) {
    fs::remove(dir.path() / "other");
    if (shared) fs::create_hard_link(path, dir.path() / "other");
    fs::resize_file(path, 5000);
    AppendFiles files(format_of(), options, folder);
    files.open(refs, folder);
    files.count(0, 100);
    CHECK(static_cast<std::int64_t>(fs::file_size(path)) == (shared ? 5000 : refs[0].bytes));
    CHECK(holds(files, {0, 12}, block));
    CHECK(files_in(dir.path()) == (shared ? 6 : 3));
    commit(files);
    CHECK(files_in(dir.path()) == (shared ? 4 : 3));
    CHECK(fs::exists(path));
  }

  ByteWriter saved;
  refs.push_back({3, 40});
  save_files(saved, refs);
  for (std::size_t cut = 0; cut < saved.bytes().size(); ++cut) {
    ByteReader reader(std::span(saved.bytes()).first(cut), "list");
    REQUIRE_THROWS_AS(load_files(reader), FileError);
  }
  const auto loads = [&](std::uint64_t n, const std::vector<FileRef>& list) {
    ByteWriter w;
    w.put(n);
    for (const FileRef& f : list) w.put(f.id), w.put(f.bytes);
    ByteReader reader(w.bytes(), "list");
    return load_files(reader).size();
  };
  CHECK(loads(2, refs) == 2);
  CHECK_THROWS_AS(loads(std::uint64_t{1} << 60, refs), FileError);
  CHECK_THROWS_AS(loads(2, {{1, 5}, {1, 6}}), FileError);
  CHECK_THROWS_AS(loads(1, {{1, -5}}), FileError);
}

TEST_CASE("append files: several threads read while others append") {
  const TempDir dir;
  AppendFiles::Options options;
  options.queue_bytes = 5000;
  options.roll_bytes = 20000;
  AppendFiles files(format_of(), options, Directory(system_calls(), dir.path()));
  std::mutex mutex;  // of the list, and of what changes the set
  std::vector<Piece> pieces;
  std::atomic<bool> right{true};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 rng(t);
      for (int i = 0; i < 150; ++i) {
        const Bytes bytes = random_bytes(rng, 200);
        auto one = AppendFiles::make(200);
        files.admit(200);
        AppendFiles::Place place;
        {
          const std::lock_guard lock(mutex);
          place = files.place(200, {200, 1});
        }
        std::ranges::copy(bytes, one.front().own.begin());
        files.write(place, std::move(one));
        Piece other;
        {
          const std::lock_guard lock(mutex);
          pieces.push_back({place, bytes});
          other = pieces[rng() % pieces.size()];
        }
        if (!holds(files, other.place, other.bytes)) right = false;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(right);
  files.sync();
  for (const Piece& p : pieces) REQUIRE(holds(files, p.place, p.bytes));
}
