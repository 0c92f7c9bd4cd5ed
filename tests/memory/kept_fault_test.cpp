// SPDX-License-Identifier: Apache-2.0
// Every call that a kept memory makes to the file system, made to fail: each operation gives what
// it gives without the fault or one clear error; the memory stays usable, and nothing committed is
// lost.
#include "support/faulty_calls.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

#include <cerrno>
#include <optional>
#include <set>

#include "driver.hpp"
#include "episodic/base/error.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace kept_fault_test {

using Fault = FaultyCalls::Fault;

constexpr std::int64_t kTokens = 240;

/// A model's shape with a stream of tokens, and a memory with little room.
struct Setting {
  MemoryShape shape;
  MemoryConfig config = driver::small_config();
  std::vector<driver::Token> tokens;

  explicit Setting(const MemoryShape& s) : shape(s), tokens(driver::random_tokens(s, kTokens, 21)) {
    const StoreShape store{s.n_layers, s.n_kv_heads, s.head_dim, DType::float32};
    config.host_bytes = least_host_bytes(store, config.max_block, 1000);  // events are read back
  }
};

/// A life of a memory, each of whose operations is done again if it was refused.
class Life {
 public:
  /// \param on_tier its places are those of a shared folder, which is then in `dir`
  Life(const Setting& setting, FaultyCalls& calls, const fs::path& dir, bool on_tier = false)
      : setting_(setting), calls_(calls), dir_(dir), on_tier_(on_tier) {
    if (on_tier) fs::create_directory(dir / "tier");
  }

  /// Everything that was answered, in order.
  std::vector<float> run() {
    KeepOptions keep;
    keep.dir = place("m");
    keep.calls = &calls_;
    keep.checkpoints = 1;
    std::optional<EpisodicMemory> memory;
    attempt([&] {
      if (holds_memory(keep.dir))  // the manifest was there already, only its name not yet durable
        memory = EpisodicMemory::open(keep, OpenMode::write);
      else
        memory = EpisodicMemory::create(keep, setting_.config, setting_.shape);
    });
    feed(*memory, 0, 120);
    commit(*memory);
    feed(*memory, 120, 156);
    commit(*memory);
    memory.reset();
    attempt([&] { memory = EpisodicMemory::open(keep, OpenMode::write); });
    note(static_cast<float>(memory->tokens()));
    attempt([&] {
      for (const std::int64_t id : memory->token_ids(0, 40)) note_once(id);
    });
    attempt([&] {
      if (!holds_memory(place("fork"))) fork_memory(keep.dir, place("fork"), calls_);
    });
    feed(*memory, 156, 192);
    attempt([&] { memory->forget(EventId{2}); });
    attempt([&] { memory->compact(); });
    note(static_cast<float>(memory->committed_tokens()));
    feed(*memory, 192, 216);
    commit(*memory);
    memory.reset();

    std::optional<EpisodicMemory> reader;
    attempt([&] { reader = EpisodicMemory::open(keep, OpenMode::read); });
    feed(*reader, 216, kTokens);
    attempt([&] { digest_ = reader->digest(); });
    reader.reset();
    keep.dir = place("fork");
    attempt([&] { reader = EpisodicMemory::open(keep, OpenMode::read); });
    note(static_cast<float>(reader->tokens()));
    // Flipped bits in what verify reads look like damage, which is what it is for.
    calls_.heal();
    damages_ =
        verify_memory(place("m")).damages.size() + verify_memory(place("fork")).damages.size();
    return answers_;
  }

  std::uint64_t digest() const { return digest_; }
  std::size_t damages() const { return damages_; }
  const std::string& refused() const { return refused_; }

 private:
  fs::path place(const std::string& name) const {
    if (!on_tier_) return dir_ / name;
    // No cache: every read is one of the tier.
    return "shared:" + (dir_ / "tier").string() + "/" + name + "?lease_seconds=600,cache_bytes=0" +
           ",cache=" + (dir_ / "cache").string();
  }
  void note(float x) { answers_.push_back(x); }
  void note_once(std::int64_t id) {
    if (ids_++ < 40) note(static_cast<float>(id));
  }

  /// Does it; refused once, with an error of the library, it must work when the fault is gone.
  template <class F>
  void attempt(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      refused_ = e.what();
      calls_.heal();
      ids_ = 0;
      f();
    }
  }

  void feed(EpisodicMemory& memory, std::int64_t first, std::int64_t end) {
    for (std::int64_t at = first; at < end; at += 12)
      attempt([&] {
        const auto out = driver::step(memory, setting_.tokens, at, 12);
        for (const auto& layer : out) answers_.insert(answers_.end(), layer.begin(), layer.end());
      });
  }

  void commit(EpisodicMemory& memory) {
    attempt([&] { memory.commit(); });
    note(static_cast<float>(memory.committed_tokens()));
  }

  const Setting& setting_;
  FaultyCalls& calls_;
  fs::path dir_;
  bool on_tier_;
  std::vector<float> answers_;
  std::string refused_;
  std::uint64_t digest_ = 0;
  std::size_t damages_ = 0;
  int ids_ = 0;
};

/// Lives of memories with every fault at every call of the chosen kinds of file.
/// \return the calls that there are
template <class Wanted>
std::vector<std::string> fault_matrix(const Setting& setting, Wanted wanted, bool on_tier = false) {
  FaultyCalls calls;
  std::vector<float> expected;
  std::uint64_t digest = 0;
  std::vector<std::pair<FaultyCalls::Site, std::int64_t>> sites;
  {
    const TempDir temp;
    Life life(setting, calls, temp.path(), on_tier);
    expected = life.run();
    digest = life.digest();
    REQUIRE(life.damages() == 0);
    REQUIRE(life.refused().empty());
    for (const FaultyCalls::Site& site : calls.sites())
      if (wanted(site)) sites.emplace_back(site, calls.calls(site));
  }
  const std::vector<std::string> seen = calls.seen();

  const auto faults_of = [](FaultyCalls::Op op) {
    std::vector<std::pair<Fault, int>> faults{{Fault::error, EIO}, {Fault::error, EACCES}};
    using Op = FaultyCalls::Op;
    if (op == Op::write || op == Op::create || op == Op::allocate || op == Op::sync ||
        op == Op::link || op == Op::rename)
      faults.emplace_back(Fault::error, ENOSPC);
    if (op == Op::read || op == Op::write) faults.emplace_back(Fault::half, 0);
    if (op == Op::read) faults.emplace_back(Fault::flip, 0);
    return faults;
  };
  std::int64_t runs = 0, refused = 0;
  std::size_t number = 0;  // by default of each fault half of the runs, in turn
  for (const auto& [site, n_calls] : sites)
    for (const auto& [fault, error] : faults_of(site.op))
      for (const std::int64_t k : std::set<std::int64_t>{0, n_calls / 2, n_calls - 1})
        for (const bool for_ever : {false, true}) {
          if (for_ever && k != 0) continue;
          if (number++ % 2 == 1 && !episodic_test::all_cases()) continue;
          INFO(io::name_of(site.kind)
               << " " << io::name_of(site.op) << ", fault " << static_cast<int>(fault) << " "
               << error << " at call " << k << (for_ever ? " and all later" : ""));
          const TempDir temp;
          FaultyCalls::Script script;
          script.site = site;
          script.fault = fault;
          script.error = error;
          script.at = k;
          script.for_ever = for_ever;
          calls.play(script);
          Life life(setting, calls, temp.path(), on_tier);
          std::vector<float> found;
          std::string escaped;
          try {
            found = life.run();
          } catch (const std::exception& e) {
            escaped = e.what();
          }
          CHECK(escaped == "");
          // What is written in the background is read from memory until then, and events are read
          // ahead: how many calls that takes varies.
          if (k == 0 || (site.kind != io::Kind::segment && site.kind != io::Kind::vectors &&
                         site.kind != io::Kind::block))
            CHECK(calls.faults() > 0);
          CHECK((found == expected));
          CHECK(life.digest() == digest);
          CHECK(life.damages() == 0);
          ++runs;
          refused += !life.refused().empty();
          calls.heal();
        }
  CHECK(runs > episodic_test::all_or(6, 3) * static_cast<std::int64_t>(sites.size()));
  CHECK(refused > runs / 3);
  return seen;
}

TEST_CASE("a fault at any call of a kept memory loses nothing", "[memory][kept][faults]") {
  auto seen = fault_matrix(Setting(driver::small_shape()), [](FaultyCalls::Site) { return true; });
  std::erase(seen, "segment submit");  // where there is io_uring
  // All there are but those of vector files. A new one belongs here, and is then in the matrix.
  CHECK(seen == std::vector<std::string>{
                    "segment open",     "segment create",   "segment read",     "segment write",
                    "segment sync",     "segment allocate", "segment truncate", "segment link",
                    "segment unlink",   "tokens open",      "tokens create",    "tokens read",
                    "tokens write",     "tokens sync",      "tokens link",      "tokens unlink",
                    "state open",       "state create",     "state read",       "state write",
                    "state sync",       "state link",       "state unlink",     "manifest open",
                    "manifest create",  "manifest read",    "manifest write",   "manifest sync",
                    "manifest rename",  "lock create",      "lock lock",        "directory open",
                    "directory create", "directory sync",   "directory lock"});
}

TEST_CASE("a fault at any call about representatives loses nothing", "[memory][kept][faults]") {
  // Vectors so wide that a slab holds 16 events.
  Setting setting(driver::small_shape(1, 64, 1, 256));
  setting.config.repr_bytes = 16 << 20;
  const auto seen =
      fault_matrix(setting, [](FaultyCalls::Site site) { return site.kind == io::Kind::vectors; });
  std::vector<std::string> vectors;
  for (const std::string& site : seen)
    if (site.starts_with("vectors ")) vectors.push_back(site);
  CHECK(vectors == std::vector<std::string>{"vectors open", "vectors create", "vectors read",
                                            "vectors write", "vectors sync", "vectors allocate",
                                            "vectors link", "vectors unlink"});
}

TEST_CASE("a fault at any call about a shared folder loses nothing",
          "[memory][kept][faults][tier]") {
  const auto seen = fault_matrix(
      Setting(driver::small_shape()),
      [](FaultyCalls::Site site) {
        return site.kind == io::Kind::block || site.kind == io::Kind::head;
      },
      true);
  std::vector<std::string> on_tier;
  for (const std::string& site : seen)
    if (site.starts_with("block ") || site.starts_with("head ")) on_tier.push_back(site);
  CHECK(on_tier == std::vector<std::string>{"block open", "block create", "block read",
                                            "block write", "block sync", "block rename",
                                            "head open", "head create", "head read", "head write",
                                            "head sync", "head link", "head unlink"});
}

TEST_CASE("a fault while small files become one loses nothing", "[memory][kept][faults]") {
  const MemoryShape shape = driver::small_shape();
  const auto tokens = driver::random_tokens(shape, 2000, 21);
  for (const std::string kind : {"tokens-", "kv-"}) {
    const TempDir temp;
    KeepOptions keep;
    keep.dir = temp / "many";
    const auto files_of = [&](const fs::path& dir) {
      const auto files = MemoryManifest::read(dir).files;
      return std::count_if(files.begin(), files.end(),
                           [&](const auto& file) { return file.name.starts_with(kind); });
    };
    EpisodicMemory::create(keep, driver::small_config(), shape).commit();
    std::int64_t end = 0;
    for (; files_of(keep.dir) < 32; end += 6) {  // each run has files of its own
      EpisodicMemory memory = EpisodicMemory::open(keep, OpenMode::write);
      driver::step(memory, tokens, end, 6);
      memory.commit();
    }
    std::string refused;
    const auto life = [&](FaultyCalls& calls, const fs::path& dir) {
      fs::copy(temp / "many", dir);
      KeepOptions here;
      here.dir = dir;
      here.calls = &calls;
      const auto attempt = [&](auto&& f) {
        try {
          f();
        } catch (const Error& e) {
          refused = e.what();
          calls.heal();
          f();
        }
      };
      std::optional<EpisodicMemory> memory;
      attempt([&] { memory = EpisodicMemory::open(here, OpenMode::write); });
      for (std::int64_t at = end; at < end + 24; at += 6)
        attempt([&] { driver::step(*memory, tokens, at, 6); });
      attempt([&] { memory->commit(); });
      CHECK(memory->committed_tokens() == end + 24);
      memory.reset();
      calls.heal();
      CHECK(verify_memory(dir).damages.empty());
      return EpisodicMemory::open(here, OpenMode::read).digest();
    };
    FaultyCalls calls;
    const std::uint64_t digest = life(calls, temp / "whole");
    REQUIRE(refused.empty());
    REQUIRE(files_of(temp / "whole") < 16);
    std::vector<std::pair<FaultyCalls::Site, std::int64_t>> sites;
    for (const FaultyCalls::Site& site : calls.sites()) sites.emplace_back(site, calls.calls(site));
    int lives = 0;
    for (const auto& [site, n_calls] : sites)
      for (const std::int64_t k : std::set<std::int64_t>{0, n_calls / 2, n_calls - 1}) {
        INFO(kind << " " << io::name_of(site.kind) << " " << io::name_of(site.op) << " at call "
                  << k);
        FaultyCalls::Script script;
        script.site = site;
        script.error = k % 2 == 0 ? EIO : ENOSPC;
        script.at = k;
        calls.play(script);
        CHECK(life(calls, temp / std::to_string(lives)) == digest);
        ++lives;
      }
    CHECK(lives > 50);
    CHECK(!refused.empty());
  }
}

TEST_CASE("a full disk says how much is needed and keeps what was committed",
          "[memory][kept][faults]") {
  FaultyCalls calls;
  const TempDir temp;
  KeepOptions keep;
  keep.dir = temp / "m";
  keep.calls = &calls;
  const Setting setting(driver::small_shape());
  EpisodicMemory memory = EpisodicMemory::create(keep, setting.config, setting.shape);
  const auto feed = [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t at = first; at < end; at += 12) driver::step(memory, setting.tokens, at, 12);
  };
  feed(0, 120);
  memory.commit();
  for (const io::Op op : {io::Op::allocate, io::Op::write}) {
    FaultyCalls::Script script;
    script.site = {op == io::Op::allocate ? io::Kind::segment : io::Kind::state, op};
    script.error = ENOSPC;
    script.for_ever = true;
    calls.play(script);
    const std::int64_t before = memory.tokens();
    const std::string said = refusal<io::DiskFullError>([&] {
      for (int i = 0; i < 100; ++i) {
        if (memory.tokens() < kTokens - 12) feed(memory.tokens(), memory.tokens() + 12);
        memory.commit();
      }
    });
    INFO(said);
    CHECK(mentions(said, "bytes"));
    CHECK(mentions(said, temp.path().string()));
    CHECK(memory.tokens() >= before);
    // another process finds the last commit
    KeepOptions other;
    other.dir = keep.dir;
    CHECK(EpisodicMemory::open(other, OpenMode::read).tokens() == memory.committed_tokens());
    calls.heal();
    memory.commit();
    CHECK(memory.committed_tokens() == memory.tokens());
  }
  CHECK(verify_memory(temp / "m").damages.empty());
}

}  // namespace kept_fault_test
