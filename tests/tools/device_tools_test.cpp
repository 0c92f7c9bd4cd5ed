// SPDX-License-Identifier: Apache-2.0
// The programs' --device: on the emulated device they say what they say on the host.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "float32_model.hpp"
#include "program.hpp"
#include "support/sampled.hpp"
#include "support/test.hpp"

using namespace program;

namespace {

constexpr const char* kProgram = "episodic_emulated";
// The shipped weights are bfloat16, and so is what a device computes with them.
constexpr double kTolerance = 5e-3;

Run on(const char* device, const std::string& arguments) {
  return run_episodic(arguments + " --device " + device, "", kProgram);
}

}  // namespace

TEST_CASE("generate, score and segment compute on a device what they compute on the host") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  put(scratch / "text", some_book(9));
  const std::string common =
      " --model " + quoted(model->string()) + " --memory " + quoted(kSmallMemory) + " --quiet";
  const std::string text = quoted((scratch / "text").string());

  const std::string generate = "generate --json - --max-new 8 --prompt-file " + text + common;
  const Run host = on("cpu", generate), device = on("cuda", generate);
  INFO(device.err);
  REQUIRE(host.status == 0);
  REQUIRE(device.status == 0);
  const Json a = Json::parse(host.out), b = Json::parse(device.out);
  REQUIRE(a["prompt_tokens"] > 120);
  REQUIRE(a["ids"].size() == 8);
  REQUIRE(a["ids"] == b["ids"]);
  REQUIRE(a["memory"]["events"] == b["memory"]["events"]);
  REQUIRE(b["memory"]["device_bytes"] > 0);
  REQUIRE_FALSE(a["memory"].contains("device_bytes"));

  const Json of_host = Json::parse(on("cpu", "score --json - --text " + text + common).out);
  const Json of_device = Json::parse(on("cuda", "score --json - --text " + text + common).out);
  REQUIRE(of_host["tokens"] == of_device["tokens"]);
  REQUIRE(of_host["events"] == of_device["events"]);
  REQUIRE(std::abs(of_host["nll"].get<double>() - of_device["nll"].get<double>()) < kTolerance);

  const Json events = Json::parse(on("cuda", "segment --json - --text " + text + common).out);
  Json expected = Json::parse(on("cpu", "segment --json - --text " + text + common).out);
  REQUIRE(events.size() == expected.size());
  REQUIRE(events.size() > 5);
  for (std::size_t i = 0; i < events.size(); ++i)
    for (const char* key : {"start", "end", "text"}) REQUIRE(events[i][key] == expected[i][key]);
}

// Every run has them kept (device_kept_test.cpp), and tests/device.
TEST_CASE("heads with events of their own, and groups, are on a device what they are on the host",
          "[long]") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  put(scratch / "text", some_book(9));
  const std::string text = quoted((scratch / "text").string());
  Json heads = Json::parse(kSmallMemory), groups = heads, preset = heads;
  heads["scope"] = "head";
  groups["recall_groups"] = 2;
  for (const char* of_preset : {"gamma", "contiguity", "refine"}) preset.erase(of_preset);
  preset["preset"] = "hem";
  // Boundaries from keys fall alike where both compute in one dtype.
  const std::string wide = float32_copy(*model, scratch / "float32").string();
  for (const Json& memory : {heads, groups, preset}) {
    const std::string common = " --quiet --model " +
                               quoted(memory == preset ? wide : model->string()) + " --memory " +
                               quoted(memory.dump());
    INFO(common);
    const std::string score = "score --json - --text " + text + common;
    const Run host = on("cpu", score), device = on("cuda", score);
    INFO(device.err);
    REQUIRE(host.status == 0);
    REQUIRE(device.status == 0);
    const Json a = Json::parse(host.out), b = Json::parse(device.out);
    REQUIRE(a["events"] == b["events"]);
    REQUIRE(a["events"] > 10);
    REQUIRE(std::abs(a["nll"].get<double>() - b["nll"].get<double>()) < kTolerance);
  }
  const std::string generate = "generate --json - --max-new 6 --prompt-file " + text + " --model " +
                               quoted(wide) + " --quiet --memory " + quoted(preset.dump());
  REQUIRE(Json::parse(on("cpu", generate).out)["ids"] ==
          Json::parse(on("cuda", generate).out)["ids"]);
}

// Every run has compare-events on the host, and segment on a device.
TEST_CASE("compare-events measures on a device what it measures on the host", "[long]") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  fs::create_directories(scratch / "stories");
  put(scratch / "stories" / "first.txt", some_book(episodic_test::all_or(9, 6)));
  put(scratch / "stories" / "second.txt", some_book(4));
  // Boundaries fall alike where both compute in one dtype.
  const std::string wide = float32_copy(*model, scratch / "float32").string();
  for (const std::string& attention :
       {"--memory " + quoted(kSmallMemory), std::string("--full-attention")}) {
    Json reports[2];
    for (const int on_device : {0, 1}) {
      const fs::path out = scratch / (attention.substr(2, 4) + std::to_string(on_device));
      const Run run = on(on_device ? "cuda" : "cpu",
                         "compare-events --quiet --draws 4 --json - --model " + quoted(wide) + " " +
                             attention + " --stories " + quoted((scratch / "stories").string()) +
                             " --out " + quoted(out.string()));
      INFO(run.err);
      REQUIRE(run.status == 0);
      reports[on_device] = Json::parse(run.out);
      REQUIRE(fs::exists(out / "report.md"));
    }
    const Json &a = reports[0]["stories"], &b = reports[1]["stories"];
    REQUIRE(a.size() == 2);
    REQUIRE(b.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      INFO(attention << ", " << a[i]["name"]);
      REQUIRE(a[i]["tokens"] == b[i]["tokens"]);
      REQUIRE(a[i]["recall"].empty() == (attention[2] == 'f'));
      REQUIRE(a[i]["recall"] == b[i]["recall"]);
      REQUIRE(a[i]["segmentations"].size() > 5);
      REQUIRE(a[i]["segmentations"].size() == b[i]["segmentations"].size());
      REQUIRE(a[i]["segmentations"] != b[i]["segmentations"]);  // a device rounds otherwise
      for (std::size_t m = 0; m < a[i]["segmentations"].size(); ++m) {
        const Json &of_host = a[i]["segmentations"][m], &of_device = b[i]["segmentations"][m];
        REQUIRE(of_host["method"] == of_device["method"]);
        REQUIRE(of_host["boundaries"] == of_device["boundaries"]);
        for (const auto& [measure, value] : of_host["cohesion"].items())
          REQUIRE(of_device["cohesion"][measure].get<double>() ==
                  Approx(value.get<double>()).epsilon(1e-3));
      }
    }
  }
}

TEST_CASE("full attention on a device is plain causal attention") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  put(scratch / "text", some_book(4));
  const std::string score = "score --json - --full-attention --quiet --model " +
                            quoted(model->string()) + " --text " +
                            quoted((scratch / "text").string());
  const Json host = Json::parse(on("cpu", score).out), device = Json::parse(on("cuda", score).out);
  REQUIRE(host["events"] == 0);
  REQUIRE(device["events"] == 0);
  REQUIRE(std::abs(host["nll"].get<double>() - device["nll"].get<double>()) < kTolerance);
}

TEST_CASE("ask on a device reads the passages again that it reads on the host") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  put(scratch / "text", some_book(9));
  const std::string memory = quoted((scratch / "book.mem").string());
  const std::string of_model = " --quiet --model " + quoted(model->string());
  REQUIRE(run_episodic("ingest --device cpu --text " + quoted((scratch / "text").string()) +
                       " --memory-dir " + memory + of_model + " --memory " + quoted(kSmallMemory))
              .status == 0);
  const std::string ask = "ask --json - --max-new 4 --reread 2 --prompt " +
                          quoted("Where did the prince walk?") + " --memory-dir " + memory +
                          of_model;
  const Run host = on("cpu", ask), device = on("cuda", ask);
  INFO(host.err << device.err);
  REQUIRE(host.status == 0);
  REQUIRE(device.status == 0);
  const Json a = Json::parse(host.out), b = Json::parse(device.out);
  REQUIRE(a["passages"].size() > 0);
  REQUIRE(a["passages"].size() == b["passages"].size());
  for (std::size_t i = 0; i < a["passages"].size(); ++i)
    REQUIRE(a["passages"][i]["text"] == b["passages"][i]["text"]);
}

TEST_CASE(
    "weights in fp8 take half on a device, answer nearly alike, and are refused on the host") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  put(scratch / "text", some_book(9));
  const std::string common = " --quiet --model " + quoted(model->string()) + " --memory " +
                             quoted(kSmallMemory) + " --text " +
                             quoted((scratch / "text").string());
  const Json plain = Json::parse(on("cuda", "score --json -" + common).out);
  const Json fp8 = Json::parse(on("cuda", "score --json - --quantize fp8" + common).out);
  REQUIRE(plain["tokens"] == fp8["tokens"]);
  const double apart = std::abs(plain["nll"].get<double>() - fp8["nll"].get<double>());
  REQUIRE(apart > 0);
  REQUIRE(apart < 0.1);
  const auto weights = [&](const std::string& flags) {
    const Json plan = Json::parse(
        on("cuda", "plan --json - --quiet --tokens 1000 --model " + quoted(model->string()) + flags)
            .out);
    return plan["device"]["weights"].get<double>();
  };
  REQUIRE(weights(" --quantize fp8") < weights(""));
  const Run refused = on("cpu", "score --quantize fp8" + common);
  REQUIRE(refused.status == 1);
  REQUIRE(refused.err.find("fp8 weights are a device's") != std::string::npos);
}

TEST_CASE("plan says what a device takes, and a run then takes no more") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  put(scratch / "text", some_book(9));
  const std::string with_model = " --model " + quoted(model->string()) + " --memory ";
  const Json all = Json::parse(
      on("cuda", "plan --json - --tokens 100K" + with_model + quoted(kSmallMemory)).out);
  REQUIRE(all["fits"] == true);
  REQUIRE(all["host"]["total"] == 0);
  // The graph of a memory that forgets is the host's, and as large as without a device.
  std::string forgets(kSmallMemory);
  forgets.insert(1, "\"retention\": {}, ");
  const std::string plan_of_graph =
      "plan --json - --tokens 100K" + with_model + program::quoted(forgets);
  const Json graph = Json::parse(on("cuda", plan_of_graph).out);
  REQUIRE(graph["host"]["graph"] > 0);
  REQUIRE(graph["host"]["total"] == graph["host"]["graph"]);
  REQUIRE(graph["host"]["graph"] == Json::parse(on("cpu", plan_of_graph).out)["host"]["graph"]);
  std::string bounded(kSmallMemory);
  bounded.insert(1, "\"device_bytes\": 110000000, ");
  const Json tiers = Json::parse(
      on("cuda", "plan --json - --tokens 100K" + with_model + program::quoted(bounded)).out);
  REQUIRE(tiers["device"]["total"] < all["device"]["total"]);
  REQUIRE(tiers["host"]["event_store"] == all["device"]["event_store"]);
  // Longer events need less beside their keys and values, and leave more to slots.
  const Json longer = Json::parse(on("cuda", "plan --json - --tokens 100K --event-tokens 12.5" +
                                                 with_model + program::quoted(bounded))
                                      .out);
  REQUIRE(longer["device"]["representatives"] < tiers["device"]["representatives"]);
  REQUIRE(longer["device"]["event_store"] > tiers["device"]["event_store"]);
  REQUIRE(tiers["device"]["total"].get<std::int64_t>() -
              tiers["device"]["weights"].get<std::int64_t>() -
              tiers["device"]["activations"].get<std::int64_t>() <=
          110000000);

  const std::string run =
      "score --json - --quiet --text " + quoted((scratch / "text").string()) + with_model;
  const Json a = Json::parse(on("cuda", run + quoted(kSmallMemory)).out);
  std::string tight(kSmallMemory);
  tight.insert(1, "\"device_bytes\": 1600000, ");
  const Run b = on("cuda", run + program::quoted(tight));
  INFO(b.err);
  REQUIRE(b.status == 0);
  REQUIRE(a["nll"] == Json::parse(b.out)["nll"]);  // to the bit, wherever events lie
}

TEST_CASE("what a device cannot do is refused in one line") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const std::string generate =
      "generate --prompt A --model " + quoted(model->string()) + " --memory ";
  for (const auto& [json, name] : {std::pair{R"({"device_bytes": 1000})", "device_bytes"},
                                   {R"({"index": "faiss"})", "faiss"}}) {
    const Run run = on("cuda", generate + quoted(json));
    INFO(run.err);
    REQUIRE(run.status == 1);
    REQUIRE(one_line(run.err));
    REQUIRE(run.err.find(name) != std::string::npos);
    REQUIRE(on("cpu", generate + quoted(json) + " --max-new 1").status == 0);
  }
  // Every program hands the length on to the memory that it makes.
  const Run run = on("cuda", generate + quoted(kSmallMemory) + " --event-tokens 1000");
  REQUIRE(run.status == 1);
  REQUIRE(one_line(run.err));
  REQUIRE(run.err.find("event_tokens = 1000") != std::string::npos);
}

// Every run has the demo on the host, and answers on a device.
TEST_CASE("the demo on a device recalls and answers what it does on the host", "[long]") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  const fs::path wide = float32_copy(*model, scratch / "float32");
  put(scratch / "book", some_book(12));
  const std::size_t n_facts = episodic_test::all_or(2u, 1u);
  const std::string tokens = episodic_test::all_or("300", "220");
  const auto demo = [&](const char* device) {
    const fs::path json = scratch / device;
    const Run run = on(device, "demo --tokens " + tokens + " --facts " + std::to_string(n_facts) +
                                   " --seed 3 --model " + quoted(wide.string()) + " --text " +
                                   quoted((scratch / "book").string()) + " --memory " +
                                   quoted(kSmallMemory) + " --json " + quoted(json.string()));
    INFO(run.err);
    REQUIRE(run.status == 0);
    return Json::parse(contents(json));
  };
  Json host = demo("cpu"), device = demo("cuda");
  for (Json* facts : {&host["facts"], &device["facts"]})
    for (Json& f : *facts)
      for (const char* way : {"with_memory", "without_memory", "full_attention"})
        f[way].erase("seconds");
  REQUIRE(host["facts"].size() == n_facts);
  REQUIRE(host["facts"] == device["facts"]);
  REQUIRE(host["totals"] == device["totals"]);
  REQUIRE(host["events"] == device["events"]);
  REQUIRE(host["events"]["count"] > 20);
  REQUIRE(device["bytes"]["events"] > 0);
  REQUIRE(device["bytes"]["device"] > 0);
  REQUIRE_FALSE(host["bytes"].contains("device"));
}

TEST_CASE("where no model runs --device is taken and changes nothing") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("no recall model");
  const Scratch scratch;
  put(scratch / "text", "A text.");
  const std::string tokenize = "tokenize --model " + quoted(model->string()) + " --text " +
                               quoted((scratch / "text").string());
  const Run host = on("cpu", tokenize), device = on("cuda", tokenize);
  REQUIRE(device.status == 0);
  REQUIRE(host.out == device.out);
  const Run help = run_episodic("verify --help");
  REQUIRE(help.out.find("no model runs") != std::string::npos);
}
