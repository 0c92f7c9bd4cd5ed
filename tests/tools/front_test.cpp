// SPDX-License-Identifier: Apache-2.0
// The programs as someone meets them first: mistyped words, wrong paths, files that are no text,
// units, text on stdout, settings that no machine has room for.
#include "support/test.hpp"

#include <fmt/format.h>

#include "common.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "program.hpp"
#include "support/refusal.hpp"
#include "usage.hpp"

using namespace program;

namespace {

void check_refused(const Run& run, int status, const std::vector<std::string>& parts) {
  INFO(run.err);
  CHECK(run.status == status);
  CHECK(run.out.empty());
  CHECK(one_line(run.err));
  CHECK(run.err.size() < 600);
  for (const std::string& part : parts) {
    INFO(part);
    CHECK(mentions(run.err, part));
  }
}

}  // namespace

TEST_CASE("mistyped commands and flags are told what was meant") {
  check_refused(program::run_episodic("generat --model x"), 2, {"generat", "'generate'"});
  check_refused(program::run_episodic("generate --model x --promt 'a'"), 2,
                {"--promt", "--prompt"});
  check_refused(program::run_episodic("score --model x --txt=a"), 2, {"--txt", "--text"});
  check_refused(program::run_episodic("xyzzyplugh"), 2, {"xyzzyplugh", "generate", "ingest"});
  check_refused(program::run_episodic(""), 2, {"command", "demo"});
  check_refused(program::run_episodic("generate --model x --prompt a --max-new -3"), 2,
                {"--max-new", "-3"});
  check_refused(program::run_episodic("demo --tokens 0"), 2, {"--tokens", "at least 1"});
  struct Elsewhere {
    const char *arguments, *flag, *says;
  };
  for (const Elsewhere& e : std::vector<Elsewhere>{
           {"chat --ctx-size 4096", "--ctx-size", "n_local"},
           {"chat -c 4096 --model x", "-c", "n_local"},
           {"serve --max-model-len=3 --model x", "--max-model-len", "n_local"},
           {"generate --model x --prompt a --n-predict 5", "--n-predict", "it is --max-new here"},
           {"generate --model x --prompt a -n 5", "-n", "it is --max-new here"},
           {"generate --max-tokens 5 --model x --prompt a", "--max-tokens", "it is --max-new here"},
           {"chat -m x.gguf", "-m", "it is --model here"},
           {"generate --model x --prompt a --temp 1", "--temp", "it is --temperature here"},
           {"chat -ngl 99 --model x", "-ngl", "it is --device here"},
           {"chat -t 3 --model x", "-t", "it is --threads here"},
           {"chat --model x --repeat-penalty 1.1", "--repeat-penalty", "--repetition-penalty"},
           {"ingest --model x --n-predict 3", "--n-predict", "nothing is generated here"},
           {"serve --model x --api-key k", "--api-key", "EPISODIC_API_KEY"},
           {"generate --mem x", "--mem", "did you mean --memory?"},
           {"chat --frobnicate --model x", "--frobnicate",
            "episodic chat --help lists those it has"}}) {
    const Run run = program::run_episodic(e.arguments);
    check_refused(run, 2, {e.flag, e.says, "--help"});
    CHECK(run.err.find(";  ") == std::string::npos);
  }
  // a value with a dash is none
  check_refused(program::run_episodic("generate --model /none --prompt -n --stop -c"), 1,
                {"/none"});
  using ::episodic::tools::nearest;
  CHECK(nearest("inspct", {"ingest", "inspect"}) == "inspect");
  CHECK(nearest("--htlm", {"--help", "--html"}) == "--html");
  CHECK(nearest("completely-else", {"--help", "--html"}).empty());
}

TEST_CASE("the version, and defaults in the help") {
  const Run version = program::run_episodic("--version");
  CHECK(version.status == 0);
  CHECK(version.out.rfind("episodic ", 0) == 0);
  const std::string help = program::run_episodic("generate --help").out;
  for (const char* part : {"--max-new", "128", "--repetition-penalty", "--encoding", "utf-8"}) {
    INFO(part);
    CHECK(mentions(help, part));
  }
  CHECK_FALSE(mentions(help, "Not built"));
  CHECK(mentions(program::run_episodic("ingest --help").out, "65536"));
}

TEST_CASE("a path that is no model is said to be what it is") {
  const Scratch scratch;
  put(scratch / "m.gguf", "GGUF");
  fs::create_directories(scratch / "empty");
  const auto with = [&](const std::string& model) {
    return program::run_episodic("generate --prompt a --model " + quoted(model));
  };
  check_refused(with("meta-llama/Llama-3.2-1B"), 1, {"hub", "hf download"});
  check_refused(with((scratch / "m.gguf").string()), 1, {"GGUF"});
  check_refused(with((scratch / "empty").string()), 1, {"config.json"});
  check_refused(with((scratch / "none").string()), 1, {"no such directory"});
  if (const auto model = recall_model()) {
    fs::copy(*model, scratch / "bare");
    fs::remove(scratch / "bare" / "tokenizer.json");
    check_refused(with((scratch / "bare").string()), 1, {"tokenizer.json", "is not there"});
  }
}

TEST_CASE("what is no text is refused, and other encodings are read where they are named") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  const auto tokens_of = [&](const std::string& bytes, const std::string& more = "") {
    put(scratch / "text", bytes);
    return program::run_episodic(fmt::format("tokenize --model {} --text {} {} --json -",
                                             quoted(model->string()),
                                             quoted((scratch / "text").string()), more));
  };
  check_refused(tokens_of(""), 1, {"empty"});
  check_refused(tokens_of(" \n\t"), 1, {"empty"});
  check_refused(tokens_of(std::string("\x7f"
                                      "ELF\0\0binary",
                                      12)),
                1, {"binary", "byte 4"});
  check_refused(tokens_of("caf\xE9 au lait"), 1, {"UTF-8", "0xe9", "at 3", "latin-1"});
  const std::string utf16(
      "\xFF\xFE"
      "c\0a\0f\0\xE9\0 \0\x3D\xD8\x00\xDE",
      16);
  check_refused(tokens_of(utf16), 1, {"UTF-16", "--encoding utf-16"});
  check_refused(tokens_of(utf16.substr(0, 15), "--encoding utf-16"), 1, {"half"});
  check_refused(tokens_of("abc", "--encoding koi8"), 2, {"encoding"});
  const std::string expected = tokens_of("caf\xC3\xA9 au lait").out;
  CHECK(Json::parse(expected)["ids"].size() > 3);
  CHECK(tokens_of("caf\xE9 au lait", "--encoding latin-1").out == expected);
  CHECK(tokens_of("\xEF\xBB\xBF"
                  "caf\xC3\xA9 au lait")
            .out == expected);
  CHECK(tokens_of(utf16, "--encoding utf-16").out == tokens_of("caf\xC3\xA9 \xF0\x9F\x98\x80").out);
  check_refused(program::run_episodic("generate --prompt '' --model " + quoted(model->string())), 1,
                {"--prompt", "empty"});
}

TEST_CASE("generate writes the text, and JSON where it is asked for") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  const std::string command = "generate --quiet --prompt 'The old man said' --max-new 12 --model " +
                              quoted(model->string());
  const Run text = program::run_episodic(command);
  INFO(text.err);
  REQUIRE(text.status == 0);
  const Json json = json_of(command);
  CHECK(text.out == json["text"].get<std::string>() + "\n");
  CHECK(text.out.front() == ' ');  // what follows the prompt, with the space between
  CHECK(json["ids"].size() == 12);
  const Run both = program::run_episodic(command + " --json " + quoted((scratch / "j").string()));
  CHECK(both.out == text.out);
  CHECK(Json::parse(contents(scratch / "j"))["ids"] == json["ids"]);
  CHECK_FALSE(fs::exists("-"));
}

TEST_CASE("settings change fields, say what they cannot, and are held against the machine") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const std::string command = "generate --prompt 'The old man' --max-new 1 --model " +
                              quoted(model->string()) + " --memory ";
  // one field; the others stay those of memory.json, which suit the model
  const Run fine =
      program::run_episodic(command + quoted(R"({"n_mem": 128, "host_bytes": "1.5GB"})"));
  INFO(fine.err);
  CHECK(fine.status == 0);
  CHECK(fine.err.empty());
  const Run warned = program::run_episodic(command + quoted(R"({"n_local": 4096})"));
  CHECK(warned.status == 0);
  CHECK(one_line(warned.err));
  CHECK(mentions(warned.err, "warning"));
  CHECK(mentions(warned.err, "512"));
}

TEST_CASE("a window that no machine holds is a refusal, before memory is taken") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  for (const char* n : {"10000000000", "100000000000"}) {
    const Run run = program::run_episodic(
        "generate --quiet --prompt 'The old man' --max-new 1 --model " + quoted(model->string()) +
        " --memory " + quoted(fmt::format("{{\"n_local\": {}}}", n)));
    check_refused(run, 1, {"n_local", "available"});
  }
  const Run unknown = program::run_episodic(
      "generate --prompt a --model " + quoted(model->string()) + " --memory '{\"n_lokal\": 1}'");
  check_refused(unknown, 1, {"n_lokal", "n_local"});
}

TEST_CASE("plan needs config.json alone and speaks in units") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  fs::create_directories(scratch / "m");
  for (const char* name : {"config.json", "memory.json"})
    fs::copy(*model / name, scratch / "m" / name);
  const std::string bare = "plan --tokens 1.5M --model " + quoted((scratch / "m").string());
  const std::string full = "plan --tokens 1500000 --model " + quoted(model->string());
  const Json a = json_of(bare), b = json_of(full);
  CHECK(a["tokens"] == 1500000);
  CHECK(a["host"]["weights"] == b["host"]["weights"]);
  CHECK(a["host"]["weights_from"] == "config.json");
  CHECK(b["host"]["weights_from"] == "files");
  CHECK(a["disk"]["segments"] == b["disk"]["segments"]);
  const Run text = program::run_episodic(full);
  CHECK(mentions(text.out, "1,500,000 tokens"));
  CHECK(mentions(text.out, " GB"));
  CHECK(text.err.empty());
}

TEST_CASE("plan counts what layers without attention carry, in memory and in each kept state") {
  const Scratch scratch;
  fs::create_directories(scratch / "m");
  fs::copy(fs::path(EPISODIC_SOURCE_DIR) / "tests/model/families/qwen3_5/config.json",
           scratch / "m" / "config.json");
  const std::string plan = "plan --tokens 10k --memory '{\"n_local\": 64}' --model " +
                           quoted((scratch / "m").string()) + " --checkpoints ";
  // three layers: three tokens of 80 channels, and four heads of 10 times 10
  const std::int64_t carried = 3 * (3 * 80 + 4 * 10 * 10) * 4;
  const Json none = json_of(plan + "0"), four = json_of(plan + "4");
  CHECK(none["host"]["recurrent_states"] == 2 * carried);
  const auto states = [](const Json& j) { return j["disk"]["states"].get<std::int64_t>(); };
  CHECK((states(four) - states(none)) / 4 >= carried);
  CHECK(states(none) >= carried);
  CHECK(mentions(program::run_episodic(plan + "4").out, "recurrent states"));
}

TEST_CASE("a memory's path that is none is told apart") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  put(scratch / "book.txt", some_book(60));
  const std::string dir = (scratch / "m").string();
  const Run made = program::run_episodic(
      fmt::format("ingest --quiet --model {} --text {} --memory-dir {}", quoted(model->string()),
                  quoted((scratch / "book.txt").string()), quoted(dir)));
  INFO(made.err);
  REQUIRE(made.status == 0);
  CHECK(mentions(made.out, "tokens in"));
  check_refused(program::run_episodic("verify " + quoted(dir + "/manifest.json")), 1,
                {"is a file", "folder of the memory: " + dir});
  check_refused(program::run_episodic("inspect " + quoted(dir + "x")), 1, {"holds no memory"});
  const Run fine = program::run_episodic("verify " + quoted(dir));
  CHECK(fine.status == 0);
  CHECK(mentions(fine.out, "as it was written"));

  CHECK(mentions(program::run_episodic("inspect " + quoted(dir)).out, "events"));
}

TEST_CASE("an answer that is kept is kept whole, and what compacting drops is said") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  put(scratch / "book.txt", some_book(120));
  const std::string m = quoted(model->string()), dir = quoted((scratch / "m").string());
  REQUIRE(program::run_episodic(
              fmt::format("ingest --quiet --model {} --text {} --memory-dir {} --commit-every 512 "
                          "--memory {}",
                          m, quoted((scratch / "book.txt").string()), dir, quoted(kSmallMemory)))
              .status == 0);
  const auto tokens = [&] {
    return json_of("inspect --no-events " + dir)["tokens"].get<std::int64_t>();
  };
  const std::int64_t before = tokens();
  const Json answer = json_of(fmt::format(
      "ask --keep --model {} --memory-dir {} --prompt ' Then he said' --max-new 9", m, dir));
  INFO(answer.dump());
  CHECK(tokens() == before + answer["prompt_tokens"].get<std::int64_t>() +
                        static_cast<std::int64_t>(answer["ids"].size()));

  const Run compacted =
      program::run_episodic(fmt::format("edit {} --forget-tokens 200:260 --compact", dir));
  CHECK(compacted.status == 0);
  CHECK(mentions(compacted.err, "earlier states"));
  CHECK(mentions(compacted.out, "forgotten"));
  const Run rewound = program::run_episodic(fmt::format("edit {} --rewind 400 --model {}", dir, m));
  check_refused(rewound, 1, {"rewind to 400", "forgotten"});
  CHECK_FALSE(mentions(rewound.err, "token 0 between"));

  REQUIRE(program::run_episodic(fmt::format("edit {} --pin 3", dir)).status == 0);
  for (const char* more : {"", "--no-events"}) {
    REQUIRE(program::run_episodic(fmt::format("inspect {} --html {} {}", dir,
                                              quoted((scratch / "m.html").string()), more))
                .status == 0);
    const std::string page = contents(scratch / "m.html");
    for (const char* part :
         {"Recalls of an event", "class=\"gone\"", "1 pinned", ">pinned<", " kB</td>"}) {
      INFO(part);
      CHECK(mentions(page, part));
    }
    CHECK_FALSE(mentions(page, "<th>text</th>"));
  }
  REQUIRE(program::run_episodic(fmt::format("inspect {} --html {} --model {}", dir,
                                            quoted((scratch / "m.html").string()), m))
              .status == 0);
  CHECK(mentions(contents(scratch / "m.html"), "<th>text</th>"));
}

TEST_CASE("trace runs without recall, and with it in some layers") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  Json test{{"kind", "em"}, {"decode", 2}, {"memory", Json::parse(kSmallMemory)}};
  for (int i = 0; i < 150; ++i) test["tokens"].push_back(60 + (i * 37) % 400);
  for (const char* change : {R"({"recall": false})", R"({"recall_layers": [1, 3]})"}) {
    const Json changes = Json::parse(change);
    for (const auto& [key, value] : changes.items()) test["memory"][key] = value;
    put(scratch / "case.json", test.dump());
    const Run run = program::run_episodic(
        fmt::format("trace --model {} --case {} --out {}", quoted(model->string()),
                    quoted((scratch / "case.json").string()), quoted((scratch / "out").string())));
    INFO(change << "\n" << run.err);
    CHECK(run.status == 0);
    const Json trace = Json::parse(contents(scratch / "out" / "trace.json"));
    CHECK(trace["events"].size() > 3);
    test["memory"] = Json::parse(kSmallMemory);
  }
}

TEST_CASE("progress fits its terminal and says what time is left") {
  using ::episodic::tools::progress_line;
  for (int columns = 1; columns <= 200; ++columns)
    for (const auto& [done, total] : {std::pair<std::int64_t, std::int64_t>{0, 10},
                                      {123456, 10000000},
                                      {10000000, 10000000},
                                      {5, 0}}) {
      const std::string line = progress_line("reading with the memory", done, total, 40, columns);
      CHECK(line.size() <= static_cast<std::size_t>(std::max(1, columns - 1)));
    }
  const std::string wide = progress_line("reading", 250000, 1000000, 100, 120);
  CHECK(mentions(wide, "25%"));
  CHECK(mentions(wide, "[######"));
  CHECK(mentions(wide, "250,000/1,000,000 tokens"));
  CHECK(mentions(wide, "2,500 tokens/s"));
  CHECK(mentions(wide, "5:00 left"));
  CHECK(mentions(progress_line("reading", 250000, 1000000, 100, 30), "5:00 left"));
  CHECK(mentions(progress_line("r", 1000, 100000000, 10, 100), "277:46:30 left"));
  CHECK_FALSE(mentions(progress_line("reading", 10, 10, 1, 100), "left"));
}

TEST_CASE("sizes with units") {
  using namespace ::episodic;
  for (const auto& [text, count] : std::vector<std::pair<const char*, std::int64_t>>{
           {"0", 0},
           {"100", 100},
           {"100K", 100000},
           {"1.5M", 1500000},
           {"2Ki", 2048},
           {"10 k", 10000},
           {"0.5g", 500000000},
           {"4611686018427387904", std::int64_t{1} << 62}}) {
    INFO(text);
    CHECK(parse_count(text, "x") == count);
  }
  for (const auto& [text, bytes] :
       std::vector<std::pair<const char*, std::int64_t>>{{"7", 7},
                                                         {"7B", 7},
                                                         {"1.5GB", 1500000000},
                                                         {"2GiB", std::int64_t{2} << 30},
                                                         {"512 MB", 512000000},
                                                         {"3kb", 3000},
                                                         {"1TiB", std::int64_t{1} << 40}}) {
    INFO(text);
    CHECK(parse_bytes(text, "x") == bytes);
  }
  for (const char* text : {"", "K", "-3", "1.5", "1e6", "10KB", "0x10", "1.2345K", "9e99", "1 0",
                           "99999999999999999999", "9999999999T", "12Kx", "nan"}) {
    INFO(text);
    CHECK(mentions(refusal<ConfigError>([&] { parse_count(text, "--tokens"); }), "--tokens"));
  }
  for (const char* text : {"", "GB", "1.5", "1.5B", "-1GB", "1GBB", "1 GiBi"}) {
    INFO(text);
    CHECK(mentions(refusal<ConfigError>([&] { parse_bytes(text, "host_bytes"); }), "host_bytes"));
  }
  CHECK(bytes_text(17) == "17 bytes");
  CHECK(bytes_text(3200000) == "3.2 MB");
  CHECK(bytes_text(1500000000) == "1.50 GB");
  CHECK(count_text(0) == "0");
  CHECK(count_text(999) == "999");
  CHECK(count_text(-1000) == "-1,000");
  CHECK(count_text(10000000) == "10,000,000");
}
