// SPDX-License-Identifier: Apache-2.0
// `episodic train-lora`: an adapter that a model learns under its memory.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/strict_json.hpp"
#include "commands.hpp"
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/training/epman.hpp"

namespace episodic::tools {
namespace {

struct TrainFlags {
  CommonFlags common;
  ModelFlags model;
  std::filesystem::path data, validate, out;
  std::string objective;
  std::vector<std::string> targets = {"q", "k", "v", "o"};
  std::int64_t top_k = 0;  // 0: the memory's own
  bool in_order = false, constant_context = false;
  EpmanSettings settings;
  JsonFlag json;
};

/// How a list of examples is answered.
struct Validation {
  double loss = 0, tokens_right = 0, answers_right = 0;
  // of the examples whose evidence was in closed events, with --reader
  std::int64_t asked = 0;
  double retrieval_loss = 0, retrieved = 0;

  Json json() const {
    Json json{{"loss", loss}, {"tokens_right", tokens_right}, {"answers_right", answers_right}};
    if (asked > 0)
      json["reader"] = {{"examples", asked}, {"loss", retrieval_loss}, {"found", retrieved}};
    return json;
  }
  std::string text() const {
    std::string said = fmt::format("loss {:.3f}, {:.1f} % of tokens and {:.1f} % of answers right",
                                   loss, 100 * tokens_right, 100 * answers_right);
    if (asked > 0)
      said += fmt::format("; reader: loss {:.3f}, the true event first in {:.1f} % of layers",
                          retrieval_loss, 100 * retrieved);
    return said;
  }
};

std::vector<WeightRole> targets_of(const std::vector<std::string>& list) {
  std::vector<WeightRole> targets;
  for (const std::string& name : list) {
    const auto found = std::find_if(kWeightRoles.begin(), kWeightRoles.end(),
                                    [&](const auto& r) { return r.adapted && name == r.name; });
    if (found == kWeightRoles.end())
      throw ConfigError(fmt::format(
          "--targets: \"{}\" is no product; name some of q, k, v, o, gate, up, down", name));
    targets.push_back(found->role);
  }
  return targets;
}

EpmanSettings settings_of(const TrainFlags& flags) {
  EpmanSettings settings = flags.settings;
  settings.memory = flags.model.memory_config();
  if (flags.top_k > 0) settings.memory.reweight_top = flags.top_k;
  settings.lora.targets = targets_of(flags.targets);
  settings.lora.seed = settings.seed;
  settings.shuffle = !flags.in_order;
  settings.through_context = !flags.constant_context;
  return settings;
}

Validation validate(EpmanTrainer& trainer, const std::vector<EpmanExample>& examples) {
  Validation all;
  std::int64_t tokens = 0, right = 0, answers = 0;
  for (const EpmanExample& e : examples) {
    const EpmanOutcome one = trainer.evaluate(e);
    all.loss += one.loss / static_cast<double>(examples.size());
    tokens += one.tokens;
    right += one.right;
    answers += one.right == one.tokens;
    if (one.retrieval_loss < 0) continue;
    ++all.asked;
    all.retrieval_loss += one.retrieval_loss;
    all.retrieved += one.retrieved;
  }
  if (all.asked > 0) {
    all.retrieval_loss /= static_cast<double>(all.asked);
    all.retrieved /= static_cast<double>(all.asked);
  }
  all.tokens_right = static_cast<double>(right) / static_cast<double>(tokens);
  all.answers_right = static_cast<double>(answers) / static_cast<double>(examples.size());
  return all;
}

void run(const TrainFlags& flags) {
  flags.common.apply();
  require_model_dir(flags.model.model);
  require_new_folder(flags.out);  // before an hour is spent
  const std::vector<EpmanExample> examples = read_epman_examples(flags.data);
  std::vector<EpmanExample> held_out;
  if (!flags.validate.empty()) held_out = read_epman_examples(flags.validate);
  const OpenModel model = open_model(flags.model.model);
  const std::unique_ptr<Tokenizer> tokenizer = load_model_tokenizer(flags.model.model);
  EpmanTrainer trainer(model, *tokenizer, settings_of(flags),
                       products_on_device(flags.common, model));

  const auto note = [&](const std::string& line) {
    if (!flags.common.quiet) fmt::print(stderr, "{}\n", line);
  };
  Validation before, after;
  if (!held_out.empty()) {
    before = validate(trainer, held_out);
    note(fmt::format("before: {}", before.text()));
  }
  std::string curve = "step,loss,tokens_right,retrieval_loss,gradient,learning_rate,seconds\n";
  EpmanStep first, last;
  const std::int64_t steps = flags.settings.steps, often = std::max<std::int64_t>(1, steps / 20);
  trainer.train(examples, [&](const EpmanStep& s) {
    if (s.step == 1) first = s;
    last = s;
    const std::string retrieval =
        s.retrieval_loss < 0 ? "" : fmt::format("{:.6g}", s.retrieval_loss);
    curve += fmt::format("{},{:.6g},{:.6g},{},{:.6g},{:.6g},{:.3f}\n", s.step, s.loss, s.right,
                         retrieval, s.gradient, s.learning_rate, s.seconds);
    if (s.step == 1 || s.step == steps || s.step % often == 0)
      note(fmt::format("step {} of {}: loss {:.3f}, {:.0f} % of tokens right, {:.0f} s", s.step,
                       steps, s.loss, 100 * s.right, s.seconds));
    return true;
  });
  if (!held_out.empty()) {
    after = validate(trainer, held_out);
    note(fmt::format("after: {}", after.text()));
  }
  trainer.save(flags.out, flags.model.model.string(),
               std::vector<std::pair<std::string, std::string>>{{"loss.csv", curve}});

  Json json{{"out", flags.out.string()},
            {"objective", flags.objective},
            {"examples", examples.size()},
            {"steps", last.step},
            {"first_loss", first.loss},
            {"last_loss", last.loss},
            {"seconds", last.seconds},
            {"memory", parse_ordered(to_json(trainer.settings().memory), "memory", {})}};
  if (!held_out.empty())
    json["validation"] = {
        {"examples", held_out.size()}, {"before", before.json()}, {"after", after.json()}};
  flags.json.write(json);
  flags.json.say(
      fmt::format("{}: an adapter after {} steps; loss {:.3f} at first, {:.3f} at last\n",
                  flags.out.string(), last.step, first.loss, last.loss));
}

}  // namespace

void add_train_lora(Command& app) {
  auto flags = std::make_shared<TrainFlags>();
  Command sub =
      app.subcommand("train-lora", "Train an adapter (LoRA) for a model under its memory");
  sub.footer(
      "Denoising training of EpMAN: the memory reads each example's text in chunks and the "
      "question "
      "as a step\nof its own; while question and answer are read, the top K events' weights are "
      "noise. The loss is that of\nthe answer's tokens. DATA has one JSON object a line:\n"
      "  {\"entries\": [\"text in\", \" pieces\"], \"question\": \"...\", \"answer\": \"...\"}\n"
      "and for --reader \"evidence\", the numbers of the entries that the answer follows from "
      "(without "
      "it those\nthat hold the answer's text). "
      "OUT becomes a folder as PEFT saves one, for --lora, with the curve in loss.csv; it appears "
      "whole or not at all.\nWith --device cuda the products with the model's weights are computed "
      "there, in float32;\nmemory, attention and adapter stay on the host.\n\n"
      "Example:\n  episodic train-lora --model M --objective epman --data train.jsonl --out "
      "adapter");
  sub.option("--model", flags->model.model, "Model directory in Hugging Face layout").required();
  sub.option("--objective", flags->objective, "What is trained for: epman")
      .required()
      .one_of({"epman"});
  sub.option("--data", flags->data, "Examples, one JSON object a line")
      .required()
      .type_name("FILE");
  sub.option("--out", flags->out, "Folder for the adapter, which must not be there yet")
      .required()
      .type_name("DIR");
  sub.option("--validate", flags->validate, "Examples to answer before and after, without noise")
      .type_name("FILE");
  sub.option("--memory", flags->model.memory,
             "Settings of the memory: JSON, or a file of it; changes the model's own")
      .type_name("FILE|JSON");
  EpmanSettings& s = flags->settings;
  add_count(sub, "--steps", s.steps, "Steps of the optimiser (AdamW)");
  add_count(sub, "--batch", s.batch, "Examples a step", 1);
  sub.option("--lr", s.learning_rate, "Learning rate; falls linearly to 0")
      .positive()
      .shows_default();
  add_count(sub, "--warmup", s.warmup, "Steps over which the learning rate rises");
  sub.option("--weight-decay", s.weight_decay, "Of AdamW").shows_default();
  sub.option("--clip", s.clip, "Largest norm of a step's gradient").positive().shows_default();
  add_count(sub, "--rank", s.lora.rank, "Rank of the adapter", 1);
  sub.option("--alpha", s.lora.alpha, "The adapter counts alpha / rank").positive().shows_default();
  sub.option("--targets", flags->targets, "Products that get one, of q,k,v,o,gate,up,down")
      .separated_by(',')
      .shows_default();
  add_count(sub, "--top-k", flags->top_k, "K, events attended to (0: the memory's reweight_top)");
  sub.option("--beta", s.beta, "Weights are drawn from 1 - beta * K * 0.1 to 1").shows_default();
  sub.flag("--reader", s.reader,
           "Train read and write heads as well, with the retrieval loss; for --reader of other "
           "commands");
  sub.option("--retrieval-weight", s.retrieval_weight, "Of that loss beside the answer's")
      .shows_default();
  sub.flag("--in-order", flags->in_order, "Entries keep their order in every pass");
  sub.flag("--constant-context", flags->constant_context,
           "No gradients through the text's keys and values: faster");
  sub.option("--seed", s.seed, "Of the adapter's start, the order and the noise").shows_default();
  flags->json.add_to(sub);
  flags->common.add_to(sub);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
