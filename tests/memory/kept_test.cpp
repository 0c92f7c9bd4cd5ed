// SPDX-License-Identifier: Apache-2.0
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <thread>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/recall/detail/exact_index.hpp"

using namespace episodic;
using driver::random_tokens;
using driver::small_config;
using driver::small_shape;
using driver::step;
namespace fs = std::filesystem;

namespace kept_test {

KeepOptions in(const fs::path& dir) {
  KeepOptions keep;
  keep.dir = dir;
  keep.identity = {"tiny", "w1", "t1"};
  return keep;
}

/// Feeds tokens [first, end) in steps of the chunk, every seventh step a run of single tokens.
std::vector<float> feed(EpisodicMemory& memory, const std::vector<driver::Token>& tokens,
                        std::int64_t first, std::int64_t end) {
  std::vector<float> all;
  const std::int64_t chunk = memory.config().chunk;
  for (std::int64_t at = first; at < end;) {
    // The steps depend on the position alone: a stream that is cut off goes on with the same ones.
    const std::int64_t n = at / (7 * chunk) % 2 == 1 ? 1 : std::min(chunk, end - at);
    for (const auto& layer : step(memory, tokens, at, n))
      all.insert(all.end(), layer.begin(), layer.end());
    for (std::int64_t l = 0; l < memory.shape().n_layers; ++l)
      for (const EventId e : memory.recalled(l).recalled()) all.push_back(static_cast<float>(e));
    at += n;
  }
  for (const TokenRange& r : memory.events().all()) all.push_back(static_cast<float>(r.start));
  return all;
}

std::vector<std::pair<std::string, MemoryConfig>> variants() {
  std::vector<std::pair<std::string, MemoryConfig>> all;
  const auto add = [&](const char* name, auto change) {
    MemoryConfig c = small_config();
    change(c);
    all.emplace_back(name, c);
  };
  add("plain", [](MemoryConfig&) {});
  add("contiguity", [](MemoryConfig& c) { c.contiguity = 0.3, c.neighbours = 2; });
  add("refined", [](MemoryConfig& c) { c.refine = Refinement::modularity; });
  add("chunked", [](MemoryConfig& c) { c.window = ThresholdWindow::chunked; });
  add("fixed", [](MemoryConfig& c) { c.segmenter = SegmenterKind::fixed; });
  add("max score", [](MemoryConfig& c) { c.score = RepresentativeScore::max; });
  add("faiss", [](MemoryConfig& c) { c.index = IndexKind::faiss, c.exact_up_to = 12; });
  add("one layer recalls", [](MemoryConfig& c) { c.recall_layers = {{1}}; });
  add("nothing recalled", [](MemoryConfig& c) { c.recall = false; });
  add("recall every third step", [](MemoryConfig& c) { c.recall_every = 3; });
  add("bfloat16", [](MemoryConfig& c) { c.kv_dtype = DType::bfloat16; });
  add("float16, refined, many sinks", [](MemoryConfig& c) {
    c.kv_dtype = DType::float16, c.refine = Refinement::modularity, c.n_init = 30;
  });
  add("a scope for each head", [](MemoryConfig& c) {
    c.segmenter = SegmenterKind::k_similarity, c.scope = EventScope::head, c.gamma = 0.5;
  });
  add("keys of all heads", [](MemoryConfig& c) { c.segmenter = SegmenterKind::gaussian; });
  add("recall in two groups", [](MemoryConfig& c) { c.recall_groups = 2; });
  add("forgetting", [](MemoryConfig& c) {
    c.retention.emplace();
    c.retention->memoria.initial_lifespan = 4;
  });
  add("reweighted", [](MemoryConfig& c) { c.reweight = Reweighting::exact; });
  add("the three most relevant",
      [](MemoryConfig& c) { c.reweight = Reweighting::broad, c.reweight_top = 3; });
  add("one sink, one token blocks", [](MemoryConfig& c) { c.n_init = 0, c.min_block = 1; });
  return all;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::string> contents(const fs::path& dir) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::directory_iterator(dir))
    all[entry.path().filename().string()] = bytes_of(entry.path());
  return all;
}

constexpr std::int64_t kTokens = 12 * 60;

TEST_CASE("a memory closed and opened again goes on as if it never had been", "[memory][kept]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 5);
  for (const auto& [name, config] : variants()) {
    INFO(name);
    EpisodicMemory whole(config, small_shape());
    std::vector<float> expected = feed(whole, tokens, 0, 300);
    const TempDir temp;
    std::vector<float> found;
    {
      EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), config, small_shape());
      found = feed(memory, tokens, 0, 300);
      memory.commit();
      CHECK(memory.committed_tokens() == 300);
    }
    CHECK(found == expected);
    const MemoryShape shape = small_shape();
    for (const std::int64_t end : {301, 480, static_cast<int>(kTokens)}) {
      EpisodicMemory memory = EpisodicMemory::open(in(temp / "m"), OpenMode::write, &shape);
      const std::int64_t first = memory.tokens();
      REQUIRE(memory.config() == config);
      expected = feed(whole, tokens, first, end);
      found = feed(memory, tokens, first, end);
      CHECK(found == expected);
      memory.commit();
    }
    CHECK(verify_memory(temp / "m").damages.empty());
  }
}

TEST_CASE("what was not committed is lost, and nothing else", "[memory][kept]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 6);
  const TempDir temp;
  EpisodicMemory whole = EpisodicMemory::create(in(temp / "whole"), small_config(), small_shape());
  feed(whole, tokens, 0, kTokens);
  whole.commit();
  {
    EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
    feed(memory, tokens, 0, 240);
    memory.commit();
    feed(memory, tokens, 240, 492);
  }
  EpisodicMemory memory = EpisodicMemory::open(in(temp / "m"), OpenMode::write);
  CHECK(memory.tokens() == 240);
  feed(memory, tokens, 240, kTokens);
  memory.commit();
  CHECK(memory.digest() == whole.digest());
  CHECK(EpisodicMemory::open(in(temp / "m"), OpenMode::read).digest() == whole.digest());
}

TEST_CASE("the output is the same to the bit wherever the events lie", "[memory][kept][tiers]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 7);
  for (const auto& [name, base] : variants()) {
    INFO(name);
    EpisodicMemory host(base, small_shape());
    const std::vector<float> expected = feed(host, tokens, 0, kTokens);
    const TempDir temp;
    MemoryConfig config = base;
    config.disk_dir = temp.path().string();
    for (const std::int64_t budget : {std::int64_t{0}, std::int64_t{1}}) {
      // 1: the least that works, so that nearly everything comes from the disk
      config.host_bytes = budget * least_host_bytes(config, small_shape());
      EpisodicMemory memory(config, small_shape());
      CHECK(feed(memory, tokens, 0, kTokens) == expected);
      if (budget > 0 && config.recall)
        CHECK(memory.counters().store.bytes_reserved <= config.host_bytes);
    }
    CHECK(fs::is_empty(temp.path()));
  }
}

TEST_CASE("representatives may lie in files too", "[memory][kept][tiers]") {
  // Vectors so wide that a slab holds 16 events.
  const MemoryShape shape = small_shape(1, 64, 1, 256);
  const auto tokens = random_tokens(shape, 600, 19);
  EpisodicMemory host(small_config(), shape);
  feed(host, tokens, 0, 360);
  const std::vector<float> second = feed(host, tokens, 360, 600);
  const std::int64_t in_host = host.counters().index_bytes;
  const TempDir temp;
  MemoryConfig config = small_config();
  config.repr_bytes = 15 << 20;
  // The host scans so few; with what it takes to bound them they would not fit.
  const detail::Projection bounds(64 * 256, 16, detail::ExactTuning{}.sample);
  REQUIRE(config.repr_bytes < in_host + bounds.fixed_bytes());
  {
    EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), config, shape);
    for (std::int64_t at = 0; at < 360; at += 60) {
      feed(memory, tokens, at, at + 60);
      CHECK(memory.counters().index_bytes <= config.repr_bytes);
    }
    CHECK(memory.counters().vector_disk_bytes > 2 << 20);
    memory.commit();
  }
  {
    EpisodicMemory memory = EpisodicMemory::open(in(temp / "m"), OpenMode::write);
    CHECK(feed(memory, tokens, 360, 600) == second);
    CHECK(memory.counters().index_bytes <= config.repr_bytes);
    const std::uint64_t digest = memory.digest();
    memory.commit();
    fork_memory(temp / "m", temp / "fork");
    // what is forgotten is gone from the vector files as well
    const std::vector<float> row = memory.representative(0, 5);
    const std::string needle(reinterpret_cast<const char*>(row.data()), 256);
    const auto holds = [&](const fs::path& dir) {
      for (const auto& [name, bytes] : contents(dir))
        if (bytes.find(needle) != std::string::npos) return true;
      return false;
    };
    CHECK(holds(temp / "m"));
    memory.forget(EventId{5});
    memory.compact();
    CHECK(!holds(temp / "m"));
    CHECK(holds(temp / "fork"));
    CHECK(EpisodicMemory::open(in(temp / "fork"), OpenMode::read).digest() == digest);
  }
  CHECK(verify_memory(temp / "m").damages.empty());
  for (const auto& [name, length] : MemoryManifest::read(temp / "fork").files) {
    if (!name.starts_with("vectors-")) continue;
    const std::string bytes = bytes_of(temp / "fork" / name);
    const auto counts = static_cast<std::size_t>(length);  // what follows is the other's
    for (std::size_t i = 0; i < counts; i += 1 + counts / 60) {
      INFO("byte " << i);
      // a new file: the old one is shared
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ 4);
      fs::remove(temp / "fork" / name);
      std::ofstream(temp / "fork" / name, std::ios::binary) << damaged;
      CHECK(!verify_memory(temp / "fork").damages.empty());
    }
    fs::remove(temp / "fork" / name);
    std::ofstream(temp / "fork" / name, std::ios::binary) << bytes;
  }
  CHECK(verify_memory(temp / "fork").damages.empty());
  // Too little even for what a search reads of every event: said by name, and the step is undone.
  config.repr_bytes = 200000;
  EpisodicMemory tight = EpisodicMemory::create(in(temp / "tight"), config, shape);
  CHECK(mentions(refusal<BudgetError>([&] { feed(tight, tokens, 0, 600); }), "repr_bytes"));
  const std::int64_t read = tight.tokens();
  tight.commit();
  CHECK(EpisodicMemory::open(in(temp / "tight"), OpenMode::read).tokens() == read);
}

TEST_CASE("budgets are upper bounds after every call", "[memory][kept][tiers]") {
  const MemoryShape shape = small_shape(1, 64, 1, 256);
  const auto tokens = random_tokens(shape, 600, 20);
  const TempDir temp;
  MemoryConfig config = small_config();
  config.host_bytes = 1 << 20;
  config.repr_bytes = 15 << 20;
  config.disk_bytes = 6 << 20;
  EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), config, shape);
  const auto sample = [&] {
    const MemoryCounters c = memory.counters();
    CHECK(c.store.bytes_reserved <= config.host_bytes);
    CHECK(c.index_bytes <= config.repr_bytes);
    CHECK(c.store.disk_bytes + c.vector_disk_bytes <= config.disk_bytes);
    std::int64_t taken = 0;
    for (const auto& entry : fs::directory_iterator(temp / "m")) {
      const std::string name = entry.path().filename().string();
      struct stat info {};
      if ((name.starts_with("kv-") || name.starts_with("vectors-")) &&
          ::stat(entry.path().c_str(), &info) == 0)
        taken += info.st_blocks * 512;
    }
    CHECK(taken <= config.disk_bytes);
  };
  std::int64_t commits = 0;
  const std::string said = refusal<BudgetError>([&] {
    for (std::int64_t at = 0; at < 600; at += 12) {
      memory.begin_step(12);
      std::vector<float> q, k, v;
      for (std::int64_t i = at; i < at + 12; ++i) {
        const driver::Token& t = tokens[static_cast<std::size_t>(i)];
        q.insert(q.end(), t.q[0].begin(), t.q[0].end());
        k.insert(k.end(), t.k[0].begin(), t.k[0].end());
        v.insert(v.end(), t.v[0].begin(), t.v[0].end());
      }
      std::vector<float> out(q.size()), surprise;
      memory.attend(0, q.data(), k.data(), v.data(), out.data());
      sample();
      for (std::int64_t i = at; i < at + 12; ++i)
        surprise.push_back(tokens[static_cast<std::size_t>(i)].surprise);
      memory.end_step(surprise.data());
      sample();
      if (at % 60 == 0) {
        memory.commit();
        ++commits;
        sample();
      }
    }
  });
  INFO(said);
  CHECK(mentions(said, "disk_bytes"));
  CHECK(commits > 2);
  const std::int64_t read = memory.tokens();
  memory.commit();  // what was read stays
  sample();
  CHECK(EpisodicMemory::open(in(temp / "m"), OpenMode::read).tokens() == read);
  CHECK(verify_memory(temp / "m").damages.empty());
}

TEST_CASE("a reader changes nothing and may go on in memory", "[memory][kept]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 8);
  const TempDir temp;
  EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
  feed(memory, tokens, 0, 300);
  memory.commit();
  const auto before = contents(temp / "m");
  EpisodicMemory reader = EpisodicMemory::open(in(temp / "m"), OpenMode::read);
  EpisodicMemory second = EpisodicMemory::open(in(temp / "m"), OpenMode::read);
  const std::vector<float> expected = feed(memory, tokens, 300, kTokens);
  CHECK(feed(reader, tokens, 300, kTokens) == expected);
  CHECK(feed(second, tokens, 300, kTokens) == expected);
  CHECK(mentions(refusal<ConfigError>([&] { reader.commit(); }), "read only"));
  for (const auto& [name, bytes] : before) CHECK(contents(temp / "m").at(name).starts_with(bytes));
}

TEST_CASE("forks share files and go their own ways", "[memory][kept][fork]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 9);
  const auto other = random_tokens(small_shape(), kTokens, 10);
  const TempDir temp;
  EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
  feed(memory, tokens, 0, 300);
  memory.commit();
  fork_memory(temp / "m", temp / "fork");  // while it is open for writing
  for (const auto& f : memory.manifest().files)
    CHECK(fs::hard_link_count(temp / "fork" / f.name) == 2);
  feed(memory, tokens, 300, kTokens);
  memory.commit();

  EpisodicMemory fork = EpisodicMemory::open(in(temp / "fork"), OpenMode::write);
  CHECK(fork.tokens() == 300);
  CHECK(fork.manifest().parent == memory.manifest().id);
  CHECK(fork.manifest().id != memory.manifest().id);
  feed(fork, other, 300, kTokens);
  fork.commit();
  CHECK(fork.digest() != memory.digest());
  fork.forget(EventId{0});
  fork.compact();

  CHECK(verify_memory(temp / "m").damages.empty());
  CHECK(verify_memory(temp / "fork").damages.empty());
  EpisodicMemory alone = EpisodicMemory::create(in(temp / "alone"), small_config(), small_shape());
  feed(alone, tokens, 0, kTokens);
  CHECK(alone.digest() == memory.digest());
  // and the fork of a fork outlives both
  fork_memory(temp / "fork", temp / "third");
  const std::uint64_t digest = fork.digest();
  fs::remove_all(temp / "fork");
  CHECK(EpisodicMemory::open(in(temp / "third"), OpenMode::read).digest() == digest);

  CHECK(mentions(refusal<FileError>([&] { fork_memory(temp / "m", temp / "third"); }), "third"));
  CHECK(mentions(refusal<FileError>([&] { fork_memory(temp / "none", temp / "x"); }), "none"));
  CHECK(!fs::exists(temp / "x"));
}

TEST_CASE("a kept memory is opened only for the model it was made with", "[memory][kept][refuse]") {
  const TempDir temp;
  EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
  const auto opened = [&](const KeepOptions& keep, const MemoryShape* shape = nullptr,
                          const MemoryConfig* config = nullptr) {
    return refusal<ConfigError>([&] { EpisodicMemory::open(keep, OpenMode::read, shape, config); });
  };
  KeepOptions keep = in(temp / "m");
  CHECK(opened(keep) == "no error");
  keep.identity.weights = "w2";
  CHECK(mentions(opened(keep), "weights"));
  CHECK(mentions(opened(keep), "'tiny'"));
  keep = in(temp / "m");
  keep.identity.tokenizer = "t2";
  CHECK(mentions(opened(keep), "tokenizer"));
  const MemoryShape shape = small_shape(2, 4, 2, 12);
  CHECK(mentions(opened(in(temp / "m"), &shape), "head_dim is 10, not 12"));
  // What differs is named as what it is.
  const auto given = [&](auto change) {
    MemoryShape other = small_shape();
    change(other);
    return opened(in(temp / "m"), &other);
  };
  CHECK(given([](MemoryShape&) {}) == "no error");
  CHECK(mentions(given([](MemoryShape& s) { s.rotary = plain_rotary(10, 500000.0); }),
                 "rotary base or scaling of layer 0"));
  CHECK(mentions(given([](MemoryShape& s) { s.rotary.attention_factor = 1.5; }),
                 "attention_factor of layer 0 is 1, not 1.5"));
  CHECK(mentions(given([](MemoryShape& s) { s.rotary = plain_rotary(8, 10000.0); }),
                 "rotary dimension of layer 0 is 10, not 8"));
  const auto layer_1 = [&](auto change) {
    return given([&](MemoryShape& s) {
      s.layers.assign(2, {s.rotary});
      change(s.layers[1]);
    });
  };
  CHECK(layer_1([](LayerShape&) {}) == "no error");  // the same, written down otherwise
  CHECK(mentions(layer_1([](LayerShape& l) { l.scale = 0.5f; }), "scale of layer 1 is 0, not 0.5"));
  CHECK(mentions(layer_1([](LayerShape& l) { l.rotary = {}; }), "rotary dimension of layer 1"));
  MemoryConfig config = small_config();
  config.host_bytes = 1 << 22;
  CHECK(opened(in(temp / "m"), nullptr, &config) == "no error");
  config.n_mem += 1;
  CHECK(mentions(opened(in(temp / "m"), nullptr, &config), "other settings"));
  CHECK(mentions(opened(in(temp / "m"), nullptr, &config), "now: n_mem is 24, not 25. Only"));
  config.scope = EventScope::head;  // which the memory does not have
  CHECK(mentions(opened(in(temp / "m"), nullptr, &config),
                 R"(n_mem is 24, not 25; scope is "sequence", not "head". Only)"));
}

TEST_CASE("one writer, many readers, clear words for all else", "[memory][kept][refuse]") {
  const TempDir temp;
  EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
  CHECK(mentions(refusal<FileError>([&] {
                   EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
                 }),
                 "another process"));
  CHECK(mentions(refusal<FileError>([&] { EpisodicMemory::open(in(temp / "m"), OpenMode::write); }),
                 "another process"));
  // the same from another process
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused =
        mentions(refusal<FileError>([&] { EpisodicMemory::open(in(temp / "m"), OpenMode::write); }),
                 "another process");
    const bool reads =
        refusal([&] { EpisodicMemory::open(in(temp / "m"), OpenMode::read); }) == "no error";
    ::_exit(refused && reads ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);

  fs::create_directory(temp / "other");
  temp.write("other/letter.txt", "dear");
  CHECK(mentions(refusal<FileError>([&] {
                   EpisodicMemory::create(in(temp / "other"), small_config(), small_shape());
                 }),
                 "letter.txt"));
  CHECK(bytes_of(temp / "other/letter.txt") == "dear");
  CHECK(
      mentions(refusal<FileError>([&] { EpisodicMemory::open(in(temp / "none"), OpenMode::read); }),
               "holds no memory"));
  EpisodicMemory plain(small_config(), small_shape());
  CHECK(mentions(refusal<ConfigError>([&] { plain.commit(); }), "kept in no folder"));
}

TEST_CASE("another format, newer or older, is refused by name", "[memory][kept][refuse]") {
  const TempDir temp;
  { EpisodicMemory::create(in(temp / "m"), small_config(), small_shape()); }
  const std::string text = bytes_of(temp / "m/manifest.json");
  const std::string ours = "\"version\": " + std::to_string(MemoryManifest::kVersion);
  const std::size_t at = text.find(ours);
  REQUIRE(at != std::string::npos);
  for (const int by : {1, -1}) {
    std::string other = text;
    other.replace(at, ours.size(), "\"version\": " + std::to_string(MemoryManifest::kVersion + by));
    std::ofstream(temp / "m/manifest.json", std::ios::binary) << other;
    const std::string said =
        refusal<FileError>([&] { EpisodicMemory::open(in(temp / "m"), OpenMode::write); });
    INFO(said);
    CHECK(mentions(said, by > 0 ? "newer version" : "older version"));
    CHECK(mentions(said, "manifest.json"));
  }
}

TEST_CASE("verify sees every single-byte change, and nothing damaged is opened or served",
          "[memory][kept][verify]") {
  MemoryConfig config = small_config();
  config.n_local = 12;
  config.chunk = 6;
  config.max_block = 6;
  const MemoryShape shape = small_shape(1, 2, 1, 4);
  const auto tokens = random_tokens(shape, 200, 11);
  const TempDir temp;
  {
    KeepOptions keep = in(temp / "m");
    keep.checkpoints = 1;
    EpisodicMemory memory = EpisodicMemory::create(keep, config, shape);
    feed(memory, tokens, 0, 60);
    memory.commit();
    feed(memory, tokens, 60, 120);
    memory.commit();
  }
  REQUIRE(verify_memory(temp / "m").damages.empty());
  const auto files = contents(temp / "m");
  REQUIRE(files.size() >= 6);
  std::int64_t changed = 0;
#ifdef __SANITIZE_THREAD__
  const std::size_t n_step = 97;  // all of them take an hour there
#else
  const std::size_t n_step = episodic_test::all_or(1, 31);  // prime, as below
#endif
  for (const auto& [name, bytes] : files) {
    INFO(name);
    // of long files, whose parts are alike, some: prime, so that it meets every place of a record
    const std::size_t step = std::max<std::size_t>(n_step, bytes.size() > 4096 ? 5 : 1);
    for (std::size_t i = 0; i < bytes.size(); i += step) {
      std::fstream file(temp / "m" / name, std::ios::binary | std::ios::in | std::ios::out);
      const char other = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
      file.seekp(static_cast<std::streamoff>(i)).put(other).flush();
      const VerifyReport report = verify_memory(temp / "m");
      if (report.damages.empty()) {
        INFO("byte " << i);
        REQUIRE(!report.damages.empty());
      }
      file.seekp(static_cast<std::streamoff>(i)).put(bytes[i]).flush();
      ++changed;
    }
    // cut off, and gone
    if (bytes.empty()) continue;
    fs::resize_file(temp / "m" / name, bytes.size() - 1);
    CHECK(!verify_memory(temp / "m").damages.empty());
    fs::rename(temp / "m" / name, temp / "aside");
    CHECK(!verify_memory(temp / "m").damages.empty());
    fs::rename(temp / "aside", temp / "m" / name);
    std::ofstream(temp / "m" / name, std::ios::binary) << bytes;
  }
  CHECK(changed > static_cast<std::int64_t>(2000 / n_step));
  REQUIRE(verify_memory(temp / "m").damages.empty());

  // What verify sees, opening or using the memory refuses: it never answers from damaged bytes.
  EpisodicMemory whole = EpisodicMemory::open(in(temp / "m"), OpenMode::read);
  const std::vector<float> expected = feed(whole, tokens, 120, 200);
  for (const auto& [name, bytes] : files) {
    for (std::size_t i = 3; i < bytes.size(); i += 1 + bytes.size() / 40) {
      INFO(name << " byte " << i);
      std::fstream file(temp / "m" / name, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(static_cast<std::streamoff>(i)).put(static_cast<char>(bytes[i] ^ 16)).flush();
      std::vector<float> found;
      const std::string said = refusal<Error>([&] {
        EpisodicMemory memory = EpisodicMemory::open(in(temp / "m"), OpenMode::read);
        found = feed(memory, tokens, 120, 200);
      });
      CHECK((said != "no error" || found == expected));
      file.seekp(static_cast<std::streamoff>(i)).put(bytes[i]).flush();
    }
  }
}

TEST_CASE("forgotten events are never recalled again and leave no bytes", "[memory][kept][edit]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 12);
  const TempDir temp;
  EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
  feed(memory, tokens, 0, 600);
  memory.commit();
  const std::int64_t before = memory.counters().store.disk_bytes;
  const TokenRange range{memory.events()[3].start + 1, memory.events()[40].start + 1};
  const std::vector<EventId> gone = memory.forget(range);
  CHECK(gone.front() == 3);
  CHECK(gone.back() == 40);
  CHECK(gone.size() == 38);
  CHECK(memory.forgotten() == gone);
  const auto never = [&](EpisodicMemory& m, std::int64_t first, std::int64_t end) {
    for (std::int64_t at = first; at < end; at += 12) {
      step(m, tokens, at, 12);
      for (std::int64_t l = 0; l < m.shape().n_layers; ++l)
        for (const EventId e : m.recalled(l).recalled()) {
          if (e >= 3 && e <= 40) return false;
        }
    }
    return true;
  };
  CHECK(never(memory, 600, 648));
  memory.compact();
  CHECK(memory.counters().store.disk_bytes < before);
  CHECK(verify_memory(temp / "m").damages.empty());
  // No file holds a key of a forgotten event any more, not even the ring's neighbours' files.
  const TokenRange e = memory.events()[20];
  const float* key = tokens[static_cast<std::size_t>(e.start)].k[0].data();
  const std::string needle(reinterpret_cast<const char*>(key), 10 * sizeof(float));
  for (const auto& [name, bytes] : contents(temp / "m")) {
    INFO(name);
    CHECK(bytes.find(needle) == std::string::npos);
  }
  EpisodicMemory again = EpisodicMemory::open(in(temp / "m"), OpenMode::read);
  CHECK(again.forgotten() == gone);
  CHECK(again.token_ids(e.start, 1) == std::vector<std::int64_t>{-1});
  CHECK(never(again, 648, kTokens));

  CHECK(mentions(refusal<DataError>([&] { memory.forget(TokenRange{640, 648}); }), "window"));
  CHECK(mentions(refusal<DataError>([&] { memory.forget(EventId{100000}); }), "100000"));
}

TEST_CASE("a pinned event cannot be forgotten and stays pinned", "[memory][kept][edit]") {
  const auto tokens = random_tokens(small_shape(), 400, 13);
  const TempDir temp;
  {
    EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
    feed(memory, tokens, 0, 396);
    memory.pin(5);
    memory.commit();
  }
  EpisodicMemory memory = EpisodicMemory::open(in(temp / "m"), OpenMode::write);
  CHECK(memory.disk_store()->pinned(5));
  CHECK(mentions(refusal<DataError>([&] { memory.forget(EventId{5}); }), "pinned"));
  CHECK(mentions(refusal<DataError>([&] {
                   memory.forget(TokenRange{memory.events()[4].start, memory.events()[6].end});
                 }),
                 "pinned"));
  CHECK(memory.forgotten().empty());
  memory.pin(5, false);
  memory.forget(EventId{5});
  CHECK(memory.forgotten() == std::vector<EventId>{5});
  EpisodicMemory plain(small_config(), small_shape());
  feed(plain, tokens, 0, 396);
  CHECK(mentions(refusal<ConfigError>([&] { plain.pin(0); }), "disk_dir"));
}

TEST_CASE("earlier states are kept and give what came after them again", "[memory][kept][edit]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 14);
  const TempDir temp;
  std::uint64_t digest_at_360 = 0, digest_at_end = 0;
  {
    EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
    for (std::int64_t at = 0; at < kTokens; at += 60) {
      feed(memory, tokens, at, at + 60);
      memory.commit();
      if (memory.tokens() == 360) digest_at_360 = memory.digest();
    }
    digest_at_end = memory.digest();
    const auto& states = memory.manifest().checkpoints;
    REQUIRE(states.size() == 4);
    for (std::size_t i = 0; i + 1 < states.size(); ++i)
      CHECK(states[i].tokens < states[i + 1].tokens);
  }
  CHECK(EpisodicMemory::open(in(temp / "m"), OpenMode::read).digest() == digest_at_end);
  EpisodicMemory memory =
      EpisodicMemory::open(in(temp / "m"), OpenMode::write, nullptr, nullptr, 360);
  REQUIRE(memory.tokens() <= 360);
  REQUIRE(memory.tokens() > 0);
  feed(memory, tokens, memory.tokens(), 360);
  CHECK(memory.digest() == digest_at_360);
  memory.commit();
  for (const auto& s : memory.manifest().checkpoints) CHECK(s.tokens < 360);
  CHECK(verify_memory(temp / "m").damages.empty());
  feed(memory, tokens, 360, kTokens);
  memory.commit();
  CHECK(memory.digest() == digest_at_end);
  // back to the beginning
  memory.reset();
  CHECK(memory.tokens() == 0);
  feed(memory, tokens, 0, 360);
  memory.commit();
  CHECK(memory.digest() == digest_at_360);
  CHECK(verify_memory(temp / "m").damages.empty());
}

TEST_CASE("a memory that many runs went on from has few files", "[memory][kept][fork]") {
  struct Case {
    const char* name;
    MemoryShape shape;
    std::int64_t repr_bytes;
  };
  // Vectors so wide that a slab holds 16 events, in files too.
  for (const Case& c :
       {Case{"plain", small_shape(), 0}, Case{"vectors", small_shape(1, 64, 1, 256), 16 << 20}}) {
    INFO(c.name);
    const auto tokens = random_tokens(c.shape, kTokens, 15);
    MemoryConfig config = small_config();
    config.repr_bytes = c.repr_bytes;
    const TempDir temp;
    const KeepOptions keep = in(temp / "m");
    EpisodicMemory whole = EpisodicMemory::create(in(temp / "whole"), config, c.shape);
    EpisodicMemory::create(keep, config, c.shape).commit();
    std::map<std::int64_t, std::uint64_t> forks;  // digests, by tokens
    std::size_t most = 0, least = kTokens;
    for (std::int64_t at = 0; at < kTokens; at += 12) {
      EpisodicMemory memory = EpisodicMemory::open(keep, OpenMode::write);
      CHECK(feed(memory, tokens, at, at + 12) == feed(whole, tokens, at, at + 12));
      memory.commit();
      CHECK(memory.digest() == whole.digest());
      std::map<std::string, std::size_t> files;  // by kind
      for (const auto& f : memory.manifest().files) ++files[f.name.substr(0, f.name.find('-'))];
      for (const auto& [kind, n] : files) most = std::max(most, n);
      if (at > kTokens / 2) least = std::min(least, files["tokens"]);
      std::size_t named = 0;  // and no others lie there
      for (const auto& entry : fs::directory_iterator(temp / "m"))
        named += entry.path().filename().string().find('-') != std::string::npos ? 1 : 0;
      CHECK(named == memory.manifest().files.size() + memory.manifest().checkpoints.size() + 1);
      if (at % 96 == 0) {
        fork_memory(temp / "m", temp / std::to_string(at + 12));
        forks[at + 12] = memory.digest();
      }
    }
    CHECK(most == 32);   // of 60 runs
    CHECK(least <= 10);  // it was more, and became less
    // what was put together elsewhere is whole in the branches
    REQUIRE(forks.size() == 8);
    for (const auto& [n, digest] : forks) {
      const fs::path dir = temp / std::to_string(n);
      CHECK(verify_memory(dir).damages.empty());
      EpisodicMemory fork = EpisodicMemory::open(in(dir), OpenMode::write);
      CHECK(fork.digest() == digest);
      feed(fork, tokens, n, kTokens);
      CHECK(fork.digest() == whole.digest());
    }
    CHECK(verify_memory(temp / "m").damages.empty());
  }
}

TEST_CASE("an earlier state that is opened to be written takes nothing of the last commit",
          "[memory][kept][edit]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 21);
  for (const auto& [name, config] : variants()) {
    INFO(name);
    const TempDir temp;
    std::uint64_t digest = 0;
    {  // several states in the same files
      EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), config, small_shape());
      for (const std::int64_t end : {150, 300, 450}) {
        feed(memory, tokens, memory.tokens(), end);
        memory.commit();
      }
      digest = memory.digest();
    }
    for (const std::int64_t at : {300, 150}) {
      if (config.retention) break;  // it keeps no earlier states
      EpisodicMemory earlier =
          EpisodicMemory::open(in(temp / "m"), OpenMode::write, nullptr, nullptr, at);
      REQUIRE(earlier.tokens() == at);
      feed(earlier, tokens, at, at + 100);
      // given up, or killed: nothing was committed since
    }
    CHECK(verify_memory(temp / "m").damages.empty());
    EpisodicMemory last = EpisodicMemory::open(in(temp / "m"), OpenMode::write);
    CHECK(last.tokens() == 450);
    CHECK(last.digest() == digest);
  }
}

TEST_CASE("what went on from an earlier state has no states of the branch that was given up",
          "[memory][kept][edit]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 22),
             other = random_tokens(small_shape(), kTokens, 23);
  const TempDir temp;
  {
    EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
    for (const std::int64_t end : {150, 300, 450}) {
      feed(memory, tokens, memory.tokens(), end);
      memory.commit();
    }
  }
  EpisodicMemory straight(small_config(), small_shape());
  feed(straight, tokens, 0, 150);
  feed(straight, other, 150, 400);
  std::uint64_t digest = 0;
  {
    EpisodicMemory memory =
        EpisodicMemory::open(in(temp / "m"), OpenMode::write, nullptr, nullptr, 150);
    feed(memory, other, 150, 400);
    memory.commit();
    for (const auto& s : memory.manifest().checkpoints) CHECK(s.tokens <= 150);
    CHECK(memory.events().all() == straight.events().all());
    digest = memory.digest();
  }
  CHECK(verify_memory(temp / "m").damages.empty());
  CHECK(EpisodicMemory::open(in(temp / "m"), OpenMode::read, nullptr, nullptr, 399).tokens() ==
        150);
  CHECK(EpisodicMemory::open(in(temp / "m"), OpenMode::write).digest() == digest);
}

TEST_CASE("snapshots of a kept memory go back over commits", "[memory][kept]") {
  const auto tokens = random_tokens(small_shape(), kTokens, 15);
  const auto other = random_tokens(small_shape(), kTokens, 16);
  const TempDir temp;
  EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
  feed(memory, tokens, 0, 300);
  const auto snapshot = memory.snapshot();
  const std::uint64_t digest = memory.digest();
  feed(memory, other, 300, 480);
  memory.commit();
  memory.restore(*snapshot);
  CHECK(memory.digest() == digest);
  memory.commit();
  CHECK(EpisodicMemory::open(in(temp / "m"), OpenMode::read).digest() == digest);
  feed(memory, tokens, 300, kTokens);
  memory.commit();
  EpisodicMemory whole = EpisodicMemory::create(in(temp / "whole"), small_config(), small_shape());
  feed(whole, tokens, 0, kTokens);
  CHECK(memory.digest() == whole.digest());
  CHECK(verify_memory(temp / "m").damages.empty());
}

TEST_CASE("one memory used from two threads at once is refused, getters too", "[memory][threads]") {
  const TempDir temp;
  EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
  const auto tokens = random_tokens(small_shape(), 120, 17);
  feed(memory, tokens, 0, 108);
  REQUIRE(memory.events().size() > 1);
  const auto snapshot = memory.snapshot();
  std::promise<void> inside, leave;
  std::vector<std::byte> block(1 << 16);
  std::int64_t seen_inside = -1;
  std::thread other([&] {
    memory.read_events(0, 1, 0, [&](EventId) {
      seen_inside = memory.tokens();  // the thread that is inside may ask
      inside.set_value();
      leave.get_future().wait();
      return block.data();
    });
  });
  // Never longer than this, whatever fails: then the checks below say so.
  const bool entered =
      inside.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  std::vector<float> row(1000);
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"begin_step", [&] { memory.begin_step(1); }},
      {"attend", [&] { memory.attend(0, row.data(), row.data(), row.data(), row.data()); }},
      {"end_step", [&] { memory.end_step(row.data()); }},
      {"tokens", [&] { (void)memory.tokens(); }},
      {"open_tokens", [&] { (void)memory.open_tokens(); }},
      {"events", [&] { (void)memory.events(); }},
      {"scopes", [&] { (void)memory.scopes(); }},
      {"lanes", [&] { (void)memory.lanes(); }},
      {"last_step", [&] { (void)memory.last_step(); }},
      {"recalled", [&] { (void)memory.recalled(0); }},
      {"representative", [&] { (void)memory.representative(0, 0); }},
      {"relevance", [&] { (void)memory.relevance(0, 100); }},
      {"counters", [&] { (void)memory.counters(); }},
      {"last_logits", [&] { (void)memory.last_logits(); }},
      {"forgotten", [&] { (void)memory.forgotten(); }},
      {"committed_tokens", [&] { (void)memory.committed_tokens(); }},
      {"manifest", [&] { (void)memory.manifest(); }},
      {"disk_store", [&] { (void)memory.disk_store(); }},
      {"snapshot", [&] { (void)memory.snapshot(); }},
      {"restore", [&] { memory.restore(*snapshot); }},
      {"reset", [&] { memory.reset(); }},
      {"state", [&] { (void)memory.state(); }},
      {"advance", [&] { memory.advance({}); }},
      {"commit", [&] { memory.commit(); }},
      {"token_ids", [&] { (void)memory.token_ids(0, 1); }},
      {"digest", [&] { (void)memory.digest(); }},
      {"forget an event", [&] { memory.forget(EventId{0}); }},
      {"forget tokens",
       [&] {
         memory.forget(TokenRange{4, 6});
       }},
      {"pin", [&] { memory.pin(0); }},
      {"compact", [&] { memory.compact(); }},
  };
  for (const auto& [name, call] : calls) {
    INFO(name);
    CHECK(mentions(refusal<Error>(call), "two threads"));
  }
  CHECK(memory.config().n_init == 4);  // never changes: anyone may ask
  CHECK(memory.shape().n_layers == 2);
  CHECK(memory.folder() == temp / "m");
  leave.set_value();
  other.join();
  CHECK(entered);
  CHECK(seen_inside == 108);
  step(memory, tokens, 108, 12);  // and it still works
  CHECK(memory.tokens() == 120);
}

TEST_CASE("a snapshot of what was given up is refused, also where no event had closed",
          "[memory][kept][snapshot]") {
  const auto tokens = random_tokens(small_shape(), 400, 31);
  const auto other = random_tokens(small_shape(), 400, 32);
  for (const bool kept : {false, true}) {
    const TempDir temp;
    MemoryConfig c = small_config();
    c.n_local = 60;  // room for steps that close nothing
    EpisodicMemory memory = kept ? EpisodicMemory::create(in(temp / "m"), c, small_shape())
                                 : EpisodicMemory(c, small_shape());
    feed(memory, tokens, 0, 50);
    const auto a = memory.snapshot();
    step(memory, tokens, 50, 6);
    const auto b = memory.snapshot();
    REQUIRE(memory.events().size() == 0);
    memory.restore(*a);
    CHECK(mentions(refusal<ConfigError>([&] { memory.restore(*b); }), "gone back to token 50"));
    CHECK(memory.tokens() == 50);  // as it was
    // The silent variant: other tokens in the place of those that the snapshot knew.
    step(memory, other, 50, 7);
    CHECK(mentions(refusal<ConfigError>([&] { memory.restore(*b); }), "gone back"));
    const auto d = memory.snapshot();
    step(memory, other, 57, 3);
    memory.restore(*d);  // what came since may be gone back to, again and again
    memory.restore(*d);
    memory.restore(*a);
    CHECK_THROWS_AS(memory.restore(*d), ConfigError);
    feed(memory, tokens, 50, 300);
    CHECK_THROWS_AS(memory.restore(*b), ConfigError);
    CHECK_THROWS_AS(memory.restore(*d), ConfigError);
    if (kept) {
      memory.commit();
      EpisodicMemory again = EpisodicMemory::open(in(temp / "m"), OpenMode::read);
      CHECK(again.tokens() == 300);
      CHECK(again.digest() == memory.digest());
    }
    memory.restore(*a);
    memory.reset();
    CHECK(mentions(refusal<ConfigError>([&] { memory.restore(*a); }), "reset"));
  }
}

TEST_CASE("a folder that went away, or a file of it, is noticed", "[memory][kept][errors]") {
  const auto tokens = random_tokens(small_shape(), 300, 33);
  const TempDir temp;
  {
    EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
    feed(memory, tokens, 0, 200);
    memory.commit();
    fork_memory(temp / "m", temp / "fork");
    fork_memory(temp / "m", temp / "cut");
    feed(memory, tokens, 200, 240);
    fs::remove_all(temp / "m");
    CHECK_THROWS_AS(memory.commit(), FileError);
    fs::create_directory(temp / "m");  // as where files went while the folder was written to
    CHECK(mentions(refusal<FileError>([&] { memory.commit(); }), (temp / "m").string()));
    CHECK(memory.tokens() == 240);
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(temp / "fork"))
    if (const std::string name = entry.path().filename().string();
        name.starts_with("kv-") || name.starts_with("tokens-"))
      files.push_back(entry.path());
  REQUIRE(files.size() == 2);
  for (const fs::path& file : files) {
    fs::rename(file, temp / "aside");
    for (const OpenMode mode : {OpenMode::read, OpenMode::write})
      CHECK(mentions(refusal<FileError>([&] { EpisodicMemory::open(in(temp / "fork"), mode); }),
                     file.filename().string()));
    fs::rename(temp / "aside", file);
    CHECK(EpisodicMemory::open(in(temp / "fork"), OpenMode::read).tokens() == 200);
    // too short
    const fs::path copy = temp / "cut" / file.filename();
    fs::copy_file(copy, temp / "aside");
    fs::remove(copy);
    fs::rename(temp / "aside", copy);
    fs::resize_file(copy, fs::file_size(copy) / 2);
    for (const OpenMode mode : {OpenMode::read, OpenMode::write}) {
      const std::string said =
          refusal<FileError>([&] { EpisodicMemory::open(in(temp / "cut"), mode); });
      CHECK(mentions(said, file.filename().string()));
      CHECK(mentions(said, "were committed; the memory is not whole"));
    }
    fs::copy_file(file, copy, fs::copy_options::overwrite_existing);
  }
}

TEST_CASE("representatives are copies: a later call does not change an earlier answer",
          "[memory][kept]") {
  const MemoryShape shape = small_shape(1, 64, 1, 256);  // 16 events in a slab
  MemoryConfig c = small_config();
  c.repr_bytes = 16 << 20;
  const auto tokens = random_tokens(shape, 300, 34);
  const TempDir temp;
  {
    EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), c, shape);
    feed(memory, tokens, 0, 300);
    REQUIRE(memory.events().size() > 20);
    memory.commit();
  }
  const EpisodicMemory memory = EpisodicMemory::open(in(temp / "m"), OpenMode::read);
  const std::vector<float> first = memory.representative(0, 1);
  const std::vector<float> copy = first, second = memory.representative(0, 9);
  CHECK(first.size() == static_cast<std::size_t>(64 * 256));
  CHECK(first == copy);
  CHECK(first != second);
  CHECK(memory.representative(0, 1) == first);
}

TEST_CASE("two memories on two threads do not meet", "[memory][threads]") {
  const TempDir temp;
  const auto tokens = random_tokens(small_shape(), 360, 18);
  EpisodicMemory alone(small_config(), small_shape());
  const std::vector<float> expected = feed(alone, tokens, 0, 360);
  std::vector<float> found[2];
  const auto run = [&](int i) {
    MemoryConfig config = small_config();
    EpisodicMemory memory =
        EpisodicMemory::create(in(temp / std::to_string(i)), config, small_shape());
    found[i] = feed(memory, tokens, 0, 360);
    memory.commit();
  };
  std::thread a(run, 0), b(run, 1);
  a.join();
  b.join();
  CHECK(found[0] == expected);
  CHECK(found[1] == expected);
}

}  // namespace kept_test
