// SPDX-License-Identifier: Apache-2.0
// Kept memories with --device cuda, on the emulated device.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "float32_model.hpp"
#include "program.hpp"
#include "support/test.hpp"

using namespace program;

namespace device_kept_test {

/// A model, a book's token ids, and the programs with them.
struct Setting {
  Scratch scratch;
  std::string model;
  std::vector<std::int64_t> ids;

  explicit Setting(const fs::path& of, int sentences = 9) : model(quoted(of.string())) {
    put(scratch / "book", some_book(sentences));
    const Run run = on("cpu", "tokenize --json - --model " + model + " --text " + path("book"));
    ids = Json::parse(run.out)["ids"].get<std::vector<std::int64_t>>();
    ids.resize(ids.size() / 32 * 32);  // whole steps, so that a part of it ends between two
  }
  std::string path(const std::string& name) const { return quoted((scratch / name).string()); }
  static Run on(const char* device, const std::string& arguments) {
    return run_episodic(arguments + " --device " + device, "", "episodic_emulated");
  }
  /// \param n of the tokens, from the start \param memory settings, {} for those of the folder
  Run ingest(const char* device, const std::string& name, std::size_t n,
             const std::string& more = "", const std::string& memory = kSmallMemory) const {
    put(scratch / "ids.json",
        Json(std::vector(ids.begin(), ids.begin() + std::ptrdiff_t(n))).dump());
    return on(device, fmt::format("ingest --model {} --ids {} --memory-dir {} --commit-every 64 "
                                  "--quiet --memory {} {}",
                                  model, path("ids.json"), path(name), quoted(memory), more));
  }
  Run ask(const char* device, const std::string& name, const std::string& more = "") const {
    return on(device,
              fmt::format("ask --json - --model {} --memory-dir {} --prompt {} --max-new 6 {}",
                          model, path(name), quoted("\n\n\nWho closed the door?\n\nIt was"), more));
  }
  std::string digest(const std::string& name) const {
    const Run run = on("cuda", "verify --digest --json - " + path(name));
    INFO(run.err);
    REQUIRE(run.status == 0);
    return Json::parse(run.out)["digest"];
  }
};

void require_done(const Run& run) {
  INFO(run.err);
  REQUIRE(run.status == 0);
}

void require_refused(const Run& run, const std::string& name) {
  INFO(run.err);
  REQUIRE(run.status == 1);
  REQUIRE(one_line(run.err));
  REQUIRE(run.err.find(name) != std::string::npos);
}

TEST_CASE("a memory ingested on a device is whole, and answers alike on both") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Setting s(*model);
  const Run ingested = s.ingest("cuda", "device", s.ids.size(), "--json");
  require_done(ingested);
  REQUIRE(std::count(ingested.out.begin(), ingested.out.end(), '\n') > 2);  // commits
  const Run verified = s.on("cuda", "verify --json - " + s.path("device"));
  require_done(verified);
  REQUIRE(Json::parse(verified.out)["unnamed"].empty());
  const Json inspected = Json::parse(s.on("cuda", "inspect --json - " + s.path("device")).out);
  REQUIRE(inspected["tokens"] == s.ids.size());
  REQUIRE(inspected["n_events"] > 10);

  const std::string digest = s.digest("device");
  const Run host = s.ask("cpu", "device"), device = s.ask("cuda", "device");
  require_done(host);
  require_done(device);
  const Json a = Json::parse(host.out), b = Json::parse(device.out);
  REQUIRE(a["ids"].size() >= 3);
  REQUIRE(a["ids"] == b["ids"]);
  REQUIRE(a["text"] == b["text"]);
  REQUIRE(a["memory"]["tokens"] == b["memory"]["tokens"]);
  REQUIRE(a["memory"]["events"] == b["memory"]["events"]);
  REQUIRE(b["memory"]["device_bytes"] > 0);
  REQUIRE(s.digest("device") == digest);  // asking left it as it was

  // The same with less room than its events take, by a budget of this run.
  Json tight = Json::parse(kSmallMemory);
  tight["device_bytes"] = 950000;
  REQUIRE(b["memory"]["device_bytes"] > tight["device_bytes"]);
  const Run bounded = s.ask("cuda", "device", "--memory " + quoted(tight.dump()));
  require_done(bounded);
  const Json c = Json::parse(bounded.out);
  REQUIRE(c["ids"] == b["ids"]);
  REQUIRE(c["memory"]["device_bytes"] <= tight["device_bytes"]);
  REQUIRE(c["memory"]["host_bytes"] > 0);

  // The other way round.
  require_done(s.ingest("cpu", "host", s.ids.size()));
  const Run here = s.ask("cpu", "host"), there = s.ask("cuda", "host");
  require_done(here);
  require_done(there);
  REQUIRE(Json::parse(here.out)["ids"] == Json::parse(there.out)["ids"]);
}

// Every run has heads of their own cut off, and the host.
TEST_CASE("an ingest on a device that was cut off goes on to the same memory", "[long]") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Setting s(*model);
  const std::size_t whole = s.ids.size(), part = whole / 64 * 32;
  require_done(s.ingest("cuda", "whole", whole));
  require_done(s.ingest("cuda", "part", part));
  REQUIRE(s.digest("part") != s.digest("whole"));
  require_done(s.ingest("cuda", "part", whole, "--resume"));
  REQUIRE(s.digest("part") == s.digest("whole"));
  // Nothing is left to do.
  require_done(s.ingest("cuda", "part", whole, "--resume"));
  REQUIRE(s.digest("part") == s.digest("whole"));

  // Rewinding reads again, on a device too, and then the same text gives the same memory.
  const Run rewound = s.on("cuda", fmt::format("edit {} --rewind {} --json - --model {} --quiet",
                                               s.path("part"), part + 8, s.model));
  require_done(rewound);
  REQUIRE(Json::parse(rewound.out)["tokens"] == part + 8);
  const Run back = s.on("cuda", fmt::format("edit {} --rewind {} --json - --model {} --quiet",
                                            s.path("part"), part, s.model));
  require_done(back);
  require_done(s.ingest("cuda", "part", whole, "--resume"));
  REQUIRE(s.digest("part") == s.digest("whole"));
}

TEST_CASE("a memory whose heads have events of their own is kept on a device as on the host") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch folder;  // in 16 bits a device's events and words are the host's but for near ties
  const Setting s(float32_copy(*model, folder / "model"));
  Json heads = Json::parse(kSmallMemory);
  heads["scope"] = "head";
  heads["segmenter"] = "k_similarity";
  heads.erase("refine");
  const std::size_t whole = s.ids.size(), part = whole / 64 * 32;
  require_done(s.ingest("cuda", "whole", whole, "", heads.dump()));
  require_done(s.ingest("cuda", "part", part, "", heads.dump()));
  require_done(s.ingest("cuda", "part", whole, "--resume", heads.dump()));
  REQUIRE(s.digest("part") == s.digest("whole"));
  // Back to within what was committed at once, and on: the store's order is no part of a memory.
  require_done(s.on("cuda", fmt::format("edit {} --rewind {} --json - --model {} --quiet",
                                        s.path("part"), part, s.model)));
  require_done(s.ingest("cuda", "part", whole, "--resume", heads.dump()));
  REQUIRE(s.digest("part") == s.digest("whole"));
  require_done(s.on("cuda", "verify --json - " + s.path("part")));
  const Run host = s.ask("cpu", "whole"), device = s.ask("cuda", "whole");
  require_done(host);
  require_done(device);
  const Json a = Json::parse(host.out), b = Json::parse(device.out);
  REQUIRE(a["ids"] == b["ids"]);
  REQUIRE(a["memory"]["events"] == b["memory"]["events"]);
  // What heads forgot is left out on both.
  require_done(s.on("cuda", "edit " + s.path("whole") + " --forget-tokens 40:120"));
  const Run host_without = s.ask("cpu", "whole"), device_without = s.ask("cuda", "whole");
  require_done(host_without);
  require_done(device_without);
  REQUIRE(Json::parse(host_without.out)["ids"] == Json::parse(device_without.out)["ids"]);
}

TEST_CASE("a memory of the preset memoria forgets on a device what it forgets on the host") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch folder;  // in 16 bits lives are the host's to a few percent of a step only
  const Setting s(float32_copy(*model, folder / "model"), 18);
  Json memory = Json::parse(kSmallMemory);
  memory["preset"] = "memoria";
  memory["retention"] = {
      {"N_stm", 3}, {"N_ltm", 2}, {"stm_capacity", 6}, {"N_depth", 3}, {"initial_lifespan", 4},
      {"alpha", 3}};
  memory.erase("refine");
  const std::size_t whole = s.ids.size(), part = whole / 64 * 32;
  require_done(s.ingest("cuda", "device", whole, "", memory.dump()));
  require_done(s.ingest("cpu", "host", whole, "", memory.dump()));
  const auto events = [&](const std::string& name) {
    return Json::parse(s.on("cpu", "inspect --json - " + s.path(name)).out)["events"];
  };
  const Json a = events("device"), b = events("host");
  REQUIRE(a.size() == b.size());
  std::size_t forgotten = 0;
  for (std::size_t e = 0; e < a.size(); ++e) {
    REQUIRE(a[e]["start"] == b[e]["start"]);
    REQUIRE((a[e]["tier"] == "forgotten") == (b[e]["tier"] == "forgotten"));
    REQUIRE(std::abs(a[e]["lifespan"].get<double>() - b[e]["lifespan"].get<double>()) < 1e-3);
    forgotten += a[e]["tier"] == "forgotten";
  }
  REQUIRE(forgotten > a.size() / 3);
  REQUIRE(forgotten < a.size());
  // Cut off and taken up again, on a device and in turn on both, it forgets the same.
  require_done(s.ingest("cuda", "part", part, "", memory.dump()));
  require_done(s.ingest("cuda", "part", whole, "--resume", memory.dump()));
  REQUIRE(s.digest("part") == s.digest("device"));
  require_done(s.ingest("cpu", "turns", part, "", memory.dump()));
  require_done(s.ingest("cuda", "turns", whole, "--resume", memory.dump()));
  const Json c = events("turns");
  for (std::size_t e = 0; e < a.size(); ++e)
    REQUIRE((c[e]["tier"] == "forgotten") == (b[e]["tier"] == "forgotten"));
  require_done(s.on("cuda", "verify --json - " + s.path("turns")));
  const Run host = s.ask("cpu", "device"), device = s.ask("cuda", "device");
  require_done(host);
  require_done(device);
  REQUIRE(Json::parse(host.out)["ids"] == Json::parse(device.out)["ids"]);
}

TEST_CASE("what is asked on a device can be kept") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Setting s(*model);
  require_done(s.ingest("cpu", "m", s.ids.size()));
  require_done(s.on("cpu", "fork " + s.path("m") + " " + s.path("f")));
  const Run device = s.ask("cuda", "m", "--keep"), host = s.ask("cpu", "f", "--keep");
  require_done(device);
  require_done(host);
  require_done(s.on("cpu", "verify --json - " + s.path("m")));
  const Json a = Json::parse(s.on("cpu", "inspect --json - " + s.path("m")).out),
             b = Json::parse(s.on("cpu", "inspect --json - " + s.path("f")).out);
  REQUIRE(a["tokens"] > s.ids.size());
  REQUIRE(a["tokens"] == b["tokens"]);
  REQUIRE(a["n_events"] == b["n_events"]);
  for (std::size_t e = 0; e < a["events"].size(); ++e) {
    REQUIRE(a["events"][e]["start"] == b["events"][e]["start"]);
    REQUIRE(a["events"][e]["end"] == b["events"][e]["end"]);
  }
  REQUIRE(s.ask("cuda", "m").status == 0);
}

TEST_CASE("a kept memory that a device cannot go on with is refused by name") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Setting s(*model);
  for (const auto& [setting, name] : {std::pair{R"("index": "faiss")", "index = faiss"}}) {
    std::string memory(kSmallMemory);
    memory.insert(1, setting + std::string(", "));
    const std::string dir = std::string("m") + name;
    require_refused(s.ingest("cuda", dir, 32, "", memory), name);
    REQUIRE_FALSE(fs::exists(s.scratch / dir));  // refused before anything was made
    require_done(s.ingest("cpu", dir, 64, "", memory));
    require_refused(s.ask("cuda", dir), name);
  }
  require_done(s.ingest("cpu", "forgotten", s.ids.size()));
  require_done(s.on("cuda", "edit " + s.path("forgotten") + " --forget-event 2"));
  require_done(s.ask("cuda", "forgotten"));  // which a device leaves out as well
  require_done(s.ask("cpu", "forgotten"));
}

}  // namespace device_kept_test
