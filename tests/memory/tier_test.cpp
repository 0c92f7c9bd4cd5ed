// SPDX-License-Identifier: Apache-2.0
// Memories on a tier that several machines have in common: what a folder gives, they give, and
// whatever happens to the tier or to one of two writers, nothing wrong is read.
#include "support/faulty_calls.hpp"
#include "support/memory_tier.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace tier_test {

constexpr std::int64_t kTokens = 300;

/// Calls that do not wait for the medium.
FaultyCalls& calls() {
  static FaultyCalls quick;
  return quick;
}

/// A tier of one of both kinds, and places on it.
class Tier {
 public:
  explicit Tier(bool folder) : folder_(folder) {
    fs::create_directory(temp_ / "tier");
    add_tier_scheme("memory", [tier = memory](const TierPlace&, io::Syscalls&) { return tier; });
  }

  /// \param host whose cache it is
  fs::path place(const std::string& name, const std::string& host = "one",
                 const std::string& more = "") const {
    return fmt_(folder_ ? "shared:" + (temp_ / "tier").string() : "memory:tests") + name +
           "?cache=" + (temp_ / host).string() + more;
  }
  fs::path cache(const std::string& host) const { return temp_ / host; }
  fs::path operator/(const std::string& name) const { return temp_ / name; }

  void lose() {
    memory->lost = true;
    fs::rename(temp_ / "tier", temp_ / "away");
  }
  void find() {
    memory->lost = false;
    fs::rename(temp_ / "away", temp_ / "tier");
  }
  std::int64_t block_bytes() const {
    return folder_ ? bytes_in(temp_ / "tier" / "blocks") : memory->put_bytes();
  }
  /// All blocks are damaged, or gone.
  void spoil(bool remove) {
    if (!folder_) {
      for (const BlockHash& name : memory->block_names())
        remove ? memory->remove(name) : memory->damage(name);
      return;
    }
    for (const auto& entry : fs::recursive_directory_iterator(temp_ / "tier" / "blocks")) {
      if (!entry.is_regular_file()) continue;
      if (remove) {
        fs::remove(entry.path());
        continue;
      }
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const int first = file.get();
      file.seekp(0);
      file.put(static_cast<char>(first ^ 1));
    }
  }
  static std::int64_t bytes_in(const fs::path& dir) {
    std::int64_t bytes = 0;
    std::error_code error;
    for (fs::recursive_directory_iterator at(dir, error), end; at != end; at.increment(error))
      if (at->is_regular_file(error) && at->path().filename() != "account")
        bytes += static_cast<std::int64_t>(at->file_size(error));
    return bytes;
  }

  const std::shared_ptr<MemoryTier> memory = std::make_shared<MemoryTier>();

 private:
  static std::string fmt_(const std::string& at) { return at + "/"; }
  bool folder_;
  TempDir temp_;
};

struct Setting {
  MemoryShape shape = driver::small_shape();
  MemoryConfig config = driver::small_config();
  std::vector<driver::Token> tokens = driver::random_tokens(shape, kTokens, 21);

  Setting() {
    const StoreShape store{shape.n_layers, shape.n_kv_heads, shape.head_dim, DType::float32};
    config.host_bytes = least_host_bytes(store, config.max_block, 1000);  // events are read back
  }

  EpisodicMemory create(const fs::path& place) const {
    KeepOptions keep;
    keep.dir = place;
    keep.calls = &calls();
    return EpisodicMemory::create(keep, config, shape);
  }
  static EpisodicMemory open(const fs::path& place, OpenMode mode) {
    KeepOptions keep;
    keep.dir = place;
    keep.calls = &calls();
    return EpisodicMemory::open(keep, mode);
  }
  std::vector<float> feed(EpisodicMemory& memory, std::int64_t first, std::int64_t end) const {
    std::vector<float> all;
    for (std::int64_t at = first; at < end; at += 12)
      for (const auto& layer : driver::step(memory, tokens, at, 12))
        all.insert(all.end(), layer.begin(), layer.end());
    return all;
  }
  /// Made in several runs and commits.
  void make(const fs::path& place, std::int64_t end = 240) const {
    {
      EpisodicMemory memory = create(place);
      feed(memory, 0, 120);
      memory.commit();
      feed(memory, 120, 144);
      memory.commit();
    }
    EpisodicMemory memory = open(place, OpenMode::write);
    feed(memory, 144, end);
    memory.forget(EventId{2});
    memory.commit();
  }
};

TEST_CASE("a memory on a tier is the one in a folder", "[memory][kept][tier]") {
  const bool folder = GENERATE(true, false);
  INFO((folder ? "a shared folder" : "memory"));
  Tier tier(folder);
  const Setting setting;
  setting.make(tier / "plain");
  setting.make(tier.place("m"));
  CHECK(holds_memory(tier.place("m")));
  CHECK_FALSE(holds_memory(tier.place("other")));
  EpisodicMemory plain = Setting::open(tier / "plain", OpenMode::read);
  const std::uint64_t digest = plain.digest();
  const std::vector<float> expected = setting.feed(plain, 240, kTokens);
  // Another machine, with a cache of its own that is empty, small, or none.
  for (const char* cache : {"", ",cache_bytes=100kB", ",cache_bytes=0"}) {
    INFO(cache);
    const std::string host = std::string("host") + cache;
    EpisodicMemory memory = Setting::open(tier.place("m", "two", cache), OpenMode::read);
    CHECK(memory.tokens() == 240);
    CHECK(memory.digest() == digest);
    CHECK(memory.token_ids(0, 240) == plain.token_ids(0, 240));
    CHECK((setting.feed(memory, 240, kTokens) == expected));
    CHECK(Tier::bytes_in(tier.cache("two") / "work") > 0);
  }
  CHECK(Tier::bytes_in(tier.cache("two") / "blocks") > 0);
  CHECK(fs::is_empty(tier.cache("two") / "work"));
  const VerifyReport report = verify_memory(tier.place("m", "three"));
  CHECK(report.damages.empty());
  CHECK(report.files > 3);
  CHECK(MemoryManifest::read(tier.place("m")).state.tokens == 240);
  CHECK(mentions(refusal<FileError>([&] { Setting::open(tier.place("other"), OpenMode::read); }),
                 "holds no memory"));
  CHECK(mentions(refusal<FileError>([&] { setting.create(tier.place("m")); }),
                 "holds a memory already"));
  CHECK(refusal<ConfigError>([&] { folder_of_rank(tier.place("m"), 0, 2); }) != "no error");
}

TEST_CASE("a base that many sequences share may lie on a tier", "[memory][kept][tier]") {
  Tier tier(true);
  const Setting setting;
  setting.make(tier.place("m"));
  EpisodicMemory first = Setting::open(tier.place("m", "two", ",cache_bytes=0"), OpenMode::read);
  const std::vector<float> expected = [&] {
    EpisodicMemory alone = Setting::open(tier.place("m"), OpenMode::read);
    return setting.feed(alone, 240, kTokens);
  }();
  const std::shared_ptr<const MemoryBase> base = first.share();
  EpisodicMemory second(base);
  CHECK((setting.feed(first, 240, kTokens) == expected));
  CHECK((setting.feed(second, 240, kTokens) == expected));
}

TEST_CASE("forks on a tier share their blocks", "[memory][kept][tier]") {
  const bool folder = GENERATE(true, false);
  INFO((folder ? "a shared folder" : "memory"));
  Tier tier(folder);
  const Setting setting;
  setting.make(tier.place("m"));
  const std::int64_t before = tier.block_bytes();
  fork_memory(tier.place("m"), tier.place("fork"), calls());
  CHECK(tier.block_bytes() == before);  // a head is no block
  const auto digest_of = [](const fs::path& place) {
    return Setting::open(place, OpenMode::read).digest();
  };
  const std::uint64_t digest = digest_of(tier.place("m"));
  CHECK(digest_of(tier.place("fork", "two")) == digest);
  const MemoryManifest of_fork = MemoryManifest::read(tier.place("fork"));
  CHECK(of_fork.parent == MemoryManifest::read(tier.place("m")).id);
  // Each goes on by itself, and puts only what is new.
  {
    EpisodicMemory memory = Setting::open(tier.place("fork", "two"), OpenMode::write);
    setting.feed(memory, 240, 252);
    memory.commit();
  }
  CHECK(digest_of(tier.place("m", "three")) == digest);
  CHECK(digest_of(tier.place("fork", "three")) != digest);
  CHECK(tier.block_bytes() - before < before);
  // From a folder to the tier and back.
  fork_memory(tier.place("m", "two"), tier / "out", calls());
  CHECK(digest_of(tier / "out") == digest);
  CHECK(verify_memory(tier / "out").damages.empty());
  fork_memory(tier / "out", tier.place("back"), calls());
  CHECK(digest_of(tier.place("back", "two")) == digest);
  CHECK(verify_memory(tier / "out").damages.empty());  // its files were read, and are as they were
  CHECK(
      mentions(refusal<FileError>([&] { fork_memory(tier / "out", tier.place("back"), calls()); }),
               "holds a memory already"));
}

TEST_CASE("of two writers on a tier one is refused, until a lease runs out",
          "[memory][kept][tier]") {
  const bool folder = GENERATE(true, false);
  INFO((folder ? "a shared folder" : "memory"));
  Tier tier(folder);
  const Setting setting;
  setting.make(tier.place("m"));
  std::optional<EpisodicMemory> first = Setting::open(tier.place("m"), OpenMode::write);
  const std::string busy =
      refusal<FileError>([&] { Setting::open(tier.place("m", "two"), OpenMode::write); });
  CHECK(mentions(busy, "process "));
  CHECK(mentions(busy, "is writing to this memory"));
  CHECK(Setting::open(tier.place("m", "two"), OpenMode::read).tokens() == 240);
  first.reset();
  CHECK(Setting::open(tier.place("m", "two"), OpenMode::write).tokens() == 240);
  // One whose lease ran out, because its machine slept, does not commit over the other.
  first = Setting::open(tier.place("m"), OpenMode::write);
  setting.feed(*first, 240, 252);
  if (folder) {
    const fs::path leases = tier / "tier" / "memories" / "m";
    std::vector<fs::path> held;
    for (const auto& entry : fs::directory_iterator(leases))
      if (mentions(entry.path().filename(), "lease-")) held.push_back(entry.path());
    REQUIRE(held.size() == 1);
    fs::last_write_time(held[0], fs::file_time_type::clock::now() - std::chrono::hours(1));
  } else {
    tier.memory->expire();
  }
  EpisodicMemory second = Setting::open(tier.place("m", "two"), OpenMode::write);
  CHECK(mentions(refusal<FileError>([&] { first->commit(); }), "ran out"));
  setting.feed(second, 240, 264);
  second.commit();
  CHECK(mentions(refusal<FileError>([&] { first->commit(); }), "ran out"));
  CHECK(first->committed_tokens() == 240);
  CHECK(Setting::open(tier.place("m", "three"), OpenMode::read).tokens() == 264);
}

TEST_CASE("a writer whom another one overtook does not commit over it", "[memory][kept][tier]") {
  Tier tier(false);
  const Setting setting;
  setting.make(tier.place("m"));
  EpisodicMemory first = Setting::open(tier.place("m"), OpenMode::write);
  setting.feed(first, 240, 252);
  {  // takes the lease over, commits, and gives it back
    tier.memory->expire();
    EpisodicMemory second = Setting::open(tier.place("m", "two"), OpenMode::write);
    setting.feed(second, 240, 264);
    second.commit();
  }
  CHECK(mentions(refusal<FileError>([&] { first.commit(); }), "another program has committed"));
  CHECK(Setting::open(tier.place("m", "three"), OpenMode::read).tokens() == 264);
}

TEST_CASE("what ends between blocks and head leaves the last commit", "[memory][kept][tier]") {
  using Call = MemoryTier::Call;
  for (const Call at : {Call::has, Call::put, Call::exchange, Call::lease}) {
    INFO(static_cast<int>(at));
    Tier tier(false);
    const Setting setting;
    setting.make(tier.place("m"));
    const std::uint64_t digest = Setting::open(tier.place("m"), OpenMode::read).digest();
    EpisodicMemory memory = Setting::open(tier.place("m"), OpenMode::write);
    setting.feed(memory, 240, 264);
    tier.memory->watch = [&](Call call) {
      if (call == at) throw FileError("the tier is away");
    };
    CHECK(mentions(refusal<FileError>([&] { memory.commit(); }), "the tier is away"));
    CHECK(memory.committed_tokens() == 240);
    CHECK(Setting::open(tier.place("m", "two"), OpenMode::read).digest() == digest);
    tier.memory->watch = nullptr;
    memory.commit();
    CHECK(memory.committed_tokens() == 264);
    CHECK(Setting::open(tier.place("m", "two"), OpenMode::read).digest() == memory.digest());
  }
}

TEST_CASE("a head that was exchanged, though it seemed to fail, is gone on from",
          "[memory][kept][tier]") {
  Tier tier(false);
  const Setting setting;
  setting.make(tier.place("m"));
  EpisodicMemory memory = Setting::open(tier.place("m"), OpenMode::write);
  setting.feed(memory, 240, 252);
  tier.memory->fail_behind_exchange = true;
  CHECK(refusal<FileError>([&] { memory.commit(); }) != "no error");
  CHECK(Setting::open(tier.place("m", "two"), OpenMode::read).tokens() == 252);
  setting.feed(memory, 252, 264);
  memory.commit();
  CHECK(Setting::open(tier.place("m", "two"), OpenMode::read).digest() == memory.digest());
}

TEST_CASE("a full tier refuses a commit, and takes it when there is room", "[memory][kept][tier]") {
  Tier tier(false);
  const Setting setting;
  setting.make(tier.place("m"));
  EpisodicMemory memory = Setting::open(tier.place("m"), OpenMode::write);
  setting.feed(memory, 240, 264);
  tier.memory->room = 0;
  CHECK(refusal<io::DiskFullError>([&] { memory.commit(); }) != "no error");
  CHECK(Setting::open(tier.place("m", "two"), OpenMode::read).tokens() == 240);
  tier.memory->room = std::int64_t{1} << 40;
  memory.commit();
  CHECK(Setting::open(tier.place("m", "two"), OpenMode::read).digest() == memory.digest());
}

TEST_CASE("a tier that is lost or damaged is one clear error, and no wrong answer",
          "[memory][kept][tier]") {
  const bool folder = GENERATE(true, false);
  INFO((folder ? "a shared folder" : "memory"));
  Tier tier(folder);
  const Setting setting;
  setting.make(tier.place("m"));
  EpisodicMemory plain = Setting::open(tier.place("m"), OpenMode::read);
  const std::vector<float> expected = setting.feed(plain, 240, kTokens);
  const std::string where = folder ? (tier / "tier").string() : "memory:tests";
  const auto open = [&] {
    return Setting::open(tier.place("m", "two", ",cache_bytes=0"), OpenMode::read);
  };
  EpisodicMemory memory = open();
  std::vector<float> found = setting.feed(memory, 240, 264);
  tier.lose();
  const std::string lost = refusal<FileError>([&] { setting.feed(memory, 264, 276); });
  CHECK(mentions(lost, where));
  CHECK(mentions(refusal<FileError>([&] { open(); }), where));
  CHECK(mentions(refusal<FileError>([&] { holds_memory(tier.place("m")); }), where));
  tier.find();
  const std::vector<float> rest = setting.feed(memory, 264, kTokens);  // the step that was refused
  found.insert(found.end(), rest.begin(), rest.end());
  CHECK((found == expected));
  for (const bool remove : {false, true}) {
    EpisodicMemory reader = open();
    tier.spoil(remove);
    const std::string said = refusal<FileError>([&] { setting.feed(reader, 240, kTokens); });
    CHECK(mentions(said, remove ? "is missing" : "is damaged"));
    CHECK(mentions(said, "block "));
    CHECK_FALSE(verify_memory(tier.place("m", "three")).damages.empty());
    if (!remove) tier.spoil(false);  // the bit is flipped back
  }
}

TEST_CASE("what a machine keeps of a tier is bounded, and compared with its name",
          "[memory][kept][tier]") {
  Tier tier(false);
  Setting setting;
  setting.make(tier.place("m", "maker"));
  const auto run = [&](const std::string& more) {
    EpisodicMemory memory = Setting::open(tier.place("m", "two", more), OpenMode::read);
    return memory.digest();
  };
  const std::uint64_t digest = run(",cache_bytes=60kB");
  CHECK(Tier::bytes_in(tier.cache("two") / "blocks") <= 60000);
  CHECK(Tier::bytes_in(tier.cache("two") / "blocks") > 0);
  CHECK(run("") == digest);
  const std::int64_t got = tier.memory->got_bytes();
  CHECK(run("") == digest);  // from the folder alone, but for the lists of pieces
  CHECK(tier.memory->got_bytes() - got < 2000);
  for (const auto& entry : fs::recursive_directory_iterator(tier.cache("two") / "blocks")) {
    if (!entry.is_regular_file() || entry.path().filename() == "account") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const int first = file.get();
    file.seekp(0);
    file.put(static_cast<char>(first ^ 1));
  }
  CHECK(run("") == digest);  // what was damaged here comes from the tier again
  CHECK(tier.memory->got_bytes() - got > 20000);
  CHECK(run("") == digest);
}

TEST_CASE("a sweep removes what no memory names, and nothing else", "[memory][kept][tier]") {
  const bool folder = GENERATE(true, false);
  INFO((folder ? "a shared folder" : "memory"));
  Tier tier(folder);
  const Setting setting;
  setting.make(tier.place("m"));
  fork_memory(tier.place("m"), tier.place("fork"), calls());
  {
    EpisodicMemory memory = Setting::open(tier.place("m"), OpenMode::write);
    setting.feed(memory, 240, 264);
    memory.forget(EventId{3});
    memory.compact();
  }
  const auto digest_of = [&](const std::string& name) {
    return Setting::open(tier.place(name, "new", ",cache_bytes=0"), OpenMode::read).digest();
  };
  const std::uint64_t digest = digest_of("m"), of_fork = digest_of("fork");
  CHECK(sweep_tier(tier.place("m"), 3600).removed == 0);  // all of it is young
  const SweepReport swept = sweep_tier(tier.place("m"), 0);
  CHECK(swept.memories == 2);
  CHECK(swept.removed > 0);
  CHECK(sweep_tier(tier.place("m"), 0).removed == 0);
  CHECK(digest_of("m") == digest);
  CHECK(digest_of("fork") == of_fork);
  CHECK(verify_memory(tier.place("fork", "new")).damages.empty());
  // What was swept can be put again.
  EpisodicMemory memory = Setting::open(tier.place("fork"), OpenMode::write);
  setting.feed(memory, 240, 264);
  memory.commit();
  CHECK(digest_of("fork") == memory.digest());
  CHECK(refusal<ConfigError>([&] { sweep_tier(tier / "plain", 0); }) != "no error");
}

TEST_CASE("a commit puts what is new alone", "[memory][kept][tier]") {
  Tier tier(false);
  const Setting setting;
  setting.make(tier.place("m"));
  EpisodicMemory memory = Setting::open(tier.place("m"), OpenMode::write);
  setting.feed(memory, 240, 252);
  const std::int64_t before = tier.memory->put_bytes();
  memory.commit();
  const MemoryManifest manifest = memory.manifest();
  std::int64_t all = 0;
  for (const auto& file : manifest.files) all += file.bytes;
  const std::int64_t put = tier.memory->put_bytes() - before;
  // The state is whole each time; of the files, only those of this run.
  CHECK(put < manifest.state.bytes + all / 2);
  CHECK(put >= manifest.state.bytes);
}

TEST_CASE("a slow tier does not hold steps that need nothing of it", "[memory][kept][tier]") {
  Tier tier(false);
  Setting setting;
  setting.config.host_bytes = 64 << 20;  // what is read once stays
  setting.make(tier.place("m"));
  EpisodicMemory memory = Setting::open(tier.place("m", "two", ",cache_bytes=0"), OpenMode::read);
  setting.feed(memory, 240, 252);
  const auto before = memory.snapshot();
  const std::vector<float> expected = setting.feed(memory, 252, 276);
  memory.restore(*before);
  // No call of the tier ends before the steps do; what is only read ahead may begin one.
  std::atomic<bool> done = false;
  tier.memory->watch = [&](MemoryTier::Call) {
    for (int i = 0; i < 300 && !done; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<float> found = setting.feed(memory, 252, 276);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(25));
  done = true;
  CHECK((found == expected));
}

}  // namespace tier_test
