// SPDX-License-Identifier: Apache-2.0
// What a person asks of a memory: which settings it got, what an answer was recalled from, how far
// a reading is, and whether the model can use it at all.
#include "support/test.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <set>
#include <span>
#include <sstream>

#include "common.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/units.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/session/engine.hpp"
#include "program.hpp"
#include "support/refusal.hpp"

using namespace program;

namespace ask_tools_test {

/// The shipped model, and a memory of a book with one fact in it.
struct Setting {
  Scratch scratch;
  fs::path path = *recall_model();
  std::string model = quoted(path.string());
  std::string dir = quoted((scratch / "m").string());

  void write_book(int sentences) const {
    const std::string fact =
        "The pass key of Nora is 52871. Remember it. 52871 is the pass key of Nora.";
    put(scratch / "book.txt", some_book(sentences / 4) + "\n" + fact + "\n" + some_book(sentences));
  }
  std::string ingest(const std::string& more = "") const {
    return fmt::format("ingest --model {} --text {} --memory-dir {} --memory {} {}", model,
                       quoted((scratch / "book.txt").string()), dir, quoted(kMemory), more);
  }
  std::string ask(const std::string& more = "") const {
    return fmt::format("ask --model {} --memory-dir {} --prompt {} --max-new 12 {}", model, dir,
                       quoted("\n\n\nWhat is the pass key of Nora?\n\nThe pass key of Nora is"),
                       more);
  }
  /// The model without its memory.json.
  std::string without_settings() const {
    const fs::path bare = scratch / "bare";
    fs::create_directories(bare);
    for (const auto& file : fs::directory_iterator(path))
      if (file.path().filename() != "memory.json" && file.is_regular_file())
        fs::create_symlink(file.path(), bare / file.path().filename());
    return quoted(bare.string());
  }
};

TEST_CASE("ask --recall lists the events of the answer with their text") {
  const Setting s;
  s.write_book(200);
  REQUIRE(run_episodic(s.ingest()).status == 0);
  const Json plain = json_of(s.ask());
  const Json json = json_of(s.ask("--recall"));
  REQUIRE(json.contains("recalled"));
  CHECK_FALSE(plain.contains("recalled"));
  CHECK(json["ids"] == plain["ids"]);  // looking changes nothing
  CHECK(mentions(json["text"].get<std::string>(), "52871"));
  const Json events = json_of("inspect " + s.dir + " --model " + s.model)["events"];
  double attention = 0;
  std::set<std::int64_t> seen;
  bool found = false;
  for (const Json& e : json["recalled"]) {
    const std::int64_t event = e["event"];
    CHECK(seen.insert(event).second);
    // The question's steps may close one more.
    if (static_cast<std::size_t>(event) < events.size())
      for (const char* key : {"start", "end", "text"})
        CHECK(e[key] == events[static_cast<std::size_t>(event)][key]);
    CHECK_FALSE(e["text"].get<std::string>().empty());
    CHECK(e["rank"] >= 1);
    REQUIRE(e["layers"].size() > 0);
    for (std::size_t i = 0; i < e["layers"].size(); ++i) {
      CHECK((e["layers"][i] >= 0 && e["layers"][i] < 4));
      if (i > 0) CHECK(e["layers"][i] > e["layers"][i - 1]);
    }
    attention += e["attention"].get<double>();
    found = found || mentions(e["text"].get<std::string>(), "52871");
  }
  CHECK(found);
  CHECK(std::abs(attention - 1) < 1e-6);
  // What attention read most comes first, and that is where the answer is.
  CHECK(mentions(json["recalled"][0]["text"].get<std::string>() +
                     json["recalled"][1]["text"].get<std::string>() +
                     json["recalled"][2]["text"].get<std::string>(),
                 "52871"));
  for (std::size_t i = 1; i < json["recalled"].size(); ++i)
    CHECK(json["recalled"][i - 1]["attention"] >= json["recalled"][i]["attention"]);
  const Run people = run_episodic(s.ask("--recall"));
  CHECK(mentions(people.out, "Recalled for the question"));
  CHECK(mentions(people.out, "rank"));
  CHECK_FALSE(mentions(run_episodic(s.ask()).out, "Recalled"));
}

TEST_CASE("ask --recall where heads have events of their own says whose they are") {
  const Setting s;
  s.write_book(60);
  Json memory = Json::parse(kSmallMemory);
  memory["scope"] = "head";
  memory["segmenter"] = "k_similarity";
  memory["refine"] = nullptr;
  REQUIRE(run_episodic(fmt::format("ingest --model {} --text {} --memory-dir {} --memory {}",
                                   s.model, quoted((s.scratch / "book.txt").string()), s.dir,
                                   quoted(memory.dump())))
              .status == 0);
  const Json json = json_of(s.ask("--recall"));
  REQUIRE(json["recalled"].size() > 0);
  for (const Json& e : json["recalled"]) {
    CHECK((e["kv_head"] == 0 || e["kv_head"] == 1));
    CHECK(e["layers"].size() == 1);
    CHECK_FALSE(e["text"].get<std::string>().empty());
  }
}

TEST_CASE("ask --reread reads the passages that a question asks for again, and shows them") {
  const Setting s;
  s.write_book(200);
  REQUIRE(run_episodic(s.ingest()).status == 0);
  const Json plain = json_of(s.ask());
  CHECK_FALSE(plain.contains("passages"));
  const Json json = json_of(s.ask("--reread 2 --passage-tokens 40"));
  REQUIRE(json["passages"].size() >= 1);
  REQUIRE(json["passages"].size() <= 2);
  CHECK(mentions(json["passages"][0]["text"].get<std::string>(), "52871"));
  CHECK(json["seconds"]["find"] > 0);
  std::int64_t tokens = 0;
  for (const Json& p : json["passages"]) {
    tokens += p["end"].get<std::int64_t>() - p["start"].get<std::int64_t>();
    CHECK((p["score"] > 0 && p["score"] <= 1));
    CHECK_FALSE(p["text"].get<std::string>().empty());
  }
  // their tokens are read before the question, give or take a border of two texts
  const auto more =
      json["prompt_tokens"].get<std::int64_t>() - plain["prompt_tokens"].get<std::int64_t>();
  CHECK(std::abs(more - tokens) < 20);
  CHECK(mentions(json["text"].get<std::string>(), "52871"));
  // the memory is as it was
  CHECK(json_of(s.ask())["ids"] == plain["ids"]);

  const Run people = run_episodic(s.ask("--reread 2 --recall"));
  CHECK(mentions(people.out, "Read again before the question"));
  CHECK_FALSE(mentions(run_episodic(s.ask("--reread 2")).out, "Read again"));
  CHECK(mentions(run_episodic(s.ask("--reread 2 --keep")).err, "--keep"));
  CHECK(mentions(run_episodic(s.ask("--passage-tokens 40")).err, "--reread"));
  CHECK(run_episodic(s.ask("--reread -1")).status != 0);
}

TEST_CASE("ask --rerank has the model choose the passages that are read again") {
  const Setting s;
  s.write_book(200);
  REQUIRE(run_episodic(s.ingest()).status == 0);
  const Json plain = json_of(s.ask("--reread 8 --passage-tokens 40"));
  const Json json = json_of(s.ask("--reread 8 --passage-tokens 40 --rerank 8"));
  REQUIRE(json["passages"].size() == plain["passages"].size());
  CHECK(json["passages"][0]["score"] == 1.0);
  // the same ones, in the order in which the model likes the question behind them
  std::set<std::int64_t> starts, chosen;
  double before = 1;
  for (const Json& p : plain["passages"]) starts.insert(p["start"].get<std::int64_t>());
  for (const Json& p : json["passages"]) {
    chosen.insert(p["start"].get<std::int64_t>());
    CHECK(p["score"].get<double>() <= before);
    before = p["score"].get<double>();
  }
  CHECK(starts == chosen);
  const Json one = json_of(s.ask("--reread 1 --passage-tokens 40 --rerank 8"));
  REQUIRE(one["passages"].size() == 1);
  CHECK(one["passages"][0] == json["passages"][0]);
  CHECK(mentions(one["passages"][0]["text"].get<std::string>(), "52871"));
  CHECK(mentions(run_episodic(s.ask("--rerank 4")).err, "--reread"));
  CHECK(run_episodic(s.ask("--reread 1 --rerank -1")).status != 0);
}

TEST_CASE("ask --passages-only answers from the passages as if nothing else had been read") {
  const Setting s;
  s.write_book(200);
  REQUIRE(run_episodic(s.ingest()).status == 0);
  const Json alone = json_of(s.ask("--reread 1 --passage-tokens 40 --passages-only"));
  CHECK(alone["passages_only"] == true);
  REQUIRE(alone["passages"].size() == 1);
  CHECK(mentions(alone["text"].get<std::string>(), "52871"));
  CHECK(alone["memory"].is_null());
  const Json behind = json_of(s.ask("--reread 1 --passage-tokens 40"));
  CHECK(behind["passages_only"] == false);
  CHECK(behind["passages"] == alone["passages"]);
  const Run people = run_episodic(s.ask("--reread 1 --passages-only --recall"));
  CHECK(mentions(people.out, "Read again before the question"));
  CHECK_FALSE(mentions(people.out, "Recalled for"));
  CHECK(mentions(run_episodic(s.ask("--passages-only --reread 0")).err, "--reread"));
  // without a number: what PassageOptions::finds says
  const Json finds = json_of(s.ask("--passages-only"));
  CHECK(finds["passages_only"] == true);
  REQUIRE(finds["passages"].size() > 0);
  CHECK(finds["passages"].size() <= 3);
  CHECK(finds["passages"][0]["score"] == 1.0);
  CHECK(finds["passages"][0]["gain"].get<double>() != 0);
  CHECK(alone["passages"][0]["gain"] == 0.0);
  CHECK(json_of(s.ask("--reread 3 --passage-tokens 32 --rerank 8 --passages-only"))["passages"] ==
        finds["passages"]);
  CHECK(mentions(run_episodic(s.ask("--passages-only --keep")).err, "--keep"));
}

TEST_CASE("ask --reread finds passages by an encoder too, and recalls events by the model's keys") {
  const Setting s;
  s.write_book(200);
  REQUIRE(run_episodic(s.ingest()).status == 0);
  const std::string encoder =
      " --encoder " + quoted(EPISODIC_SOURCE_DIR "/tests/model/sentence_encoder/tiny");
  const Json plain = json_of(s.ask("--reread 3 --passage-tokens 40")),
             with = json_of(s.ask("--reread 3 --passage-tokens 40" + encoder));
  CHECK(plain["passages"] != with["passages"]);
  CHECK(with["passages"].size() >= 1);
  CHECK_FALSE(plain.contains("encoder"));
  // the text was read once: the vectors lie beside the memory, which is as it was
  CHECK(with["encoder"]["encoded"] > 20);
  const Json again = json_of(s.ask("--reread 3 --passage-tokens 40" + encoder));
  CHECK(again["encoder"]["encoded"] == 0);
  CHECK(again["encoder"]["reused"] == with["encoder"]["encoded"]);
  CHECK(again["passages"] == with["passages"]);
  CHECK(again["ids"] == with["ids"]);
  CHECK(json_of("verify " + s.dir)["unnamed"].empty());
  REQUIRE(run_episodic("fork " + s.dir + " " + quoted((s.scratch / "f").string())).status == 0);
  const Json forked =
      json_of("ask --model " + s.model + " --memory-dir " + quoted((s.scratch / "f").string()) +
              " --prompt who --reread 1" + encoder);
  CHECK(forked["encoder"]["encoded"] == 0);
  // without passages it ranks the events that are recalled
  CHECK(json_of(s.ask("--reread 0 --recall"))["recalled"] !=
        json_of(s.ask("--reread 0 --recall" + encoder))["recalled"]);
  const Run run = run_episodic(s.ask("--reread 3 --encoder " + s.model));
  CHECK(run.status == 1);
  CHECK(mentions(run.err, "bert"));
}

TEST_CASE("ingest --encoder leaves what ask --encoder needs") {
  const Setting s;
  s.write_book(120);
  const std::string encoder =
      " --encoder " + quoted(EPISODIC_SOURCE_DIR "/tests/model/sentence_encoder/tiny");
  REQUIRE(run_episodic(s.ingest("--commit-every 1000" + encoder)).status == 0);
  const Json json = json_of(s.ask("--reread 2" + encoder));
  CHECK(json["encoder"]["encoded"] == 0);
  CHECK(json["encoder"]["reused"] > 20);
  // as if it had been made by the question
  fs::remove_all(s.scratch / "m");
  REQUIRE(run_episodic(s.ingest()).status == 0);
  CHECK(json_of(s.ask("--reread 2" + encoder))["passages"] == json["passages"]);
  // a text that is there already is encoded too, and one that has all its vectors is not read again
  fs::remove_all(s.scratch / "m");
  REQUIRE(run_episodic(s.ingest()).status == 0);
  REQUIRE(run_episodic(s.ingest("--resume" + encoder)).status == 0);
  CHECK(json_of(s.ask("--reread 2" + encoder))["encoder"]["encoded"] == 0);
  // refused before anything is made
  fs::remove_all(s.scratch / "m");
  const Run no_encoder = run_episodic(s.ingest("--encoder " + s.model));
  CHECK(no_encoder.status == 1);
  CHECK(mentions(no_encoder.err, "bert"));
  CHECK_FALSE(fs::exists(s.scratch / "m"));
  const Run heads = run_episodic(fmt::format(
      "ingest --model {} --text {} --memory-dir {} --memory {}{}", s.model,
      quoted((s.scratch / "book.txt").string()), s.dir, quoted(R"({"scope": "head"})"), encoder));
  CHECK(heads.status == 1);
  CHECK(one_line(heads.err));
  CHECK(mentions(heads.err, "--encoder"));
  CHECK_FALSE(fs::exists(s.scratch / "m"));
}

TEST_CASE("ask says how much there is of a memory that is not finished, and refuses an empty one") {
  const Setting s;
  s.write_book(60);
  REQUIRE(run_episodic(s.ingest()).status == 0);
  CHECK_FALSE(fs::exists(s.scratch / "m" / "reading.json"));
  CHECK(run_episodic(s.ask()).err.empty());
  // cut off: what it would have come to stands beside the memory
  put(s.scratch / "m" / "reading.json", R"({"text": "book.txt", "tokens": 123456})");
  const Run cut = run_episodic(s.ask());
  CHECK(cut.status == 0);
  CHECK(one_line(cut.err));
  CHECK(mentions(cut.err, "of 123,456"));
  CHECK(mentions(cut.err, "was interrupted"));
  CHECK(mentions(cut.err, "--resume"));
  CHECK(run_episodic(s.ask("--quiet")).err.empty());
  CHECK(mentions(run_episodic("verify " + s.dir).out, "was interrupted"));
  CHECK(json_of("verify " + s.dir)["unnamed"].empty());
  {
    const int lock = ::open((s.scratch / "m" / "lock").c_str(), O_RDWR);
    REQUIRE(lock >= 0);
    REQUIRE(::flock(lock, LOCK_EX | LOCK_NB) == 0);
    CHECK(mentions(run_episodic(s.ask()).err, "still reading book.txt"));
    fs::remove(s.scratch / "m" / "reading.json");
    CHECK(mentions(run_episodic(s.ask()).err, "another program is writing"));
    ::close(lock);
  }
  CHECK(run_episodic(s.ask()).err.empty());
  for (const char* junk : {"", "{", "[]", R"({"text": 1, "tokens": "x"})"}) {
    put(s.scratch / "m" / "reading.json", junk);
    const Run odd = run_episodic(s.ask());
    CHECK(odd.status == 0);
    CHECK(odd.err.empty());
  }
  // nothing read yet
  ::episodic::KeptFolder folder;
  folder.dir = s.scratch / "empty";
  ::episodic::create_memory(s.path, folder, ::episodic::parse_memory_config(kMemory));
  const std::string empty = fmt::format("ask --model {} --memory-dir {} --prompt hello", s.model,
                                        quoted(folder.dir.string()));
  const Run nothing = run_episodic(empty);
  CHECK(nothing.status == 1);
  CHECK(nothing.out.empty());
  CHECK(one_line(nothing.err));
  CHECK(mentions(nothing.err, "the memory is empty"));
  CHECK(mentions(nothing.err, "ingest"));
  put(folder.dir / "reading.json", R"({"text": "book.txt", "tokens": 99})");
  CHECK(mentions(run_episodic(empty).err, "holds 0 tokens of 99"));
}

TEST_CASE("ingest commits by the clock too, to the same memory, and takes its note away") {
  const Setting s;
  s.write_book(60);
  const auto lines = [](const std::string& text) {
    std::vector<std::int64_t> tokens;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
      tokens.push_back(Json::parse(line)["committed_tokens"]);
    return tokens;
  };
  const auto read = [&](const std::string& name, const std::string& more) {
    const Run run = run_episodic(
        fmt::format("ingest --model {} --text {} --memory-dir {} --memory {} --json {}", s.model,
                    quoted((s.scratch / "book.txt").string()), quoted((s.scratch / name).string()),
                    quoted(kMemory), more));
    REQUIRE(run.status == 0);
    CHECK_FALSE(fs::exists(s.scratch / name / "reading.json"));
    return lines(run.out);
  };
  const std::vector<std::int64_t> once = read("once", "--commit-seconds 0");
  CHECK(once.size() == 1);
  const std::vector<std::int64_t> often = read("often", "--commit-seconds 1e-9");
  REQUIRE(often.size() > 2);
  for (std::size_t i = 0; i + 1 < often.size(); ++i)
    CHECK(often[i] == 256 * static_cast<std::int64_t>(i + 1));  // after whole steps
  CHECK(often.back() == once.back());
  const auto digest = [&](const char* name) {
    return json_of("verify --digest " + quoted((s.scratch / name).string()))["digest"];
  };
  CHECK(digest("once") == digest("often"));
  CHECK(run_episodic(s.ingest("--commit-seconds -1")).status == 2);
}

TEST_CASE("a new memory of a model without settings gets what suits the model") {
  const Setting s;
  s.write_book(120);
  const std::string bare = s.without_settings();
  const auto settings = [&](const std::string& name) {
    return json_of("inspect --no-events " + quoted((s.scratch / name).string()))["config"];
  };
  const auto read = [&](const std::string& model, const std::string& name,
                        const std::string& more) {
    const Run run = run_episodic(fmt::format("ingest --model {} --text {} --memory-dir {} {}",
                                             model, quoted((s.scratch / "book.txt").string()),
                                             quoted((s.scratch / name).string()), more));
    INFO(run.err);
    REQUIRE(run.status == 0);
    CHECK(run.err.empty());  // no warning of a window beyond the trained length
    return settings(name);
  };
  const Json fitted = read(bare, "fitted", "");
  CHECK(fitted["n_local"] == 256);  // half of the 512 that the model was trained on
  CHECK(fitted["n_mem"] == 256);
  CHECK(fitted["chunk"] == 256);
  CHECK(fitted["n_init"] == 16);
  CHECK(fitted["kv_dtype"] == "bfloat16");  // as its weights
  const Json changed = read(bare, "changed", "--memory " + quoted(R"({"gamma": 2})"));
  CHECK(changed["gamma"] == 2);
  CHECK(changed["n_local"] == 256);
  CHECK(changed["kv_dtype"] == "bfloat16");
  // Who names lengths has chosen: what is not named is the paper's, as ever.
  const Json named = read(bare, "named", "--memory " + quoted(R"({"n_local": 200, "n_mem": 64})"));
  CHECK(named["n_local"] == 200);
  CHECK(named["n_init"] == 128);
  CHECK(named["chunk"] == 512);
  CHECK(named["kv_dtype"] == "float32");
  CHECK(read(bare, "rounded", "--quantize q8_0")["kv_dtype"] == "int8");
  const Json own = read(s.model, "own", "");  // memory.json is the model's word
  CHECK(own["kv_dtype"] == "float32");
  const std::string generate = "generate --prompt 'A letter' --max-new 1 --model ";
  CHECK(json_of(generate + bare)["memory"]["kv_dtype"] == "bfloat16");
  CHECK(json_of(generate + s.model)["memory"]["kv_dtype"] == "float32");
  // what was kept stays as it is
  const Json asked = json_of(fmt::format("ask --model {} --memory-dir {} --prompt hello", bare,
                                         quoted((s.scratch / "rounded").string())) +
                             " --quantize q8_0");
  CHECK(asked["memory"]["kv_dtype"] == "int8");
}

TEST_CASE("plan says what was chosen, what a token takes and how long reading is") {
  const Setting s;
  const std::string bare = s.without_settings();
  const std::string flags = " --tokens 200K --threads 1";
  const Json j = json_of("plan --model " + bare + flags);
  CHECK(j["settings"]["kv_dtype"] == "bfloat16");
  CHECK(mentions(j["settings_from"].get<std::string>(), "BF16"));
  CHECK(mentions(j["settings_from"].get<std::string>(), "512"));
  CHECK(std::abs(j["disk"]["per_token"].get<double>() - j["disk"]["total"].get<double>() / 2e5) <
        1);
  const Json& kinds = j["disk"]["by_kv_dtype"];
  CHECK(kinds["bfloat16"] == j["disk"]["total"]);
  CHECK(kinds["float32"] > kinds["bfloat16"]);
  CHECK(kinds["bfloat16"] > kinds["int8"]);
  REQUIRE(j["time"].is_object());
  CHECK(j["time"]["seconds"] > 0);
  CHECK(j["time"]["probe"]["tokens"] >= 16);
  CHECK(j["time"]["probe"]["tokens_per_second"] > 0);
  // a step that was begun is ended: this is a small model
  CHECK(j["time"]["probe"]["seconds"] < 20);
  const Json without = json_of("plan --no-probe --model " + bare + flags);
  CHECK(without["time"].is_null());
  CHECK(without["disk"]["total"] == j["disk"]["total"]);
  // Events have a token at least and are one at least, however short and long they are said to be.
  for (const auto& [mean, events] : {std::pair("1e-300", 200'000), std::pair("1e300", 1)})
    CHECK(json_of("plan --no-probe --event-tokens " + std::string(mean) + " --model " + bare +
                  flags)["events"] == events);
  const Run people = run_episodic("plan --model " + bare + flags);
  CHECK(mentions(people.out, "kv_dtype"));
  CHECK(mentions(people.out, "to read it on these cores"));
  CHECK(json_of("plan --no-probe --model " + s.model + flags)["settings_from"] ==
        "as in memory.json");
  // config.json alone: no weights, no probe
  fs::create_directories(s.scratch / "config");
  fs::copy(s.path / "config.json", s.scratch / "config" / "config.json");
  const Json early = json_of("plan --model " + quoted((s.scratch / "config").string()) + flags);
  CHECK(early["time"].is_null());
  CHECK(early["settings"]["n_local"] == 256);
}

TEST_CASE("check: the shipped model answers from its memory, and not without the passage") {
  const Setting s;
  const Json j = json_of("check --seconds 20 --threads 1 --model " + s.model);
  REQUIRE(j.is_object());
  const std::size_t n = j["questions"].size();
  CHECK(j["counts"]["questions"] == n);
  CHECK(n >= 6);
  std::set<std::string> kinds, words;
  for (const char* way : {"window", "memory", "without"}) {
    INFO(way);
    std::int64_t right = 0;
    for (const Json& q : j["questions"]) right += q[way]["right"].get<bool>();
    CHECK(j["counts"][way] == right);
    CHECK(std::abs(j[way].get<double>() - static_cast<double>(right) / static_cast<double>(n)) <
          1e-9);
  }
  for (const Json& q : j["questions"]) {
    kinds.insert(q["kind"].get<std::string>());
    words.insert(q["words"].get<std::string>());
    CHECK(mentions(q["said"].get<std::string>(), q["truth"].get<std::string>()));
    CHECK(q["memory"]["recalled"].get<bool>() == !q["memory"]["rank"].is_null());
  }
  CHECK(kinds.size() >= 4);
  CHECK(words == std::set<std::string>{"same", "other"});
  // It was made for pass keys and numbers, in the text's words.
  CHECK(j["same_words"]["memory"].get<double>() >=
        0.6 * j["same_words"]["questions"].get<double>());
  CHECK(j["memory"] >= 0.5);
  CHECK(j["without"] <= 0.1);
  CHECK(mentions(j["verdict"].get<std::string>(), "from its memory"));
  CHECK(j["tokens"] > 256 + 2 * 256);
  const Run people = run_episodic("check --seconds 20 --threads 1 --model " + s.model);
  CHECK(mentions(people.out, j["verdict"].get<std::string>().substr(0, 30)));
  CHECK(mentions(people.out, "right (+)"));
  CHECK(run_episodic("check --model " + s.model + " --memory '{\"recall\": false}'").status == 1);
}

TEST_CASE("progress goes into a file as a line now and then") {
  ::episodic::tools::ProgressLog log("reading ");
  CHECK(log.line(512, 100000, 1).empty());
  CHECK(log.line(1024, 100000, 9.9).empty());
  CHECK(log.line(2000, 100000, 10) ==
        "reading: 2,000 of 100,000 tokens (2%), 200 tokens/s, 8:10 left\n");
  CHECK(log.line(3000, 100000, 69.9).empty());
  CHECK(log.line(14000, 100000, 70) ==
        "reading: 14,000 of 100,000 tokens (14%), 200 tokens/s, 7:10 left\n");
  CHECK(log.line(15000, 100000, 75).empty());
  // never less than a line a minute, whatever the steps
  std::int64_t told = 0;
  for (int second = 76; second < 500; ++second) told += !log.line(20000, 100000, second).empty();
  CHECK(told == 7);
  CHECK(log.line(100000, 100000, 500) == "reading: 100,000 of 100,000 tokens in 8:20\n");
  ::episodic::tools::ProgressLog quick("reading");
  CHECK(quick.line(10, 10, 3).empty());  // what was never told of ends without a word
}

TEST_CASE("pages scroll what is wide in boxes of its own, and explain what is in no event") {
  const Setting s;
  s.write_book(120);
  REQUIRE(run_episodic(s.ingest()).status == 0);
  const fs::path inspect = s.scratch / "inspect.html", demo = s.scratch / "demo.html";
  REQUIRE(run_episodic(fmt::format("inspect {} --model {} --html {}", s.dir, s.model,
                                   quoted(inspect.string())))
              .status == 0);
  REQUIRE(run_episodic(
              fmt::format("demo --model {} --text {} --tokens 2000 --facts 3 --memory {} --html {}",
                          s.model, quoted((s.scratch / "book.txt").string()), quoted(kMemory),
                          quoted(demo.string())))
              .status == 0);
  for (const fs::path& path : {inspect, demo}) {
    const std::string page = contents(path);
    INFO(path.string());
    const std::string box = "<div class=\"wide\">";
    std::int64_t boxed = 0;
    for (const std::string& wide : {std::string("<table"), std::string("<svg")})
      for (std::size_t at = page.find(wide); at != std::string::npos;
           at = page.find(wide, at + 1)) {
        REQUIRE(at > box.size());
        CHECK(page.substr(at - box.size(), box.size()) == box);
        ++boxed;
      }
    CHECK(boxed >= 3);
    CHECK(mentions(page, "class=\"open\""));
    CHECK(mentions(page, "in no closed event"));
  }
  CHECK(mentions(contents(inspect), "In no event are the first 16 tokens"));
  CHECK(mentions(contents(inspect), "the window of 256 tokens"));
}

TEST_CASE(
    "verify opens the memory too: settings and counts that its state does not bear are named") {
  const Setting s;
  s.write_book(60);
  REQUIRE(run_episodic(s.ingest()).status == 0);
  const fs::path manifest = s.scratch / "m" / "manifest.json";
  const std::string whole = contents(manifest);
  const Json was = Json::parse(whole.substr(0, whole.rfind("checksum: ")));
  const auto with = [&](const Json& changed) {
    std::string text = changed.dump(1) + "\n";
    text += fmt::format("checksum: {:016x}\n",
                        ::episodic::checksum_of(std::span<const char>(text.data(), text.size())));
    put(manifest, text);
    return run_episodic("verify " + s.dir);
  };
  CHECK(with(was).status == 0);
  Json tokens = was, events = was, settings = was;
  tokens["state"]["tokens"] = was["state"]["tokens"].get<std::int64_t>() - 1;
  events["state"]["events"] = was["state"]["events"].get<std::int64_t>() + 1;
  settings["config"]["n_local"] = 200;
  for (const auto& [changed, says] :
       {std::pair{tokens, "which holds"}, {events, "which holds"}, {settings, ""}}) {
    const Run run = with(changed);
    INFO(run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(mentions(run.err, says));
  }
  put(manifest, whole);
  CHECK(run_episodic("verify --digest " + s.dir).status == 0);
}

}  // namespace ask_tools_test
