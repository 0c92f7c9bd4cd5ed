// SPDX-License-Identifier: Apache-2.0
// /metrics and /health: what they say, in what form, and that nothing keeps them waiting.
#include "support/test.hpp"

#include <fmt/format.h>

#include <cmath>

#include "episodic/base/error.hpp"
#include "exposition.hpp"
#include "protocol/exposition.hpp"
#include "serving.hpp"
#include "support/refusal.hpp"

using namespace serving;

namespace {

using Families = std::map<std::string, exposition::Family>;

Families families_of(const Running& running) {
  const auto response = running.client().Get("/metrics");
  REQUIRE(response);
  REQUIRE(response->status == 200);
  REQUIRE(response->get_header_value("Content-Type").starts_with("text/plain; version=0.0.4"));
  INFO(response->body);
  return exposition::Reader(response->body).read();
}

/// The value of a family that has one, or of the part of it with this label.
double value_of(const Families& families, const std::string& name, const std::string& label = "",
                const std::string& value = "") {
  INFO(name);
  REQUIRE(families.count(name) == 1);
  for (const auto& [sample, what] : families.at(name).samples) {
    const auto& [labels, number] = what;
    if (label.empty() ? sample == name || sample == name + "_count"
                      : labels.count(label) > 0 && labels.at(label) == value)
      return number;
  }
  FAIL("no such value");
  return 0;
}

bool reads(const std::string& text) {
  try {
    exposition::Reader(text).read();
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("metrics: the reader of the tests refuses what breaks a rule") {
  const std::string head = "# HELP a_total x\n# TYPE a_total counter\n";
  REQUIRE(reads(head + "a_total 1\n"));
  REQUIRE(reads(head + "a_total{l=\"v\\\"\\\\\\n\",m=\"\"} 1.5e3\n"));
  for (const std::string& text :
       {std::string("a 1\n"), head, head + "a_total 1", head + "a_total x\n", head + "a_total\n",
        head + "b_total 1\n", head + "a_total -1\n", head + "a_total NaN\n",
        head + "a_total 1\na_total 1\n", head + "a_total{l=\"v} 1\n", head + "a_total{l=v} 1\n",
        head + "a_total{l=\"\\t\"} 1\n", head + "a_total{l=\"v\",l=\"w\"} 1\n",
        head + "a_total 1\n" + head + "a_total 1\n",
        std::string("# HELP a x\n# TYPE a counter\na 1\n"),
        std::string("# HELP a_total x\n# TYPE a_total gauge\na_total 1\n"),
        std::string("# HELP 1a x\n# TYPE 1a gauge\n1a 1\n"),
        std::string("# HELP a\n# TYPE a gauge\na 1\n"),
        std::string("# TYPE a gauge\n# HELP a x\na 1\n")}) {
    INFO(text);
    REQUIRE(!reads(text));
  }
  const auto histogram = [](const std::string& rest) {
    return reads("# HELP h x\n# TYPE h histogram\n" + rest);
  };
  REQUIRE(histogram("h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n"));
  for (const char* rest : {"h_bucket{le=\"1\"} 1\nh_sum 3\nh_count 1\n",
                           "h_bucket{le=\"1\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
                           "h_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 1\n",
                           "h_bucket{le=\"+Inf\"} 2\nh_count 2\n", "h 2\n"})
    REQUIRE(!histogram(rest));
}

TEST_CASE("metrics: ranges hold their upper ends, and the form escapes what it must") {
  Histogram histogram({1, 2.5});
  for (const double value : {0.5, 1.0, 1.5, 2.5, 99.0}) histogram.add(value);
  REQUIRE(histogram.counts() == std::vector<std::uint64_t>{2, 2, 1});
  Exposition out("model_name", "a\"b\\c\nd");
  out.histogram("h_seconds", "Help.", histogram);
  out.counter("n_total", "Help.", 12345678901.0);
  out.gauge("g", "Help.", 0.25);
  const Families families = exposition::Reader(out.text()).read();
  REQUIRE(value_of(families, "h_seconds", "le", "1") == 2);
  REQUIRE(value_of(families, "h_seconds", "le", "2.5") == 4);
  REQUIRE(value_of(families, "h_seconds", "le", "+Inf") == 5);
  REQUIRE(value_of(families, "h_seconds") == 5);
  REQUIRE(value_of(families, "n_total", "model_name", "a\"b\\c\nd") == 12345678901.0);
  REQUIRE(out.text().find("n_total{model_name=\"a\\\"b\\\\c\\nd\"} 12345678901\n") !=
          std::string::npos);
  REQUIRE(value_of(families, "g") == 0.25);
}

TEST_CASE("metrics: they count what was done, under vLLM's names too") {
  const TempDir dir;
  const auto engine = engine_of(shipped());
  engine->read(program::some_book(400));
  Memories memories(engine->shared_model(), dir / "memories", MemoryConfig{}, 10'000);
  const auto start = std::make_shared<StartingPoint>(
      std::shared_ptr<Sequence>(std::shared_ptr<void>(), engine.get()), 10'000);
  SchedulerOptions limits;
  limits.parallel = 2;
  Service service(engine->shared_model(), start, &memories, limits);
  const Running running(service);
  const Families before = families_of(running);
  REQUIRE(value_of(before, "episodic_requests_total") == 0);
  REQUIRE(value_of(before, "vllm:time_to_first_token_seconds") == 0);
  REQUIRE(value_of(before, "episodic_events") > 0);
  REQUIRE(value_of(before, "episodic_memory_tokens") == start->tokens());
  REQUIRE(value_of(before, "episodic_tier_bytes", "tier", "host") > 0);
  REQUIRE(value_of(before, "episodic_memories_open") == 0);
  REQUIRE(value_of(before, "episodic_resident_bytes") > (10 << 20));

  const std::string prompt = "\n\nThe king said that the pass key is";
  const json short_one{{"prompt", prompt}, {"max_tokens", 5}, {"ignore_eos", true}};
  const auto [status, first] = post(running, "/v1/completions", short_one.dump());
  REQUIRE(status == 200);
  REQUIRE(post(running, "/v1/completions", short_one.dump()).first == 200);  // the same, kept
  REQUIRE(post(running, "/v1/memories", R"({"name": "book"})").first == 201);
  REQUIRE(post(running, "/v1/memories/book/read", json{{"text", "The king said."}}.dump()).first ==
          200);
  REQUIRE(post(running, "/v1/completions",
               json{{"prompt", "a"}, {"memory", "book"}, {"ignore_eos", true}}.dump())
              .first == 200);
  const Families after = families_of(running);
  const double each = first["usage"]["prompt_tokens"];
  REQUIRE(value_of(after, "episodic_requests_total") == 4);
  for (const char* name : {"episodic_prompt_tokens_total", "vllm:prompt_tokens_total",
                           "vllm:prefix_cache_queries_total"})
    REQUIRE(value_of(after, name, name[0] == 'v' ? "model_name" : "", "tiny") > 2 * each);
  for (const char* name : {"episodic_prompt_tokens_reused_total", "vllm:prefix_cache_hits_total"})
    REQUIRE(value_of(after, name, name[0] == 'v' ? "model_name" : "", "tiny") == each - 1);
  REQUIRE(value_of(after, "vllm:generation_tokens_total") == 5 + 5 + 6);
  REQUIRE(value_of(after, "vllm:request_success_total", "finished_reason", "length") == 3);
  REQUIRE(value_of(after, "vllm:request_success_total", "finished_reason", "abort") == 0);
  // a text that is read is no answer
  for (const char* name :
       {"vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds", "vllm:request_time_per_output_token_seconds"})
    REQUIRE(value_of(after, name) == 3);
  REQUIRE(value_of(after, "episodic_steps_total") >= 16);
  REQUIRE(value_of(after, "episodic_recalled_events_total") > 0);
  REQUIRE(value_of(after, "episodic_event_reads_total") > 0);
  REQUIRE(value_of(after, "episodic_memories_open") == 1);
  REQUIRE(value_of(after, "episodic_sequences") == 2);
  REQUIRE(value_of(after, "vllm:num_requests_running") == 0);
  REQUIRE(value_of(after, "vllm:num_requests_waiting") == 0);
  // what was there before keeps its name, and counters never fall
  for (const auto& [name, family] : before) {
    REQUIRE(after.count(name) == 1);
    if (family.type == "counter" && family.samples.size() == 1)
      REQUIRE(value_of(after, name) >= value_of(before, name));
  }
}

TEST_CASE("metrics: both are answered at once while prompts are read and answers are written") {
  const auto engine = engine_of(shipped());
  Service service(*engine);
  const Running running(service);
  Raw busy(running), waiting(running);
  busy.send(post_text({{"prompt", json(std::vector<int>(400'000, 5))}, {"max_tokens", 1}}));
  REQUIRE(comes([&] { return service.scheduler().counters().running == 1; }));
  waiting.send(post_text({{"prompt", "a"}}));
  REQUIRE(comes([&] { return service.scheduler().counters().waiting == 1; }));
  const auto since = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    REQUIRE(running.healthy());
    const Families families = families_of(running);
    REQUIRE(value_of(families, "vllm:num_requests_running") == 1);
    REQUIRE(value_of(families, "vllm:num_requests_waiting") == 1);
  }
  // far less than the prompt takes, on a busy machine too
  REQUIRE(std::chrono::steady_clock::now() - since < std::chrono::seconds(20));
  REQUIRE(service.scheduler().counters().running == 1);
}

TEST_CASE("metrics: a server answers before its model is loaded") {
  ServerOptions options;
  options.model_name = "tiny";
  options.defaults = few_tokens();
  options.access.api_key = "secret";
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Service> service;
  HttpServer http(options);
  const int port = http.bind("127.0.0.1", 0);
  std::thread listener([&] { http.listen(); });
  const auto client = [&] {
    httplib::Client one("127.0.0.1", port);
    one.set_read_timeout(kPatience);
    one.set_default_headers({{"Authorization", "Bearer secret"}});
    return one;
  };
  httplib::Client kept = client();  // a connection from before serves afterwards
  kept.set_keep_alive(true);
  auto health = kept.Get("/health");
  REQUIRE(health);
  REQUIRE(health->status == 503);
  REQUIRE(json::parse(health->body) == json{{"status", "loading model"}});
  const std::string ask = R"({"prompt": "The king said"})";
  for (const char* path : {"/v1/completions", "/v1/messages", "/v1/nothing"}) {
    const auto response = client().Post(path, ask, "application/json");
    REQUIRE(response);
    REQUIRE(response->status == 503);
    REQUIRE(!response->get_header_value("Retry-After").empty());
    REQUIRE(json::parse(response->body)["error"]["message"].get<std::string>().find("loaded") !=
            std::string::npos);
  }
  REQUIRE(client().Get("/metrics")->status == 503);
  // who may not ask is not told more
  httplib::Client stranger("127.0.0.1", port);
  REQUIRE(stranger.Post("/v1/completions", ask, "application/json")->status == 401);

  engine = engine_of(shipped());
  service = std::make_unique<Service>(*engine);
  http.serve(*service);
  health = kept.Get("/health");
  REQUIRE(health);
  REQUIRE(health->status == 200);
  REQUIRE(json::parse(health->body) == json{{"status", "ok"}});
  REQUIRE(client().Post("/v1/completions", ask, "application/json")->status == 200);
  REQUIRE(mentions(refusal<ConfigError>([&] { http.serve(*service); }), "already"));
  http.stop();
  listener.join();
}

TEST_CASE("metrics: a server that is stopped before its model is loaded ends") {
  HttpServer http(ServerOptions{});
  http.bind("127.0.0.1", 0);
  std::thread listener([&] { http.listen(); });
  http.stop();
  listener.join();
  SUCCEED();
}
