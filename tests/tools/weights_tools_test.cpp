// SPDX-License-Identifier: Apache-2.0
// --lora, --quantize and `episodic quantize` as a shell runs them.
#include "model/tiny_adapter.hpp"
#include "program.hpp"
#include "support/test.hpp"

using namespace program;

namespace {

/// An adapter of the shipped model, in a folder of this name.
void write_adapter(const fs::path& dir) {
  TinyShape shape;
  shape.hidden = 256;
  shape.inner = 512;
  shape.layers = 4;
  shape.dim = 64;
  TinyAdapter(shape).write(dir);
}

}  // namespace

TEST_CASE("quantize writes a file that generates as --quantize does") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("neither models/recall-2m6 nor a shared one is there");
  const Scratch scratch;
  const std::string m = quoted(model->string()), file = quoted((scratch / "m.gguf").string());
  const Json made = json_of("quantize --quiet --model " + m + " --type q8_0 --out " + file);
  INFO(made);
  REQUIRE(made.is_object());
  CHECK(made["weight_bytes"] < made["stored_weight_bytes"]);
  const std::string rest =
      " --device cpu --quiet --prompt 'The pass key is' --max-new 6 --memory " +
      quoted("{\"n_init\": 16, \"n_local\": 256, \"n_mem\": 256, \"chunk\": 256}");
  const Json from_file = json_of("generate --model " + file + rest);
  const Json in_memory = json_of("generate --quantize q8_0 --model " + m + rest);
  INFO(from_file << in_memory);
  REQUIRE(from_file.is_object());
  REQUIRE(in_memory.is_object());
  CHECK(from_file["ids"] == in_memory["ids"]);
  CHECK(from_file["text"] == in_memory["text"]);

  const Run again = program::run_episodic("quantize --model " + m + " --type q4_0 --out " + file);
  CHECK(again.status == 1);
  CHECK(one_line(again.err));
  CHECK(again.err.find("m.gguf: is there already") != std::string::npos);
  CHECK(program::run_episodic("quantize --quiet --replace --model " + m + " --type q4_0 --out " +
                              file)
            .status == 0);
  CHECK(program::run_episodic("quantize --model " + m + " --type q8_0 --out " +
                              quoted((scratch / "dir").string()))
            .err.find("ends in .gguf") != std::string::npos);
}

TEST_CASE("an adapter changes what is generated, and whose memory it is") {
  const auto model = recall_model();
  if (!model || model->filename() != "recall-2m6") EPISODIC_SKIP("models/recall-2m6 is not there");
  const Scratch scratch;
  write_adapter(scratch / "poet");
  put(scratch / "book", some_book(40));
  const std::string m = " --device cpu --quiet --model " + quoted(model->string());
  const std::string poet = " --lora " + quoted((scratch / "poet").string());
  const std::string half = " --lora " + quoted((scratch / "poet").string() + ":0.5");
  const std::string prompt = " --prompt 'The grass is' --max-new 8";
  const Json plain = json_of("generate" + m + prompt),
             adapted = json_of("generate" + m + poet + prompt);
  const Json merged = json_of("generate" + m + poet + " --merge-lora" + prompt);
  const Json off =
      json_of("generate" + m + " --lora " + quoted((scratch / "poet").string() + ":0") + prompt);
  REQUIRE(plain.is_object());
  REQUIRE(adapted.is_object());
  CHECK(adapted["ids"] != plain["ids"]);
  CHECK(merged["ids"] == adapted["ids"]);
  CHECK(off["ids"] == plain["ids"]);

  const std::string kept = " --memory-dir " + quoted((scratch / "kept").string());
  const Run ingest = program::run_episodic("ingest" + m + half + kept + " --text " +
                                           quoted((scratch / "book").string()));
  INFO(ingest.err);
  REQUIRE(ingest.status == 0);
  for (const std::string& other : {std::string(), poet}) {
    const Run refused = program::run_episodic("ask" + m + other + kept + prompt);
    INFO(refused.err);
    CHECK(refused.status == 1);
    CHECK(one_line(refused.err));
    CHECK(refused.err.find("with adapter poet x 0.5") != std::string::npos);
  }
  CHECK(program::run_episodic("ask" + m + half + kept + prompt).status == 0);

  for (const auto& [arguments, names] : std::vector<std::pair<std::string, std::string>>{
           {" --lora " + quoted((scratch / "none").string()), "none: there is no such directory"},
           {" --lora " + quoted((scratch / "poet").string() + ":loud"),
            "expected DIR or DIR:SCALE"},
           {" --lora " + quoted((scratch / "book").string()), "is no directory"}}) {
    const Run run = program::run_episodic("generate" + m + arguments + prompt);
    INFO(arguments << "\n" << run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find(names) != std::string::npos);
  }
  CHECK(program::run_episodic("generate" + m + " --merge-lora" + prompt).status == 2);
  CHECK(program::run_episodic("generate" + m + " --quantize q3_k" + prompt).status == 2);
}

TEST_CASE("the flag --activations says what products round, before the variable does") {
  const auto model = recall_model();
  if (!model) EPISODIC_SKIP("neither models/recall-2m6 nor a shared one is there");
  const Scratch scratch;
  put(scratch / "book", some_book(30));
  const std::string score = "score --device cpu --threads 1 --quantize q4_0 --model " +
                            quoted(model->string()) + " --text " +
                            quoted((scratch / "book").string());
  const auto nll = [&](const std::string& flags, const std::string& variable) {
    return json_of(score + " --quiet " + flags, variable)["nll"].get<double>();
  };
  const std::string exact = "EPISODIC_ACTIVATIONS=exact", none = "EPISODIC_ACTIVATIONS=";
  const double rounded_nll = nll("", none), exact_nll = nll("--activations exact", none);
  CHECK(rounded_nll != exact_nll);
  CHECK(nll("", exact) == exact_nll);
  CHECK(nll("--activations rounded", exact) == rounded_nll);
  CHECK(nll("--activations exact", "EPISODIC_ACTIVATIONS=nonsense") == exact_nll);

  const std::string note = "give --activations exact";
  const auto said = [&](const std::string& flags) {
    return program::run_episodic(score + " " + flags, none).err;
  };
  CHECK(said("").find(note) != std::string::npos);
  CHECK(said("--activations exact").find(note) == std::string::npos);
  CHECK(said("--quiet").find(note) == std::string::npos);
  const Run wrong = program::run_episodic(score, "EPISODIC_ACTIVATIONS=nonsense");
  CHECK(wrong.status == 1);
  CHECK(one_line(wrong.err));
  CHECK(wrong.err.find("EPISODIC_ACTIVATIONS: activations 'nonsense': must be rounded, exact or "
                       "bfloat16") != std::string::npos);
  CHECK(program::run_episodic(score + " --activations quantised").status == 2);
}
