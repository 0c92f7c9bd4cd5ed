// SPDX-License-Identifier: Apache-2.0
// What a memory that forgets by association (Memoria) still holds of a long text: by place, by
// neighbourhood, by links, and how much of it over time.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "analysis/survival.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/retention/memoria.hpp"
#include "hidden_facts.hpp"
#include "support/environment.hpp"
#include "svg.hpp"

namespace episodic::bench {
namespace {

namespace fs = std::filesystem;

struct ForgettingFlags {
  tools::CommonFlags common;
  tools::ModelFlags model;
  std::int64_t tokens = 1'000'000, parts = 20, most_lag = 32, around = 300;
  fs::path text, out;
};

/// What is counted at each step of the text that closes events.
struct Counts {
  std::int64_t steps = 0, fresh = 0, recalled = 0, recalled_long = 0;
  double held = 0;
  /// Events recalled, by how many events ago they came: 1, 2..3, 4..7, ..
  std::array<std::int64_t, 48> short_by_age = {}, long_by_age = {};
  struct Sample {
    std::int64_t tokens = 0, events = 0, held = 0, long_term = 0;
    double lifespan = 0;  // mean over what is held
  };
  std::vector<Sample> samples;
  /// Of each event: steps that recalled it, from the long-term memory too, and steps from its
  /// coming to its end (or that of the text).
  std::vector<double> times_recalled, times_long, lived;
  std::vector<std::int64_t> alive;

  /// \param fresh_now events that the step closed
  void add(const Memoria& graph, std::int64_t fresh_now) {
    const Memoria::Recall& last = graph.last_recall();
    ++steps;
    fresh += fresh_now;
    recalled += last.size();
    recalled_long += std::ssize(last.long_term);
    held += static_cast<double>(graph.size());
    for (std::int64_t event = graph.total() - fresh_now; event < graph.total(); ++event)
      alive.push_back(event);
    for (auto* of : {&times_recalled, &times_long, &lived})
      of->resize(static_cast<std::size_t>(graph.total()));
    for (const std::int64_t event : alive) ++lived[static_cast<std::size_t>(event)];
    std::erase_if(alive, [&](std::int64_t event) { return !graph.holds(event); });
    for (const auto* list : {&last.short_term, &last.long_term})
      for (const std::int64_t event : *list) {
        ++times_recalled[static_cast<std::size_t>(event)];
        if (list == &last.long_term) ++times_long[static_cast<std::size_t>(event)];
      }
    const auto by_age = [&](const std::vector<std::int64_t>& events, auto& counts) {
      for (const std::int64_t event : events)
        ++counts[static_cast<std::size_t>(
            std::bit_width(static_cast<std::uint64_t>(last.working.front() - event)) - 1)];
    };
    by_age(last.short_term, short_by_age);
    by_age(last.long_term, long_by_age);
  }

  void sample(const Memoria& graph, std::int64_t tokens) {
    Sample s{tokens, graph.total(), graph.size(), 0, 0};
    const std::vector<std::int64_t> rest = graph.long_term();
    s.long_term = std::ssize(rest);
    for (const auto* list : {&graph.short_term(), &rest})
      for (const std::int64_t event : *list) s.lifespan += graph.lifespan(event);
    if (s.held > 0) s.lifespan /= static_cast<double>(s.held);
    samples.push_back(s);
  }
};

/// A table that becomes a CSV file.
struct Table {
  std::string name;
  std::string header;
  std::vector<std::string> rows;
  void write(const fs::path& dir) const {
    std::string text = header + "\n";
    for (const std::string& row : rows) text += row + "\n";
    tools::write_text(dir / (name + ".csv"), text);
  }
};

void write_tables(const ForgettingFlags& flags, const Memoria& graph, const Counts& counts) {
  std::vector<bool> held(static_cast<std::size_t>(graph.total()));
  std::vector<std::int64_t> events;
  for (std::int64_t event = 0; event < graph.total(); ++event)
    if (graph.holds(event)) {
      held[static_cast<std::size_t>(event)] = true;
      events.push_back(event);
    }

  Table places{"survivors", "first_event,end_event,held,share", {}};
  tools::Line share{"held", {}};
  for (const analysis::Survivors& part : analysis::survivors_by_place(held, flags.parts)) {
    places.rows.push_back(
        fmt::format("{},{},{},{:.6g}", part.first, part.end, part.held, part.share()));
    share.points.emplace_back(static_cast<double>(part.first + part.end) / 2, 100 * part.share());
  }
  places.write(flags.out);
  tools::write_text(flags.out / "survivors.svg",
                    tools::line_chart("Events still held, percent", "event", {share}));

  Table lags{"contiguity", "lag,ratio", {}};
  tools::Line ratio{"both held, over chance", {}};
  for (const analysis::Contiguity& c :
       analysis::contiguity_of(held, flags.most_lag, flags.around)) {
    lags.rows.push_back(fmt::format("{},{:.6g}", c.lag, c.ratio));
    ratio.points.emplace_back(static_cast<double>(c.lag), c.ratio);
  }
  lags.write(flags.out);
  tools::write_text(flags.out / "contiguity.svg",
                    tools::line_chart("Neighbours survive together", "lag in events", {ratio}));

  // Few events are recalled very often and live very long: logarithms, or they alone would count.
  const auto logarithms = [](const std::vector<double>& counts) {
    std::vector<double> all;
    for (const double n : counts) all.push_back(std::log1p(n));
    return all;
  };
  std::vector<double> ever_long;
  for (const double n : counts.times_long) ever_long.push_back(n > 0);
  const std::vector<std::pair<std::string, std::vector<double>>> series{
      {"recalled", logarithms(counts.times_recalled)},
      {"recalled_long_term", ever_long},
      {"lived", logarithms(counts.lived)},
      {"held", std::vector<double>(held.begin(), held.end())}};
  Table correlations{"autocorrelation", "lag", {}};
  std::vector<tools::Line> lines;
  for (std::int64_t lag = 1; lag <= flags.most_lag; ++lag)
    correlations.rows.push_back(fmt::format("{}", lag));
  for (const auto& [name, numbers] : series) {
    const std::vector<double> of =
        analysis::autocorrelation_of(numbers, flags.most_lag, flags.around);
    correlations.header += "," + name;
    lines.push_back({name, {}});
    for (std::size_t i = 0; i < of.size(); ++i) {
      correlations.rows[i] += fmt::format(",{:.6g}", of[i]);
      lines.back().points.emplace_back(static_cast<double>(i + 1), of[i]);
    }
  }
  correlations.write(flags.out);
  tools::write_text(flags.out / "autocorrelation.svg",
                    tools::line_chart("Autocorrelation over events", "lag in events", lines));

  Table edges{"edges", "least_distance,most_distance,pairs,linked,mean_weight,mean_of_linked", {}};
  tools::Line weight{"all pairs", {}}, of_linked{"linked pairs", {}};
  for (const analysis::EdgesAtDistance& e : analysis::edges_by_distance(
           events, [&](std::int64_t a, std::int64_t b) { return graph.edge(a, b); })) {
    if (e.pairs == 0) continue;
    edges.rows.push_back(fmt::format("{},{},{},{},{:.6g},{:.6g}", e.least, e.most, e.pairs,
                                     e.linked, e.mean(), e.mean_of_linked()));
    const double place = std::bit_width(static_cast<std::uint64_t>(e.least)) - 1;
    weight.points.emplace_back(place, e.mean());
    of_linked.points.emplace_back(place, e.mean_of_linked());
  }
  edges.write(flags.out);
  tools::write_text(flags.out / "edges.svg",
                    tools::line_chart("Weight of an edge", "log2 of the distance in events",
                                      {weight, of_linked}));

  Table ages{"edges_by_age", "least_age,most_age,events,linked_each,mean_of_linked", {}};
  tools::Line by_age{"mean weight of an edge", {}};
  for (const analysis::EdgesAtAge& e :
       analysis::edges_by_age(events, graph.total(),
                              [&](std::int64_t a, std::int64_t b) { return graph.edge(a, b); })) {
    if (e.events == 0) continue;
    ages.rows.push_back(fmt::format("{},{},{},{:.6g},{:.6g}", e.least, e.most, e.events,
                                    e.linked_each(), e.mean_of_linked()));
    by_age.points.emplace_back(std::bit_width(static_cast<std::uint64_t>(e.least)) - 1,
                               e.mean_of_linked());
  }
  ages.write(flags.out);
  tools::write_text(
      flags.out / "edges_by_age.svg",
      tools::line_chart("Weight of an event's edges", "log2 of its age in events", {by_age}));

  Table recalled{"recalled", "least_age,most_age,short_term,long_term", {}};
  for (std::size_t bin = 0; bin < counts.short_by_age.size(); ++bin)
    if (counts.short_by_age[bin] + counts.long_by_age[bin] > 0)
      recalled.rows.push_back(fmt::format("{},{},{},{}", std::int64_t{1} << bin,
                                          (std::int64_t{2} << bin) - 1, counts.short_by_age[bin],
                                          counts.long_by_age[bin]));
  recalled.write(flags.out);

  Table size{"size", "tokens,events,held,long_term,mean_lifespan", {}};
  tools::Line held_line{"held", {}}, long_line{"long-term", {}};
  for (const Counts::Sample& s : counts.samples) {
    size.rows.push_back(
        fmt::format("{},{},{},{},{:.6g}", s.tokens, s.events, s.held, s.long_term, s.lifespan));
    held_line.points.emplace_back(static_cast<double>(s.tokens), static_cast<double>(s.held));
    long_line.points.emplace_back(static_cast<double>(s.tokens), static_cast<double>(s.long_term));
  }
  size.write(flags.out);
  tools::write_text(flags.out / "size.svg",
                    tools::line_chart("Events held", "tokens read", {held_line, long_line}));
}

void run(const ForgettingFlags& flags) {
  flags.common.apply_on_host();
  MemoryConfig config = flags.model.memory_config();
  if (!config.retention) config.retention.emplace();
  fs::create_directories(flags.out);
  const tools::Book book = tools::open_book(flags.text);
  const auto tokenizer = load_tokenizer(flags.model.model);
  Decoder model = Decoder::load(open_model(flags.model.model, flags.model.options()));
  const auto memory = patch(model, config);
  Session session(model, tokenizer.get());
  const tools::HiddenFacts text = tools::hide_facts(book, *tokenizer, flags.tokens, {});

  Counts counts;
  const std::int64_t end = std::ssize(text.ids);
  const std::int64_t every = std::max<std::int64_t>(config.chunk, end / 200);
  std::int64_t next_sample = every, steps_seen = 0, events_seen = 0;
  {
    tools::ProgressBar bar(fmt::format("reading {}", end), flags.common.quiet);
    const ProgressCallback draw = bar.callback();
    session.prefill(text.ids, [&](std::int64_t done, std::int64_t total) {
      const Memoria& graph = *memory->retention();
      if (graph.steps() > steps_seen) {  // called once a chunk, so that no step is passed over
        counts.add(graph, graph.total() - events_seen);
        steps_seen = graph.steps();
        events_seen = graph.total();
      }
      if (done >= next_sample || done == total) {
        counts.sample(graph, done);
        next_sample = done + every;
      }
      return draw(done, total);
    });
  }
  const Memoria& graph = *memory->retention();
  if (graph.total() == 0 || counts.steps == 0)
    throw DataError(fmt::format("{} tokens closed no event; read more with --tokens", end));
  write_tables(flags, graph, counts);

  const auto steps = static_cast<double>(counts.steps);
  const double most =
      Memoria::most_held(config.retention->memoria, static_cast<double>(counts.recalled) / steps,
                         static_cast<double>(counts.fresh) / steps);
  const Json result{
      {"program", "bench_forgetting"},
      {"environment", environment()},
      {"model", flags.model.model.string()},
      {"book", book.title},
      {"times_the_book", text.times_read},
      {"memory", tools::settings_json(config)},
      {"tokens", end},
      {"events", graph.total()},
      {"held", graph.size()},
      {"steps", counts.steps},
      {"fresh_per_step", static_cast<double>(counts.fresh) / steps},
      {"recalled_per_step", static_cast<double>(counts.recalled) / steps},
      {"long_term_recalled_per_step", static_cast<double>(counts.recalled_long) / steps},
      {"held_on_average", counts.held / steps},
      {"bound_of_held", most},
      {"autocorrelation_by_chance", 2 / std::sqrt(static_cast<double>(graph.total()))},
      {"graph_bytes", graph.bytes()}};
  tools::write_json(flags.out / "forgetting.json", result);
  fmt::print(
      "{} tokens, {} events, {} held ({:.0f} on average, at most {:.0f} in the long run): {}\n",
      end, graph.total(), graph.size(), counts.held / steps, most, flags.out.string());
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic;
  tools::CommandLine app{"What a memory that forgets by association still holds of a long text",
                         "bench_forgetting"};
  app.footer(
      "A text is read through a memory with retention (the defaults, Memoria D.2, unless --memory "
      "has it). "
      "Tables and\nplots go to --out: survivors (primacy, recency), contiguity, autocorrelation "
      "(of how often events were recalled,\nwhether from long-term memory, how long they lived, "
      "what is held), edges, edges_by_age, recalled, size; forgetting.json\nhas the settings and "
      "totals.\n\n"
      "Example:\n  bench_forgetting --model models/recall-2m6 --text war_and_peace.txt --tokens "
      "1000000 --out forgetting");
  bench::ForgettingFlags flags;
  flags.model.add_to(app, false);
  tools::add_count(app, "--tokens", flags.tokens, "Tokens to read", 1);
  app.option("--parts", flags.parts, "Parts of the text in survivors.csv")
      .positive()
      .shows_default();
  app.option("--lags", flags.most_lag,
             "Largest lag in contiguity.csv and autocorrelation.csv, in events")
      .positive()
      .shows_default();
  app.option("--around", flags.around,
             "Events on either side whose share of survivors is what chance gives")
      .positive()
      .shows_default();
  app.option("--text", flags.text, "The text, UTF-8 (default: the King James Bible)");
  app.option("--out", flags.out, "Folder for tables and plots").required();
  flags.common.add_to(app);
  return bench::run_program(app, argc, argv, [&] { bench::run(flags); });
}
