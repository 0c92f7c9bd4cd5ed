// SPDX-License-Identifier: Apache-2.0
// longbench, infinitebench and episodic-report from outside, on the shipped model.
#include "support/sampled.hpp"
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
  return run_episodic(arguments, before + kEnv, "infinitebench");
}
Run longbench(const std::string& arguments) { return run_episodic(arguments, kEnv, "longbench"); }

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

const std::string kEncoder =
    " --encoder " + quoted(EPISODIC_SOURCE_DIR "/tests/model/sentence_encoder/tiny");

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
  CHECK(run_episodic("--help", "", "episodic-report").out.find("episodic-report --out") !=
        std::string::npos);
}

TEST_CASE("suites: entries of whole sentences are a text's events") {
  const Scratch s;
  // sentences that the tokenizer cuts into 9 to 12 tokens each
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The grass number " + std::to_string(10 + i) + " is green. ";
  const auto row = [&](const std::string& id, const std::string& context) {
    return Json{{"id", id},
                {"context", context},
                {"input", "What is the pass key?"},
                {"answer", {"1"}},
                {"options", Json::array()}}
               .dump() +
           "\n";
  };
  std::ofstream(s / "data.jsonl") << row("a", text) << row("b", text.substr(0, text.size() / 2));
  const auto events = [&](const std::string& more, const std::string& out) {
    const Run run = infinite(run_flags(s, out) + " " + more);
    INFO(run.err);
    REQUIRE(run.status == 0);
    std::vector<std::int64_t> counts;
    for (const Json& line : lines(s / out)) counts.push_back(line["memory"]["events"]);
    REQUIRE(counts.size() == 2);
    return counts;
  };
  const std::string window =
      R"( --memory '{"n_init": 4, "n_local": 16, "n_mem": 64, "chunk": 16, "max_block": 100}')";
  const auto short_ones = events(window + " --entries 20", "short.jsonl");
  const auto long_ones = events(window + " --entries 80", "long.jsonl");
  // Events are at most so many tokens, and one to five sentences each.
  const auto tokens = [&](const std::string& out, std::size_t i) {
    return lines(s / out)[i]["memory"]["tokens"].get<std::int64_t>();
  };
  for (std::size_t i = 0; i < 2; ++i) {
    INFO(short_ones[i] << " and " << long_ones[i] << " events of " << tokens("short.jsonl", i));
    CHECK(short_ones[i] * 20 >= tokens("short.jsonl", i) - 16 - 4 - 80);
    CHECK(short_ones[i] >= 2 * long_ones[i]);
    CHECK(long_ones[i] >= 2);
  }
  CHECK(short_ones[0] > short_ones[1]);  // each text is cut by itself
  CHECK(Json::parse(contents(s / "short.jsonl.settings.json"))["entries"] == 20);
  // other entries are another run
  const Run other = infinite(run_flags(s, "short.jsonl") + window + " --entries 30");
  CHECK(other.status == 1);
  CHECK(other.err.find("entries") != std::string::npos);
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
  refused("--method best", "episodic, reread, full, window, truncate, rag, rag-s");
  refused("--method rag", "--encoder DIR");
  refused("--method rag --encoder /none", "/none/config.json");
  refused("--method rag --encoder " + quoted(EPISODIC_SOURCE_DIR "/models/recall-2m6"), "bert");
  refused("--method window --encoder /none", "--encoder");
  refused("--method episodic --encoder /none", "/none/config.json");
  refused("--method episodic" + kEncoder +
              R"( --memory '{"scope": "head", "segmenter": "k_similarity"}')",
          "scope");
  refused("--method rag-s" + kEncoder + R"( --memory '{"scope": "head"}')", "scope");
  refused("--method window --entries 64", "--entries");
  refused("--method full --reader /none", "--reader");
  refused("--reader " + quoted(EPISODIC_SOURCE_DIR "/models/recall-2m6"), "reader_heads");
  refused(R"(--entries 64 --memory '{"scope": "head"}')", "--entries");
  refused("--preset best", "em-llm-sm+c");
  refused("--prompts /none.json", "/none.json");
  refused("--shard 2/2", "--shard");
  // the length of a prompt that full attention was not made for
  refused("--method full", "tokens");
  refused("--method full", "--beyond-window");
  const Run task = infinite("score --task squad --preds " + path(s, "data.jsonl"));
  CHECK(task.status == 1);
  CHECK(task.err.find("passkey, number_string") != std::string::npos);
  // 512 tokens to generate, and as long a window
  put(s / "news.jsonl", R"({"input": "", "context": "c", "answers": ["a"], "length": 1,)"
                        R"( "all_classes": null, "_id": "x"})");
  put(s / "prompts.json", R"({"multi_news": "{context}"})");
  const Run news =
      longbench("run --task multi_news --method truncate --data " + path(s, "news.jsonl") + kModel +
                " --prompts " + path(s, "prompts.json") + " --out " + path(s, "o"));
  CHECK(news.status == 1);
  CHECK(one_line(news.err));
  CHECK(news.err.find("512 are to be generated") != std::string::npos);
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
  const Run report =
      run_episodic("--out " + path(s, "report") + " --resamples 200 --baseline window " +
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

TEST_CASE("suites: two ranks under mpirun make what one run makes") {
  if (shell("command -v mpirun").status != 0) EPISODIC_SKIP("there is no mpirun");
  const Scratch s;
  make_passkey(s, "--tokens 700 --count 3");
  REQUIRE(infinite(run_flags(s, "whole.jsonl")).status == 0);
  // Open MPI refuses root and more ranks than cores without these
  REQUIRE(infinite(run_flags(s), "mpirun --allow-run-as-root --oversubscribe -n 2").status == 0);
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

TEST_CASE("suites: other data or another model under the same name is another run") {
  const Scratch s;
  make_passkey(s, "--tokens 700 --count 2");
  fs::copy(EPISODIC_SOURCE_DIR "/models/recall-2m6", s / "model", fs::copy_options::recursive);
  const std::string flags = "run --task passkey --quiet --data " + path(s, "data.jsonl") +
                            " --model " + path(s, "model") + " --out " + path(s, "preds.jsonl");
  REQUIRE(infinite(flags + " --limit 1").status == 0);
  CHECK(infinite(flags).out.find("1 answered, 1 were there") != std::string::npos);
  const std::string settings = contents(s / "preds.jsonl.settings.json");
  const auto refused = [&](const std::string& name) {
    const Run run = infinite(flags);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find("\"" + name + "\"") != std::string::npos);
    CHECK(contents(s / "preds.jsonl.settings.json") == settings);
  };
  const std::string data = contents(s / "data.jsonl");
  make_passkey(s, "--tokens 700 --count 2 --seed 9");  // the same ids
  refused("data_sha256");
  put(s / "data.jsonl", data);
  std::string weights = contents(s / "model/model.safetensors");
  weights[weights.size() - 100] ^= 1;
  put(s / "model/model.safetensors", weights);
  refused("model_fingerprint");
}

TEST_CASE("suites: scripts/suites fills EM-LLM's table from the released files") {
  const Scratch s;
  for (const char* dir : {"longbench", "infinitebench"}) fs::create_directories(s / dir);
  make_passkey(s, "--tokens 700 --count 1");
  fs::copy(s / "data.jsonl", s / "infinitebench/passkey.jsonl");
  put(s / "infinitebench/math_calc.jsonl", "is none of the table's tasks\n");
  const std::string row =
      R"({"input": "Who?", "context": "It was Ann.", "answers": ["Ann"], "length": 3,)"
      R"( "dataset": "qasper", "language": "en", "all_classes": null, "_id": "x"})"
      "\n";
  put(s / "longbench/qasper.jsonl", row);
  put(s / "longbench/qasper_e.jsonl", row);
  put(s / "longbench/vcsum.jsonl", "is none of the table's tasks\n");
  put(s / "prompts.json",
      R"({"qasper": "{context}\n{input}", "passkey": "{context}\n{input}\nIt is"})");
  const auto suites = [&](const std::string& more) {
    return shell("EPISODIC_BUILD_DIR=" + quoted(EPISODIC_BINARY_DIR) + " " +
                 quoted(EPISODIC_SOURCE_DIR "/scripts/suites") +
                 " --tasks '' --threads 1 --prompts " + path(s, "prompts.json") + more);
  };
  const Run run =
      suites(" --methods em-llm-s,window --em-llm --out " + path(s, "out") + " --longbench " +
             path(s, "longbench") + " --infinitebench " + path(s, "infinitebench"));
  INFO(run.err);
  REQUIRE(run.status == 0);
  const std::string report = contents(s / "out/report.md");
  CHECK(report.find("| passkey | the file's own, raw | em-llm | 32 (em-llm) |") !=
        std::string::npos);
  CHECK(report.find("| qasper | the file's own, raw | official | 128 (official) |") !=
        std::string::npos);
  CHECK(report.find("its last token") != std::string::npos);
  // the first method is what the others are compared with
  CHECK(report.find("# Differences from episodic em-llm-s") != std::string::npos);
  CHECK(report.find("passkey 1 of 590, qasper 1 of 200") != std::string::npos);
  CHECK_FALSE(fs::exists(s / "out/scores/qasper_e-window.json"));
  // LongBench-E is asked as LongBench is, and scored by length
  fs::remove(s / "longbench/vcsum.jsonl");
  const Run by_length =
      suites(" --methods window --out " + path(s, "e") + " --longbench " + path(s, "longbench"));
  INFO(by_length.err);
  REQUIRE(by_length.status == 0);
  CHECK(Json::parse(contents(s / "e/scores/qasper_e-window.json"))["by_length"].contains("0-4k"));
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
  // Shards have documents, not questions.
  for (const char* part : {"0", "1"}) {
    const Run shard = infinite(run_flags(s) + " --shard " + part + "/2");
    const std::string answered = *part == '0' ? "3 answered" : "0 answered";
    CHECK(shard.out.find(answered) != std::string::npos);
  }
}

TEST_CASE("suites: reread finds the passage of a question, reads it again, and says which") {
  const Scratch s;
  make_passkey(s, "--tokens 3200 --depth 0.2,0.8 --count 1 --seed 3");
  const Run run = infinite(run_flags(s) + " --method reread");
  INFO(run.err);
  REQUIRE(run.status == 0);
  const std::vector<Json> rows = lines(s / "preds.jsonl");
  REQUIRE(rows.size() == 2);
  for (const Json& row : rows) {
    CHECK(row["method"] == "reread");
    REQUIRE(row["passages"].size() >= 1);
    REQUIRE(row["passages"].size() <= 3);
    for (const Json& p : row["passages"]) {
      CHECK(p["start"].get<int>() < p["end"].get<int>());
      CHECK(p["end"].get<int>() <= row["prompt_tokens"].get<int>());
      CHECK(p["score"].get<double>() > 0);
    }
    CHECK(row["seconds"]["retrieve"].get<double>() > 0);
    CHECK(row.contains("memory"));
  }
  const Json settings = Json::parse(contents(s / "preds.jsonl.settings.json"));
  CHECK(settings["reread"]["passages"] == 3);
  CHECK(settings["reread"]["rerank"] == 0);
  CHECK(settings["memory"]["recall"] == true);
  const Run chosen = infinite(run_flags(s, "c.jsonl") + " --method reread --passages 1 --rerank 4");
  INFO(chosen.err);
  REQUIRE(chosen.status == 0);
  for (const Json& row : lines(s / "c.jsonl")) {
    REQUIRE(row["passages"].size() == 1);
    CHECK(row["passages"][0]["score"] == 1.0);  // of the likeliest question
  }
  CHECK(infinite(run_flags(s, "h") + R"( --method reread --memory '{"scope": "head"}')")
            .err.find("scope") != std::string::npos);
}

TEST_CASE("suites: rag reads five chunks of the context, and says which") {
  const Scratch s;
  make_passkey(s, "--tokens 3200 --depth 0.2,0.8 --count 1 --seed 3");
  for (const std::string method : {"rag", "rag-s"}) {
    const std::string out = method + ".jsonl";
    const std::string flags = run_flags(s, out) + " --beyond-window --method " + method + kEncoder;
    const Run run = infinite(flags + " --limit 1");
    INFO(run.err);
    REQUIRE(run.status == 0);
    if (method == "rag")  // it goes on after the first
      CHECK(infinite(flags).out.find("1 answered, 1 were there") != std::string::npos);
    for (const Json& row : lines(s / out)) {
      const Json& r = row["retrieval"];
      CHECK(r["chunks"].get<int>() > 5);
      CHECK(r["chosen"].size() == 5);
      CHECK(row["prompt_tokens"].get<int>() < row["tokens"].get<int>());  // of the context
      CHECK(row["read_tokens"] == row["prompt_tokens"]);
      CHECK(row["seconds"]["retrieve"].get<double>() > 0);
      CHECK_FALSE(row.contains("memory"));
    }
    const Json settings = Json::parse(contents(s / (out + ".settings.json")));
    CHECK(settings["retrieval"]["max_tokens"] == 40);
    CHECK(settings["retrieval"]["chunk_words"] == 300);
    CHECK(settings["memory"].is_null() == (method == "rag"));
    const Run score = infinite("score --task passkey --preds " + path(s, out) + " --json " +
                               path(s, "score.json"));
    REQUIRE(score.status == 0);
    const Json json = Json::parse(contents(s / "score.json"));
    CHECK(json["cost"]["seconds"]["retrieve"].get<double>() > 0);
    // another encoder is another run
    fs::copy(EPISODIC_SOURCE_DIR "/tests/model/sentence_encoder/tiny", s / ("e" + method),
             fs::copy_options::recursive);
    Json config = Json::parse(contents(s / ("e" + method) / "config.json"));
    config["layer_norm_eps"] = 1e-5;
    put(s / ("e" + method) / "config.json", config.dump());
    const Run other = infinite(run_flags(s, out) + " --beyond-window --method " + method +
                               " --encoder " + path(s, "e" + method));
    CHECK(other.status == 1);
    CHECK(other.err.find("\"retrieval\"") != std::string::npos);
  }
}

TEST_CASE("suites: a memory whose events an encoder chooses is a run of its own") {
  const Scratch s;
  make_passkey(s, "--tokens 3200 --depth 0.2,0.8 --count 1 --seed 3");
  REQUIRE(infinite(run_flags(s) + kEncoder).status == 0);
  REQUIRE(infinite(run_flags(s, "plain.jsonl")).status == 0);
  const auto rows = lines(s / "preds.jsonl"), plain = lines(s / "plain.jsonl");
  REQUIRE(rows.size() == 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i]["seconds"]["retrieve"].get<double>() > 0);
    CHECK_FALSE(rows[i].contains("retrieval"));
    // other events are recalled for the question, of other lengths
    CHECK(rows[i]["memory"]["recalled_events"] != plain[i]["memory"]["recalled_events"]);
  }
  const Json settings = Json::parse(contents(s / "preds.jsonl.settings.json"));
  CHECK(settings["retrieval"]["encoder"] == "tiny");
  CHECK_FALSE(settings["retrieval"].contains("top"));
  const Run other = infinite(run_flags(s));
  CHECK(other.status == 1);
  CHECK(other.err.find("\"retrieval\"") != std::string::npos);
}

TEST_CASE("suites: a model's chat format is used where the suite uses it") {
  const Scratch s;
  make_passkey(s, "--tokens 300 --count 1");
  fs::copy(EPISODIC_SOURCE_DIR "/models/recall-2m6", s / "model", fs::copy_options::recursive);
  Json config = Json::parse(contents(s / "model/tokenizer_config.json"));
  config["chat_template"] =
      "{{ bos_token }}User: {{ messages[0]['content'] }}\n{% if add_generation_prompt %}Model:"
      "{% endif %}";
  put(s / "model/tokenizer_config.json", config.dump());
  const auto run = [&](const std::string& out, const std::string& more) {
    const std::string flags = "run --task passkey --quiet --data " + path(s, "data.jsonl") +
                              " --model " + path(s, "model") + " --out " + path(s, out) + " " +
                              more;
    const Run r = infinite(flags);
    INFO(r.err);
    REQUIRE(r.status == 0);
    CHECK(lines(s / out).at(0)["bos_tokens"] == 1);
    const Json settings = Json::parse(contents(s / (out + ".settings.json")));
    CHECK(settings["prompt"]["chat_format"] == (more != "--raw"));
    return lines(s / out).at(0)["prompt_tokens"].get<int>();
  };
  CHECK(run("chat.jsonl", "") > run("raw.jsonl", "--raw"));
  // few-shot tasks and code are raw in LongBench
  put(s / "trec.jsonl",
      R"({"input": "Type:", "context": "Question: a Type: b", "answers": ["b"], "length": 3,)"
      R"( "dataset": "trec", "language": "en", "all_classes": ["a", "b"], "_id": "x"})"
      "\n");
  put(s / "prompts.json", R"({"trec": "{context}\n{input}", "qasper": "{context}\n{input}"})");
  for (const bool chat : {false, true}) {
    const std::string task = chat ? "qasper" : "trec";
    const Run r = longbench("run --task " + task + " --quiet --data " + path(s, "trec.jsonl") +
                            " --model " + path(s, "model") + " --prompts " +
                            path(s, "prompts.json") + " --out " + path(s, task + ".out"));
    INFO(r.err);
    REQUIRE(r.status == 0);
    const Json settings = Json::parse(contents(s / (task + ".out.settings.json")));
    CHECK(settings["prompt"]["chat_format"] == chat);
  }
}

TEST_CASE("suites: several methods in one call, each scored") {
  const Scratch s;
  make_passkey(s, "--tokens 1500 --depth 0.1 --count 2 --seed 3");
  const std::string flags = run_flags(s) + " --json " + path(s, "all.json");
  const Run run = infinite(flags + " --methods episodic,infllm,window");
  INFO(run.err << run.out);
  REQUIRE(run.status == 0);
  const Json all = Json::parse(contents(s / "all.json"));
  for (const char* method : {"episodic", "infllm", "window"}) {
    INFO(method);
    CHECK(run.out.find(method) != std::string::npos);
    const fs::path out = s / ("preds-" + std::string(method) + ".jsonl");
    REQUIRE(lines(out).size() == 2);
    const Json score = Json::parse(contents(out.string() + ".score.json"));
    CHECK(score["count"] == 2);
    CHECK(all[method]["score"] == score["score"]);
    CHECK(all[method]["done"] == 2);
  }
  CHECK(all["episodic"]["score"] > all["window"]["score"]);
  CHECK(Json::parse(contents(s / "preds-infllm.jsonl.settings.json"))["preset"] == "infllm");
  CHECK_FALSE(fs::exists(s / "preds.jsonl"));

  // one that does not go leaves the others alone; a name that is none ends it before they begin
  const Run part = infinite(flags + " --methods rag,episodic");
  CHECK(part.status == 1);
  CHECK(one_line(part.err));
  CHECK(part.err.find("rag: --method rag: needs a sentence encoder") != std::string::npos);
  CHECK(Json::parse(contents(s / "all.json"))["episodic"]["skipped"] == 2);
  const Run wrong = infinite(flags + " --methods truncate,nothing");
  CHECK(wrong.status == 1);
  CHECK(wrong.err.find("nothing") != std::string::npos);
  CHECK_FALSE(fs::exists(s / "preds-truncate.jsonl"));
  CHECK(infinite(flags + " --method full --methods window").status == 2);
}

TEST_CASE("suites: wrong usage of the report is one line as elsewhere") {
  for (const auto& [arguments, says] : std::vector<std::pair<std::string, std::string>>{
           {"", "episodic-report: --out is required (episodic-report --help)\n"},
           {"--ot x", "episodic-report: it has no flag --ot; did you mean --out?"},
           {"--out /tmp/none", "episodic-report: results or --curves is required"}}) {
    const Run run = run_episodic(arguments, "", "episodic-report");
    INFO(run.err);
    CHECK(run.status == 2);
    CHECK(one_line(run.err));
    CHECK(run.err.starts_with(says));
  }
}

namespace {

/// A suite of which nothing is downloaded: its rows are made or written here.
struct FieldSuite {
  const char *program, *task;
  std::string make;  ///< arguments; empty: `rows` is the file
  std::string rows;
};

std::vector<FieldSuite> field_suites(const Scratch& s) {
  std::string book;
  for (int i = 0; i < 300; ++i)
    book +=
        "The miller number " + std::to_string(i) + " of this long valley ground his corn alone. ";
  put(s / "book.txt", book);
  const std::string hay = " --haystack " + path(s, "book.txt");
  Json choices{{"_id", "a"},           {"domain", "d"},     {"sub_domain", "s"},
               {"difficulty", "easy"}, {"length", "short"}, {"question", "Which miller?"},
               {"choice_A", "one"},    {"choice_B", "two"}, {"choice_C", "three"},
               {"choice_D", "four"},   {"answer", "A"},     {"context", book.substr(0, 4000)}};
  Json chats{{"question_id", "a"},
             {"question_type", "single-session-user"},
             {"question", "Which colour has my bike?"},
             {"answer", "red"},
             {"question_date", "2023/05/30"},
             {"haystack_dates", {"2023/05/20", "2023/05/21"}},
             {"choices", {"red", "blue"}},
             {"correct_choice_index", 0}};
  for (const char* said : {"My bike is red.", "It rains."})
    chats["haystack_sessions"].push_back(
        {{{"role", "user"}, {"content", said + book.substr(0, 2000)}},
         {{"role", "assistant"}, {"content", "I see."}}});
  return {
      {"ruler", "niah_multivalue", "--tokens 1200 --count 2" + hay, ""},
      {"ruler", "vt", "--tokens 1500 --count 1", ""},
      {"babilong", "qa5", "--tokens 1000 --count 2" + hay, ""},
      {"needles", "no_shared_word",
       "--tokens 1000 --count 2 --source " +
           quoted(EPISODIC_SOURCE_DIR "/benchmarks/find/facts.json") + hay,
       ""},
      {"longbench_v2", "longbench_v2", "", Json::array({choices}).dump()},
      {"longmemeval", "longmemeval", "", Json::array({chats}).dump()},
      {"longmemeval", "longmemeval_choice", "", Json::array({chats}).dump()},
  };
}

}  // namespace

TEST_CASE("suites: every suite is made, run by every method and scored on the shipped model") {
  const Scratch s;
  std::size_t suite_number = 0;
  for (const FieldSuite& suite : field_suites(s)) {
    INFO(suite.program << " " << suite.task);
    const std::string data = std::string(suite.task) + ".json";
    const auto run = [&](const std::string& arguments) {
      const Run r = run_episodic(arguments, kEnv, suite.program);
      INFO(arguments << "\n" << r.err);
      CHECK(r.err == "");
      REQUIRE(r.status == 0);
      return r;
    };
    const std::string task = std::string(" --task ") + suite.task;
    if (suite.make.empty())
      put(s / data, suite.rows);
    else
      run("make" + task + kModel + " --out " + path(s, data) + " " + suite.make);
    const std::string out = std::string(suite.task) + ".jsonl";
    std::string results;
    std::size_t method_number = 0;
    ++suite_number;  // by default each suite by a third of the methods, in turn
    for (const char* method :
         {"episodic", "window", "full", "reread", "truncate", "rag", "rag-s", "infllm"}) {
      INFO(method);
      if (++method_number % 3 != suite_number % 3 && !episodic_test::all_cases()) continue;
      const std::string name(method), preds = name + "-" + out;
      const bool encodes = name.starts_with("rag");
      const bool preset = name == "infllm";
      run("run" + task + " --quiet --limit 1 --data " + path(s, data) + kModel +
          (encodes ? kEncoder : "") + (preset ? " --preset infllm" : " --method " + name) +
          (name == "full" || encodes ? " --beyond-window" : "") +
          (name == "truncate" ? " --max-length 400" : "") + " --out " + path(s, preds));
      const auto rows = lines(s / preds);
      REQUIRE(rows.size() == 1);
      CHECK(rows[0]["new_tokens"].get<int>() >= 1);
      if (name != "truncate" && !encodes) CHECK(rows[0]["prompt_tokens"].get<int>() > 400);
      run("score" + task + " --preds " + path(s, preds) + " --json " + path(s, preds + ".score"));
      const Json score = Json::parse(contents(s / (preds + ".score")));
      CHECK(score["suite"] == suite.program);
      CHECK(score["count"] == 1);
      results += " " + path(s, preds + ".score");
    }
    const Run report = run_episodic("--out " + path(s, "report") + " --resamples 100" + results, "",
                                    "episodic-report");
    INFO(report.err);
    CHECK(report.status == 0);
    CHECK(contents(s / "report/report.md").find(std::string("| ") + suite.task + " |") !=
          std::string::npos);
  }
}

TEST_CASE("suites: scripts/suites makes, runs and scores the field's generated tasks") {
  const Scratch s;
  field_suites(s);  // writes the book
  const std::string command =
      "EPISODIC_BUILD_DIR=" + quoted(EPISODIC_BINARY_DIR) + " " +
      quoted(EPISODIC_SOURCE_DIR "/scripts/suites") +
      " --tasks '' --threads 1 --methods window,reread --lengths 1200 --count "
      "1 --field ruler:niah_single_1,babilong:qa1,needles:other_words "
      "--haystack " +
      path(s, "book.txt") + " --out " + path(s, "out");
  for (int call = 0; call < 2; ++call) {  // the second goes on where the first stopped
    const Run run = shell(command);
    INFO(run.err);
    REQUIRE(run.status == 0);
    CHECK(std::distance(fs::directory_iterator(s / "out/scores"), {}) == 6);
  }
  const std::string report = contents(s / "out/report.md");
  for (const char* task : {"niah_single_1", "qa1", "other_words"})
    CHECK(report.find(std::string("| ") + task + " |") != std::string::npos);
}

TEST_CASE("suites: files of the field's suites that are broken are one line that names the field") {
  const Scratch s;
  struct Bad {
    const char *program, *task, *rows, *says;
  };
  for (const Bad& bad :
       {Bad{"ruler", "vt", "{\"index\": 0, \"input\": 3}",
            "data.json:1: \"input\" must be a string"},
        {"babilong", "qa1", R"([{"input": "a", "question": "b")", "data.json: the list ends"},
        {"needles", "same_words", R"({"id": 1, "context": "c"})", "the field \"question\""},
        {"longbench_v2", "longbench_v2", R"([{"_id": "a", "context": 1}])", "entry 1: \"context\""},
        {"longmemeval", "longmemeval", R"([{"question_id": "a", "haystack_sessions": 1}])",
         "data.json: entry 1"}}) {
    put(s / "data.json", bad.rows);
    const Run run = run_episodic(std::string("run --task ") + bad.task + " --quiet --data " +
                                     path(s, "data.json") + kModel + " --out " + path(s, "o.jsonl"),
                                 kEnv, bad.program);
    INFO(bad.program << "\n" << run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find(bad.says) != std::string::npos);
    CHECK_FALSE(fs::exists(s / "o.jsonl"));
  }
  for (const char* program : {"ruler", "babilong", "needles"})
    for (const char* sub : {"make", "run", "score"})
      CHECK(run_episodic(std::string(sub) + " --help", "", program).status == 0);
  // what EM-LLM's program never ran has no limits and no scorer of its own
  put(s / "data.json", R"([{"input": "a", "question": "Where is Mary?", "target": "office"}])");
  put(s / "preds.jsonl", R"({"id": 0, "pred": "office", "answer": "office"})");
  const std::string named = " --task qa1 --quiet --data " + path(s, "data.json");
  for (const std::string& arguments :
       {"run --limits em-llm" + named + kModel + " --out " + path(s, "o.jsonl"),
        "score --scorer em-llm" + named + " --preds " + path(s, "preds.jsonl")}) {
    const Run run = run_episodic(arguments, kEnv, "babilong");
    INFO(run.err);
    CHECK(run.status == 1);
    CHECK(run.err.find("em-llm: EM-LLM's program does not") != std::string::npos);
  }
  for (const char* program : {"longbench_v2", "longmemeval"})
    CHECK(run_episodic("make --task x --tokens 9", "", program).status == 2);
}

TEST_CASE("suites: an answer's first words follow the chat format, as RULER has them") {
  const Scratch s;
  fs::copy(EPISODIC_SOURCE_DIR "/models/recall-2m6", s / "model", fs::copy_options::recursive);
  Json config = Json::parse(contents(s / "model/tokenizer_config.json"));
  config["chat_template"] =
      "{{ bos_token }}User: {{ messages[0]['content'] }}\n{% if add_generation_prompt %}Model:"
      "{% endif %}";
  put(s / "model/tokenizer_config.json", config.dump());
  const auto tokens = [&](const std::string& reply_start, const std::string& more) {
    const Json row{{"id", 0},
                   {"head", "Read this.\n"},
                   {"context", "The grass is green."},
                   {"question", "\nWhat is green?"},
                   {"answer_prefix", reply_start},
                   {"outputs", {"grass"}}};
    put(s / "rows.jsonl", row.dump() + "\n");
    fs::remove(s / "o.jsonl");
    const Run run =
        run_episodic("run --task vt --quiet --data " + path(s, "rows.jsonl") + " --model " +
                         path(s, "model") + " --out " + path(s, "o.jsonl") + more,
                     kEnv, "ruler");
    INFO(run.err);
    REQUIRE(run.status == 0);
    return lines(s / "o.jsonl").at(0)["prompt_tokens"].get<int>();
  };
  const std::string start = " The answer is";
  // as many tokens more behind the chat format as behind the question
  const int chat = tokens(start, "") - tokens("", ""),
            raw = tokens(start, " --raw") - tokens("", " --raw");
  CHECK(chat > 0);
  CHECK(chat == raw);
  CHECK(tokens("", "") > tokens("", " --raw"));
}
