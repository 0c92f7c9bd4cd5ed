// SPDX-License-Identifier: Apache-2.0
// longbench, infinitebench and episodic-report from outside, on the shipped model.
#include "support/test.hpp"

#include <algorithm>
#include <fstream>
#include <string>

#include "tools/program.hpp"

using namespace program;

namespace {

/// Threads that sleep while they wait: tests share the machine, and a program that need not choose
/// how to wait starts in half the time.
constexpr const char* kEnv = " env OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive";

Run infinite(const std::string& arguments, const std::string& before = "") {
  return episodic(arguments, before + kEnv, "infinitebench");
}
Run longbench(const std::string& arguments) { return episodic(arguments, kEnv, "longbench"); }

/// Any command.
Run shell(const std::string& command) {
  const Scratch scratch;
  Run run;
  const int status = std::system((command + " > " + quoted((scratch / "out").string()) + " 2> " +
                                  quoted((scratch / "err").string()))
                                     .c_str());
  run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  run.out = contents(scratch / "out");
  run.err = contents(scratch / "err");
  return run;
}

std::string path(const Scratch& s, const std::string& name) { return quoted((s / name).string()); }

std::vector<Json> lines(const fs::path& file) {
  std::ifstream in(file);
  std::vector<Json> all;
  for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
  return all;
}

const std::string kModel = " --model " + quoted(EPISODIC_SOURCE_DIR "/models/recall-2m6");

void make_passkey(const Scratch& s, const std::string& flags) {
  const Run run =
      infinite("make --task passkey --out " + path(s, "data.jsonl") + kModel + " " + flags);
  REQUIRE(run.err == "");
  REQUIRE(run.status == 0);
}

std::string run_flags(const Scratch& s, const std::string& out = "preds.jsonl") {
  return "run --task passkey --limits em-llm --quiet --data " + path(s, "data.jsonl") + kModel +
         " --out " + path(s, out);
}

}  // namespace

TEST_CASE("suites: wrong usage exits with 2, help with 0") {
  for (const char* arguments : {"", "nothing", "run", "score --task",
                                "make --task passkey --tokens 0", "run --limits mine"})
    CHECK(infinite(arguments).status == 2);
  for (const char* sub : {"make", "run", "score", "average", "merge"}) {
    const Run run = infinite(std::string(sub) + " --help");
    CHECK(run.status == 0);
    CHECK(run.out.find(std::string("infinitebench ") + sub) != std::string::npos);
  }
  for (const char* sub : {"run", "score"})
    CHECK(longbench(std::string(sub) + " --help").out.find(std::string("longbench ") + sub) !=
          std::string::npos);
  CHECK(episodic("--help", "", "episodic-report").out.find("episodic-report --out") !=
        std::string::npos);
}

TEST_CASE("suites: what cannot be done is one line that says what can") {
  const Scratch s;
  make_passkey(s, "--tokens 600 --count 1");
  const auto refused = [&](const std::string& more, const std::string& names) {
    const Run run = infinite(run_flags(s) + " " + more);
    INFO(more << "\n" << run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find(names) != std::string::npos);
  };
  refused("--method rag", "episodic, full, window, truncate");
  refused("--method best", "episodic, full, window, truncate");
  refused("--preset best", "em-llm-sm+c");
  refused("--prompts /none.json", "/none.json");
  refused("--shard 2/2", "--shard");
  // the length of a prompt that full attention was not made for
  refused("--method full", "tokens");
  refused("--method full", "--beyond-window");
  const Run task = infinite("score --task squad --preds " + path(s, "data.jsonl"));
  CHECK(task.status == 1);
  CHECK(task.err.find("passkey, number_string") != std::string::npos);
  const Run own = longbench("run --task qasper --data " + path(s, "data.jsonl") + kModel +
                            " --out " + path(s, "o"));
  CHECK(own.status == 1);
  CHECK(own.err.find("dataset2prompt.json") != std::string::npos);
}

TEST_CASE("suites: the shipped model finds pass keys through the memory, and not without") {
  const Scratch s;
  make_passkey(s, "--tokens 3000 --depth 0.1,0.6 --count 1 --seed 5");
  for (const char* method : {"episodic", "window"}) {
    const std::string out = std::string(method) + ".jsonl";
    REQUIRE(infinite(run_flags(s, out) + " --method " + method).status == 0);
    const Run score =
        infinite("score --task passkey --data " + path(s, "data.jsonl") + " --preds " +
                 path(s, out) + " --json " + path(s, std::string(method) + ".json"));
    REQUIRE(score.status == 0);
    const Json json = Json::parse(contents(s / (std::string(method) + ".json")));
    CHECK(json["count"] == 2);
    CHECK(json["score"].get<double>() == (std::string(method) == "episodic" ? 100 : 0));
    CHECK(json["settings"]["method"] == method);
    CHECK(json["settings"]["prompt"]["source"] == "own wording");
    CHECK(json["cost"]["read_tokens"].get<int>() > 5000);
    CHECK(json["examples"][0]["depth"] == 0.1);
  }
  const Run report = episodic("--out " + path(s, "report") + " --resamples 200 --baseline window " +
                                  path(s, "episodic.json") + " " + path(s, "window.json"),
                              "", "episodic-report");
  REQUIRE(report.status == 0);
  CHECK(contents(s / "report/report.md")
            .find("| passkey | 100.0 [100.0, 100.0] | 0.0 [0.0, 0.0] |") != std::string::npos);
  CHECK(contents(s / "report/heat_data_episodic.svg").find("10 %") != std::string::npos);
}

TEST_CASE("suites: two shards make what one run makes") {
  const Scratch s;
  make_passkey(s, "--tokens 700 --count 3");
  REQUIRE(infinite(run_flags(s, "whole.jsonl") + " --limit 3").status == 0);
  // as mpirun and srun start them
  REQUIRE(infinite(run_flags(s) + " --limit 3", "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2")
              .status == 0);
  REQUIRE(infinite(run_flags(s) + " --limit 3", "PMI_RANK=1 PMI_SIZE=2").status == 0);
  CHECK(lines(s / "preds.0-of-2.jsonl").size() == 2);
  // and a SLURM job array, whose jobs are numbered from any number on
  const Run job = shell(
      "SLURM_ARRAY_TASK_ID=4 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_COUNT=3 "
      "EPISODIC_BIN=" +
      quoted(EPISODIC_BINARY_DIR "/bin") + " " +
      quoted(EPISODIC_SOURCE_DIR "/scripts/slurm_suite") + " infinitebench " + run_flags(s) +
      " --limit 3");
  CHECK(job.status == 0);
  CHECK(lines(s / "preds.1-of-3.jsonl").size() == 1);
  CHECK(lines(s / "preds.1-of-2.jsonl").size() == 1);
  REQUIRE(infinite("merge --out " + path(s, "merged.jsonl") + " " + path(s, "preds.0-of-2.jsonl") +
                   " " + path(s, "preds.1-of-2.jsonl"))
              .status == 0);
  const auto whole = lines(s / "whole.jsonl"), merged = lines(s / "merged.jsonl");
  REQUIRE(merged.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(merged[i]["id"] == whole[i]["id"]);
    CHECK(merged[i]["pred"] == whole[i]["pred"]);
  }
}

TEST_CASE("suites: a run that is killed loses nothing that it had said") {
  const Scratch s;
  make_passkey(s, "--tokens 2000 --count 6");
  std::size_t before = 0;
  for (int kill = 0; kill < 2; ++kill) {
    // `timeout -s KILL` ends the program wherever it is
    infinite(run_flags(s), "timeout -s KILL 1.2");
    std::size_t whole = 0;
    const std::string text = contents(s / "preds.jsonl");
    whole = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    CHECK(whole >= before);
    before = whole;
  }
  REQUIRE(infinite(run_flags(s)).status == 0);
  const auto rows = lines(s / "preds.jsonl");
  REQUIRE(rows.size() == 6);
  for (const Json& row : rows) CHECK(row["pred"].is_string());
  const Run again = infinite(run_flags(s));
  CHECK(again.out.find("0 answered, 6 were there") != std::string::npos);
}

TEST_CASE("suites: one context is read once for all its questions") {
  const Scratch s;
  make_passkey(s, "--tokens 1500 --count 1");
  Json row = lines(s / "data.jsonl").at(0), second = row;
  second["id"] = 1;
  second["input"] = "Which one is the pass key?";
  Json third = row;
  third["id"] = 2;
  put(s / "data.jsonl", row.dump() + "\n" + second.dump() + "\n" + third.dump() + "\n");
  REQUIRE(infinite(run_flags(s)).status == 0);
  const auto rows = lines(s / "preds.jsonl");
  REQUIRE(rows.size() == 3);
  CHECK(rows[0]["read_tokens"] == rows[0]["prompt_tokens"]);
  CHECK(rows[1]["read_tokens"].get<int>() < 40);
  // The same question from the snapshot is answered as it was the first time.
  CHECK(rows[2]["pred"] == rows[0]["pred"]);
}
