// SPDX-License-Identifier: Apache-2.0
// The programs over a memory that several machines have in common. A machine is a process with a
// cache folder of its own.
#include "support/sampled.hpp"
#include "support/test.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "program.hpp"

using namespace program;

namespace tier_tools_test {

struct Setting {
  Scratch scratch;
  std::string model, text;
  Setting() {
    model = quoted(recall_model()->string());
    put(scratch / "book.txt", some_book(episodic_test::all_or(400, 160)));
    text = quoted((scratch / "book.txt").string());
    fs::create_directory(scratch / "tier");
  }
  std::string place(const std::string& name, const std::string& host,
                    const std::string& more = "") const {
    return quoted(fmt::format("shared:{}/{}?cache={}{}", (scratch / "tier").string(), name,
                              (scratch / host).string(), more));
  }
  std::string ingest(const std::string& place) const {
    return fmt::format(
        "ingest --model {} --text {} --memory-dir {} --commit-every 1024 --memory {} --quiet ",
        model, text, place, quoted(kMemory));
  }
  std::string ask(const std::string& place) const {
    return fmt::format("ask --model {} --memory-dir {} --prompt {} --max-new 8 --json - ", model,
                       place, quoted("\n\n\nWho closed the door?\n\nIt was"));
  }
};

std::string digest(const std::string& place) {
  return json_of("verify --digest " + place).value("digest", "");
}

TEST_CASE("the programs take a memory on a tier for one in a folder", "[tier]") {
  const Setting s;
  const std::string plain = quoted((s.scratch / "plain").string());
  REQUIRE(run_episodic(s.ingest(plain)).status == 0);
  const Run ingested = run_episodic(s.ingest(s.place("book", "one")));
  INFO(ingested.err);
  REQUIRE(ingested.status == 0);
  const std::string whole = digest(plain);
  REQUIRE(whole.size() == 16);
  CHECK(digest(s.place("book", "one")) == whole);
  // Another machine answers alike.
  const Run here = run_episodic(s.ask(plain)), there = run_episodic(s.ask(s.place("book", "two")));
  INFO(there.err);
  REQUIRE(here.status == 0);
  REQUIRE(there.status == 0);
  CHECK(Json::parse(here.out)["ids"] == Json::parse(there.out)["ids"]);
  CHECK(json_of("inspect --no-events " + s.place("book", "two"))["tokens"] ==
        json_of("inspect --no-events " + plain)["tokens"]);
  CHECK(run_episodic(s.ingest(s.place("book", "two")) + "--resume").status == 0);
  const Run again = run_episodic(s.ingest(s.place("book", "two")));
  CHECK(again.status == 1);
  CHECK(one_line(again.err));
  // Forks, and a memory of a folder that is put there.
  CHECK(run_episodic("fork " + s.place("book", "two") + " " + s.place("draft", "two")).status == 0);
  CHECK(digest(s.place("draft", "three")) == whole);
  CHECK(run_episodic("fork " + plain + " " + s.place("put", "one")).status == 0);
  CHECK(digest(s.place("put", "two")) == whole);
  CHECK(run_episodic("edit --forget-event 1 " + s.place("draft", "one")).status == 0);
  CHECK(digest(s.place("book", "three")) == whole);
  const Run none = run_episodic(s.ask(s.place("none", "two")));
  CHECK(none.status == 1);
  CHECK(one_line(none.err));
  CHECK(none.err.find("holds no memory") != std::string::npos);
  // Where the folder is away, it is said.
  fs::rename(s.scratch / "tier", s.scratch / "away");
  const Run away = run_episodic(s.ask(s.place("book", "two")));
  CHECK(away.status == 1);
  CHECK(one_line(away.err));
  CHECK(away.err.find("find the shared folder") != std::string::npos);
}

TEST_CASE("an ingest to a tier that is killed goes on from its last commit", "[tier]") {
  const Setting s;
  const std::string place = s.place("book", "one", ",lease_seconds=2");
  REQUIRE(run_episodic(s.ingest(s.place("whole", "one"))).status == 0);
  // Ended once the first commit is told, wherever it then is.
  const std::string out = quoted((s.scratch / "commits").string());
  const std::string program = "'" EPISODIC_BINARY_DIR "/bin/episodic' ";
  const std::string command = program + s.ingest(place) + "--json > " + out +
                              " & pid=$!; while [ ! -s " + out +
                              " ] && kill -0 $pid 2>/dev/null; do sleep 0.02; done; "
                              "kill -9 $pid; wait $pid";
  CHECK(std::system(command.c_str()) != 0);
  CHECK(contents(s.scratch / "commits").find("committed_tokens") != std::string::npos);
  // Readers see the commit at once; a writer waits until the lease has run out.
  CHECK(run_episodic("verify " + s.place("book", "two")).status == 0);
  Run resumed;
  for (int i = 0; i < 60; ++i) {
    resumed = run_episodic(s.ingest(s.place("book", "two", ",lease_seconds=2")) + "--resume");
    if (resumed.err.find("is writing to this memory") == std::string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  CHECK(digest(s.place("book", "three")) == digest(s.place("whole", "three")));
}

}  // namespace tier_tools_test
