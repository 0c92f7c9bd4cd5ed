// SPDX-License-Identifier: Apache-2.0
// train-lora: an adapter from examples, and what it refuses before it trains.
#include "support/test.hpp"

#include <cmath>

#include "program.hpp"

using namespace program;

namespace {

/// Texts longer than the window of kSmallMemory, each with a fact and a question about it.
std::string examples(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string key = std::to_string(10000 + 7919 * i);
    Json entries = Json::array();
    for (int e = 0; e < 6; ++e)
      entries.push_back("The river was low that year, and the men walked over it. ");
    entries[static_cast<std::size_t>(i % 6)] = "The pass key of Anna is " + key + ". ";
    lines += Json({{"entries", entries},
                   {"question", "\n\nWhat is the pass key of Anna?\n\nThe pass key of Anna is"},
                   {"answer", " " + key + ".\n"}})
                 .dump() +
             "\n";
  }
  return lines;
}

constexpr const char* kSmallMemory =
    R"({"n_init": 8, "n_local": 32, "n_mem": 64, "chunk": 32, "max_block": 32})";

std::string train(const fs::path& model, const fs::path& data, const fs::path& out,
                  const std::string& more = "", const char* memory = kSmallMemory) {
  return "train-lora --quiet --objective epman --model " + quoted(model.string()) + " --data " +
         quoted(data.string()) + " --out " + quoted(out.string()) + " --memory '" + memory +
         "' --steps 2 --rank 2 " + (more.find("--batch") == std::string::npos ? "--batch 2 " : "") +
         more;
}

}  // namespace

TEST_CASE("help of train-lora exits with 0 and has an example") {
  const Run run = run_episodic("train-lora --help");
  CHECK(run.status == 0);
  CHECK(run.out.find("episodic train-lora") != std::string::npos);
}

TEST_CASE("train-lora writes an adapter that the same seed gives again and that generate takes") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no model");
  const Scratch scratch;
  put(scratch / "train.jsonl", examples(4));
  put(scratch / "held_out.jsonl", examples(2));
  const Json first = json_of(
      train(*model, scratch / "train.jsonl", scratch / "a",
            "--seed 5 --lr 0.01 --validate " + quoted((scratch / "held_out.jsonl").string())));
  CHECK(first["examples"] == 4);
  CHECK(first["steps"] == 2);
  CHECK((std::isfinite(first["last_loss"].get<double>()) && first["last_loss"].get<double>() > 0));
  CHECK(first["validation"]["examples"] == 2);
  CHECK(first["validation"]["before"]["loss"] != first["validation"]["after"]["loss"]);
  const Json adapter = Json::parse(contents(scratch / "a" / "adapter_config.json"));
  CHECK(adapter["peft_type"] == "LORA");
  CHECK(adapter["r"] == 2);
  const std::string curve = contents(scratch / "a" / "loss.csv");
  CHECK(std::count(curve.begin(), curve.end(), '\n') == 3);  // its head, and a line a step

  const auto weights = [&](const char* name) {
    return contents(scratch / name / "adapter_model.safetensors");
  };
  json_of(train(*model, scratch / "train.jsonl", scratch / "b", "--seed 5 --lr 0.01"));
  json_of(train(*model, scratch / "train.jsonl", scratch / "c", "--seed 6 --lr 0.01"));
  CHECK(weights("a") == weights("b"));
  CHECK(weights("a") != weights("c"));

  const std::string ask = "generate --quiet --max-new 4 --prompt 'The king' --model " +
                          quoted(model->string()) + " --lora ";
  CHECK(json_of(ask + quoted((scratch / "a").string()))["ids"].size() == 4);
}

TEST_CASE("train-lora with the products on a device trains what it trains on the host") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no model");
  const Scratch scratch;
  put(scratch / "train.jsonl", examples(1));
  Json trained[2];
  for (const int on_device : {0, 1}) {
    const Run run =
        run_episodic(train(*model, scratch / "train.jsonl", scratch / (on_device ? "cuda" : "cpu"),
                           std::string("--batch 1 --constant-context --json - --device ") +
                               (on_device ? "cuda" : "cpu")),
                     "", "episodic_emulated");
    INFO(run.err);
    REQUIRE(run.status == 0);
    trained[on_device] = Json::parse(run.out);
  }
  for (const char* loss : {"first_loss", "last_loss"})
    CHECK(trained[1][loss].get<double>() == Approx(trained[0][loss].get<double>()).epsilon(1e-3));
  CHECK(trained[0]["first_loss"] != trained[0]["last_loss"]);
  // Not to the bit: the products round otherwise, so they were not torch's.
  CHECK(contents(scratch / "cuda" / "adapter_model.safetensors") !=
        contents(scratch / "cpu" / "adapter_model.safetensors"));
}

TEST_CASE("train-lora refuses what it cannot train on in one line and leaves nothing behind") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no model");
  const Scratch scratch;
  put(scratch / "train.jsonl", examples(2));
  const auto refused = [&](const std::string& arguments, const std::string& names, int status) {
    const Run run = run_episodic(arguments);
    INFO(arguments << "\n" << run.err);
    CHECK(run.status == status);
    CHECK(run.err.find(names) != std::string::npos);
    if (status == 1) CHECK(one_line(run.err));
    CHECK_FALSE(fs::exists(scratch / "out"));
  };
  const auto with = [&](const std::string& data, const std::string& more = "") {
    put(scratch / "data.jsonl", data);
    return train(*model, scratch / "data.jsonl", scratch / "out", more);
  };
  refused(train(*model, scratch / "none.jsonl", scratch / "out"), "none.jsonl", 1);
  refused(with(""), "holds no example", 1);
  refused(with(examples(1) + "{\"entries\": []}\n"), "data.jsonl:2", 1);
  refused(with(examples(1) + "[1, 2]\n"), "data.jsonl:2", 1);
  refused(with(examples(1) + R"({"entries": ["a"], "question": 7, "answer": "b"})"), "\"question\"",
          1);
  refused(with(examples(1), "--targets q,x"), "\"x\" is no product", 1);
  refused(train(*model, scratch / "train.jsonl", scratch / "out", "",
                R"({"scope": "head", "segmenter": "k_similarity"})"),
          "scope", 1);
  refused(with(examples(1), "--rank 0"), "--rank", 2);
  fs::create_directory(scratch / "there");
  put(scratch / "there" / "file", "mine");
  const Run run = run_episodic(train(*model, scratch / "train.jsonl", scratch / "there"));
  CHECK(run.status == 1);
  CHECK(run.err.find("there") != std::string::npos);
  CHECK(contents(scratch / "there" / "file") == "mine");
}

TEST_CASE("train-lora trains read and write heads that generate reads with") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no model");
  const Scratch scratch;
  put(scratch / "train.jsonl", examples(4));
  const Json done =
      json_of(train(*model, scratch / "train.jsonl", scratch / "a",
                    "--reader --lr 0.01 --validate " + quoted((scratch / "train.jsonl").string())));
  const Json validation = done["validation"];
  for (const char* when : {"before", "after"}) {
    const Json reader = validation[when]["reader"];
    CHECK(reader["examples"].get<int>() > 0);
    CHECK((std::isfinite(reader["loss"].get<double>()) && reader["loss"].get<double>() >= 0));
    CHECK((reader["found"].get<double>() >= 0 && reader["found"].get<double>() <= 1));
  }
  CHECK(validation["before"]["reader"]["loss"] != validation["after"]["reader"]["loss"]);
  CHECK(fs::exists(scratch / "a" / "reader_heads.safetensors"));
  CHECK(contents(scratch / "a" / "loss.csv").find("retrieval_loss") != std::string::npos);

  std::string text;
  for (int i = 0; i < 30; ++i)
    text += "The pass key of Anna is " + std::to_string(10000 + i) + ". ";
  put(scratch / "text.txt", text);
  const std::string generate = "generate --quiet --model " + quoted(model->string()) +
                               " --prompt-file " + quoted((scratch / "text.txt").string()) +
                               " --question 'What is the pass key?' --max-new 8";
  const std::string memory =
      R"( --memory '{"n_init": 8, "n_local": 32, "n_mem": 64, "chunk": 32}')";
  const auto read_by = [&](const fs::path& heads) { return " --reader " + quoted(heads.string()); };
  CHECK(json_of(generate + memory + read_by(scratch / "a") + " --lora " +
                quoted((scratch / "a").string()))["ids"]
            .size() == 8);
  const auto refused = [&](const std::string& more, const std::string& names) {
    const Run run = run_episodic(generate + more);
    INFO(run.err);
    CHECK(run.status == 1);
    CHECK(run.err.find(names) != std::string::npos);
  };
  refused(read_by(scratch / "a") + " --full-attention", "--reader");
  refused(memory + read_by(scratch.path()), "reader_heads.safetensors");
}
