// SPDX-License-Identifier: Apache-2.0
// The engine of the host on the shipped model: reading, asking, states, what it can and cannot.
#include "model/tiny_adapter.hpp"
#include "small_memory.hpp"
#include "support/address_space.hpp"
#include "support/model.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

#include <fstream>
#include <string>
#include <vector>

#include "episodic/model/memory_settings.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/session/engine.hpp"

using namespace episodic;

namespace engine_test {

namespace fs = std::filesystem;

std::string some_text(int sentences) {
  static const char* said[] = {"The old man walked along the river. ",
                               "My sister sold the brown horse before the snow fell. ",
                               "Nobody spoke of the war that evening. ",
                               "The doctor came home too late and closed the door. "};
  std::string text;
  for (int i = 0; i < sentences; ++i) text += said[(i * 7 + i / 3) % 4];
  return text;
}

std::vector<float> logits_of(Engine& engine) {
  const auto l = engine.logits();
  return {l.begin(), l.end()};
}

GenerateOptions few(std::int64_t n) {
  GenerateOptions o;
  o.max_new = n;
  return o;
}

TEST_CASE("engine: memory that the system refuses is one line, and a later step goes on",
          "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EPISODIC_SKIP("sanitizers cannot run with little address space");
#else
  const std::vector<std::int64_t> ids(1024, 5);
  const auto engine = load_engine(shipped_model_dir()), plain = load_engine(shipped_model_dir());
  for (Engine* e : {engine.get(), plain.get()}) {
    e->attach_full_attention(2048);
    e->step(std::span(ids).first(32), StepKind::prompt);
  }
  std::string message;
  {
    const testing::AddressSpace none(0);
    try {
      engine->step(ids, StepKind::prompt);
    } catch (const BudgetError& e) {
      message = e.what();
    }
  }
  INFO(message);
  CHECK(message.find("no memory left for this step") != std::string::npos);
  CHECK(message.find("lower chunk") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
  engine->step(ids, StepKind::prompt);
  plain->step(ids, StepKind::prompt);
  CHECK(engine->tokens() == plain->tokens());
  CHECK(logits_of(*engine) == logits_of(*plain));
#endif
}

TEST_CASE("engine: lengths that do not fit are refused before a step counts", "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto engine = load_engine(shipped_model_dir());
  engine->attach();
  const std::vector<std::int64_t> ids{5, 6, 7, 8, 9, 10};
  const auto all = std::span(ids);
  const auto vocab = static_cast<std::size_t>(engine->config().vocab_size);
  for (const std::size_t n : {std::size_t{0}, vocab, 3 * vocab - 1, 3 * vocab + 1}) {
    std::vector<float> logits(n);
    CHECK(mentions(refusal<DataError>([&] { engine->step(all.first(3), logits); }),
                   "room for " + std::to_string(n) + " logits"));
    CHECK(engine->tokens() == 0);
  }
  std::vector<float> nll(ids.size(), -1.0f);
  const auto scored = [&](std::size_t first, std::size_t n, std::span<float> into) {
    return refusal<DataError>([&] { engine->score(all, first, n, into); });
  };
  CHECK(mentions(scored(0, 0, nll), "0 tokens from 0 on"));
  CHECK(mentions(scored(7, 1, nll), "1 tokens from 7 on"));
  CHECK(mentions(scored(2, 5, nll), "5 tokens from 2 on"));
  CHECK(mentions(scored(1, SIZE_MAX, nll), "none beyond"));
  CHECK(mentions(scored(0, 3, std::span(nll).first(4)), "room for 4"));
  CHECK(engine->tokens() == 0);
  CHECK(nll == std::vector<float>(ids.size(), -1.0f));
  CHECK(scored(0, 4, nll) == "no error");
  CHECK(scored(4, 2, nll) == "no error");
  CHECK(engine->tokens() == 6);
  CHECK(nll[0] == 0.0f);
  for (std::size_t t = 1; t < nll.size(); ++t) CHECK(nll[t] >= 0.0f);
}

TEST_CASE("engine: text that was held back to the end comes without a token, and may be refused",
          "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto engine = load_engine(shipped_model_dir());
  engine->attach();
  const std::string text = engine->ask("The sky is", few(6)).text;
  REQUIRE(!text.empty());
  GenerateOptions options = few(6);
  options.stop = {text.substr(text.size() - 1) + "\x01 never"};  // its end may be the stop's begin
  for (const bool goes_on : {true, false}) {
    std::string heard;
    std::size_t tokens = 0, rests = 0;
    options.on_token = [&](std::int64_t id, std::string_view part) {
      heard += part;
      ++(id == kNoToken ? rests : tokens);
      return id != kNoToken || goes_on;
    };
    const GenerateResult result = engine->ask("The sky is", options);
    CHECK(heard == text);
    CHECK(result.text == text);
    CHECK(rests == 1);
    CHECK(tokens == result.ids.size());
    CHECK(result.finish == (goes_on ? FinishReason::length : FinishReason::cancelled));
  }
}

TEST_CASE("engine: with its directory's settings it answers from far before its window",
          "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto engine = load_engine(shipped_model_dir());
  engine->attach();
  CHECK(memory_config_of(shipped_model_dir()).n_local == 256);
  std::string text = "The pass key is 60453. Remember it. 60453 is the pass key.\n";
  for (int i = 0; i < 60; ++i)
    text +=
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
        "again.\n";
  const std::int64_t n = engine->read(text);
  CHECK(n > 4 * 256);
  CHECK(engine->tokens() == n);
  const std::vector<float> before = logits_of(*engine);
  const GenerateResult answer =
      engine->ask("\n\nWhat is the pass key?\n\nThe pass key is", few(12));
  CHECK(mentions(answer.text, "60453"));
  // and it is back where it was
  CHECK(engine->tokens() == n);
  CHECK(logits_of(*engine) == before);
  CHECK(engine->ask("\n\nWhat is the pass key?\n\nThe pass key is", few(12)).ids == answer.ids);
}

TEST_CASE("engine: what a restore leaves is the state of then, logits included", "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto engine = load_engine(shipped_model_dir());
  engine->attach(small_memory());
  engine->read(some_text(20));
  const auto state = engine->snapshot();
  const std::vector<float> then = logits_of(*engine);
  const GenerateResult first = engine->generate("Then", few(6));
  engine->read(some_text(9));
  CHECK(logits_of(*engine) != then);
  engine->restore(*state);
  CHECK(engine->tokens() == state->tokens);
  CHECK(logits_of(*engine) == then);
  CHECK(engine->generate("Then", few(6)).ids == first.ids);
  engine->attach(small_memory());
  CHECK(mentions(refusal<ConfigError>([&] { engine->restore(*state); }), "no longer attached"));
  CHECK(mentions(refusal<DataError>([&] { engine->logits(); }), "no step"));
}

TEST_CASE("a patched model serves the logits of the state that was restored", "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  Decoder model = Decoder::load(shipped_model_dir());
  const auto memory = patch(model, small_memory());
  const std::vector<std::int64_t> a{1, 70, 71, 72}, b{80, 81};
  model.step(a);
  const auto state = memory->snapshot();
  const std::vector<float> then(model.logits().begin(), model.logits().end());
  model.step(b);
  const std::vector<float> later(model.logits().begin(), model.logits().end());
  CHECK(later != then);
  memory->restore(*state);
  CHECK(std::vector<float>(model.logits().begin(), model.logits().end()) == then);
  memory->reset();
  CHECK(mentions(refusal<DataError>([&] { model.logits(); }), "no step"));
}

TEST_CASE("patch with a model directory takes its memory.json", "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  Decoder model = Decoder::load(shipped_model_dir());
  const auto memory = patch(model, shipped_model_dir());
  CHECK(memory->config() == memory_config_of(shipped_model_dir()));
  CHECK(memory->config().n_local == 256);
}

TEST_CASE("settings of a model's directory that its shape refuses name their file",
          "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const TempDir dir;
  for (const auto& file : fs::directory_iterator(shipped_model_dir()))
    if (file.path().filename() != "memory.json")
      fs::create_symlink(fs::absolute(file.path()), dir / file.path().filename());
  std::ofstream(dir / "memory.json") << R"({"recall_groups": 7})";
  const std::string file = (dir / "memory.json").string() + ": ";
  const auto engine = load_engine(dir.path());
  CHECK(refusal<ConfigError>([&] { engine->attach(); }).starts_with(file));
  KeptFolder folder;
  folder.dir = dir / "kept";
  CHECK(refusal<ConfigError>([&] { engine->attach(folder); }).starts_with(file));
  Decoder model = Decoder::load(dir.path());
  CHECK(refusal<ConfigError>([&] { patch(model, dir.path()); }).starts_with(file));
}

TEST_CASE("engine: every scope and lane of a memory can be looked at", "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto engine = load_engine(shipped_model_dir());
  MemoryConfig config = small_memory();
  config.segmenter = SegmenterKind::k_similarity;
  config.scope = EventScope::head;
  config.refine = Refinement::none;
  const MemoryShape shape = memory_shape(engine->config(), config.n_local);
  const auto memory = std::make_shared<EpisodicMemory>(config, shape);
  engine->attach(memory);
  REQUIRE(engine->memory() == memory.get());
  engine->read(engine->tokenizer().encode(some_text(24)));
  REQUIRE(memory->scopes() > 1);
  std::int64_t recalled = 0;
  for (std::int64_t s = 0; s < memory->scopes(); ++s) {
    CHECK((engine->events(s).all() == memory->events(s).all()));
    CHECK(engine->last_step(s).final_boundaries == memory->last_step(s).final_boundaries);
  }
  for (std::int64_t lane = 0; lane < memory->lanes(); ++lane) {
    CHECK(engine->recalled(lane).similarity == memory->recalled(lane).similarity());
    recalled += static_cast<std::int64_t>(engine->recalled(lane).similarity.size());
  }
  CHECK(recalled > 0);
  CHECK_THROWS_AS(engine->events(memory->scopes()), DataError);
}

TEST_CASE("engine: a kept memory commits, rewinds, forgets and pins; a memory of its own says no",
          "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const TempDir scratch;
  const auto engine = load_engine(shipped_model_dir());
  for (const Capability c : {Capability::inspect, Capability::snapshot, Capability::rewind,
                             Capability::forget, Capability::pin, Capability::commit}) {
    INFO(name_of(c));
    CHECK_FALSE(engine->can(c));  // full attention
  }
  CHECK(mentions(refusal<ConfigError>([&] { engine->ask("x"); }), "no memory"));
  engine->attach(small_memory());
  CHECK(engine->can(Capability::forget));
  CHECK_FALSE(engine->can(Capability::pin));
  CHECK(mentions(refusal<ConfigError>([&] { engine->commit(); }), "folder"));
  CHECK(mentions(refusal<ConfigError>([&] { engine->rewind(0); }), "snapshot"));

  KeptFolder folder;
  folder.dir = scratch / "kept";
  const auto memory =
      std::make_shared<EpisodicMemory>(create_memory(shipped_model_dir(), folder, small_memory()));
  engine->attach(memory);
  for (const Capability c : {Capability::inspect, Capability::snapshot, Capability::rewind,
                             Capability::forget, Capability::pin, Capability::commit}) {
    INFO(name_of(c));
    CHECK(engine->refusal(c).empty());
  }
  const std::vector<std::int64_t> ids = engine->tokenizer().encode(some_text(24));
  REQUIRE(ids.size() > 200);
  engine->read(std::span(ids).first(96));
  engine->commit();
  engine->read(std::span(ids).subspan(96, 96));
  engine->commit();
  const std::uint64_t digest = memory->digest();
  CHECK(engine->n_events() > 5);

  // Back to a state that was kept, and on: the same memory to the bit. And to one in between.
  for (const std::int64_t to : {96, 128}) {
    engine->rewind(to);
    CHECK(engine->tokens() == to);
    CHECK(memory->tokens() == to);
    engine->read(
        std::span(ids).subspan(static_cast<std::size_t>(to), static_cast<std::size_t>(192 - to)));
    CHECK(memory->digest() == digest);
    engine->commit();
  }
  // What was read since the last commit counts too.
  engine->read(std::span(ids).subspan(192, 8));
  engine->rewind(0);
  CHECK(engine->tokens() == 0);
  engine->read(std::span(ids).first(192));
  CHECK(memory->digest() == digest);
  CHECK(mentions(refusal<ConfigError>([&] { engine->rewind(193); }), "193"));

  engine->pin(3);
  CHECK(memory->disk_store()->pinned(3));
  CHECK(engine->forget(TokenRange{40, 60}).size() >= 1);
  engine->forget(0);
  CHECK(memory->forgotten().size() >= 2);
  engine->commit();

  // The same folder, only read.
  engine->attach(small_memory());
  *memory = EpisodicMemory(small_memory(), memory_shape(engine->config()));  // the writer is gone
  folder.mode = OpenMode::read;
  const auto reader = engine->attach(folder);
  CHECK(reader->tokens() == 192);
  CHECK(mentions(refusal<ConfigError>([&] { engine->commit(); }), "read only"));
  CHECK(engine->ask("Then", few(4)).ids.size() == 4);
}

TEST_CASE("engine: what cannot be rewound to says which token is missing", "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const TempDir scratch;
  const auto engine = load_engine(shipped_model_dir());
  KeptFolder folder;
  folder.dir = scratch / "kept";
  auto memory =
      std::make_shared<EpisodicMemory>(create_memory(shipped_model_dir(), folder, small_memory()));
  engine->attach(memory);
  const std::vector<std::int64_t> ids = engine->tokenizer().encode(some_text(24));
  engine->read(std::span(ids).first(192));
  engine->commit();
  const std::vector<EventId> gone = engine->forget(TokenRange{50, 60});
  REQUIRE(!gone.empty());
  const std::int64_t first = memory->events()[gone.front()].start;
  memory->compact();
  const std::string why = refusal<DataError>([&] { engine->rewind(150); });
  INFO(why);
  CHECK(mentions(why, "token " + std::to_string(first)));
  CHECK(engine->tokens() == 192);  // nothing has changed
  CHECK(engine->can(Capability::commit));
  engine->rewind(192);
  CHECK(engine->tokens() == 192);
}

TEST_CASE("settings of a directory, changed by fields and with units", "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const MemoryConfig own = memory_config_of(shipped_model_dir());
  const MemoryConfig c = change_memory_config(own, R"({"n_mem": 128, "host_bytes": "1.5GB"})");
  CHECK(c.n_mem == 128);
  CHECK(c.n_local == own.n_local);
  CHECK(c.gamma == own.gamma);
  CHECK(c.host_bytes == 1500000000);
  for (const auto& [json, names] : {std::pair{R"({"n_lokal": 3})", "n_lokal"},
                                    {R"({"host_bytes": "much"})", "host_bytes"},
                                    {R"([1])", "object"},
                                    {"{", "JSON"},
                                    {R"({"n_local": "256"})", "n_local"}}) {
    INFO(json);
    CHECK(mentions(refusal<ConfigError>([&] { change_memory_config(own, json, "file.json"); }),
                   names));
    CHECK(mentions(refusal<ConfigError>([&] { change_memory_config(own, json, "file.json"); }),
                   "file.json"));
  }
  const TempDir none;
  CHECK(memory_config_of(none.path()) == MemoryConfig{});

  const ModelConfig model = load_model_config(shipped_model_dir());
  CHECK(model.max_positions == 512);
  CHECK(window_warning(own, model).empty());
  CHECK(mentions(window_warning({}, model), "512"));
  MemoryConfig huge = own;
  huge.n_local = std::int64_t{1} << 36;
  CHECK(mentions(refusal<BudgetError>([&] { require_host_room(huge, memory_shape(model)); }),
                 "n_local"));
  CHECK(mentions(refusal<BudgetError>([&] { load_engine(shipped_model_dir())->attach(huge); }),
                 "available"));
}

TEST_CASE("settings for a model that brings none follow its size, its training and its weights",
          "[e2e][engine]") {
  const auto of = [](std::int64_t trained, double weights, std::optional<TensorType> stored) {
    const DefaultMemory chosen =
        default_memory({trained, static_cast<std::int64_t>(weights), stored});
    chosen.config.validate();
    CHECK_FALSE(chosen.why.empty());
    return chosen.config;
  };
  // the lengths of the paper for its own model; shorter ones for smaller models
  const MemoryConfig seven = of(32768, 7.2e9, TensorType::bf16);
  CHECK(
      (seven.n_local == 4096 && seven.n_mem == 2048 && seven.n_init == 128 && seven.chunk == 512));
  const MemoryConfig middle = of(32768, 1.5e9, TensorType::q4_k);
  CHECK((middle.n_local == 2048 && middle.n_mem == 2048));
  const MemoryConfig small = of(8192, 1.35e8, TensorType::q4_1);
  CHECK((small.n_local == 1024 && small.n_mem == 1024 && small.chunk == 512));
  CHECK(of(0, 1.35e8, TensorType::f32).n_local == 1024);  // it does not say
  // never more than half of what it was trained on, whatever that is
  for (const std::int64_t trained : {1, 2, 7, 64, 512, 2048, 4096}) {
    const MemoryConfig c = of(trained, 7e9, TensorType::bf16);
    CHECK(c.n_local == std::max<std::int64_t>(1, trained / 2));
    CHECK(c.n_mem <= c.n_local);
    CHECK(c.chunk <= c.n_local);
    CHECK(c.n_init <= c.n_local);
  }
  // keys and values as exact as the weights
  CHECK(of(8192, 1e9, TensorType::f32).kv_dtype == DType::float32);
  CHECK(of(8192, 1e9, TensorType::f16).kv_dtype == DType::float16);
  CHECK(of(8192, 1e9, TensorType::bf16).kv_dtype == DType::bfloat16);
  CHECK(of(8192, 1e9, std::nullopt).kv_dtype == DType::bfloat16);
  for (const TensorType type :
       {TensorType::q8_0, TensorType::q4_0, TensorType::q4_k, TensorType::q6_k, TensorType::iq4_nl})
    CHECK(of(8192, 1e9, type).kv_dtype == DType::int8);
  // all that is no length and no dtype is the library's
  MemoryConfig rest = seven;
  rest.kv_dtype = MemoryConfig{}.kv_dtype;
  CHECK(rest == MemoryConfig{});

  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const ModelFacts facts = model_facts(shipped_model_dir());
  CHECK(facts.trained_tokens == 512);
  CHECK((facts.weights > 2'400'000 && facts.weights < 2'800'000));
  CHECK(facts.stored == TensorType::bf16);
  ModelOptions rounded;
  rounded.quantize = TensorType::q8_0;
  CHECK(model_facts(shipped_model_dir(), rounded).stored == TensorType::q8_0);
  CHECK(brings_memory_settings(shipped_model_dir()));
  // before its weights are there, as config.json says
  const TempDir early;
  std::filesystem::copy(shipped_model_dir() / "config.json", early / "config.json");
  const ModelFacts of_config = model_facts(early.path());
  CHECK(of_config.weights == facts.weights);
  CHECK_FALSE(of_config.stored.has_value());
  CHECK_FALSE(brings_memory_settings(early.path()));
}

TEST_CASE("what is not a model directory is said to be what it is", "[e2e][engine]") {
  const TempDir scratch;
  CHECK(mentions(model_dir_problem(scratch / "none"), "no such directory"));
  CHECK(mentions(model_dir_problem("meta-llama/Llama-3.2-1B"), "hf download"));
  const auto gguf = scratch.write("m.gguf", "GGUF");
  CHECK(model_dir_problem(gguf).empty());  // what is wrong in it, its reader says
  CHECK(mentions(refusal<FileError>([&] { load_engine(gguf); }), "m.gguf"));
  CHECK(mentions(model_dir_problem(scratch.write("text", "x")), "is a file"));
  CHECK(mentions(model_dir_problem(scratch.path()), "config.json"));
  scratch.write("config.json", "{}");
  CHECK(model_dir_problem(scratch.path()).empty());
}

TEST_CASE("an answer is fed to its end where that is asked for", "[e2e][engine][session]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto engine = load_engine(shipped_model_dir());
  engine->attach(small_memory());
  const std::vector<std::int64_t> prompt = engine->tokenizer().encode("The old man said");
  const auto n = static_cast<std::int64_t>(prompt.size());
  GenerateOptions o = few(5);
  const GenerateResult plain = engine->generate(prompt, o);
  CHECK(plain.fed == 4);
  CHECK(engine->tokens() == n + 4);

  const auto fed_of = [&](GenerateOptions options) {
    options.feed_last = true;
    engine->attach(small_memory());
    const GenerateResult r = engine->generate(prompt, options);
    CHECK(r.fed == static_cast<std::int64_t>(r.ids.size()));
    CHECK(engine->tokens() == n + r.fed);
    return r;
  };
  CHECK(fed_of(o).ids == plain.ids);
  CHECK(fed_of(few(0)).ids.empty());
  GenerateOptions stop = o;
  stop.stop = {engine->tokenizer().decode({plain.ids[1]})};
  CHECK(fed_of(stop).finish == FinishReason::stop_string);
  GenerateOptions token = o;
  token.stop_tokens = {plain.ids[2]};
  CHECK(fed_of(token).finish == FinishReason::stop_token);
  GenerateOptions cancel = o;
  int left = 3;
  cancel.on_token = [&](std::int64_t, std::string_view) { return --left > 0; };
  CHECK(fed_of(cancel).finish == FinishReason::cancelled);
}

TEST_CASE("the repetition penalty covers what was read before the prompt",
          "[e2e][engine][session]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const TempDir scratch;
  const auto engine = load_engine(shipped_model_dir());
  const std::vector<std::int64_t> ids = engine->tokenizer().encode(some_text(6));
  const auto context = std::span(ids).first(ids.size() - 4), prompt = std::span(ids).last(4);
  GenerateOptions o = few(8);
  o.sampling.repetition_penalty = 3;

  // By hand: one token at a time, the whole context in every call.
  engine->attach(small_memory());
  engine->read(context);
  engine->read(prompt.first(3));
  engine->read(prompt.last(1));
  std::vector<std::int64_t> history = ids, expected;
  Sampler sampler(o.sampling);
  for (int i = 0; i < 8; ++i) {
    expected.push_back(sampler.sample(engine->logits(), history));
    history.push_back(expected.back());
    engine->step(std::span(expected).last(1));
  }
  const auto answer = [&] { return engine->generate(prompt, o).ids; };
  engine->attach(small_memory());
  engine->read(context);
  const auto state = engine->snapshot();
  CHECK(answer() == expected);
  engine->restore(*state);  // what was generated is no context any more
  CHECK(answer() == expected);
  engine->restore(*state);
  CHECK(engine->ask(prompt, o).ids == expected);

  // and what another process read into a kept memory
  KeptFolder folder;
  folder.dir = scratch / "kept";
  {
    const auto writer = load_engine(shipped_model_dir());
    writer->attach(std::make_shared<EpisodicMemory>(
        create_memory(shipped_model_dir(), folder, small_memory())));
    writer->read(context);
    writer->commit();
  }
  const auto reader = load_engine(shipped_model_dir());
  folder.mode = OpenMode::read;
  reader->attach(folder);
  CHECK(reader->ask(prompt, o).ids == expected);
}

TEST_CASE("stop strings are refused before anything is read", "[e2e][engine][session]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const auto engine = load_engine(shipped_model_dir());
  engine->attach(small_memory());
  GenerateOptions o = few(2);
  o.stop = {"x", ""};
  CHECK(mentions(refusal<ConfigError>([&] { engine->generate("The old man", o); }), "empty"));
  CHECK(engine->tokens() == 0);
}

TEST_CASE("engine: a kept memory belongs to the model with its adapters", "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  const TempDir scratch;
  TinyShape shape;  // the shipped model's
  shape.hidden = 256;
  shape.inner = 512;
  shape.layers = 4;
  shape.dim = 64;
  TinyAdapter(shape).write(scratch / "poet");
  ModelOptions with;
  with.lora = {{scratch / "poet", 0.5}};
  KeptFolder folder;
  folder.dir = scratch / "kept";
  const std::string text = some_text(20);
  std::uint64_t digest = 0;
  {
    const auto engine = load_engine(shipped_model_dir(), with);
    CHECK(engine->model_options().lora.size() == 1);
    const auto memory = engine->attach(folder);
    engine->read(text);
    engine->commit();
    digest = memory->digest();
  }
  {
    const auto plain = load_engine(shipped_model_dir());
    const std::string refused = refusal<ConfigError>([&] { plain->attach(folder); });
    INFO(refused);
    CHECK(mentions(refused, "made with model 'recall-2m6 with adapter poet x 0.5'"));
  }
  ModelOptions louder = with;
  louder.lora[0].scale = 1;
  const auto other = load_engine(shipped_model_dir(), louder);
  CHECK(mentions(refusal<ConfigError>([&] { other->attach(folder); }), "poet x 0.5"));
  // merged it is the same model
  with.merge_lora = true;
  const auto merged = load_engine(shipped_model_dir(), with);
  CHECK(merged->attach(folder)->digest() == digest);
  merged->rewind(0);
  merged->read(text);
  CHECK(merged->ask("Then", few(4)).ids.size() == 4);
}

TEST_CASE("engine: weights rounded when they are loaded still find the pass key", "[e2e][engine]") {
  if (no_model()) EPISODIC_SKIP("models/recall-2m6 is not there");
  ModelOptions rounded;
  rounded.quantize = TensorType::q8_0;
  const auto engine = load_engine(shipped_model_dir(), rounded);
  engine->attach();
  std::string text = "The pass key is 60453. Remember it. 60453 is the pass key.\n";
  for (int i = 0; i < 60; ++i)
    text +=
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
        "again.\n";
  engine->read(text);
  CHECK(
      mentions(engine->ask("\n\nWhat is the pass key?\n\nThe pass key is", few(12)).text, "60453"));
}

}  // namespace engine_test
