// SPDX-License-Identifier: Apache-2.0
// A kept memory's folder while somebody else changes it: its lock is removed, it is moved,
// replaced, brought back from a backup. A commit then counts on nothing that is not there, and no
// second writer comes in.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "support/faulty_calls.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace disturbed_test {

/// A memory of 96 tokens in a folder, which was committed twice, and a copy of it after the first.
struct Place {
  TempDir temp;
  fs::path dir = temp / "memory", older = temp / "older", other = temp / "other";
  MemoryShape shape = driver::small_shape();
  std::vector<driver::Token> tokens = driver::random_tokens(shape, 400, 5);

  Place() {
    {
      EpisodicMemory memory = EpisodicMemory::create(keep(), driver::small_config(), shape);
      feed(memory, 0, 72);
      memory.commit();
      fs::copy(dir, older);
      feed(memory, 72, 96);
      memory.commit();
    }
    EpisodicMemory memory = EpisodicMemory::create(keep(other), driver::small_config(), shape);
    feed(memory, 0, 96);
    memory.commit();
  }
  KeepOptions keep() const { return keep(dir); }
  static KeepOptions keep(const fs::path& dir) {
    KeepOptions k;
    k.dir = dir;
    return k;
  }
  void feed(EpisodicMemory& memory, std::int64_t first, std::int64_t end) const {
    for (std::int64_t at = first; at < end; at += 12) driver::step(memory, tokens, at, 12);
  }
};

/// The files of the last commit that begin so, newest last.
fs::path newest(const fs::path& dir, const std::string& prefix) {
  fs::path found;
  for (const MemoryManifest::FileEntry& f : MemoryManifest::read(dir).files)
    if (f.name.starts_with(prefix)) found = dir / f.name;
  REQUIRE(!found.empty());
  return found;
}

/// Of a process that was forked: OpenMP's threads did not come along.
class Alone final : public Executor {
 public:
  int concurrency() const override { return 1; }
  void run(std::int64_t, void (*)(void*, std::int64_t), void*) override {}
};

/// Runs f in a process of its own. \return which
pid_t start(const std::function<bool()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    Alone alone;
    const ExecutorScope scope(alone);
    bool good = false;
    try {
      good = f();
    } catch (...) {
    }
    ::_exit(good ? 0 : 1);
  }
  return child;
}

/// The same, to its end. \return its exit status, -1 for another end
int in_process(const std::function<bool()>& f) {
  int status = 0;
  ::waitpid(start(f), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool refused_to_write(const Place& place, const fs::path& dir) {
  return mentions(
      refusal<FileError>([&] { EpisodicMemory::open(place.keep(dir), OpenMode::write); }),
      "another process is writing");
}

struct Disturbance {
  const char* name;
  std::function<void(const Place&)> make;
  std::function<void(const Place&)> undo;  // null: a commit cannot come true any more
  std::string said;                        // in the refusal
};

std::vector<Disturbance> disturbances() {
  std::vector<Disturbance> all;
  const auto add = [&](const char* name, std::function<void(const Place&)> make,
                       std::function<void(const Place&)> undo, const char* said) {
    all.push_back({name, std::move(make), std::move(undo), said});
  };
  const auto lock = [](const Place& p) { return p.dir / "lock"; };
  add(
      "lock removed", [=](const Place& p) { fs::remove(lock(p)); }, nullptr, "lock: was removed");
  add(
      "lock moved away, and back", [=](const Place& p) { fs::rename(lock(p), p.temp / "l"); },
      [=](const Place& p) { fs::rename(p.temp / "l", lock(p)); }, "lock: was removed");
  add(
      "lock replaced by a file",
      [=](const Place& p) {
        fs::remove(lock(p));
        p.temp.write("memory/lock", "");
      },
      nullptr, "lock: was replaced");
  add(
      "lock replaced by a link",
      [=](const Place& p) {
        fs::rename(lock(p), p.temp / "l");
        fs::create_symlink(p.temp / "l", lock(p));
      },
      [=](const Place& p) {
        fs::remove(lock(p));
        fs::rename(p.temp / "l", lock(p));
      },
      "lock: was replaced");
  add(
      "lock replaced by a folder",
      [=](const Place& p) {
        fs::remove(lock(p));
        fs::create_directory(lock(p));
      },
      nullptr, "lock: was replaced");
  add(
      "folder moved", [](const Place& p) { fs::rename(p.dir, p.temp / "moved"); },
      [](const Place& p) { fs::rename(p.temp / "moved", p.dir); }, "is not the folder any more");
  add(
      "folder replaced by a copy",
      [](const Place& p) {
        fs::rename(p.dir, p.temp / "moved");
        fs::copy(p.temp / "moved", p.dir);
      },
      [](const Place& p) {
        fs::remove_all(p.dir);
        fs::rename(p.temp / "moved", p.dir);
      },
      "is not the folder any more");
  add(
      "folder replaced by a file",
      [](const Place& p) {
        fs::rename(p.dir, p.temp / "moved");
        p.temp.write("memory", "x");
      },
      [](const Place& p) {
        fs::remove(p.dir);
        fs::rename(p.temp / "moved", p.dir);
      },
      "is not the folder any more");
  add(
      "folder removed", [](const Place& p) { fs::remove_all(p.dir); }, nullptr,
      "is not the folder any more");
  const auto manifest = [](const Place& p) { return p.dir / "manifest.json"; };
  add(
      "manifest moved away", [=](const Place& p) { fs::rename(manifest(p), p.temp / "m"); },
      [=](const Place& p) { fs::rename(p.temp / "m", manifest(p)); }, "manifest.json: was removed");
  for (const bool by_other : {false, true})
    add(
        by_other ? "manifest of another memory" : "an older manifest",
        [=](const Place& p) {
          fs::rename(manifest(p), p.temp / "m");
          fs::copy_file((by_other ? p.other : p.older) / "manifest.json", manifest(p));
        },
        [=](const Place& p) { fs::rename(p.temp / "m", manifest(p)); },
        "manifest.json: was replaced");
  add(
      "a manifest that is none",
      [=](const Place& p) {
        fs::rename(manifest(p), p.temp / "m");
        p.temp.write("memory/manifest.json", "<<<<<<< HEAD");
      },
      [=](const Place& p) { fs::rename(p.temp / "m", manifest(p)); },
      "manifest.json: was replaced");
  for (const char* kind : {"kv-", "tokens-"}) {
    const std::string prefix = kind;
    const auto take = [=](const Place& p) {
      const fs::path file = newest(p.dir, prefix);
      fs::rename(file, p.temp / "f");
      return file;
    };
    const auto put = [=](const Place& p) {
      const fs::path file = newest(p.dir, prefix);
      fs::remove(file);
      fs::rename(p.temp / "f", file);
    };
    add(
        "a file moved away", [=](const Place& p) { take(p); }, put, kind);
    add(
        "another memory's file under its name",
        [=](const Place& p) { fs::copy_file(newest(p.other, prefix), take(p)); }, put, kind);
    add(
        "a link under its name", [=](const Place& p) { fs::create_symlink(p.temp / "f", take(p)); },
        put, kind);
  }
  // Not just any copy of what this run writes to: the rest would go elsewhere.
  add(
      "a copy of the file that is written",
      [](const Place& p) {
        const fs::path file = newest(p.dir, "kv-");
        fs::rename(file, p.temp / "f");
        fs::copy_file(p.temp / "f", file);
      },
      [](const Place& p) {
        const fs::path file = newest(p.dir, "kv-");
        fs::remove(file);
        fs::rename(p.temp / "f", file);
      },
      "kv-");
  return all;
}

TEST_CASE("a commit into a folder that somebody changed is refused, and nothing is lost",
          "[memory][kept][disturbed]") {
  for (const Disturbance& d : disturbances()) {
    INFO(d.name);
    const Place place;
    std::optional<EpisodicMemory> memory = EpisodicMemory::open(place.keep(), OpenMode::write);
    place.feed(*memory, 96, 144);
    memory->commit();  // so that this run has files of its own that count
    place.feed(*memory, 144, 168);
    d.make(place);
    // A compaction may write what a file held anew, from where it is open: then nobody misses it.
    const bool of_file = d.said.ends_with("-");
    for (const bool compacts : {false, true}) {
      if (compacts && of_file) continue;
      const std::string said = refusal<FileError>([&] {
        if (compacts) memory->compact();
        memory->commit();
      });
      CHECK(mentions(said, d.said));
      CHECK(mentions(said, place.temp.path().string()));
    }
    CHECK(memory->tokens() == 168);
    CHECK(memory->committed_tokens() == 144);
    place.feed(*memory, 168, 192);  // and it goes on
    if (!d.undo) continue;
    d.undo(place);
    memory->commit();
    memory.reset();
    const VerifyReport report = verify_memory(place.dir);
    CHECK(report.damages.empty());
    CHECK(EpisodicMemory::open(place.keep(), OpenMode::write).tokens() == 192);
  }
}

TEST_CASE("a writer whose lock file was removed keeps every other out",
          "[memory][kept][disturbed]") {
  for (const bool replaced : {false, true}) {
    INFO(replaced);
    const Place place;
    std::optional<EpisodicMemory> memory = EpisodicMemory::open(place.keep(), OpenMode::write);
    place.feed(*memory, 96, 168);  // closes events that no commit counts yet
    fs::remove(place.dir / "lock");
    if (replaced) place.temp.write("memory/lock", "");
    fs::create_directory_symlink(place.dir, place.temp / "by_link");
    for (const fs::path& path : {place.dir, place.temp / "by_link", place.dir / "../memory"})
      CHECK(in_process([&] {
              return refused_to_write(place, path) &&
                     EpisodicMemory::open(place.keep(path), OpenMode::read).tokens() == 96;
            }) == 0);
    CHECK(refused_to_write(place, place.dir));  // of this process, too
    CHECK(mentions(refusal<FileError>([&] { memory->commit(); }), "lock: was re"));
    CHECK(EpisodicMemory::open(place.keep(), OpenMode::read).tokens() == 96);
    memory.reset();
    CHECK(verify_memory(place.dir).damages.empty());
    EpisodicMemory next = EpisodicMemory::open(place.keep(), OpenMode::write);
    place.feed(next, 96, 144);
    next.commit();
    CHECK(verify_memory(place.dir).damages.empty());
  }
}

TEST_CASE("a version that knows the lock file alone, and this one, keep each other out",
          "[memory][kept][disturbed]") {
  const Place place;
  const auto old_version = [&] {  // takes the lock file, as it did
    const int fd = ::open((place.dir / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (fd >= 0) ::close(fd);
    return -1;
  };
  {
    EpisodicMemory memory = EpisodicMemory::open(place.keep(), OpenMode::write);
    CHECK(old_version() == -1);
  }
  const int held = old_version();
  REQUIRE(held >= 0);
  CHECK(refused_to_write(place, place.dir));
  ::close(held);
  EpisodicMemory memory = EpisodicMemory::open(place.keep(), OpenMode::write);
  // An old version that came in over a lock file of its own.
  fs::remove(place.dir / "lock");
  const int second = old_version();
  REQUIRE(second >= 0);
  place.feed(memory, 96, 120);
  CHECK(mentions(refusal<FileError>([&] { memory.commit(); }), "lock: was replaced"));
  ::close(second);
}

TEST_CASE("a file system that has no locks for folders still has one writer",
          "[memory][kept][disturbed]") {
  for (const int error : {EBADF, EINVAL, EISDIR, ENOLCK, ENOSYS, EOPNOTSUPP, EIO, EACCES}) {
    INFO(error);
    const Place place;
    FaultyCalls calls;
    FaultyCalls::Script script;
    script.site = {io::Kind::directory, io::Op::lock};
    script.error = error;
    script.for_ever = true;
    calls.play(script);
    KeepOptions keep = place.keep();
    keep.calls = &calls;
    if (error == EIO || error == EACCES) {  // which say nothing about locks
      CHECK(mentions(refusal<FileError>([&] { EpisodicMemory::open(keep, OpenMode::write); }),
                     place.dir.string() + ": could not take the lock"));
      continue;
    }
    EpisodicMemory memory = EpisodicMemory::open(keep, OpenMode::write);
    CHECK(mentions(refusal<FileError>([&] { EpisodicMemory::open(keep, OpenMode::write); }),
                   "another process is writing"));
    place.feed(memory, 96, 120);
    memory.commit();
    fs::remove(place.dir / "lock");
    CHECK_THROWS_AS(memory.commit(), FileError);
    // None at all: said by name, with what to do.
    script.site.kind = io::Kind::lock;
    calls.play(script);
    CHECK(mentions(refusal<FileError>([&] {
                     EpisodicMemory::create({place.temp / "new", {}, 4, &calls},
                                            driver::small_config(), place.shape);
                   }),
                   "has no locks"));
  }
}

TEST_CASE("a relative folder stays the one that was opened, wherever the program goes",
          "[memory][kept][disturbed]") {
  const Place place;
  CHECK(in_process([&] {
          if (::chdir(place.temp.path().c_str()) != 0) return false;
          EpisodicMemory memory = EpisodicMemory::open(place.keep("memory"), OpenMode::write);
          if (::chdir("/") != 0) return false;
          place.feed(memory, 96, 120);
          memory.commit();
          return memory.committed_tokens() == 120;
        }) == 0);
  CHECK(verify_memory(place.dir).damages.empty());
}

TEST_CASE("readers, forks, verify and refused writers beside a writer that commits all the time",
          "[memory][kept][disturbed]") {
  const Place place;
  const pid_t writer = start([&] {
    EpisodicMemory memory = EpisodicMemory::open(place.keep(), OpenMode::write);
    for (std::int64_t at = 96; at < 396; at += 12) {
      place.feed(memory, at, at + 12);
      memory.commit();
      if (at % 60 == 36) memory.compact();
    }
    return true;
  });
  int status = 0, rounds = 0;
  std::string said;
  while (::waitpid(writer, &status, WNOHANG) == 0 && rounds < 500) {
    const fs::path fork = place.temp / ("fork" + std::to_string(rounds++));
    said += refusal([&] { EpisodicMemory::open(place.keep(), OpenMode::read).digest(); }) + "|";
    said += refusal([&] { fork_memory(place.dir, fork); }) + "|";
    said += refusal([&] { EpisodicMemory::open(place.keep(fork), OpenMode::write); }) + "|";
    for (const VerifyReport& report : {verify_memory(fork), verify_memory(place.dir)})
      for (const VerifyReport::Damage& d : report.damages) said += d.what + "|";
    fs::remove_all(fork);
  }
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(rounds > 0);
  while (said.starts_with("no error|")) said.erase(0, 9);
  CHECK(said == "");
  CHECK(verify_memory(place.dir).damages.empty());
  CHECK(EpisodicMemory::open(place.keep(), OpenMode::read).tokens() == 396);
}

TEST_CASE("of forks into one folder at once one is made, and it is whole",
          "[memory][kept][disturbed]") {
  const Place place;
  for (int round = 0; round < 20; ++round) {
    const fs::path to = place.temp / ("to" + std::to_string(round));
    if (round % 2 == 0) fs::create_directory(to);
    std::atomic<int> made{0}, ready{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        ++ready;
        while (ready < 3) std::this_thread::yield();
        made += refusal<FileError>([&] { fork_memory(place.dir, to); }) == "no error";
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(made == 1);
    CHECK(verify_memory(to).damages.empty());
    CHECK(EpisodicMemory::open(place.keep(to), OpenMode::write).tokens() == 96);
  }
}

TEST_CASE("a fork into a folder where a memory is being made is refused, and leaves it",
          "[memory][kept][disturbed]") {
  const Place place;
  fs::create_directory(place.temp / "new");
  EpisodicMemory memory =
      EpisodicMemory::create(place.keep(place.temp / "new"), driver::small_config(), place.shape);
  CHECK_THROWS_AS(fork_memory(place.dir, place.temp / "new"), FileError);
  place.feed(memory, 0, 24);
  memory.commit();
  CHECK(verify_memory(place.temp / "new").damages.empty());
}

TEST_CASE("a fork within the memory itself is refused, by whatever name",
          "[memory][kept][disturbed]") {
  const Place place;
  fs::create_directory(place.dir / "below");
  fs::create_directory_symlink(place.dir, place.temp / "link");
  fs::create_directory_symlink(place.dir / "below", place.temp / "deep");
  const fs::path here = fs::current_path();
  fs::current_path(place.dir);
  const std::pair<fs::path, fs::path> pairs[] = {
      {place.dir, place.dir / "fork"},
      {place.dir, place.dir / "below" / "fork"},
      {place.dir, place.dir / "fork" / ""},
      {place.dir, place.temp / "other" / ".." / "memory" / "fork"},
      {place.dir, place.temp / "link" / "fork"},
      {place.dir, place.temp / "deep" / "fork"},
      {place.dir, place.dir / "below"},
      {place.temp / "link", place.dir / "fork"},
      {".", "fork"},
      {".", place.dir / "fork"},
  };
  for (const auto& [from, to] : pairs) {
    const std::string said = refusal<FileError>([&] { fork_memory(from, to); });
    INFO(from << " to " << to << ": " << said);
    CHECK(mentions(said, "lies within the memory that is to be forked"));
    CHECK(mentions(said, to.string()));
    CHECK(!fs::exists(place.dir / "fork"));
    CHECK(fs::is_empty(place.dir / "below"));
  }
  fs::current_path(here);
  // A folder whose name begins as the memory's, and one above it, are others.
  fork_memory(place.dir, place.temp / "memory2");
  fork_memory(place.dir, place.dir / ".." / "beside");
  CHECK(verify_memory(place.temp / "memory2").damages.empty());
  CHECK(verify_memory(place.temp / "beside").damages.empty());
}

TEST_CASE("a memory that lost a part is not forked as if it were whole",
          "[memory][kept][disturbed]") {
  const Place place;
  const fs::path file = newest(place.dir, "kv-");
  fs::resize_file(file, fs::file_size(file) / 2);
  CHECK(mentions(refusal<FileError>([&] { fork_memory(place.dir, place.temp / "fork"); }),
                 "were committed"));
  CHECK(!fs::exists(place.temp / "fork"));
}

TEST_CASE("a folder copied while it was written is whole or is refused",
          "[memory][kept][disturbed]") {
  const Place place;
  EpisodicMemory memory = EpisodicMemory::open(place.keep(), OpenMode::write);
  place.feed(memory, 96, 168);
  fs::copy(place.dir, place.temp / "copy");  // with what no commit counts
  memory.commit();
  CHECK(verify_memory(place.temp / "copy").damages.empty());
  CHECK(EpisodicMemory::open(place.keep(place.temp / "copy"), OpenMode::write).tokens() == 96);
}

}  // namespace disturbed_test
