// SPDX-License-Identifier: Apache-2.0
// `episodic serve`: a model with its memory behind OpenAI's HTTP interface.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "episodic/model/memory_settings.hpp"
#include "kept.hpp"
#if EPISODIC_HTTP
#include "episodic/model/sentence_encoder.hpp"
#include "episodic/server/api_keys.hpp"
#include "episodic/server/http_server.hpp"
#include "episodic/session/window_vectors.hpp"
#endif

namespace episodic::tools {
namespace {

struct ServeFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path dir, memories, encoder, keys, socket;
  std::string host = "127.0.0.1", name;
  std::optional<std::int64_t> port;  // 8080, unless there is a socket
  std::int64_t max_tokens = 100'000, queue = 64, parallel = 1, timeout = 3600, keep_responses = 30;
  std::string bytes, vector_bytes;
  std::vector<std::string> origins;
  GenerationFlags generation;
};

#if EPISODIC_HTTP
int signal_pipe = -1;  // where the handler writes; a handler is given nothing else

/// Stops a server at the first SIGINT or SIGTERM. By a handler and not by sigwait: threads of
/// libraries (OpenBLAS has one before main) do not hold a signal back, and would end the process.
/// Destroyed before the server: its thread calls it.
class StopAtSignal {
 public:
  explicit StopAtSignal(server::HttpServer& server) {
    if (pipe2(ends_, O_CLOEXEC) != 0 || fcntl(ends_[1], F_SETFL, O_NONBLOCK) != 0)
      throw Error(fmt::format("serve: no pipe for signals ({})", std::strerror(errno)));
    signal_pipe = ends_[1];
    waiter_ = std::thread([this, &server] {
      char byte = 0;
      while (read(ends_[0], &byte, 1) < 0 && errno == EINTR) {
      }
      server.stop();
    });
    struct sigaction action {};
    action.sa_handler = [](int) {
      const int before = errno;
      static_cast<void>(!write(signal_pipe, "s", 1));  // full: it has been told already
      errno = before;
    };
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < std::size(kSignals); ++i)
      sigaction(kSignals[i], &action, &before_[i]);
  }
  StopAtSignal(const StopAtSignal&) = delete;
  StopAtSignal& operator=(const StopAtSignal&) = delete;
  ~StopAtSignal() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i)
      sigaction(kSignals[i], &before_[i], nullptr);
    static_cast<void>(!write(ends_[1], "e", 1));  // where the server ended by itself
    waiter_.join();
    signal_pipe = -1;
    for (const int end : ends_) close(end);
  }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM};
  int ends_[2] = {-1, -1};
  struct sigaction before_[std::size(kSignals)]{};
  std::thread waiter_;
};

/// What answers may take of memory where the model computes: as the flag says, else most of what is
/// left when the model is loaded.
std::int64_t bytes_for_answers(const ServeFlags& flags) {
  if (!flags.bytes.empty()) return parse_bytes(flags.bytes, "--answer-bytes");
  const std::int64_t available = free_memory(flags.common);
  return available < 0 ? 0 : available / 10 * 9;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// The last part of a path, also of a folder with a slash behind it.
std::string last_part(const std::filesystem::path& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.filename().empty() ? whole.parent_path() : whole).filename().string();
}

/// A server on a thread of its own, so that it says that the model is being loaded.
class Listening {
 public:
  explicit Listening(server::HttpServer& http) : http_(http), thread_([this] { http_.listen(); }) {}
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  ~Listening() {
    http_.stop();
    wait();
  }
  /// Until it has been stopped.
  void wait() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  server::HttpServer& http_;
  std::thread thread_;
};

server::ServerOptions server_options(const ServeFlags& flags,
                                     std::function<void(const std::string&)> say) {
  server::ServerOptions options;
  options.model_name = !flags.name.empty() ? flags.name : last_part(flags.model.model);
  if (const char* key = std::getenv("EPISODIC_API_KEY")) options.access.api_key = key;
  if (!flags.keys.empty()) {
    server::ApiKeys read = server::read_api_keys(flags.keys);
    if (!read.warning.empty()) say("warning: " + read.warning);
    options.access.api_keys = std::move(read.keys);
  }
  options.access.host = flags.host;
  options.access.origins = flags.origins;
  options.log = std::move(say);
  return options;
}

/// Listens where the flags say. \return for people: NAME:PORT, the socket's path; empty where it is
/// not listened at
std::pair<std::string, std::string> bind(const ServeFlags& flags, server::HttpServer& http) {
  std::pair<std::string, std::string> where;
  if (flags.port || flags.socket.empty()) {
    const int port = http.bind(flags.host, static_cast<int>(flags.port.value_or(8080)));
    const bool ipv6 = flags.host.find(':') != std::string::npos;
    where.first = fmt::format("{}:{}", ipv6 ? "[" + flags.host + "]" : flags.host, port);
  }
  if (!flags.socket.empty()) {
    http.bind_socket(flags.socket);
    where.second = "the socket " + flags.socket.string();
  }
  return where;
}

std::string both(const std::string& a, const std::string& b) {
  return a.empty() || b.empty() ? a + b : a + " and " + b;
}

void attach_memory(Engine& engine, const ServeFlags& flags) {
  // Of several answers on a device each takes its own cache, and nothing else needs one.
  const bool on_host = std::string_view(engine.device()) == "cpu";
  if (flags.model.full_attention && flags.parallel > 1 && !on_host) return;
  if (flags.dir.empty())
    return attach(engine, flags.common, flags.model, flags.model.new_memory_config(),
                  flags.max_tokens);
  const auto memory =
      std::make_shared<EpisodicMemory>(open_kept(flags.model, flags.dir, OpenMode::read));
  engine.attach(memory, memory->tokens() + flags.max_tokens);
}

void run(const ServeFlags& flags) {
  flags.common.apply();
  if (!flags.dir.empty() && flags.model.full_attention)
    throw ConfigError("--memory-dir: full attention reads no memory; leave one of the two out");
  const auto say = [&](const std::string& line) {
    if (!flags.common.quiet) std::fprintf(stderr, "%s\n", line.c_str());
  };
  server::ServerOptions options = server_options(flags, say);
  const bool keyless = options.access.api_key.empty() && options.access.api_keys.empty();
  if (!is_loopback(flags.host) && keyless && (flags.port || flags.socket.empty()))
    say("warning: whoever reaches " + flags.host + " may ask; set EPISODIC_API_KEY or --api-keys");
  const GenerationDefaults of_model = generation_defaults(flags.model.model);
  options.defaults = flags.generation.options(of_model);
  options.conversations.base = flags.dir;
  options.conversations.keep = std::chrono::hours(24) * flags.keep_responses;
  if (!flags.encoder.empty()) {
    options.encoder = std::make_shared<const SentenceEncoder>(SentenceEncoder::open(flags.encoder));
    options.encoder_name = last_part(flags.encoder);
  }

  // of passages that are read again: as `ask` has it, so that both use the same files
  std::shared_ptr<WindowVectors> vectors;
  if (!flags.encoder.empty())
    vectors = std::make_shared<WindowVectors>(
        std::make_shared<const SentenceEncoder>(
            SentenceEncoder::open(flags.encoder, SentenceEncoder::kAllPositions)),
        flags.vector_bytes.empty() ? WindowVectors::kBytes
                                   : parse_bytes(flags.vector_bytes, "--encoder-bytes"));

  // what it needs is destroyed after it
  std::unique_ptr<Engine> engine;
  std::optional<server::Memories> memories;
  std::optional<server::Service> service;
  server::HttpServer http(options);
  const auto [port, socket] = bind(flags, http);
  Listening listening(http);

  engine = load_engine(flags.common, flags.model);
  attach_memory(*engine, flags);
  const std::int64_t tokens = engine->tokens();
  server::SchedulerOptions limits;
  limits.max_tokens = flags.max_tokens;
  limits.queue = static_cast<std::size_t>(flags.queue);
  limits.parallel = static_cast<std::size_t>(flags.parallel);
  limits.bytes = bytes_for_answers(flags);
  limits.in_flight.whole = std::chrono::seconds(flags.timeout);
  if (!flags.memories.empty())
    memories.emplace(engine->shared_model(), flags.memories, flags.model.new_memory_config(),
                     flags.max_tokens);
  const auto start = std::make_shared<server::StartingPoint>(
      std::shared_ptr<Sequence>(std::shared_ptr<void>(), engine.get()), flags.max_tokens);
  service.emplace(engine->shared_model(), start, memories ? &*memories : nullptr, limits);
  service->set_vectors(std::move(vectors));
  http.serve(*service);
  // before, a signal ends the process as it ends any: nothing has been written
  const StopAtSignal stop(http);
  say(fmt::format("{} with {} tokens in its memory, at {}", options.model_name, tokens,
                  both(port.empty() ? "" : "http://" + port + "/v1", socket)));
  say(fmt::format(
      "where a request says nothing else: {}{}; an answer ends with its turn, or at {} "
      "tokens",
      sampling_text(options.defaults.sampling),
      of_model.source.empty() ? "" : " (" + of_model.source + ")", options.defaults.max_new));
  listening.wait();
}
#else
void run(const ServeFlags&) {
  throw NotBuiltError(
      "serve: this program was built without an HTTP library; install cpp-httplib of version 0.11 "
      "to "
      "0.15 (libcpp-httplib-dev of Debian 12) and build it again");
}
#endif

}  // namespace

void add_serve(Command& app) {
  auto flags = std::make_shared<ServeFlags>();
  Command sub = app.subcommand("serve", "Answer over HTTP as OpenAI's interface does");
  sub.footer(
      "OpenAI's completions, chat and responses, Anthropic's messages, memories by name, and a "
      "page "
      "at /\n(docs/serve.md). A request begins behind a memory of --memories that it names, else "
      "behind the one in\n--memory-dir, which stays as it is, or with nothing; a conversation's "
      "earlier turns are not read again.\n--parallel requests are answered at once, --queue others "
      "wait. Flags of sampling are what a request\nleaves open. Who may ask: programs of this "
      "machine, pages of no origin but --allow-origin's; whoever has a\nkey, where there are "
      "any.\n\n"
      "Examples:\n"
      "  episodic serve --model M --memories memories --parallel 4\n"
      "  curl http://127.0.0.1:8080/v1/memories/book/read -H 'Content-Type: text/plain' \\\n"
      "    --data-binary @book.txt\n"
      "  curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"memory\": \"book\", \"prompt\": \"The pass key is\", \"max_tokens\": 12}'");
  flags->model.add_to(sub);
  sub.option("--memory-dir", flags->dir, "Folder of the memory that every request begins behind");
  sub.option(
      "--memories", flags->memories,
      "Folder of memories by name, which requests make, read into and answer behind; made if "
      "it is not there; or a tier that several servers share (shared:DIR, redis://HOST:PORT)");
  const Option encoder = sub.option("--encoder", flags->encoder,
                                    "Folder of a sentence encoder of BERT's shape, for "
                                    "/v1/embeddings and to find what \"reread\" reads again");
  sub.option("--encoder-bytes", flags->vector_bytes,
             "Host memory that the encoder's vectors of memories' texts may take (default: 512MiB, "
             "of 16 million tokens, about)")
      .needs(encoder);
  sub.option("--host", flags->host, "Address to listen at").shows_default();
  sub.option("--port", flags->port,
             "Port; 0: any that is free (default: 8080, or none where --socket is given)")
      .between(0, 65535);
  sub.option(
      "--socket", flags->socket,
      "Path of a Unix socket to listen at, for programs of the same user; beside a port only "
      "where --port is given");
  sub.option("--api-keys", flags->keys,
             "File of API keys, one a line, each of which a request may show; EPISODIC_API_KEY is "
             "one more");
  sub.option("--name", flags->name, "What the model is called (default: its path's last part)");
  add_count(sub, "--max-tokens", flags->max_tokens,
            "Tokens that a request may come to, its answer included: a device takes its room for "
            "them at the start",
            1);
  add_count(sub, "--parallel", flags->parallel,
            "Requests that are answered at once, in the same steps, each with windows of its own",
            1);
  add_count(sub, "--queue", flags->queue,
            "Requests that may wait behind those being answered; more are told to come again");
  sub.option(
      "--answer-bytes", flags->bytes,
      "Memory that answers may take together where the model computes, such as 2GB; what does not "
      "fit waits; 0: no bound (default: nine tenths of what is free)");
  add_count(sub, "--keep-responses", flags->keep_responses,
            "Days that stored responses are kept in --memories; 0: for ever");
  add_count(sub, "--timeout", flags->timeout,
            "Seconds that a request may take, its waiting included; 0: no limit");
  sub.option("--allow-origin", flags->origins,
             "Origin of a web page that may ask, such as http://localhost:3000 (may be given "
             "several times)");
  flags->generation.add_to(sub, GenerationFlags::Otherwise::model);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
