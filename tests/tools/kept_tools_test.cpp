// SPDX-License-Identifier: Apache-2.0
// The programs of a kept memory, from outside.
#include "support/test.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "kept.hpp"
#include "program.hpp"

using namespace program;

namespace kept_tools_test {

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
  return all;
}

/// A scratch folder with a book, and the flags that ingest it.
struct Setting {
  Scratch scratch;
  std::string model, text;
  explicit Setting(int sentences = 400) {
    model = quoted(recall_model()->string());
    put(scratch / "book.txt", some_book(sentences));
    text = quoted((scratch / "book.txt").string());
  }
  std::string dir(const std::string& name) const { return quoted((scratch / name).string()); }
  std::string ingest(const std::string& name, const std::string& more = "") const {
    return fmt::format(
        "ingest --model {} --text {} --memory-dir {} --commit-every 1024 --memory {} {}", model,
        text, dir(name), quoted(kMemory), more);
  }
  std::string digest(const std::string& name) const {
    const Json json = json_of("verify --digest " + dir(name));
    REQUIRE(json.is_object());
    return json["digest"];
  }
};

const std::string kQuestion = quoted("\n\n\nWho closed the door?\n\nIt was");

TEST_CASE("ingest commits, resumes and appends") {
  const Setting s;
  const Run whole = run_episodic(s.ingest("whole", "--json"));
  REQUIRE(whole.status == 0);
  const std::vector<Json> commits = lines_of(whole.out);
  REQUIRE(commits.size() > 3);
  std::int64_t last = 0;
  for (const Json& c : commits) {
    CHECK(c["committed_tokens"].get<std::int64_t>() > last);
    last = c["committed_tokens"];
    CHECK(c["events"].get<std::int64_t>() >= 0);
    CHECK(c["rss_bytes"].get<std::int64_t>() > 0);
  }
  // again: refused; with --resume: nothing left to do, the same memory
  const Run again = run_episodic(s.ingest("whole"));
  CHECK(again.status == 1);
  CHECK(one_line(again.err));
  CHECK(again.err.find("--resume") != std::string::npos);
  const std::string digest = s.digest("whole");
  const Run resumed = run_episodic(s.ingest("whole", "--resume --json"));
  CHECK(resumed.status == 0);
  CHECK(lines_of(resumed.out).back()["committed_tokens"] == last);
  CHECK(s.digest("whole") == digest);
  // --resume begins where there is nothing
  CHECK(run_episodic(s.ingest("fresh", "--resume")).status == 0);
  CHECK(s.digest("fresh") == digest);
  // another text is not what was read
  put(s.scratch / "other.txt", "An entirely different book. " + some_book(400));
  const std::string other = fmt::format("ingest --model {} --text {} --memory-dir {} ", s.model,
                                        quoted((s.scratch / "other.txt").string()), s.dir("whole"));
  const Run differs = run_episodic(other + "--resume");
  CHECK(differs.status == 1);
  CHECK(differs.err.find("differs at token") != std::string::npos);
  CHECK(run_episodic(other + "--append --quiet").status == 0);
  const Json inspected = json_of("inspect --no-events " + s.dir("whole"));
  CHECK(inspected["tokens"].get<std::int64_t>() > last);
}

TEST_CASE("ask answers as generate does, and leaves the memory as it is") {
  const Setting s;
  REQUIRE(run_episodic(s.ingest("m")).status == 0);
  const std::string digest = s.digest("m");
  const std::string ask =
      fmt::format("ask --model {} --memory-dir {} --prompt {} --max-new 8 --json - ", s.model,
                  s.dir("m"), kQuestion);
  const Run asked = run_episodic(ask);
  REQUIRE(asked.status == 0);
  const Run generated = run_episodic(fmt::format(
      "generate --model {} --prompt-file {} --question {} --max-new 8 --json - --memory {}",
      s.model, s.text, kQuestion, quoted(kMemory)));
  REQUIRE(generated.status == 0);
  const Json a = Json::parse(asked.out), g = Json::parse(generated.out);
  CHECK(a["ids"] == g["ids"]);
  CHECK(a["text"] == g["text"]);
  CHECK(a["ids"].size() == 8);
  CHECK(s.digest("m") == digest);
  // with as little host memory as works, and with much
  for (const char* budget : {"4000000", "400000000"}) {
    Json memory = Json::parse(kMemory);
    memory["host_bytes"] = std::stoll(budget);
    const Run tight = run_episodic(ask + "--memory " + quoted(memory.dump()));
    REQUIRE(tight.status == 0);
    CHECK(Json::parse(tight.out)["ids"] == a["ids"]);
    CHECK(Json::parse(tight.out)["memory"]["host_bytes"] <= memory["host_bytes"]);
  }
  CHECK(run_episodic(ask + "--keep").status == 0);
  CHECK(s.digest("m") != digest);
}

TEST_CASE("ask recalls what an encoder finds in the events' text") {
  const Setting s;
  REQUIRE(run_episodic(s.ingest("m")).status == 0);
  const std::string tiny = quoted(EPISODIC_SOURCE_DIR "/tests/model/sentence_encoder/tiny");
  const std::string before = s.digest("m");
  const std::string ask = fmt::format("ask --model {} --memory-dir {} --prompt {} --max-new 8 ",
                                      s.model, s.dir("m"), kQuestion);
  const Json json = json_of(ask + "--encoder " + tiny);
  CHECK(json["ids"].size() == 8);
  const Json plain = json_of(ask);
  CHECK(json["memory"]["recalled_events"].get<int>() > 0);
  CHECK(json["memory"]["recalled_events"] != plain["memory"]["recalled_events"]);
  CHECK(s.digest("m") == before);
  const auto refused = [&](const std::string& call, const std::string& names) {
    const Run run = run_episodic(call);
    INFO(run.err);
    CHECK(run.status == 1);
    CHECK(run.err.find(names) != std::string::npos);
  };
  refused(ask + "--encoder " + s.model, "bert");
  const std::string generate =
      fmt::format("generate --model {} --prompt-file {} --encoder {} ", s.model, s.text, tiny);
  refused(generate, "--question");
  refused(generate + "--full-attention --question x", "full attention");
}

TEST_CASE("inspect shows what is there") {
  const Setting s(120);
  REQUIRE(run_episodic(s.ingest("m")).status == 0);
  const Run run = run_episodic(fmt::format("inspect {} --json - --model {} --html {}", s.dir("m"),
                                           s.model, quoted((s.scratch / "m.html").string())));
  REQUIRE(run.status == 0);
  const Json j = Json::parse(run.out);
  CHECK(j["n_events"] == j["events"].size());
  REQUIRE(j["events"].size() > 10);
  std::string text;
  std::int64_t end = 16;
  for (const Json& e : j["events"]) {
    CHECK(e["start"] == end);
    end = e["end"];
    CHECK(e["tier"] == "disk");
    CHECK(e["bytes"] == 4 * 2 * (e["end"].get<int>() - e["start"].get<int>()) * 2 * 64 * 4);
    text += e["text"].get<std::string>();
  }
  CHECK(some_book(120).find(text) != std::string::npos);
  CHECK(j["model"]["name"] == "recall-2m6");
  CHECK(j["bytes"]["segments"].get<std::int64_t>() > 0);
  CHECK(contents(s.scratch / "m.html").find("</html>") != std::string::npos);
  const Run other = run_episodic(fmt::format("inspect {} --layer 1 --head 1", s.dir("m")));
  CHECK(other.status == 1);  // the memory has no such scope
  CHECK(other.err.find("no head has its own") != std::string::npos);
}

TEST_CASE("verify names what is damaged") {
  const Setting s(120);
  REQUIRE(run_episodic(s.ingest("m")).status == 0);
  CHECK(run_episodic("verify " + s.dir("m")).status == 0);
  for (const auto& entry : fs::directory_iterator(s.scratch / "m")) {
    const std::string name = entry.path().filename().string(), bytes = contents(entry.path());
    if (bytes.empty()) continue;
    INFO(name);
    std::string damaged = bytes;
    damaged[bytes.size() / 2] = static_cast<char>(damaged[bytes.size() / 2] ^ 1);
    put(entry.path(), damaged);
    const Run run = run_episodic("verify " + s.dir("m"));
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find(name) != std::string::npos);
    put(entry.path(), bytes);
  }
  const Run none = run_episodic("verify " + s.dir("none"));
  CHECK(none.status == 1);
  CHECK(none.err.find("none") != std::string::npos);
}

TEST_CASE("another model's memory is refused") {
  const Setting s(120);
  REQUIRE(run_episodic(s.ingest("m")).status == 0);
  const fs::path other = s.scratch / "recall-2m6";
  fs::copy(*recall_model(), other);
  std::string weights = contents(other / "model.safetensors");
  weights[weights.size() - 100] = static_cast<char>(weights[weights.size() - 100] ^ 1);
  put(other / "model.safetensors", weights);
  const Run run = run_episodic(fmt::format("ask --model {} --memory-dir {} --prompt x --max-new 1",
                                           quoted(other.string()), s.dir("m")));
  CHECK(run.status == 1);
  CHECK(one_line(run.err));
  CHECK(run.err.find("weights") != std::string::npos);
}

TEST_CASE("a fork is equal, then its own; edit forgets, pins, rewinds and compacts") {
  const Setting s;
  REQUIRE(run_episodic(s.ingest("m")).status == 0);
  const std::string digest = s.digest("m");
  REQUIRE(run_episodic("fork " + s.dir("m") + " " + s.dir("f")).status == 0);
  CHECK(s.digest("f") == digest);
  const Run again = run_episodic("fork " + s.dir("m") + " " + s.dir("f"));
  CHECK(again.status == 1);
  CHECK(one_line(again.err));

  const Run forgot =
      run_episodic("edit " + s.dir("f") + " --forget-tokens 500:900 --pin 2 --compact --json -");
  REQUIRE(forgot.status == 0);
  CHECK(Json::parse(forgot.out)["forgotten"].get<int>() > 5);
  CHECK(run_episodic("verify " + s.dir("f")).status == 0);
  const Run pinned = run_episodic("edit " + s.dir("f") + " --forget-event 2");
  CHECK(pinned.status == 1);
  CHECK(pinned.err.find("pinned") != std::string::npos);
  CHECK(s.digest("m") == digest);

  const Run rewound =
      run_episodic(fmt::format("edit {} --rewind 2048 --json - --model {}", s.dir("m"), s.model));
  REQUIRE(rewound.status == 0);
  CHECK(Json::parse(rewound.out)["tokens"] == 2048);
  CHECK(run_episodic(s.ingest("m", "--resume")).status == 0);
  CHECK(s.digest("m") == digest);
  CHECK(run_episodic("edit " + s.dir("m")).status == 1);
}

constexpr int kNoMounts = 77;

/// Calls f in a process that may mount file systems, and sees them alone.
/// \return what f returned, or kNoMounts where the system allows none
template <class F>
int with_own_mounts(const F& f) {
  const std::string uid = std::to_string(::getuid()), gid = std::to_string(::getgid());
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0) {  // as the owner of a user namespace
      if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(kNoMounts);
      std::ofstream("/proc/self/setgroups") << "deny";
      std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
      std::ofstream("/proc/self/gid_map") << "0 " << gid << " 1";
    }
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(kNoMounts);
    ::_exit(f());
  }
  int status = 0;
  REQUIRE(child > 0);
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_CASE("a memory counts as written by its own lock, not by one of another file system") {
  const Scratch scratch;
  const fs::path held = scratch / "held", other = scratch / "other";
  fs::create_directories(held);
  fs::create_directories(other);
  enum { kOwnSeen = 1, kOtherSeen = 2, kUnlockedSeen = 4, kOtherInode = 78 };
  for (const char* locked : {"m/lock", "m"}) {  // a memory's folder is locked too
    INFO(locked);
    const int seen = with_own_mounts([&]() -> int {
      for (const fs::path& dir : {held, other}) {
        if (::mount("none", dir.c_str(), "tmpfs", 0, "size=1m") != 0) return kNoMounts;
        fs::create_directory(dir / "m");
        put(dir / "m/lock", "");
      }
      struct stat a = {}, b = {};  // both file systems number their files from 1 on
      if (::stat((held / locked).c_str(), &a) != 0 || ::stat((other / locked).c_str(), &b) != 0 ||
          a.st_ino != b.st_ino)
        return kOtherInode;
      const auto is_written = [](const fs::path& dir) {
        return ::episodic::tools::is_being_written(dir / "m");
      };
      int found = is_written(held) ? kUnlockedSeen : 0;
      const int lock = ::open((held / locked).c_str(), O_RDONLY);
      if (lock < 0 || ::flock(lock, LOCK_EX | LOCK_NB) != 0) return kNoMounts;
      if (is_written(held)) found |= kOwnSeen;
      if (is_written(other)) found |= kOtherSeen;
      return found;
    });
    if (seen == kNoMounts) EPISODIC_SKIP("this system lets no file system be mounted");
    if (seen == kOtherInode) EPISODIC_SKIP("the two file systems number their files differently");
    CHECK(seen == kOwnSeen);
  }
}

TEST_CASE("plan says what a text will take, and it is so") {
  const Setting s;
  REQUIRE(run_episodic(s.ingest("m")).status == 0);
  const Json j = json_of("inspect --no-events " + s.dir("m"));
  const std::int64_t tokens = j["tokens"], events = j["n_events"];
  const Run run = run_episodic(fmt::format(
      "plan --json - --model {} --tokens {} --event-tokens {} --memory {}", s.model, tokens,
      static_cast<double>(tokens) / static_cast<double>(events), quoted(kMemory)));
  REQUIRE(run.status == 0);
  const Json plan = Json::parse(run.out);
  CHECK(plan["fits"] == true);
  const double found = j["bytes"]["segments"].get<double>() + j["bytes"]["vectors"].get<double>();
  const double said =
      plan["disk"]["segments"].get<double>() + plan["disk"]["vectors"].get<double>();
  CHECK(said > 0.9 * found);
  CHECK(said < 1.2 * found);
  const Run tight = run_episodic(fmt::format(
      "plan --json - --model {} --tokens 1M --memory {}", s.model,
      quoted(R"({"n_local": 256, "n_mem": 256, "chunk": 256, "disk_bytes": 100000000})")));
  REQUIRE(tight.status == 0);
  CHECK(Json::parse(tight.out)["fits"] == false);
  CHECK(Json::parse(tight.out)["advice"].dump().find("disk_bytes") != std::string::npos);
}

}  // namespace kept_tools_test
