// SPDX-License-Identifier: Apache-2.0
// Files beneath a folder that may come from someone who means harm.
#include "episodic/base/io.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "support/faulty_calls.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
namespace fs = std::filesystem;
using io::Kind;

namespace {

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// A folder, and a file and a folder outside of it.
struct Place {
  TempDir dir;
  fs::path inside = dir / "inside", victim = dir / "victim", missing = dir / "missing";
  Place() {
    fs::create_directory(inside);
    dir.write("victim", "precious");
  }
  io::Directory folder() const { return {io::system_calls(), inside}; }
  /// Nothing outside was changed, made or removed.
  void check() const {
    CHECK(text_of(victim) == "precious");
    CHECK_FALSE(fs::exists(fs::symlink_status(missing)));
  }
};

/// A call that would wait for ever ends the program instead.
struct Alarm {
  Alarm() { ::alarm(20); }
  ~Alarm() { ::alarm(0); }
};

}  // namespace

TEST_CASE("files of a folder are written, read, replaced, listed and removed") {
  const Place place;
  const io::Directory folder = place.folder();
  {
    io::File file = folder.create(Kind::state, "a");
    file.write(bytes_of("hello"), 0);
    CHECK(file.size() == 5);
    CHECK(file.links() == 1);
    file.sync();
  }
  CHECK(text_of(place.inside / "a") == "hello");
  CHECK(mentions(refusal<FileError>([&] { folder.create(Kind::state, "a"); }), "exists"));
  CHECK(folder.read(Kind::state, "a").size() == 5);
  CHECK_THROWS_AS(folder.read(Kind::state, "a", 4), FileError);
  folder.replace(Kind::manifest, "a", bytes_of("other"));
  CHECK(text_of(place.inside / "a") == "other");
  CHECK(folder.names() == std::vector<std::string>{"a"});
  CHECK(folder.names() == std::vector<std::string>{"a"});  // from the start again
  REQUIRE(folder.look("a").has_value());
  CHECK(folder.look("a")->regular);
  CHECK(folder.look("a")->bytes == 5);
  CHECK_FALSE(folder.look("b").has_value());
  io::File unnamed = folder.create_unnamed(Kind::segment, "u");
  unnamed.write(bytes_of("x"), 0);
  CHECK(unnamed.size() == 1);
  CHECK(folder.names() == std::vector<std::string>{"a"});
  CHECK(folder.remove(Kind::state, "a") == 0);
  CHECK(folder.remove(Kind::state, "a") == -ENOENT);
  CHECK(folder.names().empty());
}

TEST_CASE("a call that reads or writes less than it was asked is made again for the rest") {
  const Place place;
  FaultyCalls calls;
  const io::Directory folder(calls, place.inside);
  std::string text;
  for (int i = 0; i < 1000; ++i) text += std::to_string(i * 7919) + ' ';  // no part is another
  for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{77}, text.size()})
    for (const std::int64_t offset : {0, 5}) {
      const std::string part = text.substr(0, n),
                        name = std::to_string(n) + "-" + std::to_string(offset);
      io::File file = folder.create(Kind::segment, name);
      calls.play({{Kind::segment, io::Op::write}, FaultyCalls::Fault::half, 0, 0, true});
      file.write(bytes_of(part), offset);
      CHECK(calls.faults() >= (n > 1 ? 2 : 1));
      calls.heal();
      CHECK(text_of(place.inside / name) ==
            std::string(static_cast<std::size_t>(offset), '\0') + part);
      std::string back(n, '?');
      calls.play({{Kind::segment, io::Op::read}, FaultyCalls::Fault::half, 0, 0, true});
      file.read(std::as_writable_bytes(std::span(back)), offset);
      CHECK(calls.faults() >= (n > 1 ? 2 : 1));
      calls.heal();
      CHECK(back == part);
    }
}

TEST_CASE("a folder that is none is refused with its path") {
  const Place place;
  CHECK(mentions(refusal<FileError>([&] { io::Directory(io::system_calls(), place.missing); }),
                 place.missing.string()));
  CHECK_THROWS_AS(io::Directory(io::system_calls(), place.victim), FileError);
}

TEST_CASE("names that leave a folder are refused, whatever is asked") {
  const Place place;
  const io::Directory folder = place.folder();
  const std::string names[] = {"",
                               ".",
                               "..",
                               "../victim",
                               "../missing",
                               "/etc/passwd",
                               "a/b",
                               "./a",
                               std::string(256, 'a'),
                               std::string("a\0b", 3),
                               place.victim.string()};
  for (const std::string& name : names) {
    INFO(name);
    CHECK_THROWS_AS(folder.open(Kind::state, name), FileError);
    CHECK_THROWS_AS(folder.open(Kind::state, name, O_RDWR | O_CREAT), FileError);
    CHECK_THROWS_AS(folder.create(Kind::state, name), FileError);
    CHECK_THROWS_AS(folder.read(Kind::state, name), FileError);
    CHECK_THROWS_AS(folder.replace(Kind::state, name, bytes_of("x")), FileError);
    CHECK_THROWS_AS(folder.remove(Kind::state, name), FileError);
    CHECK_THROWS_AS(folder.look(name), FileError);
  }
  place.check();
  CHECK(folder.names().empty());
}

TEST_CASE("links are never followed: not read, not written through, not created through") {
  const Place place;
  const io::Directory folder = place.folder();
  for (const fs::path& to : {place.victim, place.missing, fs::path("/dev/zero"), fs::path(".")}) {
    INFO(to);
    fs::create_symlink(to, place.inside / "link");
    for (const int flags : {O_RDONLY, O_RDWR, O_RDWR | O_CREAT, O_RDWR | O_CREAT | O_TRUNC}) {
      CHECK(mentions(refusal<FileError>([&] { folder.open(Kind::state, "link", flags); }),
                     "symbolic link"));
    }
    CHECK_THROWS_AS(folder.create(Kind::state, "link"), FileError);
    CHECK_THROWS_AS(folder.read(Kind::state, "link"), FileError);
    REQUIRE(folder.look("link").has_value());
    CHECK_FALSE(folder.look("link")->regular);
    // Replaced is the link, and so is one under the temporary name.
    fs::create_symlink(to, place.inside / "link.new");
    folder.replace(Kind::manifest, "link", bytes_of("new"));
    CHECK(text_of(place.inside / "link") == "new");
    CHECK(folder.names() == std::vector<std::string>{"link"});
    CHECK(folder.remove(Kind::state, "link") == 0);
    place.check();
  }
}

TEST_CASE("a file that has another name elsewhere keeps what it holds there") {
  const Place place;
  const io::Directory folder = place.folder();
  fs::create_hard_link(place.victim, place.inside / "a");
  fs::create_hard_link(place.victim, place.inside / "a.new");
  CHECK(folder.open(Kind::state, "a").links() == 3);
  CHECK_THROWS_AS(folder.create(Kind::state, "a"), FileError);
  folder.replace(Kind::manifest, "a", bytes_of("new"));
  CHECK(text_of(place.inside / "a") == "new");
  place.check();
}

TEST_CASE("pipes, sockets, devices and folders are refused at once") {
  const Place place;
  const io::Directory folder = place.folder();
  const Alarm alarm;
  REQUIRE(::mkfifo((place.inside / "pipe").c_str(), 0600) == 0);
  fs::create_directory(place.inside / "folder");
  for (const char* name : {"pipe", "folder"})
    for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR | O_CREAT}) {
      INFO(name << " " << flags);
      CHECK(mentions(refusal<FileError>([&] { folder.open(Kind::state, name, flags); }),
                     "only a regular file"));
    }
  CHECK_THROWS_AS(folder.read(Kind::manifest, "pipe"), FileError);
}

TEST_CASE("a file opened in a folder waits for the medium like any other") {
  const Place place;
  place.dir.write("inside/a", "text");
  const io::File file = place.folder().open(Kind::segment, "a");
  CHECK((::fcntl(file.fd(), F_GETFL) & O_NONBLOCK) == 0);
  const int again = file.open_again(O_RDONLY);
  REQUIRE(again >= 0);
  const io::File second = io::File::adopt(io::system_calls(), Kind::segment, "a", again);
  CHECK(second.size() == 4);
}
