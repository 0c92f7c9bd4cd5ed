// SPDX-License-Identifier: Apache-2.0
// A kept memory's folder made by someone who means harm, and one that loses files. Its checksums
// are right: they are no secret.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "driver.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "support/refusal.hpp"
#include "support/sampled.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace hostile_folder_test {

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Everything in a folder: what it is, and its bytes or where it points to.
std::map<std::string, std::string> contents(const fs::path& dir) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    const fs::file_status status = entry.symlink_status();
    std::string& what = all[entry.path().lexically_relative(dir).string()];
    if (fs::is_symlink(status))
      what = "-> " + fs::read_symlink(entry.path()).string();
    else if (fs::is_regular_file(status))
      what = "= " + text_of(entry.path());
    else
      what = "?";
  }
  return all;
}

std::string hex(std::uint64_t x) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(x));
  return digits;
}

/// Changes a manifest, and makes its checksum right again.
void edit_manifest(const fs::path& dir, const std::function<void(Json&)>& change) {
  std::string text = text_of(dir / "manifest.json");
  Json json = Json::parse(text.substr(0, text.rfind("checksum: ")));
  change(json);
  text = json.dump(1) + "\n";
  text += "checksum: " + hex(checksum_of(std::span<const char>(text))) + "\n";
  fs::remove(dir / "manifest.json");
  write(dir / "manifest.json", text);
}

/// A memory in a folder, and beside it what must not be touched.
struct Place {
  TempDir temp;
  fs::path dir = temp / "memory", outside = temp / "outside";
  MemoryShape shape = driver::small_shape();
  std::vector<driver::Token> tokens = driver::random_tokens(shape, 240, 5);

  Place() {
    fs::create_directory(outside);
    write(outside / "victim", std::string(100000, 'v'));
    write(outside / "kv-0123456789abcdef.seg", "another memory's");
    EpisodicMemory memory = EpisodicMemory::create(keep(), driver::small_config(), shape);
    feed(memory, 0, 96);
    memory.commit();
    feed(memory, 96, 120);
    memory.commit();
  }
  KeepOptions keep() const {
    KeepOptions k;
    k.dir = dir;
    return k;
  }
  void feed(EpisodicMemory& memory, std::int64_t first, std::int64_t end) const {
    for (std::int64_t at = first; at < end; at += 12) driver::step(memory, tokens, at, 12);
  }
  std::string state_file() const { return MemoryManifest::read(dir).state.file; }
  /// The name of the state of the next commit.
  std::string next_state() const {
    return "state-" + hex(static_cast<std::uint64_t>(MemoryManifest::read(dir).generation + 1)) +
           ".bin";
  }
  std::string file(const std::string& prefix) const {
    for (const auto& f : MemoryManifest::read(dir).files)
      if (f.name.starts_with(prefix)) return f.name;
    FAIL("no file " << prefix);
    return {};
  }
};

/// Does all that can be done with a folder, whatever of it is refused.
/// \return what was refused, in one text
std::string use(const Place& place) {
  std::string refused;
  const auto attempt = [&](auto&& f) {
    try {
      f();
      return true;
    } catch (const Error& e) {
      CHECK(std::string(e.what()).size() < 1000);
      refused += e.what() + std::string("\n");
      return false;
    }
  };
  ::alarm(60);  // what waits for ever ends the program
  attempt([&] { EpisodicMemory::open(place.keep(), OpenMode::read).digest(); });
  verify_memory(place.dir);
  attempt([&] { fork_memory(place.dir, place.temp / "fork"); });
  attempt([&] {
    EpisodicMemory memory = EpisodicMemory::open(place.keep(), OpenMode::write);
    attempt([&] { memory.token_ids(0, memory.tokens()); });
    attempt([&] { place.feed(memory, 120, 168); });
    attempt([&] { memory.commit(); });
    attempt([&] { place.feed(memory, 168, 192); });
    attempt([&] { memory.commit(); });
    attempt([&] { memory.forget(EventId{1}); });
    attempt([&] { memory.compact(); });
    attempt([&] { memory.commit(); });
  });
  attempt([&] {
    EpisodicMemory memory =
        EpisodicMemory::create(place.keep(), driver::small_config(), place.shape);
    place.feed(memory, 0, 96);
    memory.commit();
  });
  ::alarm(0);
  return refused;
}

struct Attack {
  const char* name;
  std::function<void(const Place&)> prepare;
};

std::vector<Attack> attacks() {
  std::vector<Attack> all;
  const auto add = [&](const char* name, std::function<void(const Place&)> prepare) {
    all.push_back({name, std::move(prepare)});
  };
  // The name that the next commit writes its state to.
  for (const bool named : {false, true}) {
    const auto plant = [named](const Place& p, auto&& make) {
      const std::string name = p.next_state();
      make(p.dir / name);
      if (named)
        edit_manifest(p.dir, [&](Json& j) {
          Json state = j["state"];
          state["file"] = name;
          j["checkpoints"].push_back(state);
        });
    };
    add("the next state is a link", [=](const Place& p) {
      plant(p, [&](const fs::path& at) { fs::create_symlink(p.outside / "victim", at); });
    });
    add("the next state is a link to nothing", [=](const Place& p) {
      plant(p, [&](const fs::path& at) { fs::create_symlink(p.outside / "new", at); });
    });
    add("the next state is a hard link", [=](const Place& p) {
      plant(p, [&](const fs::path& at) { fs::create_hard_link(p.outside / "victim", at); });
    });
    add("the next state is a folder",
        [=](const Place& p) { plant(p, [&](const fs::path& at) { fs::create_directory(at); }); });
    add("the next state is a pipe", [=](const Place& p) {
      plant(p, [&](const fs::path& at) { REQUIRE(::mkfifo(at.c_str(), 0600) == 0); });
    });
  }
  // Each of the files is something else.
  const auto names = {std::string("manifest.json"), std::string("lock"), std::string("state-"),
                      std::string("kv-"), std::string("tokens-")};
  for (const std::string& prefix : names) {
    const auto at = [prefix](const Place& p) {
      return p.dir / (prefix == "state-"      ? p.state_file()
                      : prefix.ends_with('-') ? p.file(prefix)
                                              : prefix);
    };
    add("a file is a link", [=](const Place& p) {
      const fs::path path = at(p);
      fs::rename(path, p.outside / "moved");
      fs::create_symlink(p.outside / "moved", path);
    });
    add("a file is a link to nothing", [=](const Place& p) {
      const fs::path path = at(p);
      fs::remove(path);
      fs::create_symlink(p.outside / "new", path);
    });
    add("a file is a link to a device", [=](const Place& p) {
      const fs::path path = at(p);
      fs::remove(path);
      fs::create_symlink("/dev/zero", path);
    });
    add("a file is a pipe", [=](const Place& p) {
      const fs::path path = at(p);
      fs::remove(path);
      REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    });
    add("a file is a folder", [=](const Place& p) {
      const fs::path path = at(p);
      fs::remove(path);
      fs::create_directory(path);
    });
    add("a file is a longer hard link", [=](const Place& p) {
      const fs::path path = at(p);
      write(p.outside / "hard", text_of(path) + std::string(5000, 'x'));
      fs::remove(path);
      fs::create_hard_link(p.outside / "hard", path);
    });
  }
  // Names that a memory makes, which the manifest does not name.
  for (const char* name : {"manifest.json.new", "state-00000000000000ff.bin",
                           "kv-00000000000000ff.seg", "tokens-00000000000000ff.ids"}) {
    add("a left-over is a link",
        [=](const Place& p) { fs::create_symlink(p.outside / "victim", p.dir / name); });
    add("a left-over is a link to nothing",
        [=](const Place& p) { fs::create_symlink(p.outside / "new", p.dir / name); });
    add("a left-over is a hard link",
        [=](const Place& p) { fs::create_hard_link(p.outside / "victim", p.dir / name); });
    add("a left-over is a link to a folder",
        [=](const Place& p) { fs::create_directory_symlink(p.outside, p.dir / name); });
  }
  // Names in the manifest, of files that do not count any more after the next commit.
  for (const std::string& name :
       {std::string("../outside/victim"), std::string("/etc/hostname"), std::string(""),
        std::string("."), std::string(".."), std::string(100000, 'a'), std::string("a\0b", 3),
        std::string("notes.txt"), std::string("manifest.json"), std::string("lock"),
        std::string("manifest.json.new"), std::string("kv-0123456789ABCDEF.seg"),
        std::string("../outside/kv-0123456789abcdef.seg"), std::string("\x1b[31m\n")}) {
    add("the manifest lists a name", [=](const Place& p) {
      write(p.dir / "notes.txt", "the user's");
      edit_manifest(p.dir, [&](Json& j) { j["files"].push_back({{"name", name}, {"bytes", 1}}); });
    });
    add("the manifest's state has a name",
        [=](const Place& p) { edit_manifest(p.dir, [&](Json& j) { j["state"]["file"] = name; }); });
    add("a checkpoint has a name", [=](const Place& p) {
      edit_manifest(p.dir, [&](Json& j) {
        Json state = j["state"];
        state["file"] = name;
        j["checkpoints"].push_back(state);
      });
    });
  }
  add("the manifest lists a state as a file", [](const Place& p) {
    fs::create_symlink(p.outside / "victim", p.dir / p.next_state());
    edit_manifest(p.dir, [&](Json& j) {
      j["files"].push_back({{"name", p.next_state()}, {"bytes", 1}});
    });
  });
  add("the settings name another folder", [](const Place& p) {
    edit_manifest(p.dir, [&](Json& j) { j["config"]["disk_dir"] = p.outside.string(); });
  });
  for (const std::int64_t generation :
       {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 62, INT64_MAX})
    add("a generation at the end of the numbers", [=](const Place& p) {
      edit_manifest(p.dir, [&](Json& j) { j["generation"] = generation; });
    });
  add("a manifest nested deep", [](const Place& p) {
    std::string text = "{\"config\": ";
    for (int i = 0; i < 300000; ++i) text += "[";
    for (int i = 0; i < 300000; ++i) text += "]";
    text += "}\n";
    text += "checksum: " + hex(checksum_of(std::span<const char>(text))) + "\n";
    write(p.dir / "manifest.json", text);
  });
  return all;
}

TEST_CASE("whatever lies in a memory's folder, nothing outside of it is touched",
          "[memory][kept][hostile]") {
  for (const Attack& attack : attacks()) {
    INFO(attack.name);
    const Place place;
    attack.prepare(place);
    INFO([&] {
      std::string list;
      for (const auto& [name, what] : contents(place.dir))
        list += name + " " + what.substr(0, 40) + "; ";
      return list;
    }());
    const auto before = contents(place.outside);
    const bool notes = fs::exists(place.dir / "notes.txt");
    const std::string refused = use(place);
    INFO(refused);
    CHECK(contents(place.outside) == before);
    if (notes) CHECK(text_of(place.dir / "notes.txt") == "the user's");
  }
}

TEST_CASE("a folder that holds other things is left as it is", "[memory][kept][hostile]") {
  const TempDir temp;
  temp.write("letter.txt", "dear");
  temp.write("kv-0123456789abcdef.seg", "not to be removed");
  const auto before = contents(temp.path());
  KeepOptions keep;
  keep.dir = temp.path();
  CHECK(mentions(refusal<FileError>([&] {
                   EpisodicMemory::create(keep, driver::small_config(), driver::small_shape());
                 }),
                 "letter.txt"));
  CHECK(contents(temp.path()) == before);
}

TEST_CASE("names that the next state may not take are passed over, and the commit counts",
          "[memory][kept][hostile]") {
  const Place place;
  const std::string taken = place.next_state();
  fs::create_directory(place.dir / taken);
  {
    EpisodicMemory memory = EpisodicMemory::open(place.keep(), OpenMode::write);
    place.feed(memory, 120, 144);
    memory.commit();
  }
  CHECK(place.state_file() != taken);
  CHECK(fs::is_directory(place.dir / taken));
  CHECK(EpisodicMemory::open(place.keep(), OpenMode::read).tokens() == 144);
  CHECK(verify_memory(place.dir).damages.empty());
}

TEST_CASE("a memory that lost a file is not opened, for reading or writing",
          "[memory][kept][hostile]") {
  const Place place;
  for (const char* prefix : {"kv-", "tokens-", "state-"})
    for (const bool cut : {false, true}) {
      const fs::path path =
          place.dir / (prefix == std::string("state-") ? place.state_file() : place.file(prefix));
      INFO(path << (cut ? " cut" : " removed"));
      const std::string content = text_of(path);
      fs::remove(path);
      if (cut) write(path, content.substr(0, content.size() / 2));
      for (const OpenMode mode : {OpenMode::read, OpenMode::write}) {
        const std::string said =
            refusal<FileError>([&] { EpisodicMemory::open(place.keep(), mode); });
        CHECK(mentions(said, path.string()));
      }
      fs::remove(path);
      write(path, content);
      CHECK_NOTHROW(EpisodicMemory::open(place.keep(), OpenMode::write));
    }
}

TEST_CASE("a commit over files that were removed meanwhile is refused, and comes true with them",
          "[memory][kept][hostile]") {
  for (const char* prefix : {"kv-", "tokens-"}) {
    INFO(prefix);
    const Place place;
    const fs::path path = place.dir / place.file(prefix);
    const std::string content = text_of(path);
    EpisodicMemory memory = EpisodicMemory::open(place.keep(), OpenMode::write);
    place.feed(memory, 120, 144);
    fs::remove(path);
    CHECK(mentions(refusal<FileError>([&] { memory.commit(); }), path.string()));
    CHECK(memory.committed_tokens() == 120);
    write(path, content);
    memory.commit();
    CHECK(memory.committed_tokens() == 144);
    CHECK(verify_memory(place.dir).damages.empty());
  }
}

TEST_CASE("a commit into a folder that vanished is refused", "[memory][kept][hostile]") {
  const Place place;
  std::optional<EpisodicMemory> memory = EpisodicMemory::open(place.keep(), OpenMode::write);
  place.feed(*memory, 120, 144);
  fs::remove_all(place.dir);
  CHECK_THROWS_AS(memory->commit(), FileError);
  // Nor is one that now has its name taken for it.
  fs::create_directory(place.dir);
  CHECK_THROWS_AS(memory->commit(), FileError);
  memory.reset();
  CHECK(fs::is_empty(place.dir));
}

/// What opening says, reading and writing, and what verify finds: "" if all is well.
struct Opinions {
  std::string reads, writes, verified;

  explicit Opinions(const Place& place) {
    const auto said = [&](OpenMode mode) {
      const std::string text = refusal([&] { EpisodicMemory::open(place.keep(), mode); });
      return text == "no error" ? std::string() : text;
    };
    for (const VerifyReport::Damage& d : verify_memory(place.dir).damages) {
      verified += d.file.string() + ": " + d.what + "; ";
      CHECK(!mentions(d.what, d.file.string()));  // who prints both says a path once
      CHECK(!d.what.starts_with(place.dir.string()));
    }
    reads = said(OpenMode::read);
    writes = said(OpenMode::write);
  }
  /// \param may_find_more whether what is wrong is needed by no opening
  bool agree(bool may_find_more = false) const {
    return reads.empty() == writes.empty() &&
           (reads.empty() == verified.empty() || (may_find_more && reads.empty()));
  }
};

/// Paths of everything in a manifest: its keys, and those within.
void list_paths(const Json& json, const Json::json_pointer& at,
                std::vector<Json::json_pointer>& all) {
  if (!at.empty()) all.push_back(at);
  if (json.is_object())
    for (const auto& [key, value] : json.items()) list_paths(value, at / key, all);
  if (json.is_array())
    for (std::size_t i = 0; i < json.size(); ++i) list_paths(json[i], at / i, all);
}

TEST_CASE(
    "whatever stands in a manifest, opening and verify say the same of it, and nothing else "
    "comes of it",
    "[memory][kept][hostile]") {
  const Place place;
  const std::string good = text_of(place.dir / "manifest.json");
  const Json whole = Json::parse(good.substr(0, good.rfind("checksum: ")));
  std::vector<Json::json_pointer> paths;
  list_paths(whole, Json::json_pointer(), paths);
  const std::vector<Json> wrong = {nullptr,
                                   true,
                                   -1,
                                   0,
                                   1,
                                   1.5,
                                   1e308,
                                   "",
                                   "x",
                                   "0123456789abcdef",
                                   Json::array(),
                                   Json::array({1}),
                                   Json::object(),
                                   Json{{"a", 1}},
                                   std::int64_t{1} << 31,
                                   std::int64_t{1} << 40,
                                   std::int64_t{1} << 53,
                                   INT64_MAX,
                                   UINT64_MAX};
  fs::copy(place.dir, place.temp / "good");
  int refused = 0, opened = 0;
  const auto check = [&](const std::string& name, const std::function<void(Json&)>& change) {
    INFO(name);
    edit_manifest(place.dir, change);
    ::alarm(60);
    const Opinions opinions(place);
    ::alarm(0);
    INFO("read: " << opinions.reads << "\nwrite: " << opinions.writes
                  << "\nverify: " << opinions.verified);
    // Earlier states are opened by verify alone, and by who goes back.
    CHECK(opinions.agree(mentions(name, "checkpoint")));
    CHECK(opinions.reads.size() < 2000);
    ++(opinions.reads.empty() ? opened : refused);
    fs::remove_all(place.dir);
    fs::copy(place.temp / "good", place.dir);
  };
  for (const Json::json_pointer& path : paths) {
    for (const Json& value : wrong)
      check(path.to_string() + " = " + value.dump(), [&](Json& j) { j[path] = value; });
    if (whole[path].is_number_integer())
      for (const int by : {-1, 1})
        check(path.to_string() + (by > 0 ? " + 1" : " - 1"),
              [&](Json& j) { j[path] = j[path].get<std::int64_t>() + by; });
    check(path.to_string() + " is missing", [&](Json& j) {
      Json& in = j[path.parent_pointer()];
      if (in.is_object()) in.erase(path.back());
      if (in.is_array()) in.erase(static_cast<std::size_t>(std::stoul(path.back())));
    });
    if (whole[path].is_object())
      check(path.to_string() + " has more", [&](Json& j) { j[path]["more"] = 1; });
  }
  check("a key more", [](Json& j) { j["more"] = Json::array({1, 2}); });
  check("all files twice", [](Json& j) {
    for (const Json& f : Json(j["files"])) j["files"].push_back(f);
  });
  check("all checkpoints twice", [](Json& j) {
    for (const Json& s : Json(j["checkpoints"])) j["checkpoints"].push_back(s);
  });
  check("the state as a checkpoint too", [](Json& j) { j["checkpoints"].push_back(j["state"]); });
  for (const int depth : {7, 8, 9, 100, 1000})
    check("nested " + std::to_string(depth), [&](Json& j) {
      Json deep = 1;
      for (int i = 0; i < depth; ++i) deep = Json::array({std::move(deep)});
      j["more"] = std::move(deep);
    });
  CHECK(refused > 500);
  CHECK(opened > 40);
}

TEST_CASE("another memory's files under this one's names are noticed when it is opened",
          "[memory][kept][hostile]") {
  const Place other;
  for (const char* prefix : {"kv-", "tokens-", "state-"}) {
    INFO(prefix);
    const Place place;
    const bool state = prefix == std::string("state-");
    const fs::path from = other.dir / (state ? other.state_file() : other.file(prefix));
    const fs::path to = place.dir / (state ? place.state_file() : place.file(prefix));
    fs::remove(to);
    fs::copy_file(from, to);
    const Opinions opinions(place);
    CHECK(mentions(opinions.reads, to.filename().string()));
    CHECK(mentions(opinions.writes, to.filename().string()));
    CHECK(mentions(opinions.verified, to.filename().string()));
  }
}

/// Changes the last state, and makes all checksums of it right again.
void edit_state(const Place& place, const std::function<void(std::string& payload)>& change) {
  constexpr std::size_t kHeader = 24;
  const std::string name = place.state_file();
  std::string text = text_of(place.dir / name), payload = text.substr(kHeader);
  change(payload);
  const std::uint64_t sum = checksum(std::as_bytes(std::span(payload.data(), payload.size())),
                                     std::stoull(name.substr(6, 16), nullptr, 16));
  const std::uint64_t bytes = payload.size();
  text.replace(8, 8, reinterpret_cast<const char*>(&bytes), 8);
  text.replace(16, 8, reinterpret_cast<const char*>(&sum), 8);
  text.replace(kHeader, std::string::npos, payload);
  fs::remove(place.dir / name);
  write(place.dir / name, text);
  edit_manifest(place.dir, [&](Json& j) {
    j["state"]["checksum"] = hex(sum);
    j["state"]["bytes"] = text.size();
  });
}

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

TEST_CASE("a list of forgotten events that makes no sense is refused with the file's name",
          "[memory][kept][hostile]") {
  for (const std::int64_t instead :
       {std::int64_t{1}, std::int64_t{1000000}, std::int64_t{-1}, std::int64_t{5}, INT64_MAX}) {
    INFO(instead);
    const Place place;
    {
      EpisodicMemory memory = EpisodicMemory::open(place.keep(), OpenMode::write);
      memory.forget(EventId{1});
      memory.forget(EventId{3});
      memory.commit();
    }
    edit_state(place, [&](std::string& payload) {
      const std::string list =
          bytes_of(std::uint64_t{2}) + bytes_of(std::int64_t{1}) + bytes_of(std::int64_t{3});
      const std::size_t at = payload.find(list);
      REQUIRE(at != std::string::npos);
      payload.replace(at + 16, 8, bytes_of(instead));
    });
    const Opinions opinions(place);
    CHECK(mentions(opinions.reads, place.state_file()));
    CHECK(mentions(opinions.reads, "forgotten"));
    CHECK(opinions.agree());
  }
}

TEST_CASE("a state whose every number is another one is refused or used, and verify agrees",
          "[memory][kept][hostile]") {
  const Place place;
  const std::string good = text_of(place.dir / place.state_file());
  fs::copy(place.dir, place.temp / "good");
  // All of the tables, and a part of the windows, which are most of it.
  std::size_t refused = 0, tried = 0;
  for (std::size_t at = 0; at + 8 <= good.size() - 24; at += at < 6000 ? 8 : 1000)
    for (const std::int64_t value : episodic_test::in_turn(
             std::vector<std::int64_t>{-1, 0, std::numeric_limits<std::int64_t>::max()}, at / 8)) {
      INFO("at " << at << ": " << value);
      edit_state(place, [&](std::string& payload) { payload.replace(at, 8, bytes_of(value)); });
      ::alarm(60);
      const Opinions opinions(place);
      ::alarm(0);
      INFO("read: " << opinions.reads << "\nverify: " << opinions.verified);
      // What verify reads and an opening does not, it may find besides.
      CHECK((opinions.reads.empty() || !opinions.verified.empty()));
      CHECK(opinions.reads.empty() == opinions.writes.empty());
      ++tried;
      refused += !opinions.verified.empty();
      fs::remove_all(place.dir);
      fs::copy(place.temp / "good", place.dir);
    }
  CHECK(tried > episodic_test::all_or<std::size_t>(1000, 330));
  CHECK(refused > tried / 4);
}

TEST_CASE("verify names the file at fault, once", "[memory][kept][hostile][verify]") {
  const Place place;
  fs::copy(place.dir, place.temp / "good");
  struct Case {
    std::string file;
    std::function<void()> harm;
  };
  const std::string state = place.state_file(), keys = place.file("kv-"),
                    ids = place.file("tokens-");
  const std::string earlier = MemoryManifest::read(place.dir).checkpoints.at(0).file;
  for (const Case& c : {
           Case{"manifest.json",  // noticed when the state is opened
                [&] { edit_manifest(place.dir, [](Json& m) { m["state"]["events"] = 999; }); }},
           Case{"manifest.json", [&] { write(place.dir / "manifest.json", "{}"); }},
           Case{"manifest.json", [&] { fs::remove(place.dir / "manifest.json"); }},
           Case{state, [&] { fs::remove(place.dir / state); }},
           Case{state, [&] { fs::resize_file(place.dir / state, 100); }},
           Case{earlier, [&] { fs::resize_file(place.dir / earlier, 100); }},
           Case{keys, [&] { fs::remove(place.dir / keys); }},
           Case{keys, [&] { write(place.dir / keys, std::string(100000, 'x')); }},
           Case{ids, [&] { fs::remove(place.dir / ids); }},
       }) {
    INFO(c.file);
    c.harm();
    const VerifyReport report = verify_memory(place.dir);
    REQUIRE(!report.damages.empty());
    for (std::size_t i = 0; i < report.damages.size(); ++i) {
      const VerifyReport::Damage& d = report.damages[i];
      INFO(d.file << ": " << d.what);
      CHECK(d.file == place.dir / c.file);
      CHECK(!mentions(d.what, place.dir.string() + "/" + c.file));
      for (std::size_t j = 0; j < i; ++j) CHECK(d.what != report.damages[j].what);
    }
    fs::remove_all(place.dir);
    fs::copy(place.temp / "good", place.dir);
  }
}

TEST_CASE("a folder for temporary files that is not there is said by its name",
          "[memory][kept][errors]") {
  const Place place;
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before ? before : "";
  REQUIRE(::setenv("TMPDIR", "/nowhere/at/all", 1) == 0);
  const std::string reads =
      refusal<FileError>([&] { EpisodicMemory::open(place.keep(), OpenMode::read); });
  const std::string verified = refusal<FileError>([&] { verify_memory(place.dir); });
  const std::string writes = refusal([&] { EpisodicMemory::open(place.keep(), OpenMode::write); });
  before ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
  CHECK(mentions(reads, "/nowhere/at/all"));
  CHECK(mentions(reads, "TMPDIR"));
  CHECK(mentions(verified, "TMPDIR"));
  CHECK(writes == "no error");  // which needs none
}

TEST_CASE("the model's fingerprint and a manifest's text survive any name",
          "[memory][kept][hostile]") {
  const TempDir temp;
  KeepOptions keep;
  keep.dir = temp / "m";
  keep.identity = {"a \"name\"\n\\ \x01 \xff", "w", "t"};
  EpisodicMemory::create(keep, driver::small_config(), driver::small_shape());
  const MemoryManifest m = MemoryManifest::read(keep.dir);
  CHECK(m.identity.model == "a \"name\"\n\\ \x01 \xef\xbf\xbd");
  CHECK(m.config == driver::small_config());
}

}  // namespace hostile_folder_test
