// SPDX-License-Identifier: Apache-2.0
#include "compare_events.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/strict_json.hpp"
#include "svg.hpp"

namespace episodic::tools {
namespace {

using analysis::Agreement;
using analysis::Cohesion;
using analysis::Segmented;
using analysis::SegmentedHead;
using Stories = std::vector<ComparedStory>;

/// One of the four measures of a segmentation's keys.
struct Measure {
  const char* key;    // in tables
  const char* title;  // in plots
  double Cohesion::*value;
};
constexpr Measure kMeasures[] = {
    {"modularity", "Modularity of the keys", &Cohesion::modularity},
    {"conductance", "Conductance of the keys (smaller is better)", &Cohesion::conductance},
    {"ratio_of_sums", "Intra/inter similarity by sums", &Cohesion::ratio_of_sums},
    {"ratio_of_means", "Intra/inter similarity by means", &Cohesion::ratio_of_means}};

constexpr const char* kCounts[] = {"people", "surprise"};

const char* words_of(const std::string& count) {
  return count == "people"     ? "as many events as people marked"
         : count == "surprise" ? "as many events as surprise finds with gamma"
                               : "a number of its own";
}

std::string number(double x) { return fmt::format("{:.6g}", x); }
std::string number(const std::optional<double>& x) { return x ? number(*x) : ""; }

/// A name as a field of a CSV file.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// -- CSV --

constexpr const char* kAgreement[] = {"wasserstein", "smoothed_wasserstein", "correlation",
                                      "log_density", "matched"};

std::vector<std::string> fields_of(const std::optional<Agreement>& a) {
  if (!a) return std::vector<std::string>(std::size(kAgreement));
  return {number(a->wasserstein), number(a->smoothed), number(a->correlation),
          number(a->log_density), number(a->matched)};
}

std::string segmentations_csv(const Stories& stories) {
  std::string csv = "story,count,method,gamma,boundaries";
  for (const char* prefix : {"", "random_", "random_deviation_"})
    for (const Measure& m : kMeasures) csv += fmt::format(",{}{}", prefix, m.key);
  for (const char* prefix :
       {"people_", "random_people_", "random_deviation_people_", "raters_", "random_raters_"})
    for (const char* a : kAgreement) csv += fmt::format(",{}{}", prefix, a);
  csv += '\n';
  for (const ComparedStory& story : stories)
    for (const Segmented& s : story.result.sequence) {
      csv += fmt::format("{},{},{},{},{}", quoted(story.result.name), s.count, s.method,
                         number(s.gamma), s.boundaries.size());
      for (const Cohesion* c : {&s.cohesion.all, &s.random.mean, &s.random.deviation})
        for (const Measure& m : kMeasures) csv += "," + number(c->*m.value);
      for (const auto* a :
           {&s.people, &s.random.people, &s.random.people_deviation, &s.raters, &s.random.raters})
        for (const std::string& field : fields_of(*a)) csv += "," + field;
      csv += '\n';
    }
  return csv;
}

std::string layers_csv(const Stories& stories) {
  std::string csv = "story,count,method,layer";
  for (const char* prefix : {"", "random_"})
    for (const Measure& m : kMeasures) csv += fmt::format(",{}{}", prefix, m.key);
  csv += '\n';
  for (const ComparedStory& story : stories)
    for (const Segmented& s : story.result.sequence)
      for (std::size_t l = 0; l < s.cohesion.layers.size(); ++l) {
        csv += fmt::format("{},{},{},{}", quoted(story.result.name), s.count, s.method, l);
        for (const Cohesion* c : {&s.cohesion.layers[l], &s.random.layers[l]})
          for (const Measure& m : kMeasures) csv += "," + number(c->*m.value);
        csv += '\n';
      }
  return csv;
}

std::string heads_csv(const Stories& stories) {
  std::string csv =
      "story,count,method,gamma,layer,head,boundaries,modularity,fixed_modularity,"
      "wasserstein_to_people,wasserstein_to_surprise\n";
  for (const ComparedStory& story : stories)
    for (const SegmentedHead& h : story.result.heads)
      csv += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", quoted(story.result.name), h.count,
                         h.method, number(h.gamma), h.layer, h.head, h.boundaries.size(),
                         number(h.modularity), number(h.modularity_fixed), number(h.to_people),
                         number(h.to_surprise));
  return csv;
}

std::string recall_csv(const Stories& stories) {
  std::string csv = "story,layer,recalled_events,recalled_alone\n";
  for (const ComparedStory& story : stories)
    if (story.recall)
      for (std::size_t l = 0; l < story.recall->layers(); ++l)
        csv += fmt::format("{},{},{},{}\n", quoted(story.result.name), story.recall_layers[l],
                           story.recall->recalled(l), number(story.recall->alone(l)));
  return csv;
}

// -- plots --

/// Methods at a number of events, in the order of the first story that has them.
std::vector<std::string> methods_at(const Stories& stories, const std::string& count) {
  std::vector<std::string> methods;
  for (const ComparedStory& story : stories)
    for (const Segmented& s : story.result.sequence)
      if (s.count == count && std::find(methods.begin(), methods.end(), s.method) == methods.end())
        methods.push_back(s.method);
  return methods;
}

const Segmented* find(const ComparedStory& story, const std::string& count,
                      const std::string& method) {
  for (const Segmented& s : story.result.sequence)
    if (s.count == count && s.method == method) return &s;
  return nullptr;
}

/// Bars of methods, one colour a story. \param bar nothing where a segmentation has no such value
std::string bars_of(const Stories& stories, const std::string& count, const std::string& title,
                    const std::function<std::optional<Bar>(const Segmented&)>& bar) {
  const std::vector<std::string> methods = methods_at(stories, count);
  std::vector<std::string> names;
  for (const ComparedStory& story : stories) names.push_back(story.result.name);
  std::vector<std::vector<std::optional<Bar>>> bars;
  double lowest = 0, highest = 0;
  for (const std::string& method : methods) {
    auto& group = bars.emplace_back();
    for (const ComparedStory& story : stories) {
      const Segmented* s = find(story, count, method);
      group.push_back(s ? bar(*s) : std::nullopt);
      if (!group.back()) continue;
      lowest = std::min(lowest, group.back()->low);
      highest = std::max(highest, group.back()->high);
    }
  }
  return bar_chart(title, methods, names, bars, Axis::around(lowest, highest));
}

/// The difference from random, with the deviation of one random segmentation to either side.
Bar difference(double value, double random, double deviation) {
  return {value - random, value - random - deviation, value - random + deviation};
}

/// Mean of a value over a layer's heads, where it is there.
std::vector<Line> lines_by_layer(const ComparedStory& story, const std::string& count,
                                 std::optional<double> SegmentedHead::*value,
                                 const std::string& what) {
  std::map<std::string, std::map<std::int64_t, std::pair<double, int>>> sums;
  for (const SegmentedHead& h : story.result.heads)
    if (h.count == count && h.*value) {
      auto& [sum, n] = sums[h.method][h.layer];
      sum += *(h.*value), ++n;
    }
  std::vector<Line> lines;
  for (const auto& [method, layers] : sums) {
    Line& line = lines.emplace_back(Line{method + " to " + what, {}});
    for (const auto& [layer, sum] : layers)
      line.points.push_back({static_cast<double>(layer), sum.first / sum.second});
  }
  return lines;
}

/// Numbers of events: layers downwards, heads to the right.
std::string head_counts(const ComparedStory& story, const std::string& count,
                        const std::string& method) {
  std::vector<std::string> columns, rows;
  std::vector<std::vector<std::optional<double>>> cells;
  double most = 1;
  for (const SegmentedHead& h : story.result.heads) {
    if (h.count != count || h.method != method) continue;
    if (h.layer == 0) columns.push_back(fmt::format("{}", h.head));
    if (h.head == 0) {
      rows.push_back(fmt::format("{}", h.layer));
      cells.emplace_back();
    }
    const auto events = static_cast<double>(h.boundaries.size() + 1);
    cells.back().push_back(events);
    most = std::max(most, events);
  }
  return heat_map(fmt::format("{}: events of each head, {}", story.result.name, method), columns,
                  rows, cells, {0, most, "key/value head", "layer", 0});
}

std::string density_plot(const ComparedStory& story) {
  std::vector<Line> lines;
  const auto add = [&](const std::string& name, const std::vector<double>& density) {
    if (density.empty()) return;
    Line& line = lines.emplace_back(Line{name, {}});
    const std::size_t step = std::max<std::size_t>(1, density.size() / 600);
    for (std::size_t t = 0; t < density.size(); t += step)
      line.points.push_back({static_cast<double>(t), density[t] * 1e3});
  };
  add("people", story.result.people_density);
  add("surprise", story.result.surprise_density);
  return line_chart(fmt::format("{}: density of boundaries, per thousand", story.result.name),
                    "token", lines);
}

std::string file_part(std::string text) {
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
  return text;
}

using Files = std::vector<std::pair<std::string, std::string>>;

/// A plot as a file, and the line of Markdown that shows it.
std::string shown(Files& files, const std::string& name, const std::string& title,
                  std::string svg) {
  files.emplace_back(name, std::move(svg));
  return fmt::format("\n![{}]({})\n", title, name);
}

// -- Markdown --

/// Value minus random's mean, and in brackets how many deviations of one random segmentation.
std::string beside_random(double value, double random, double deviation) {
  if (deviation <= 0) return fmt::format("{:+.3g}", value - random);
  return fmt::format("{:+.3g} ({:+.1f})", value - random, (value - random) / deviation);
}

/// A row of a table that compares at equal counts, and is at another one.
std::string not_reached(const std::string& method, std::int64_t wanted) {
  return fmt::format(
      "\n{}: {} boundaries were wanted; all gammas from {:g} to {:g} give fewer, or all give more. "
      "The row is at the nearest number, not at an equal one.\n",
      method, wanted, kLeastGamma, kMostGamma);
}

std::string method_table(const ComparedStory& story, const std::string& count) {
  const bool people = !story.result.people.empty();
  std::string table =
      "| method | gamma | boundaries | modularity | conductance | I/S by sums | I/S "
      "by means |";
  std::string rule = "|---|---|---|---|---|---|---|";
  if (people) {
    table += " distance to people | smoothed | correlation | matched |";
    rule += "---|---|---|---|";
  }
  table += "\n" + rule + "\n";
  for (const Segmented& s : story.result.sequence) {
    if (s.count != count) continue;
    table += fmt::format("| {} | {} | {} |", s.method, number(s.gamma), s.boundaries.size());
    for (const Measure& m : kMeasures)
      table += fmt::format(" {} |", beside_random(s.cohesion.all.*m.value, s.random.mean.*m.value,
                                                  s.random.deviation.*m.value));
    if (people && s.people && s.method != "people") {
      const Agreement &a = *s.people, &r = *s.random.people, &d = *s.random.people_deviation;
      table += fmt::format(
          " {:.1f}, random {:.1f} +- {:.1f} | {:.1f}, random {:.1f} | {:.3f}, random {:.3f} | "
          "{:.2f}, random {:.2f} |",
          a.wasserstein, r.wasserstein, d.wasserstein, a.smoothed, r.smoothed, a.correlation,
          r.correlation, *a.matched, *r.matched);
    } else if (people) {
      table += " | | | |";
    }
    table += "\n";
  }
  for (const Segmented& s : story.result.sequence)
    if (s.count == count && s.missed) table += not_reached(s.method, *s.missed);
  return table;
}

std::string head_table(const ComparedStory& story) {
  std::string table =
      "| method | events wanted | gamma | events of a head: least, mean, most | modularity over "
      "fixed (mean) | heads above fixed |\n|---|---|---|---|---|---|\n";
  std::string notes;
  for (const char* count : kCounts)
    for (const char* method : {"KH", "GH"}) {
      double sum = 0, ratio = 0, gamma = 0;
      std::optional<std::int64_t> missed;
      std::size_t least = SIZE_MAX, most = 0;
      int heads = 0, above = 0, with_ratio = 0;
      for (const SegmentedHead& h : story.result.heads) {
        if (h.count != count || h.method != method) continue;
        const std::size_t events = h.boundaries.size() + 1;
        ++heads;
        gamma = h.gamma;
        missed = h.missed;
        sum += static_cast<double>(events);
        least = std::min(least, events), most = std::max(most, events);
        above += h.modularity > h.modularity_fixed;
        if (h.modularity_fixed > 0) ratio += h.modularity / h.modularity_fixed, ++with_ratio;
      }
      if (heads == 0) continue;
      table += fmt::format("| {} | {} | {:g} | {}, {:.1f}, {} | {:.3f} | {} of {} |\n", method,
                           words_of(count), gamma, least, sum / heads, most,
                           with_ratio > 0 ? ratio / with_ratio : 0.0, above, heads);
      if (missed) notes += not_reached(fmt::format("{} at {}", method, words_of(count)), *missed);
    }
  return table + notes;
}

std::string recall_section(const Stories& stories, Files& files) {
  std::vector<Line> lines;
  std::string rows;
  for (const ComparedStory& story : stories) {
    if (!story.recall) continue;
    Line line{story.result.name, {}};
    for (std::size_t l = 0; l < story.recall->layers(); ++l) {
      if (story.recall->recalled(l) == 0) continue;
      line.points.push_back(
          {static_cast<double>(story.recall_layers[l]), 100 * story.recall->alone(l)});
      rows += fmt::format("| {} | {} | {} | {:.1f} |\n", story.result.name, story.recall_layers[l],
                          story.recall->recalled(l), 100 * story.recall->alone(l));
    }
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  if (lines.empty()) return {};
  return fmt::format(
             "\n# What each layer recalls alone (EM Fig. 5)\n\nOf the events that a layer recalled "
             "in a step, those that no other layer did.\n\n| story | layer | recalled, all steps | "
             "alone, percent |\n|---|---|---|---|\n{}",
             rows) +
         shown(files, "recall_alone.svg", "events recalled by one layer alone",
               line_chart("Events that no other layer recalled, percent", "layer", lines));
}

std::string figures_at(const Stories& stories, const std::string& count, Files& files) {
  if (methods_at(stories, count).empty()) return {};
  std::string text;
  for (const Measure& m : kMeasures)
    text += shown(files, fmt::format("{}_{}.svg", m.key, count), m.title,
                  bars_of(stories, count, fmt::format("{}: difference from random", m.title),
                          [&](const Segmented& s) -> std::optional<Bar> {
                            return difference(s.cohesion.all.*m.value, s.random.mean.*m.value,
                                              s.random.deviation.*m.value);
                          }));
  if (std::any_of(stories.begin(), stories.end(),
                  [](const ComparedStory& s) { return !s.result.people.empty(); }))
    text += shown(files, fmt::format("distance_{}.svg", count), "Wasserstein distance to people",
                  bars_of(stories, count,
                          "Wasserstein distance to people, tokens: difference from random "
                          "(smaller is better)",
                          [&](const Segmented& s) -> std::optional<Bar> {
                            if (!s.people || s.method == "people") return std::nullopt;
                            return difference(s.people->wasserstein, s.random.people->wasserstein,
                                              s.random.people_deviation->wasserstein);
                          }));
  return text;
}

std::string figures_of(const ComparedStory& story, Files& files) {
  const std::string name = story.result.name, part = file_part(name);
  const std::string count = story.result.people.empty() ? "surprise" : "people";
  std::string text = shown(files, fmt::format("density_{}.svg", part),
                           name + ": density of boundaries", density_plot(story));
  for (const char* method : {"KH", "GH"})
    text += shown(files, fmt::format("heads_{}_{}.svg", part, method),
                  fmt::format("{}: events by layer and head, {}", name, method),
                  head_counts(story, count, method));
  std::vector<Line> lines = lines_by_layer(story, count, &SegmentedHead::to_people, "people");
  for (Line& line : lines_by_layer(story, count, &SegmentedHead::to_surprise, "surprise"))
    lines.push_back(std::move(line));
  text += shown(files, fmt::format("layers_{}.svg", part), name + ": distance by layer",
                line_chart(name + ": Wasserstein distance by layer, tokens", "layer", lines));
  return text;
}

std::string report(const Stories& stories, const ComparisonSettings& settings, Files& files) {
  const analysis::CompareOptions& o = settings.options;
  std::string text = fmt::format(
      "# Segmentations compared\n\nModel {}, {} attention, keys before rotary embedding; the graph "
      "A_ij = k_i . k_j over all layers, heads and tokens of a story, refinement's from layer {} "
      "on. "
      "Surprise: gamma {:g} where people marked nothing. Random: mean over {} segmentations of as "
      "many boundaries (seed {}); numbers are differences from it, in brackets how many deviations "
      "of one random segmentation that is. Distances are in tokens; densities are smoothed by a "
      "Gaussian of {:g} tokens, boundaries match within {}. K judges from {} keys of an event on, "
      "G "
      "from {}; variance at least {:g}. Gamma of K, G and S at the wanted number: the first of "
      "0 .. 8, then -4 .. 0, that is nearest to it.\n\n"
      "S surprise, F equal steps, R random; M, C, I behind them: refined by modularity, "
      "conductance, intra/inter similarity (which drops boundaries nearer than {} tokens); K "
      "similarity to and G density under the event's keys, averaged over layers and heads; KH, GH "
      "the same in each head by itself. Settings: `{}`\n",
      settings.model, settings.attention, o.first_layer, o.config.gamma, o.draws, o.seed,
      o.deviation, o.tolerance, least_keys(o, KeySignal::similarity),
      least_keys(o, KeySignal::gaussian), o.var_floor, o.config.min_block, settings.memory_json);
  for (const char* count : kCounts) {
    if (methods_at(stories, count).empty()) continue;
    text += fmt::format("\n# At {} (EM Table 2, Fig. 4)\n", words_of(count));
    for (const ComparedStory& story : stories)
      if (const std::string table = method_table(story, count); table.find("| S |") != table.npos)
        text += fmt::format("\n## {}: {} tokens\n\n{}", story.result.name, story.result.text.size(),
                            table);
    text += figures_at(stories, count, files);
  }
  text +=
      "\n# Each head by itself (HEM)\n\nOne gamma for all heads, so that their mean number of "
      "events is the wanted one.\n";
  for (const ComparedStory& story : stories)
    text += fmt::format("\n## {}\n\n{}", story.result.name, head_table(story)) +
            figures_of(story, files);
  return text + recall_section(stories, files);
}

// -- JSON --

Json json_of(const Cohesion& c) {
  Json json;
  for (const Measure& m : kMeasures) json[m.key] = c.*m.value;
  return json;
}

Json json_of(const std::optional<Agreement>& a) {
  if (!a) return nullptr;
  return {{"wasserstein", a->wasserstein},
          {"smoothed_wasserstein", a->smoothed},
          {"correlation", a->correlation},
          {"log_density", a->log_density},
          {"matched", a->matched ? Json(*a->matched) : Json()}};
}

Json json_of(const std::optional<double>& x) { return x ? Json(*x) : Json(); }

}  // namespace

Json comparison_json(const Stories& stories, const ComparisonSettings& settings) {
  const analysis::CompareOptions& o = settings.options;
  Json json{{"model", settings.model},
            {"attention", settings.attention},
            {"memory", parse_ordered(settings.memory_json, "memory", {})},
            {"smoothing", o.deviation},
            {"tolerance", o.tolerance},
            {"draws", o.draws},
            {"seed", o.seed},
            {"min_count", least_keys(o, KeySignal::similarity)},
            {"min_count_gaussian", least_keys(o, KeySignal::gaussian)},
            {"var_floor", o.var_floor},
            {"first_layer", o.first_layer},
            {"stories", Json::array()}};
  for (const ComparedStory& story : stories) {
    const analysis::StoryResult& r = story.result;
    Json segmentations = Json::array(), heads = Json::array(), recall = Json::array();
    for (const Segmented& s : r.sequence)
      segmentations.push_back({{"method", s.method},
                               {"count", s.count},
                               {"gamma", json_of(s.gamma)},
                               {"missed", s.missed ? Json(*s.missed) : Json()},
                               {"boundaries", s.boundaries},
                               {"cohesion", json_of(s.cohesion.all)},
                               {"random", json_of(s.random.mean)},
                               {"random_deviation", json_of(s.random.deviation)},
                               {"people", json_of(s.people)},
                               {"random_people", json_of(s.random.people)},
                               {"raters", json_of(s.raters)},
                               {"random_raters", json_of(s.random.raters)}});
    for (const SegmentedHead& h : r.heads)
      heads.push_back({{"method", h.method},
                       {"count", h.count},
                       {"gamma", h.gamma},
                       {"missed", h.missed ? Json(*h.missed) : Json()},
                       {"layer", h.layer},
                       {"head", h.head},
                       {"boundaries", h.boundaries},
                       {"modularity", h.modularity},
                       {"fixed_modularity", h.modularity_fixed},
                       {"wasserstein_to_people", json_of(h.to_people)},
                       {"wasserstein_to_surprise", json_of(h.to_surprise)}});
    if (story.recall)
      for (std::size_t l = 0; l < story.recall->layers(); ++l)
        recall.push_back({{"layer", story.recall_layers[l]},
                          {"recalled", story.recall->recalled(l)},
                          {"alone", story.recall->alone(l)}});
    json["stories"].push_back(
        {{"name", r.name},
         {"tokens", r.text.size()},
         {"people", r.people},
         {"seconds", {{"reading", story.seconds_reading}, {"comparing", story.seconds_comparing}}},
         {"segmentations", segmentations},
         {"heads", heads},
         {"recall", recall}});
  }
  return json;
}

Files comparison_files(const Stories& stories, const ComparisonSettings& settings) {
  Files files{{"segmentations.csv", segmentations_csv(stories)},
              {"layers.csv", layers_csv(stories)},
              {"heads.csv", heads_csv(stories)},
              {"recall.csv", recall_csv(stories)}};
  std::string text = report(stories, settings, files);
  files.emplace_back("report.md", std::move(text));
  return files;
}

std::string comparison_summary(const Stories& stories) {
  std::string text;
  for (const ComparedStory& story : stories) {
    text += fmt::format(
        "{}: {} tokens; differences from random, in its deviations\n{:<9} {:<9} "
        "{:>10} {:>11} {:>12} {:>9} {:>10}\n",
        story.result.name, story.result.text.size(), "count", "method", "boundaries", "modularity",
        "conductance", "I/S means", "to people");
    const auto z = [](double value, double random, double deviation) {
      return deviation > 0 ? (value - random) / deviation : 0.0;
    };
    for (const Segmented& s : story.result.sequence) {
      const Cohesion &c = s.cohesion.all, &r = s.random.mean, &d = s.random.deviation;
      text += fmt::format("{:<9} {:<9} {:>10} {:>+11.1f} {:>+12.1f} {:>+9.1f}", s.count, s.method,
                          s.boundaries.size(), z(c.modularity, r.modularity, d.modularity),
                          z(c.conductance, r.conductance, d.conductance),
                          z(c.ratio_of_means, r.ratio_of_means, d.ratio_of_means));
      if (s.people && s.method != "people")
        text += fmt::format(" {:>+10.1f}", z(s.people->wasserstein, s.random.people->wasserstein,
                                             s.random.people_deviation->wasserstein));
      text += '\n';
    }
  }
  return text;
}

}  // namespace episodic::tools
