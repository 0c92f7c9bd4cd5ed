// SPDX-License-Identifier: Apache-2.0
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <vector>

#include "base/strict_json.hpp"
#include "http/routes.hpp"
#include "page/page.hpp"
#include "protocol/exposition.hpp"

namespace episodic::server {
namespace {

/// As OpenAI's and Anthropic's clients read it. \param most tokens of a request, 0: no limit
Json model_json(const RouteContext& context, const std::string& id, std::int64_t most) {
  const auto created = static_cast<std::time_t>(context.started);
  Json model{{"id", id},
             {"object", "model"},
             {"created", context.started},
             {"owned_by", "episodic"},
             {"type", "model"},
             {"display_name", id},
             {"created_at", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(created))}};
  if (most > 0) model["max_model_len"] = most;
  return model;
}

/// The model, and the encoder where there is one.
std::vector<Json> models_json(const RouteContext& context) {
  const ServerOptions& options = context.options;
  std::vector<Json> all{
      model_json(context, options.model_name, context.service.scheduler().options().max_tokens)};
  if (options.encoder)
    all.push_back(model_json(context, options.encoder_name, options.encoder->max_tokens()));
  return all;
}

/// Bytes of this process that lie in memory; 0 where the system does not say.
double resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  double all = 0, resident = 0;
  if (!(statm >> all >> resident)) return 0;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

/// What memories have taken: that of each start, and what the scheduler's sequences have of their
/// own.
MemoryUsage memory_usage(Service& service, std::size_t& open) {
  std::vector<std::shared_ptr<StartingPoint>> starts{service.start("")};
  if (const Memories* memories = service.memories())
    for (auto& start : memories->open()) starts.push_back(std::move(start));
  open = starts.size() - 1;
  MemoryUsage all = service.scheduler().counters().own;
  all.events = all.tokens = all.device_bytes = 0;
  for (const auto& start : starts) {
    const MemoryUsage one = start->usage();
    all.tokens += one.tokens;
    all.events += one.events;
    all.host_bytes += one.host_bytes;
    all.disk_bytes += one.disk_bytes;
    all.index_bytes += one.index_bytes;
    all.window_bytes += one.window_bytes;
    all.device_bytes += std::max<std::int64_t>(0, one.device_bytes);
  }
  return all;
}

/// vLLM's names where they mean the same.
void add_vllm(Exposition& out, const SchedulerCounters& c, const SchedulerTimes& times) {
  const auto number = [](auto n) { return static_cast<double>(n); };
  out.gauge("vllm:num_requests_running", "Requests that are being answered.", number(c.running));
  out.gauge("vllm:num_requests_waiting", "Requests that wait.", number(c.waiting));
  out.counter("vllm:prompt_tokens_total", "Tokens of prompts.", number(c.prompt_tokens));
  out.counter("vllm:generation_tokens_total", "Tokens written.", number(c.written_tokens));
  out.counter("vllm:prefix_cache_queries_total", "Tokens of prompts looked for in what was read.",
              number(c.prompt_tokens));
  out.counter("vllm:prefix_cache_hits_total", "Tokens of prompts that were not read again.",
              number(c.reused_tokens));
  out.counter("vllm:request_success_total", "Requests that ended, by why.", "finished_reason",
              {{"stop", number(c.stopped)},
               {"length", number(c.cut_off)},
               {"abort", number(c.given_up - c.failed)}});
  out.histogram("vllm:time_to_first_token_seconds",
                "Seconds from a request's coming to its first token.", times.first_token);
  out.histogram("vllm:request_time_per_output_token_seconds",
                "Seconds for each token behind the first, in the mean of an answer.",
                times.each_token);
  out.histogram("vllm:e2e_request_latency_seconds", "Seconds from a request's coming to its end.",
                times.whole);
  out.histogram("vllm:request_queue_time_seconds", "Seconds that a request waited.", times.waiting);
}

std::string metrics(RouteContext& context) {
  const Scheduler& scheduler = context.service.scheduler();
  const SchedulerCounters c = scheduler.counters();
  Exposition own, named("model_name", context.options.model_name);
  const auto number = [](auto n) { return static_cast<double>(n); };
  const auto counter = [&](const char* name, const char* help, auto n) {
    own.counter(name, help, number(n));
  };
  const auto gauge = [&](const char* name, const char* help, auto n) {
    own.gauge(name, help, number(n));
  };
  counter("episodic_requests_total", "Requests taken.", c.requests);
  counter("episodic_requests_refused_total", "Requests refused because the queue was full.",
          c.refused);
  counter("episodic_requests_given_up_total", "Requests not answered to the end.", c.given_up);
  counter("episodic_requests_failed_total", "Of these, ended by an error.", c.failed);
  counter("episodic_prompt_tokens_total", "Tokens of prompts.", c.prompt_tokens);
  counter("episodic_prompt_tokens_reused_total", "Of these, read for an earlier request.",
          c.reused_tokens);
  counter("episodic_generated_tokens_total", "Tokens written.", c.written_tokens);
  gauge("episodic_requests_in_flight", "Requests that wait or are answered.", c.places);
  counter("episodic_steps_total", "Steps of the model, of all sequences together.", c.steps);
  counter("episodic_recalled_events_total", "Events recalled, over all layers and steps.",
          c.recalled_events);
  counter("episodic_event_reads_total", "Events read by attention, over all layers and steps.",
          c.event_reads);
  counter("episodic_event_cache_hits_total",
          "Of these, events of a disk tier that lay in host memory.", c.event_read_hits);
  if (const auto& vectors = context.service.vectors()) {
    const WindowVectorsCounters of_texts = vectors->counters();
    counter("episodic_encoder_windows_total", "Windows of text that the encoder read for passages.",
            of_texts.encoded);
    counter("episodic_encoder_windows_reused_total",
            "Windows of text whose vectors were there, or in a memory's folder.", of_texts.reused);
    counter("episodic_encoder_windows_refused_total",
            "Windows of text whose vectors found no room.", of_texts.refused);
    gauge("episodic_encoder_bytes", "Bytes of the encoder's vectors.", of_texts.bytes);
  }
  std::size_t open = 0;
  const MemoryUsage usage = memory_usage(context.service, open);
  gauge("episodic_memories_open", "Memories by name that answers begin behind.", open);
  gauge("episodic_sequences", "Sequences that are kept for the next request.", c.sequences);
  gauge("episodic_sequence_bytes",
        "Memory that sequences of answers take where the model computes, about.", c.bytes);
  gauge("episodic_events", "Events of the open memories.", usage.events);
  gauge("episodic_memory_tokens", "Tokens that the open memories have read.", usage.tokens);
  own.gauge("episodic_tier_bytes", "Bytes of the open memories and of the sequences over them.",
            "tier",
            {{"host", number(usage.host_bytes)},
             {"disk", number(usage.disk_bytes)},
             {"device", number(usage.device_bytes)},
             {"index", number(usage.index_bytes)},
             {"window", number(usage.window_bytes)}});
  gauge("episodic_resident_bytes", "Bytes of this process in the machine's memory.",
        resident_bytes());
  add_vllm(named, c, scheduler.times());
  return own.text() + named.text();
}

}  // namespace

void add_server_routes(Router& router, RouteContext& context) {
  router.add("GET", "/", [](Exchange&, const Target&, auto& response) {
    // the page asks its own server and nobody else, and stands in no other page
    response.set_header(
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cache-Control", "no-cache");
    response.set_content(std::string(page()), "text/html; charset=utf-8");
  });
  router.add("GET", "/health", [](Exchange&, const Target&, auto& response) {
    response.set_content(R"({"status":"ok"})", "application/json");
  });
  router.add("GET", "/metrics", [&context](Exchange&, const Target&, auto& response) {
    response.set_content(metrics(context), "text/plain; version=0.0.4; charset=utf-8");
  });
  router.add("GET", "/models", [&context](Exchange&, const Target&, auto& response) {
    const std::vector<Json> all = models_json(context);
    answer_json(response, {{"object", "list"},
                           {"data", all},
                           {"first_id", all.front()["id"]},
                           {"last_id", all.back()["id"]},
                           {"has_more", false}});
  });
  router.add("GET", "/models/{}", [&context](Exchange&, const Target& target, auto& response) {
    for (const Json& model : models_json(context))
      if (model["id"] == target.parts[0]) return answer_json(response, model);
    throw RequestError(fmt::format("there is no model '{}', but '{}'", printable(target.parts[0]),
                                   context.options.model_name),
                       "model", 404, "model_not_found");
  });
}

}  // namespace episodic::server
