// SPDX-License-Identifier: Apache-2.0
// Several sequences of one model, a token of each in one step, beside the same tokens one after
// another.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/model/patch.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

struct Flags {
  tools::CommonFlags common;
  std::filesystem::path model;
  std::vector<std::int64_t> sequences{1, 2, 4, 8};
  std::int64_t context = 512, decode = 16, rounds = 3;
  std::string memory;
  tools::JsonFlag json;
};

std::vector<std::int64_t> random_ids(std::mt19937& random, std::int64_t n, std::int64_t vocab) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
  for (std::int64_t& id : ids)
    id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocab));
  return ids;
}

/// Sequences with a context of their own each.
std::vector<Decoder> read_contexts(const Flags& flags, const OpenModel& opened,
                                   const MemoryConfig& config, std::int64_t n) {
  std::vector<Decoder> models;
  models.push_back(Decoder::load(opened));
  while (static_cast<std::int64_t>(models.size()) < n) models.push_back(models[0].share_weights());
  std::mt19937 random(1);
  for (Decoder& model : models) {
    patch(model, config);
    const auto ids = random_ids(random, flags.context, model.config().vocab_size);
    for (std::size_t at = 0; at < ids.size();) {
      const std::size_t step = std::min(ids.size() - at, static_cast<std::size_t>(model.chunk()));
      model.step(std::span(ids).subspan(at, step));
      at += step;
    }
  }
  return models;
}

Json measure(const Flags& flags, const OpenModel& opened, const MemoryConfig& config,
             std::int64_t n) {
  std::vector<Decoder> models = read_contexts(flags, opened, config, n);
  std::mt19937 random(2);
  std::vector<double> together, apart;
  for (std::int64_t round = 0; round < flags.rounds; ++round)
    for (std::vector<double>* seconds : {&together, &apart}) {  // alternating
      Laps laps;
      for (std::int64_t t = 0; t < flags.decode; ++t) {
        const auto ids = random_ids(random, n, models[0].config().vocab_size);
        std::vector<Decoder::SequenceStep> batch;
        for (std::size_t i = 0; i < models.size(); ++i) batch.push_back({&models[i], {&ids[i], 1}});
        if (seconds == &together)
          Decoder::step_batch(batch);
        else
          for (const Decoder::SequenceStep& s : batch) s.sequence->step(s.ids, s.kind);
      }
      seconds->push_back(laps.lap().wall / static_cast<double>(flags.decode));
    }
  return {{"sequences", n},
          {"seconds_per_step", {{"together", summary(together)}, {"apart", summary(apart)}}}};
}

void run(const Flags& flags) {
  flags.common.apply_on_host();
  const OpenModel opened = open_model(flags.model);
  MemoryConfig config = memory_config_of(flags.model);
  if (!flags.memory.empty()) config = change_memory_config(config, flags.memory);
  Json all{{"environment", environment()},
           {"model", identity_of(opened).model},
           {"context", flags.context},
           {"decode", flags.decode},
           {"batches", Json::array()}};
  for (const std::int64_t n : flags.sequences) {
    all["batches"].push_back(measure(flags, opened, config, n));
    const Json& seconds = all["batches"].back()["seconds_per_step"];
    const auto rate = [&](const char* way) {
      return static_cast<double>(n) / seconds[way]["median"].get<double>();
    };
    flags.json.say(
        fmt::format("{} sequences: {:.1f} tokens/s in one step, {:.1f} one after another\n", n,
                    rate("together"), rate("apart")));
  }
  flags.json.write(all);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
  episodic::tools::CommandLine app{"A token of each of several sequences in one step",
                                   "bench_batch"};
  episodic::bench::Flags flags;
  app.option("--model", flags.model, "Model directory or GGUF file").required();
  app.option("--sequences", flags.sequences, "Sequences of a step").separated_by(',').positive();
  app.option("--context", flags.context, "Tokens that each has read").positive().shows_default();
  app.option("--decode", flags.decode, "Steps of a round").positive().shows_default();
  app.option("--rounds", flags.rounds, "Repetitions").positive().shows_default();
  app.option("--memory", flags.memory, "Changed fields of the memory's settings, as JSON");
  flags.json.add_to(app);
  flags.common.add_to(app);
  app.footer("Example:\n  bench_batch --model model.gguf --sequences 1,4,16 --json batch.json");
  return episodic::bench::run_program(app, argc, argv, [&] { episodic::bench::run(flags); });
}
