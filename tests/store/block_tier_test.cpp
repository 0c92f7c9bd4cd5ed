// SPDX-License-Identifier: Apache-2.0
// Tiers of blocks that several machines have in common: memory, and a shared folder.
#include "support/faulty_calls.hpp"
#include "support/memory_tier.hpp"
#include "support/temp_dir.hpp"
#include "support/tier_contract.hpp"

#include <cerrno>
#include <fstream>

using namespace episodic;
namespace fs = std::filesystem;

namespace block_tier_test {

using tier_contract::bytes_of;
using tier_contract::Setting;

Setting in_memory() {
  const auto tier = std::make_shared<MemoryTier>();
  return {[=] { return tier; }, [=](const BlockHash& name) { tier->damage(name); },
          [=] { tier->lost = true; }, [=] { tier->lost = false; }};
}

fs::path file_of(const fs::path& root, const BlockHash& name) {
  return root / "blocks" / name.text().substr(0, 2) / name.text();
}

Setting in_folder(const TempDir& temp) {
  const fs::path root = temp / "tier", away = temp / "away";
  fs::create_directory(root);
  return {[=] { return make_shared_folder(root); },
          [=](const BlockHash& name) {
            std::fstream file(file_of(root, name), std::ios::in | std::ios::out | std::ios::binary);
            const int first = file.get();
            file.seekp(0);
            file.put(static_cast<char>(first ^ 1));
          },
          [=] { fs::rename(root, away); }, [=] { fs::rename(away, root); }};
}

TEST_CASE("a tier has blocks, heads and leases", "[store][tier]") {
  const TempDir temp;
  const bool folder = GENERATE(false, true);
  INFO((folder ? "a shared folder" : "memory"));
  const Setting setting = folder ? in_folder(temp) : in_memory();
  SECTION("blocks are named by their bytes") { tier_contract::check_blocks(setting); }
  SECTION("heads are exchanged, or stay") { tier_contract::check_heads(setting); }
  SECTION("a lease has one holder") { tier_contract::check_leases(setting); }
  SECTION("a tier that is away says so, and goes on") { tier_contract::check_loss(setting); }
}

TEST_CASE("a shared folder that is not there is no empty tier", "[store][tier]") {
  const TempDir temp;
  CHECK(mentions(refusal<FileError>([&] { make_shared_folder(temp / "none"); }),
                 "find the shared folder"));
  temp.write("file", "x");
  CHECK(mentions(refusal<FileError>([&] { make_shared_folder(temp / "file"); }), "is no folder"));
}

TEST_CASE("a shared folder is whole after every fault", "[store][tier][faults]") {
  const BlockTier::Bytes value = bytes_of(5000, 3);
  const BlockTier::Block block{BlockHash::of(value), value};
  for (const io::Kind kind :
       {io::Kind::block, io::Kind::head, io::Kind::lease, io::Kind::directory})
    for (const io::Op op : {io::Op::open, io::Op::create, io::Op::read, io::Op::write, io::Op::sync,
                            io::Op::rename, io::Op::link})
      for (const int error : {EIO, ENOSPC, EACCES})
        for (const std::int64_t at : {0, 1, 2}) {
          INFO(io::name_of(kind) << " " << io::name_of(op) << " " << error << " at " << at);
          const TempDir temp;
          FaultyCalls calls;
          const auto tier = make_shared_folder(temp.path(), calls);
          FaultyCalls healthy;  // which does not wait for the medium either
          const auto other = make_shared_folder(temp.path(), healthy);
          FaultyCalls::Script script;
          script.site = {kind, op};
          script.error = error;
          script.at = at;
          calls.play(script);
          const auto attempt = [&](auto&& f) {
            try {
              f();
            } catch (const FileError& e) {
              calls.heal();
              CHECK((error == ENOSPC) == (dynamic_cast<const io::DiskFullError*>(&e) != nullptr));
              f();
            }
          };
          attempt([&] { tier->put({&block, 1}); });
          CHECK((get_blocks(*other, {&block.name, 1}).front() == value));
          // An exchange that was refused stands or not: whoever asks again is told.
          attempt([&] {
            const bool stands = other->head("m").version == 1 || tier->exchange("m", 0, value);
            CHECK(stands);
          });
          CHECK(other->head("m").version == 1);
          CHECK((other->head("m").bytes == value));
          // CHECK keeps to itself what an expression in it throws.
          attempt([&] {
            const bool same = tier->head("m").bytes == value;
            CHECK(same);
          });
          attempt([&] {
            const bool mine = !tier->take_lease("m", {"mine", "me", 30});
            CHECK(mine);
          });
          CHECK(other->take_lease("m", {"other", "other", 30}));
          for (const auto& entry : fs::recursive_directory_iterator(temp.path()))
            CHECK(entry.path().extension() != ".new");
        }
}

TEST_CASE("places are told from folders", "[store][tier]") {
  for (const char* folder : {"", "book.mem", "/data/book", "./shared:x/y", "C:/x", "other:/a/b"})
    CHECK_FALSE(TierPlace::parse(folder));
  const auto place = TierPlace::parse("shared:/mnt/tier/book-1.x");
  REQUIRE(place);
  CHECK(place->scheme == "shared");
  CHECK(place->at == "/mnt/tier");
  CHECK(place->name == "book-1.x");
  CHECK(place->text() == "shared:/mnt/tier/book-1.x");
  CHECK(place->lease_seconds == 30);
  const auto full =
      TierPlace::parse("shared:tier/b?cache=/fast/c,cache_bytes=2MB,lease_seconds=1.5");
  REQUIRE(full);
  CHECK(full->at == "tier");
  CHECK(full->cache == "/fast/c");
  CHECK(full->cache_bytes == 2000000);
  CHECK(full->lease_seconds == 1.5);
  CHECK(full->same_tier(*TierPlace::parse("shared:tier/c")));
  CHECK_FALSE(full->same_tier(*place));
  CHECK(TierPlace::parse("shared:/a")->at == "/");
  for (const char* wrong :
       {"shared:", "shared:book", "shared:/mnt/", "shared:/mnt/.x", "shared:/mnt/a b",
        "shared:/m/a?cash=/x", "shared:/m/a?cache=", "shared:/m/a?cache_bytes=much",
        "shared:/m/a?lease_seconds=0", "shared:/m/a?lease_seconds=1s"}) {
    INFO(wrong);
    CHECK(refusal<ConfigError>([&] { TierPlace::parse(wrong); }) != "no error");
  }
}

}  // namespace block_tier_test
