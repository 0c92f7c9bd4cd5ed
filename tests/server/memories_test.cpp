// SPDX-License-Identifier: Apache-2.0
// Memories by name: made, read into, answered behind, kept, edited, over HTTP.
#include "support/test.hpp"

#include <fmt/format.h>

#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/session/passages.hpp"
#include "episodic/session/session.hpp"
#include "episodic/session/window_vectors.hpp"
#include "serving.hpp"

using namespace serving;

namespace {

/// Small windows, so that a short text has events.
MemoryConfig small_memory() {
  MemoryConfig config = memory_config_of(shipped());
  config.n_init = 16;
  config.n_local = 128;
  config.n_mem = 96;
  config.chunk = 32;
  return config;
}

/// A server with memories by name over the shipped model.
struct Server {
  explicit Server(const fs::path& dir, std::size_t parallel = 3, std::int64_t commit_tokens = 65536,
                  const fs::path& of = shipped(), std::shared_ptr<WindowVectors> vectors = nullptr)
      : model(load_model(of)), memories(model, dir, small_memory(), 200'000) {
    auto root = std::make_shared<Sequence>(model);
    root->attach(small_memory());
    SchedulerOptions limits;
    limits.parallel = parallel;
    limits.max_tokens = 200'000;
    service =
        std::make_unique<Service>(model, std::make_shared<StartingPoint>(root), &memories, limits);
    service->set_vectors(std::move(vectors));
    ServerOptions options;
    options.commit_tokens = commit_tokens;
    running = std::make_unique<Running>(*service, options);
  }
  std::pair<int, json> post(const std::string& path, const json& body) const {
    return serving::post(*running, ("/v1/" + path).c_str(), body.dump());
  }
  std::pair<int, json> get(const std::string& path) const {
    const auto response = running->client().Get("/v1/" + path);
    REQUIRE(response);
    return {response->status, json::parse(response->body)};
  }
  int remove(const std::string& name) const {
    const auto response = running->client().Delete("/v1/memories/" + name);
    REQUIRE(response);
    return response->status;
  }
  /// A memory with a text in it.
  void make(const std::string& name, const std::string& text) const {
    REQUIRE(post("memories", {{"name", name}}).first == 201);
    REQUIRE(post("memories/" + name + "/read", {{"text", text}}).first == 200);
  }

  std::shared_ptr<const Model> model;
  Memories memories;
  std::unique_ptr<Service> service;
  std::unique_ptr<Running> running;
};

/// What a memory made by hand has after these texts, the first of which opens it.
std::uint64_t digest_of(const std::shared_ptr<const Model>& model, const fs::path& dir,
                        const std::vector<std::vector<std::int64_t>>& texts) {
  Sequence sequence(model);
  auto memory =
      std::make_shared<EpisodicMemory>(create_memory(*model, {.dir = dir}, small_memory()));
  sequence.attach(memory);
  for (const auto& ids : texts) Session(sequence, &model->tokenizer()).prefill(ids);
  sequence.commit();
  return memory->digest();
}

std::uint64_t digest_of(const fs::path& dir) {
  KeepOptions keep;
  keep.dir = dir;
  return EpisodicMemory::open(keep, OpenMode::read).digest();
}

/// The answer that a sequence of its own gives behind a kept memory.
std::vector<std::int64_t> alone(const std::shared_ptr<const Model>& model, const fs::path& dir,
                                const std::string& prompt, std::int64_t n = 6) {
  Sequence sequence(model);
  sequence.attach(
      std::make_shared<EpisodicMemory>(open_memory(*model, {.dir = dir, .mode = OpenMode::read})));
  return Session(sequence, &model->tokenizer())
      .generate(encode_continuation(model->tokenizer(), prompt), few_tokens(n))
      .ids;
}

std::string text_of_answer(const std::pair<int, json>& answer) {
  INFO(answer.second.dump());
  REQUIRE(answer.first == 200);
  return answer.second["choices"][0]["text"];
}

}  // namespace

TEST_CASE("memories: are made, listed and removed by name") {
  const TempDir dir;
  const Server server(dir / "all");
  REQUIRE(server.get("memories").second["data"].empty());
  const auto made = server.post("memories", {{"name", "book"}});
  REQUIRE(made.first == 201);
  REQUIRE(made.second["tokens"] == 0);
  REQUIRE(server.post("memories", {{"name", "book"}}).first == 409);
  REQUIRE(server.post("memories", {{"name", "b"}, {"settings", {{"n_mem", 64}}}}).first == 201);
  REQUIRE(MemoryManifest::read(dir / "all" / "b").config.n_mem == 64);
  for (const json& body :
       {json{{"name", "../x"}}, json{{"name", ".hidden"}}, json{{"name", ""}},
        json{{"name", "a/b"}}, json{{"name", std::string(65, 'a')}}, json{{"name", 5}},
        json::object(), json{{"name", "c"}, {"settings", {{"n_men", 64}}}},
        json{{"name", "c"}, {"settings", {{"n_mem", -1}}}},
        json{{"name", "c"}, {"settings", {{"disk_dir", "/tmp/x"}, {"disk_bytes", 1 << 20}}}},
        json{{"name", "c"}, {"settings", 5}}, json{{"name", "c"}, {"colour", "red"}}}) {
    INFO(body.dump());
    REQUIRE(server.post("memories", body).first == 400);
  }
  const json list = server.get("memories").second["data"];
  REQUIRE(list.size() == 2);
  REQUIRE(list[0]["name"] == "b");
  REQUIRE(server.get("memories/book").second["events"] == 0);
  REQUIRE(server.get("memories/none").first == 404);
  REQUIRE(server.remove("book") == 200);
  REQUIRE(server.remove("book") == 404);
  REQUIRE(!fs::exists(dir / "all" / "book"));
  REQUIRE(server.get("memories").second["data"].size() == 1);
}

TEST_CASE("memories: a text that is read is the memory that reading it alone gives") {
  const TempDir dir;
  const std::string text = program::some_book(60), more = program::some_book(10);
  std::vector<std::int64_t> ids, behind;
  std::uint64_t expected = 0;
  {
    const auto model = load_model(shipped());
    ids = model->tokenizer().encode(text);
    behind = encode_continuation(model->tokenizer(), more);
    expected = digest_of(model, dir / "by_hand", {ids, behind});
  }
  const auto n = static_cast<std::int64_t>(ids.size() + behind.size());
  for (const std::int64_t commit : {64, 65536}) {
    const Server server(dir / fmt::format("all{}", commit), 3, commit);
    server.make("text", text);
    const auto second = server.post("memories/text/read", {{"text", more}});
    REQUIRE(second.second["tokens"] == n);
    REQUIRE(second.second["read_tokens"] == static_cast<std::int64_t>(behind.size()));
    REQUIRE(digest_of(server.memories.folder("text")) == expected);

    // tokens, a body that is the text, and a stream that tells how far it is
    REQUIRE(server.post("memories", {{"name", "ids"}}).first == 201);
    REQUIRE(server.post("memories/ids/read", {{"ids", ids}}).first == 200);
    REQUIRE(server.running->client().Post("/v1/memories/ids/read", more, "text/plain")->status ==
            200);
    REQUIRE(digest_of(server.memories.folder("ids")) == expected);
    REQUIRE(server.post("memories", {{"name", "stream"}}).first == 201);
    const auto stream =
        server.running->client().Post("/v1/memories/stream/read?stream=true", text, "text/plain");
    REQUIRE(mentions(stream->body, "\"done\":true"));
    REQUIRE(mentions(stream->body, fmt::format("\"total_tokens\":{}", ids.size())));
    REQUIRE(mentions(stream->body, "data: [DONE]"));
    REQUIRE(server.get("memories/stream").second["tokens"] ==
            static_cast<std::int64_t>(ids.size()));

    // with `resume` the text is the one that it was made from
    REQUIRE(server.post("memories/stream/read", {{"text", text + more}, {"resume", true}}).first ==
            200);
    REQUIRE(server.get("memories/stream").second["tokens"] > static_cast<std::int64_t>(ids.size()));
    REQUIRE(server.post("memories/stream/read", {{"text", more}, {"resume", true}}).first == 409);
  }
}

TEST_CASE("memories: what cannot be read is refused by name, and leaves the memory free") {
  const TempDir dir;
  const Server server(dir / "all");
  server.make("book", program::some_book(20));
  const std::int64_t tokens = server.get("memories/book").second["tokens"];
  for (const json& body :
       {json::object(), json{{"text", ""}}, json{{"ids", json::array()}},
        json{{"text", "a"}, {"ids", {5}}}, json{{"ids", {-1}}}, json{{"ids", {1 << 30}}},
        json{{"ids", {"a"}}}, json{{"text", 5}}, json{{"text", "a"}, {"loud", true}},
        json{{"text", "a"}, {"resume", 1}}}) {
    INFO(body.dump());
    REQUIRE(server.post("memories/book/read", body).first == 400);
  }
  REQUIRE(server.post("memories/none/read", {{"text", "a"}}).first == 404);
  REQUIRE(server.get("memories/book").second["tokens"] == tokens);
  REQUIRE(server.get("memories/book").second["written"] == false);
}

TEST_CASE("memories: answers begin behind them, several at once, and change nothing") {
  const TempDir dir;
  const Server server(dir / "all");
  server.make("a", program::some_book(60));
  server.make("b", "The old man walked along the river. " + program::some_book(30));
  const std::uint64_t before = digest_of(server.memories.folder("a"));
  const std::vector<std::string> prompts{"The king said", "And then the", "Nobody knew why the"};
  std::vector<std::thread> clients;
  std::vector<std::pair<int, json>> answers(9);
  for (std::size_t i = 0; i < answers.size(); ++i)
    clients.emplace_back([&, i] {
      answers[i] = server.post("completions", {{"prompt", prompts[i % 3]},
                                               {"memory", i / 3 == 0   ? "a"
                                                          : i / 3 == 1 ? "b"
                                                                       : ""}});
    });
  for (std::thread& client : clients) client.join();
  const Tokenizer& tokenizer = server.model->tokenizer();
  for (std::size_t i = 0; i < 6; ++i)
    REQUIRE(text_of_answer(answers[i]) ==
            tokenizer.decode(
                alone(server.model, server.memories.folder(i < 3 ? "a" : "b"), prompts[i % 3])));
  for (std::size_t i = 6; i < 9; ++i) REQUIRE(!text_of_answer(answers[i]).empty());
  REQUIRE(digest_of(server.memories.folder("a")) == before);

  // the header says it too; a memory that is not there is none
  const auto named =
      serving::post(*server.running, "/v1/completions", json{{"prompt", prompts[0]}}.dump(),
                    {{"X-Episodic-Memory", "a"}});
  REQUIRE(text_of_answer(named) == text_of_answer(answers[0]));
  REQUIRE(server.post("completions", {{"prompt", "a"}, {"memory", "none"}}).first == 404);
  REQUIRE(server.post("completions", {{"prompt", "a"}, {"memory", "../a"}}).first == 400);
}

TEST_CASE("memories: an answer that is stored is what the next one begins behind") {
  const TempDir dir;
  const Server server(dir / "all");
  server.make("talk", program::some_book(20));
  const std::int64_t before = server.get("memories/talk").second["tokens"];
  const auto first = server.post(
      "completions", {{"prompt", "The king said"}, {"memory", "talk"}, {"store", true}});
  const std::string said = text_of_answer(first);
  const std::int64_t usage = first.second["usage"]["total_tokens"];
  REQUIRE(server.get("memories/talk").second["tokens"] == before + usage);

  // it is what one sequence of all of it would be
  const auto& model = server.model;
  Sequence sequence(model);
  auto memory = std::make_shared<EpisodicMemory>(
      create_memory(*model, {.dir = dir / "hand"}, small_memory()));
  sequence.attach(memory);
  Session session(sequence, &model->tokenizer());
  session.prefill(model->tokenizer().encode(program::some_book(20)));
  GenerateOptions options = few_tokens();
  options.feed_last = true;
  const std::vector<std::int64_t> ids = encode_continuation(model->tokenizer(), "The king said");
  session.prefill(std::span(ids).first(ids.size() - 1));
  REQUIRE(session.generate(std::vector<std::int64_t>{ids.back()}, options).text == said);
  sequence.commit();
  REQUIRE(digest_of(server.memories.folder("talk")) == memory->digest());

  const auto next = server.post("completions", {{"prompt", "And then"}, {"memory", "talk"}});
  REQUIRE(text_of_answer(next) ==
          model->tokenizer().decode(alone(model, dir / "hand", "And then")));
  // OpenAI's clients say it without a memory, and mean something else
  REQUIRE(server.post("completions", {{"prompt", "a"}, {"store", true}}).first == 200);
}

TEST_CASE("memories: a memory is free once the client hears that its turn is kept") {
  const TempDir dir;
  const Server server(dir / "all");
  server.make("talk", "The old man walked along the river.");
  std::int64_t tokens = server.get("memories/talk").second["tokens"];
  const json body{{"prompt", " And then"}, {"memory", "talk"},
                  {"store", true},         {"max_tokens", 2},
                  {"stream", true},        {"stream_options", {{"include_usage", true}}}};
  for (int i = 0; i < 20; ++i) {
    Raw client(*server.running);
    REQUIRE(client.send(post_text(body)));
    const std::string said = client.receive("data: [DONE]");  // and no longer: the next one comes
    INFO(said);
    REQUIRE(mentions(said, "\"usage\""));
    const std::int64_t now = server.get("memories/talk").second["tokens"];
    REQUIRE(now > tokens);
    tokens = now;
  }
  // a client that leaves in the middle of a step frees it too
  for (int i = 0; i < 10; ++i) {
    json longer = body;
    longer["max_tokens"] = 500;
    longer["ignore_eos"] = true;
    Raw client(*server.running);
    REQUIRE(client.send(post_text(longer)));
    client.receive("data: ");
    client.reset();
    REQUIRE(comes([&] { return server.get("memories/talk").second["written"] == false; }));
    REQUIRE(server.get("memories/talk").second["tokens"] == tokens);
  }
}

TEST_CASE("memories: of many that are asked for, a few stay open, and all answer") {
  const TempDir dir;
  const Server server(dir / "all");
  std::vector<std::string> said;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 12; ++i) {
      const std::string name = fmt::format("m{}", i);
      if (round == 0)
        server.make(name, fmt::format("Door {} was closed. ", i) + program::some_book(8));
      const std::string text =
          text_of_answer(server.post("completions", {{"prompt", "The king"}, {"memory", name}}));
      if (round == 0)
        said.push_back(text);
      else
        REQUIRE(text == said[static_cast<std::size_t>(i)]);
      REQUIRE(server.memories.open().size() <= 8);
    }
  REQUIRE(server.memories.open().size() == 8);
}

TEST_CASE("memories: one writer at a time; who leaves or fails leaves the last commit") {
  const TempDir dir;
  Server server(dir / "all", 3, 1024);
  server.make("book", program::some_book(20));
  const std::int64_t tokens = server.get("memories/book").second["tokens"];
  std::string long_text;
  for (int i = 0; i < 60; ++i) long_text += program::some_book(60);
  {
    Raw client(*server.running);
    const std::string body = json{{"text", long_text}}.dump();
    client.send("POST /v1/memories/book/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\nContent-Type: application/json\r\n\r\n" + body);
    REQUIRE(comes([&] { return server.get("memories/book").second["tokens"] > tokens; }));
    // others read it at its last commit, and cannot write
    REQUIRE(server.post("completions", {{"prompt", "The king"}, {"memory", "book"}}).first == 200);
    const auto locked = server.post("memories/book/read", {{"text", "more"}});
    REQUIRE(locked.first == 409);
    REQUIRE(locked.second["error"]["code"] == "memory_locked");
    REQUIRE(
        server.post("completions", {{"prompt", "a"}, {"memory", "book"}, {"store", true}}).first ==
        409);
    REQUIRE(server.remove("book") == 409);
    REQUIRE(server.get("memories/book").second["written"] == true);
    client.reset();
  }
  REQUIRE(comes([&] { return server.get("memories/book").second["written"] == false; }));
  const std::int64_t now = server.get("memories/book").second["tokens"];
  REQUIRE(now > tokens);
  REQUIRE((now - tokens) % 1024 == 0);
  REQUIRE(server.post("memories/book/verify", json::object()).second["ok"] == true);
  // a place is free again
  REQUIRE(server.post("memories/book/read", {{"text", "The end."}}).first == 200);
  REQUIRE(comes([&] { return server.service->scheduler().counters().places == 0; }));
}

TEST_CASE("memories: fork, forget, pin, rewind and verify over HTTP") {
  const TempDir dir;
  const Server server(dir / "all");
  server.make("book", program::some_book(60));
  const json events = server.get("memories/book/events?limit=1000").second;
  REQUIRE(events["data"].size() == events["events"].get<std::size_t>());
  REQUIRE(events["data"].size() > 4);
  std::string whole;
  for (const json& e : events["data"]) whole += e["text"].get<std::string>();
  REQUIRE(mentions(program::some_book(60), whole.substr(0, 60)));
  REQUIRE(server.get("memories/book/events?first=2&limit=1").second["data"][0]["event"] == 2);
  REQUIRE(server.get("memories/book/events?first=x").first == 400);

  REQUIRE(server.post("memories/book/fork", {{"name", "copy"}}).first == 201);
  REQUIRE(server.post("memories/book/fork", {{"name", "copy"}}).first == 409);
  REQUIRE(digest_of(server.memories.folder("copy")) == digest_of(server.memories.folder("book")));

  REQUIRE(server.post("memories/copy/pin", {{"event", 1}}).first == 200);
  REQUIRE(server.get("memories/copy/events?first=1&limit=1").second["data"][0]["pinned"] == true);
  REQUIRE(server.post("memories/copy/forget", {{"event", 1}}).first == 400);  // it is pinned
  REQUIRE(server.post("memories/copy/pin", {{"event", 1}, {"pinned", false}}).first == 200);
  const auto forgotten = server.post("memories/copy/forget", {{"event", 1}});
  REQUIRE(forgotten.first == 200);
  REQUIRE(forgotten.second["forgotten"] == json{1});
  const json& third = events["data"][3];
  REQUIRE(server.post("memories/copy/forget", {{"tokens", {third["start"], third["end"]}}})
              .second["forgotten"] == json{3});
  REQUIRE(server.get("memories/copy/events?first=3&limit=1").second["data"][0]["forgotten"] ==
          true);
  for (const json& body : {json::object(), json{{"event", -1}}, json{{"event", 100000}},
                           json{{"tokens", {5, 5}}}, json{{"tokens", 5}}, json{{"event", "a"}}}) {
    INFO(body.dump());
    REQUIRE(server.post("memories/copy/forget", body).first == 400);
  }
  REQUIRE(digest_of(server.memories.folder("copy")) != digest_of(server.memories.folder("book")));

  const std::int64_t tokens = server.get("memories/book").second["tokens"];
  REQUIRE(server.post("memories/book/rewind", {{"tokens", tokens - 40}}).first == 200);
  REQUIRE(server.get("memories/book").second["tokens"] == tokens - 40);
  REQUIRE(server.post("memories/book/rewind", {{"tokens", tokens}}).first == 400);
  REQUIRE(server.post("memories/book/verify", json::object()).second["damages"].empty());
  // a damaged one says so, and is no answer's start
  for (const auto& entry : fs::directory_iterator(server.memories.folder("book")))
    if (entry.path().extension() == ".bin" || entry.file_size() > 4096)
      fs::resize_file(entry.path(), entry.file_size() / 2);
  REQUIRE(server.post("memories/book/verify", json::object()).second["ok"] == false);
}

TEST_CASE("memories: an answer tells what it recalled, where it is asked to") {
  const TempDir dir;
  const Server server(dir / "all");
  server.make("book", program::some_book(120));
  const json body{{"prompt", "The king said that the"},
                  {"memory", "book"},
                  {"include", {"recall"}},
                  {"max_tokens", 3}};
  const json recalled = server.post("completions", body).second["choices"][0]["recalled"];
  REQUIRE(!recalled.empty());
  double total = 0;
  for (const json& e : recalled) {
    REQUIRE(e["start"] < e["end"]);
    REQUIRE(!e["text"].get<std::string>().empty());
    REQUIRE(!e["layers"].empty());
    total += e.value("attention", 0.0);
  }
  REQUIRE(total > 0.99);
  REQUIRE(total < 1.01);
  json stream = body;
  stream["stream"] = true;
  const auto events =
      server.running->client().Post("/v1/completions", stream.dump(), "application/json");
  REQUIRE(mentions(events->body, "\"recalled\":[{\"event\":"));
  REQUIRE(server.post("completions", {{"prompt", "a"}, {"include", {"weather"}}}).first == 400);
  REQUIRE(!server.post("completions", {{"prompt", "a"}}).second["choices"][0].contains("recalled"));
}

TEST_CASE("memories: passages are found for a question and read again before it") {
  const TempDir dir;
  make_chat_model(dir / "model");
  const Server server(dir / "all", 3, 65536, dir / "model");
  server.make("book", program::some_book(60) +
                          "\nThe door code of Rosalind is 48151. Remember it.\n" +
                          program::some_book(120));
  const json body{{"prompt", "What is the door code of Rosalind? It is"},
                  {"memory", "book"},
                  {"include", {"recall"}},
                  {"reread", 2},
                  {"max_tokens", 3}};
  const auto [status, answer] = server.post("completions", body);
  REQUIRE(status == 200);
  const json passages = answer["choices"][0]["passages"];
  REQUIRE(!passages.empty());
  REQUIRE(passages.size() <= 2);
  REQUIRE(mentions(passages[0]["text"].get<std::string>(), "48151"));
  for (const json& p : passages) {
    REQUIRE(p["start"] < p["end"]);
    REQUIRE(p["score"] > 0);
  }
  json plain = body;
  plain.erase("reread");
  const json without = server.post("completions", plain).second;
  REQUIRE(!without["choices"][0].contains("passages"));
  // they are read, and not kept
  const auto prompt = [](const json& a) { return a["usage"]["prompt_tokens"].get<int>(); };
  REQUIRE(prompt(answer) > prompt(without) + 40);
  const json again = server.post("completions", body).second["choices"][0];
  REQUIRE(again["text"] == answer["choices"][0]["text"]);
  REQUIRE(again["passages"] == passages);

  const json chat{
      {"messages", {{{"role", "user"}, {"content", "What is the door code of Rosalind?"}}}},
      {"memory", "book"},
      {"include", {"recall"}},
      {"reread", 1},
      {"max_tokens", 3}};
  const json said = server.post("chat/completions", chat).second;
  REQUIRE(mentions(said["choices"][0]["passages"][0]["text"].get<std::string>(), "48151"));
  const json message{{"messages", chat["messages"]},
                     {"memory", "book"},
                     {"include", {"recall"}},
                     {"reread", 1},
                     {"max_tokens", 3},
                     {"model", "m"}};
  REQUIRE(mentions(
      server.post("messages", message).second["passages"][0]["text"].get<std::string>(), "48151"));

  for (const json& wrong : {json(-1), json(17), json("2"), json(1.5)}) {
    json asked = body;
    asked["reread"] = wrong;
    const auto [refused, error] = server.post("completions", asked);
    REQUIRE(refused == 400);
    REQUIRE(error["error"]["param"] == "reread");
  }
  json chosen = body;
  chosen["rerank"] = 6;
  const json best = server.post("completions", chosen).second["choices"][0]["passages"];
  REQUIRE(!best.empty());
  REQUIRE(best.size() <= 2);
  REQUIRE(best[0]["score"] == 1.0);  // of the likeliest question
  for (const json& wrong : {json(-1), json(65), json("2"), json(1.5)}) {
    json asked = body;
    asked["rerank"] = wrong;
    REQUIRE(server.post("completions", asked).second["error"]["param"] == "rerank");
  }
  chosen.erase("reread");
  REQUIRE(server.post("completions", chosen).second["error"]["param"] == "rerank");

  json stored = body;
  stored["store"] = true;
  REQUIRE(server.post("completions", stored).second["error"]["param"] == "reread");
  json nothing = body;  // behind no memory nothing is found
  nothing.erase("memory");
  REQUIRE(!server.post("completions", nothing).second["choices"][0].contains("passages"));
}

TEST_CASE("memories: passages are enough alone where the model is sure of them") {
  const TempDir dir;
  make_chat_model(dir / "model");
  const Server server(dir / "all", 3, 65536, dir / "model");
  server.make("book", program::some_book(60) +
                          "\nThe door code of Rosalind is 48151. Remember it.\n" +
                          program::some_book(120));
  json body{{"messages", {{{"role", "user"}, {"content", "What is the door code of Rosalind?"}}}},
            {"memory", "book"},
            {"include", {"recall"}},
            {"reread", "sure"},
            {"max_tokens", 8},
            {"temperature", 0}};
  const auto answer_to = [&](const char* content, const json& reread) {
    body["messages"][0]["content"] = content;
    body["reread"] = reread;
    const auto [status, answer] = server.post("chat/completions", body);
    CAPTURE(answer.dump());
    REQUIRE(status == 200);
    json choice = answer["choices"][0];
    choice["prompt_tokens"] = answer["usage"]["prompt_tokens"];
    return choice;
  };
  const json sure = answer_to("What is the door code of Rosalind?", "sure");
  REQUIRE(sure["passages_only"] == true);
  REQUIRE(sure["passages"][0]["lead"] >= 0.7);
  REQUIRE(mentions(sure["passages"][0]["text"].get<std::string>(), "48151"));
  REQUIRE(sure["recalled"].empty());
  const auto same = [](const json& a,
                       const json& b) {  // but for what a prompt read before leaves out
    for (const char* field : {"message", "passages", "passages_only", "prompt_tokens"})
      REQUIRE(a[field] == b[field]);
  };
  same(answer_to("What is the door code of Rosalind?", "alone"), sure);
  const json behind = answer_to("What is the door code of Rosalind?", 3);
  REQUIRE(behind["passages_only"] == false);
  REQUIRE(!behind["recalled"].empty());
  // what no place of the text answers is asked behind the memory
  const json vague = answer_to("Tell me more.", "sure");
  REQUIRE(vague["passages_only"] == false);
  same(vague, answer_to("Tell me more.", 3));
  REQUIRE(answer_to("Tell me more.", "alone")["passages_only"] == true);

  body["memory"] = nullptr;
  REQUIRE(!answer_to("What is the door code of Rosalind?", "sure").contains("passages"));
  body["memory"] = "book";
  body["reread"] = "sure";
  const auto refused = [&](const char* field, const json& value, const char* param) {
    json asked = body;
    asked[field] = value;
    const auto [status, error] = server.post("chat/completions", asked);
    REQUIRE(status == 400);
    REQUIRE(error["error"]["param"] == param);
  };
  refused("reread", "all", "reread");
  refused("rerank", 8, "rerank");
  refused("store", true, "reread");
  // a completion has them before its prompt
  const json completion{
      {"prompt", "What is the door code of Rosalind?\n\nThe door code of Rosalind is"},
      {"memory", "book"},
      {"include", {"recall"}},
      {"reread", "alone"},
      {"max_tokens", 12},
      {"temperature", 0}};
  const auto [status, written] = server.post("completions", completion);
  REQUIRE(status == 200);
  REQUIRE(mentions(written["choices"][0]["text"].get<std::string>(), "48151"));
  REQUIRE(written["usage"]["prompt_tokens"] < behind["prompt_tokens"]);
}

namespace {

std::shared_ptr<WindowVectors> tiny_vectors() {
  return std::make_shared<WindowVectors>(std::make_shared<const SentenceEncoder>(
      SentenceEncoder::open(fs::path(EPISODIC_SOURCE_DIR) / "tests/model/sentence_encoder/tiny")));
}

/// Passages of a kept memory that a finder of its own finds.
std::vector<Passage> plain_passages(const std::shared_ptr<const Model>& model, const fs::path& dir,
                                    const std::string& question, std::int64_t count) {
  const EpisodicMemory memory = open_memory(*model, {.dir = dir, .mode = OpenMode::read});
  PassageFinder finder(model);
  finder.set_vectors(tiny_vectors());
  finder.read(memory, memory.token_ids(0, memory.tokens()));
  return finder.find(question, {.count = count});
}

double metric(const Server& server, const std::string& name) {
  const std::string text = server.running->client().Get("/metrics")->body;
  const std::size_t at = text.find("\n" + name + " ");
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + name.size() + 2));
}

}  // namespace

TEST_CASE("memories: an encoder finds passages too, and reads each text once") {
  const TempDir dir;
  const std::string text = program::some_book(60) +
                           "\nThe door code of Rosalind is 48151. Remember it.\n" +
                           program::some_book(120);
  const std::string question = "What is the door code of Rosalind? It is";
  const json body{{"prompt", question},
                  {"memory", "book"},
                  {"include", {"recall"}},
                  {"reread", 2},
                  {"max_tokens", 3}};
  json found;
  json without;
  {
    const Server server(dir / "all");
    server.make("book", text);
    without = server.post("completions", body).second["choices"][0]["passages"];
    REQUIRE(!mentions(server.running->client().Get("/metrics")->body, "episodic_encoder"));
  }
  {
    const Server server(dir / "all", 3, 65536, shipped(), tiny_vectors());
    REQUIRE(metric(server, "episodic_encoder_windows_total") == 0);
    server.make("copy", text);
    REQUIRE(server.post("memories/book/fork", {{"name", "branch"}}).first == 201);
    json asked = body;
    asked["memory"] = "copy";
    found = server.post("completions", asked).second["choices"][0]["passages"];
    const std::vector<Passage> expected =
        plain_passages(server.model, dir / "all" / "copy", question, 2);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      REQUIRE(found[i]["start"] == expected[i].tokens.start);
      REQUIRE(found[i]["end"] == expected[i].tokens.end);
      REQUIRE(found[i]["text"] == expected[i].text);
      REQUIRE(found[i]["score"].get<double>() == Approx(expected[i].score));
    }
    REQUIRE(found != without);  // it has a voice
    const double encoded = metric(server, "episodic_encoder_windows_total");
    REQUIRE(encoded > 20);
    REQUIRE(metric(server, "episodic_encoder_bytes") > encoded * 2);
    // the same text elsewhere, and many at once: nothing is encoded again
    asked["memory"] = "branch";
    std::vector<std::thread> clients;
    std::vector<json> answers(4);
    for (std::size_t i = 0; i < answers.size(); ++i)
      clients.emplace_back([&, i] { answers[i] = server.post("completions", asked).second; });
    for (std::thread& client : clients) client.join();
    for (const json& a : answers) REQUIRE(a["choices"][0]["passages"] == found);
    REQUIRE(metric(server, "episodic_encoder_windows_total") == encoded);
    REQUIRE(metric(server, "episodic_encoder_windows_reused_total") >= encoded);
    REQUIRE(metric(server, "episodic_encoder_windows_refused_total") == 0);
    const json verified = server.post("memories/branch/verify", json::object()).second;
    REQUIRE(verified["ok"] == true);
    REQUIRE(verified["unnamed"].empty());
  }
  {  // nor after a restart
    const Server server(dir / "all", 3, 65536, shipped(), tiny_vectors());
    json asked = body;
    asked["memory"] = "branch";
    REQUIRE(server.post("completions", asked).second["choices"][0]["passages"] == found);
    REQUIRE(metric(server, "episodic_encoder_windows_total") == 0);
    // what is forgotten is in no passage, and no file of the folder has a vector of it
    const auto caches = [&] {
      std::size_t n = 0;
      for (const auto& file : fs::directory_iterator(dir / "all" / "branch"))
        n += is_cache_file(file.path().filename().string()) ? 1 : 0;
      return n;
    };
    REQUIRE(caches() == 1);
    const json place = {found[0]["start"], found[0]["end"]};
    REQUIRE(server.post("memories/branch/forget", {{"tokens", place}}).first == 200);
    REQUIRE(caches() == 0);
    const json left = server.post("completions", asked).second["choices"][0]["passages"];
    REQUIRE(!left.empty());
    for (const json& p : left) REQUIRE((p["end"] <= place[0] || p["start"] >= place[1]));
  }
}

TEST_CASE("memories: while an encoder reads a text, answers begin behind it") {
  const TempDir dir;
  Server server(dir / "all", 3, 65536, shipped(), tiny_vectors());
  server.make("book", program::some_book(300));
  const std::shared_ptr<StartingPoint> start = server.memories.start("book");
  const auto vectors = tiny_vectors();
  int pieces = 0;
  bool began = false;
  const auto wanted = [&] {  // between two pieces of the text
    if (pieces++ > 0) return true;
    std::thread other([&] {
      const std::shared_ptr<Sequence> mine = start->sequence();
      Session(*mine, &server.model->tokenizer())
          .prefill(encode_continuation(server.model->tokenizer(), "The king said"));
      began = mine->tokens() > start->tokens();
    });
    other.join();  // never, were the memory kept from it
    return true;
  };
  const std::vector<Passage> found =
      start->passages(PassageUse::behind_memory, "Who spoke?", {}, vectors, wanted).passages;
  REQUIRE(began);
  REQUIRE(pieces > 3);
  REQUIRE(found.size() == 3);
  REQUIRE(vectors->counters().encoded > 40);

  // a client that goes ends it; what was encoded is not lost
  server.make("other", program::some_book(300) + " And so it went on.");
  const auto behind = server.memories.start("other");
  const auto fresh = tiny_vectors();
  int looks = 0;
  const auto spoken = [&](const std::function<bool()>& goes_on) {
    return behind->passages(PassageUse::behind_memory, "Who spoke?", {}, fresh, goes_on).passages;
  };
  REQUIRE(spoken([&] { return ++looks < 2; }).empty());
  const std::int64_t encoded = fresh->counters().encoded;
  REQUIRE(encoded > 0);
  REQUIRE(spoken({}).size() == 3);
  REQUIRE(fresh->counters().encoded > encoded);
  REQUIRE(fresh->counters().encoded == fresh->counters().vectors);  // none twice
  // and a request is told why it has none
  server.make("third", program::some_book(300) + " And so it ended.");
  Request request;
  request.prompt = "Who spoke?";
  request.memory = "third";
  request.reread = 2;
  try {
    server.service->prepare(request, [] { return false; });
    FAIL("it was prepared");
  } catch (const RequestError& e) {
    REQUIRE(e.status() == 503);
    REQUIRE(std::string(e.what()) == "the client has gone");
  }
  server.service->scheduler().stop();
  REQUIRE_THROWS_AS(server.service->prepare(request), RequestError);
}

TEST_CASE("memories: a server without any says so") {
  const auto engine = engine_of(shipped());
  Service service(*engine);
  const Running running(service);
  REQUIRE(post(running, "/v1/memories", R"({"name": "a"})").first == 404);
  const auto [status, body] = post(running, "/v1/completions", R"({"prompt": "a", "memory": "b"})");
  REQUIRE(status == 404);
  REQUIRE(mentions(body["error"]["message"].get<std::string>(), "without a folder"));
}

TEST_CASE("serve: several choices are answers with seeds of their own") {
  const TempDir dir;
  const Server server(dir / "all");
  const json body{{"prompt", "The king said"}, {"n", 3}, {"seed", 7}, {"temperature", 1}};
  const auto [status, whole] = server.post("completions", body);
  REQUIRE(status == 200);
  REQUIRE(whole["choices"].size() == 3);
  std::int64_t written = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    json alone = body;
    alone.erase("n");
    alone["seed"] = 7 + i;
    const json one = server.post("completions", alone).second;
    REQUIRE(whole["choices"][i]["index"] == i);
    REQUIRE(whole["choices"][i]["text"] == one["choices"][0]["text"]);
    written += one["usage"]["completion_tokens"].get<std::int64_t>();
  }
  REQUIRE(whole["usage"]["completion_tokens"] == written);
  json stream = body;
  stream["stream"] = true;
  const auto events =
      server.running->client().Post("/v1/completions", stream.dump(), "application/json");
  std::vector<std::string> texts(3);
  std::size_t ends = 0;
  for (std::size_t at = 0; (at = events->body.find("data: {", at)) != std::string::npos; ++at) {
    const std::string line = events->body.substr(at + 6, events->body.find('\n', at) - at - 6);
    const json choice = json::parse(line)["choices"][0];
    texts[choice["index"]] += choice["text"].get<std::string>();
    ends += choice["finish_reason"].is_null() ? 0 : 1;
  }
  REQUIRE(ends == 3);
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(texts[i] == whole["choices"][i]["text"]);
  for (const json& n : {json(0), json(17), json("2"), json(1.5)}) {
    json bad = body;
    bad["n"] = n;
    REQUIRE(server.post("completions", bad).first == 400);
  }
  server.make("book", "A text.");
  json stored = body;
  stored["memory"] = "book";
  stored["store"] = true;
  REQUIRE(server.post("completions", stored).first == 400);
}
