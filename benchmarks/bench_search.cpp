// SPDX-License-Identifier: Apache-2.0
// Which levels of the exact search earn their lines: a model reads a text, its mean queries and
// representatives are kept, and the searches are made again with levels left out (docs/search.md).

#include <fmt/format.h>

#include <time.h>

#include <algorithm>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/recall/detail/exact_index.hpp"
#include "episodic/session/engine.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

struct Flags {
  tools::CommonFlags common;
  tools::ModelFlags model;
  tools::TextFlags text;
  std::int64_t tokens = 60'000, rounds = 3;
  tools::JsonFlag json;
};

/// What one layer searched for, and in how many events.
struct Searches {
  std::vector<std::int64_t> events;
  std::vector<std::vector<float>> queries;
  std::vector<std::vector<float>> representatives;  // of all events at the end
};

struct Variant {
  const char* name;
  detail::ExactTuning tuning;
};

std::vector<Variant> variants() {
  std::vector<Variant> all{{"scan", {}}, {"8 bits", {}}, {"projection", {}}};
  all[0].tuning.bound_from = std::int64_t{1} << 60;
  all[1].tuning.projection = false;
  for (Variant& v : all) v.tuning.events_per_listed = 4;  // bounds even where the index would scan
  return all;
}

/// Parallel loops on the thread that asks, so that its processor time is that of a search, whatever
/// else the machine does.
class Serial final : public Executor {
 public:
  int concurrency() const override { return 1; }
  void run(std::int64_t n, void (*task)(void* context, std::int64_t i), void* context) override {
    for (std::int64_t i = 0; i < n; ++i) task(context, i);
  }
};

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Replayed {
  double seconds = 0;  // of the searches of the last half of the text
  std::int64_t searches = 0;
  std::vector<std::vector<ScoredEvent>> lists;
};

/// Makes the searches of a layer again, as its index grew.
Replayed replay(const Searches& from, std::int64_t heads, std::int64_t dim, std::int64_t k,
                const detail::ExactTuning& tuning) {
  detail::ExactIndex index({heads, dim, 1, RepresentativeScore::mean}, tuning);
  Serial serial;
  const ExecutorScope on_one_thread(serial);
  Replayed out;
  std::vector<ScoredEvent> list;
  for (std::size_t i = 0; i < from.queries.size(); ++i) {
    while (index.size() < from.events[i])
      index.add(from.representatives[static_cast<std::size_t>(index.size())].data(), nullptr, 1);
    const double start = thread_seconds();
    index.search(from.queries[i].data(), k, list);
    const double took = thread_seconds() - start;
    if (2 * i < from.queries.size()) continue;
    out.seconds += took;
    ++out.searches;
    out.lists.push_back(list);
  }
  return out;
}

bool same(const std::vector<std::vector<ScoredEvent>>& a,
          const std::vector<std::vector<ScoredEvent>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const ScoredEvent& x, const ScoredEvent& y) {
                        return x.event == y.event && x.score == y.score;
                      });
  });
}

void run(Flags& flags) {
  flags.common.apply_on_host();
  const auto engine = load_engine(flags.model.model, flags.model.options());
  const MemoryConfig config = flags.model.memory_config();
  const MemoryShape shape = memory_shape(engine->config(), config.n_local);
  const auto memory = std::make_shared<EpisodicMemory>(config, shape);
  std::vector<Searches> layers(static_cast<std::size_t>(shape.n_layers));
  memory->set_recall_hook([&](const RecalledEvents& recalled) {
    Searches& s = layers[static_cast<std::size_t>(recalled.layer)];
    s.events.push_back(memory->events().size());
    s.queries.emplace_back(recalled.query.begin(), recalled.query.end());
  });
  engine->attach(memory);
  std::vector<std::int64_t> ids = engine->tokenizer().encode(flags.text.read());
  if (static_cast<std::int64_t>(ids.size()) > flags.tokens)
    ids.resize(static_cast<std::size_t>(flags.tokens));
  {
    tools::ProgressBar bar("reading", flags.common.quiet);
    engine->read(ids, bar.callback());
  }
  const std::int64_t n_events = memory->events().size();
  const std::int64_t k = std::max<std::int64_t>(
      1, 5 * config.n_mem * n_events / (4 * std::max<std::int64_t>(1, engine->tokens())) + 4);
  Json result{{"program", "bench_search"},
              {"environment", environment()},
              {"model", flags.model.model.string()},
              {"tokens", engine->tokens()},
              {"events", n_events},
              {"width", shape.n_heads * shape.head_dim},
              {"k", k},
              {"memory", tools::settings_json(config)}};
  flags.json.say(
      fmt::format("{} events of {} channels, lists of {}; microseconds of one thread a search, "
                  "median of {} rounds\n",
                  n_events, shape.n_heads * shape.head_dim, k, flags.rounds));
  std::string line = fmt::format("{:>6} {:>9}", "layer", "searches");
  for (const Variant& v : variants()) line += fmt::format(" {:>9}", v.name);
  flags.json.say(line + "\n");
  Json rows = Json::array();
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    Searches& from = layers[static_cast<std::size_t>(l)];
    if (from.queries.empty()) continue;
    for (EventId e = 0; e < from.events.back(); ++e)
      from.representatives.push_back(memory->representative(l, e));
    std::vector<std::vector<double>> micros(variants().size());
    std::vector<std::vector<ScoredEvent>> expected;
    std::int64_t searches = 0;
    for (std::int64_t round = 0; round < flags.rounds; ++round) {
      std::size_t i = 0;
      for (const Variant& v : variants()) {  // in turn: what else runs meets all of them
        const Replayed replayed = replay(from, shape.n_heads, shape.head_dim, k, v.tuning);
        searches = replayed.searches;
        if (expected.empty()) expected = replayed.lists;
        if (!same(replayed.lists, expected))
          throw Error(fmt::format("layer {}: the search with {} gives another list", l, v.name));
        micros[i++].push_back(1e6 * replayed.seconds / static_cast<double>(replayed.searches));
      }
    }
    Json row{{"layer", l}, {"searches", searches}};
    line = fmt::format("{:>6} {:>9}", l, searches);
    for (std::size_t i = 0; i < micros.size(); ++i) {
      line += fmt::format(" {:>9.1f}", median(micros[i]));
      row[variants()[i].name] = summary(micros[i]);
    }
    flags.json.say(line + "\n");
    rows.push_back(std::move(row));
    from = {};
  }
  result["microseconds_per_search"] = std::move(rows);
  flags.json.write(result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic;
  tools::CommandLine app{
      "What each level of the exact search saves, on a model's own queries and keys",
      "bench_search"};
  app.footer(
      "A scan reads every vector; 8 bits bounds every row by its codes; the projection rules most "
      "rows\n"
      "out before. All give the same lists, which is checked.\n\n"
      "Example:\n  bench_search --model models/recall-2m6 --text book.txt --tokens 100K --json "
      "out.json");
  bench::Flags flags;
  flags.model.add_to(app, false);
  flags.text.add_to(app, app, "--text", "Text that the model reads").required();
  tools::add_count(app, "--tokens", flags.tokens, "Tokens of it that are read", 1000);
  app.option("--rounds", flags.rounds, "Times that each variant is run").positive();
  flags.json.add_to(app);
  flags.common.add_to(app);
  return bench::run_program(app, argc, argv, [&] { bench::run(flags); });
}
