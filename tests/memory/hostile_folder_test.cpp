// SPDX-License-Identifier: Apache-2.0
// A kept memory's folder made by someone who means harm, and one that loses files. Its checksums
// are right: they are no secret.
#include <sys/stat.h>
#include <unistd.h>

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
