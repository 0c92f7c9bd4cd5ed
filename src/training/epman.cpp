// SPDX-License-Identifier: Apache-2.0
#include "episodic/training/epman.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <system_error>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/session/reader_heads.hpp"
#include "episodic/session/session.hpp"
#include "episodic/training/retrieval_loss.hpp"
#include "episodic/training/trainable_decoder.hpp"
#include "model/atomic_file.hpp"
#include "training/adamw.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;

/// Uniform in [0, 1), the same numbers on every machine.
double uniform(std::mt19937_64& random) {
  return std::ldexp(static_cast<double>(random() >> 11), -53);
}

template <class T>
void shuffle(std::vector<T>& items, std::mt19937_64& random) {
  for (std::size_t n = items.size(); n > 1; --n)
    std::swap(items[n - 1],
              items[static_cast<std::size_t>(uniform(random) * static_cast<double>(n))]);
}

/// A piece of an example's text.
struct EncodedEntry {
  std::vector<std::int64_t> ids;
  bool is_evidence = false;
};

/// An example as it is fed.
struct EncodedExample {
  std::vector<EncodedEntry> entries;
  std::vector<std::int64_t> question, answer;
  const EpmanExample* from = nullptr;
};

/// An answer without what stands around it: " 4711.\n" is "4711".
std::string_view bare(std::string_view answer) {
  constexpr std::string_view kAround = " \t\r\n.,;:!?\"'";
  const std::size_t first = answer.find_first_not_of(kAround);
  if (first == std::string_view::npos) return {};
  return answer.substr(first, answer.find_last_not_of(kAround) - first + 1);
}

bool is_evidence(const EpmanExample& example, std::size_t entry) {
  if (!example.evidence.empty())
    return std::find(example.evidence.begin(), example.evidence.end(),
                     static_cast<std::int64_t>(entry)) != example.evidence.end();
  const std::string_view answer = bare(example.answer);
  return !answer.empty() && example.entries[entry].find(answer) != std::string::npos;
}

/// float32 [rows, columns] of a list of rows.
at::Tensor tensor_of(const std::vector<std::vector<float>>& rows) {
  const auto n = static_cast<std::int64_t>(rows.size());
  const auto columns = static_cast<std::int64_t>(rows.front().size());
  at::Tensor out = at::empty({n, columns}, at::kFloat);
  float* to = out.mutable_data_ptr<float>();
  for (const std::vector<float>& row : rows) to = std::copy(row.begin(), row.end(), to);
  return out;
}

MemoryConfig training_memory(MemoryConfig config) {
  if (config.reweight != Reweighting::broad && config.reweight != Reweighting::narrow) {
    config.reweight = Reweighting::narrow;
    config.contiguity = 0;  // has no part in it
  }
  return config;
}

}  // namespace

void EpmanSettings::validate() const {
  const auto require = [](bool right, const std::string& what) {
    if (!right) throw ConfigError("training: " + what);
  };
  lora.validate();
  memory.validate();
  const double low = 1 - beta * static_cast<double>(memory.reweight_top) * 0.1;
  require(beta >= 0 && low >= 0,
          fmt::format("beta = {} lets weights of {} events begin at {}; they must lie in [0, 1]",
                      beta, memory.reweight_top, low));
  require(steps >= 0, fmt::format("steps = {}, must be >= 0", steps));
  require(batch >= 1, fmt::format("batch = {}, must be >= 1", batch));
  require(warmup >= 0, fmt::format("warmup = {}, must be >= 0", warmup));
  require(learning_rate > 0 && std::isfinite(learning_rate),
          fmt::format("learning_rate = {}, must be positive and finite", learning_rate));
  require(weight_decay >= 0 && std::isfinite(weight_decay),
          fmt::format("weight_decay = {}, must be >= 0 and finite", weight_decay));
  require(clip > 0, fmt::format("clip = {}, must be > 0", clip));
  require(retrieval_weight >= 0 && std::isfinite(retrieval_weight),
          fmt::format("retrieval_weight = {}, must be >= 0 and finite", retrieval_weight));
  require(retrieval_scale > 0 && std::isfinite(retrieval_scale),
          fmt::format("retrieval_scale = {}, must be positive and finite", retrieval_scale));
}

struct EpmanTrainer::Impl {
  const Tokenizer& tokenizer;
  EpmanSettings settings;
  TrainableDecoder decoder;
  std::string model_weights;         // fingerprint of the model's files, of the reader's heads
  at::Tensor read_head, write_head;  // [layers, width, width]; undefined: no reader is trained
  AdamW optimiser;
  std::mt19937_64 random;
  std::vector<std::int64_t> start;                   // what a tokenizer puts before a text
  bool noisy = false;                                // whether recalled events' weights are drawn
  bool asking = false;                               // whether question or answer is read
  std::map<EventId, float> drawn;                    // of the open example
  std::map<std::int64_t, std::vector<float>> asked;  // the question's query in each layer

  Impl(const OpenModel& model, const Tokenizer& words, EpmanSettings chosen,
       std::shared_ptr<FrozenProducts> products)
      : tokenizer(words),
        settings(std::move(chosen)),
        decoder(model, training_memory(settings.memory), settings.lora, std::move(products)),
        optimiser(with_heads(model), settings.weight_decay),
        random(settings.seed),
        start(words.encode("", true)) {
    decoder.set_recall_hook([this](const RecalledEvents& r) {
      if (!asking) return;
      asked[r.layer].assign(r.query.begin(), r.query.end());
      if (!noisy) return;
      for (std::size_t i = 0; i < r.events.size(); ++i) r.weights[i] = noise_of(r.events[i]);
    });
  }

  /// The adapter's parameters, and the heads', which begin as the key-space reader.
  std::vector<at::Tensor> with_heads(const OpenModel& model) {
    std::vector<at::Tensor> parameters = decoder.parameters();
    if (!settings.reader) return parameters;
    model_weights = identity_of(model.path, {}).weights;
    const MemoryShape& shape = decoder.memory().shape();
    const std::int64_t width = shape.n_heads * shape.head_dim;
    for (at::Tensor* head : {&read_head, &write_head}) {
      *head = at::eye(width, at::kFloat).repeat({shape.n_layers, 1, 1});
      parameters.push_back(head->set_requires_grad(true));
    }
    return parameters;
  }

  /// Cross-entropy of the true events, mean over the layers that were asked. Undefined where there
  /// is none. \param evidence tokens that the answer follows from
  at::Tensor loss_of_reader(const std::vector<TokenRange>& evidence, EpmanOutcome& outcome) const {
    const EpisodicMemory& memory = decoder.memory();
    const EventTable& events = memory.events();
    std::vector<std::int64_t> right;
    for (EventId e = 0; e < events.size(); ++e)
      if (std::any_of(evidence.begin(), evidence.end(), [&](const TokenRange& r) {
            return r.start < events[e].end && events[e].start < r.end;
          }))
        right.push_back(e);
    if (right.empty() || asked.empty()) return {};
    at::Tensor loss = at::zeros({}, at::kFloat);
    std::int64_t found = 0;
    for (const auto& [layer, query] : asked) {
      std::vector<std::vector<float>> written;
      for (EventId e = 0; e < events.size(); ++e)
        written.push_back(memory.representative(layer, e));
      const at::Tensor scores =
          retrieval_scores(read_head[layer], write_head[layer], tensor_of({query})[0],
                           tensor_of(written), settings.retrieval_scale);
      loss = loss + retrieval_loss(scores, right);
      found += std::find(right.begin(), right.end(), scores.argmax().item<std::int64_t>()) !=
               right.end();
    }
    const auto layers = static_cast<double>(asked.size());
    loss = loss / layers;
    outcome.retrieval_loss = loss.item<double>();
    outcome.retrieved = static_cast<double>(found) / layers;
    return loss;
  }

  /// EpMAN 3.5: uniform in [1 - beta * K * 0.1, 1].
  float noise_of(EventId event) {
    const auto [it, is_new] = drawn.try_emplace(event, 1.0f);
    if (is_new) {
      const double span = settings.beta * static_cast<double>(settings.memory.reweight_top) * 0.1;
      it->second = static_cast<float>(1 - span * uniform(random));
    }
    return it->second;
  }

  EncodedExample encode(const EpmanExample& example) const {
    EncodedExample e;
    e.from = &example;
    for (std::size_t i = 0; i < example.entries.size(); ++i)
      e.entries.push_back(
          {encode_continuation(tokenizer, example.entries[i]), is_evidence(example, i)});
    e.question = encode_continuation(tokenizer, example.question);
    e.answer = encode_continuation(tokenizer, example.answer);
    if (e.question.empty() || e.answer.empty())
      throw DataError(fmt::format("{}: the {} has no tokens", example.place,
                                  e.question.empty() ? "question" : "answer"));
    return e;
  }

  /// Reads tokens in steps of at most a chunk. \return logits [1, vocab] behind the last one, if
  /// they are wanted
  at::Tensor read(std::span<const std::int64_t> ids, bool wanted) {
    const auto chunk = static_cast<std::size_t>(decoder.memory().config().chunk);
    at::Tensor logits;
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      const auto piece = ids.subspan(at, std::min(chunk, ids.size() - at));
      const bool last = at + piece.size() == ids.size();
      logits = decoder.step(piece, StepKind::prompt, wanted && last ? 1 : 0);
    }
    return logits;
  }

  /// Feeds an example. \return the mean loss of its answer and the reader's part, with gradients
  /// where they are on
  at::Tensor run(const EncodedExample& e, bool with_noise, EpmanOutcome& outcome) {
    decoder.begin();
    drawn.clear();
    noisy = false;
    asking = false;
    asked.clear();
    std::vector<std::int64_t> text = start;
    std::vector<TokenRange> evidence;
    for (const EncodedEntry& entry : e.entries) {
      const auto first = static_cast<std::int64_t>(text.size());
      text.insert(text.end(), entry.ids.begin(), entry.ids.end());
      if (entry.is_evidence) evidence.push_back({first, static_cast<std::int64_t>(text.size())});
    }
    {
      at::AutoGradMode mode(at::GradMode::is_enabled() && settings.through_context);
      read(text, false);
    }
    noisy = with_noise;
    asking = true;
    at::Tensor logits = read(e.question, true);
    const at::Tensor retrieval = settings.reader ? loss_of_reader(evidence, outcome) : at::Tensor();
    at::Tensor loss = at::zeros({}, at::kFloat);
    for (std::size_t i = 0; i < e.answer.size(); ++i) {
      const std::int64_t id = e.answer[i];
      const at::Tensor row = logits.select(0, 0);
      loss = loss + row.logsumexp(-1) - row[id];
      outcome.right += row.argmax().item<std::int64_t>() == id;
      if (i + 1 < e.answer.size()) logits = decoder.step(std::span(&id, 1), StepKind::decode, 1);
    }
    noisy = asking = false;
    outcome.tokens = static_cast<std::int64_t>(e.answer.size());
    loss = loss / static_cast<double>(outcome.tokens);
    outcome.loss = loss.item<double>();
    if (!std::isfinite(outcome.loss)) throw DataError("the loss is not finite");
    if (!retrieval.defined()) return loss;
    if (!std::isfinite(outcome.retrieval_loss))
      throw DataError("the loss of the reader is not finite");
    return loss + settings.retrieval_weight * retrieval;
  }

  /// run, with what goes wrong told of the example. \param step of training, 0 outside of it
  at::Tensor run_named(const EncodedExample& e, bool with_noise, std::int64_t step,
                       EpmanOutcome& outcome) {
    try {
      return run(e, with_noise, outcome);
    } catch (const DataError& error) {
      // Where training has diverged, the memory refuses keys that are not finite before a loss is.
      throw DataError(step < 2
                          ? fmt::format("{}: {}", e.from->place, error.what())
                          : fmt::format("{}: {} (step {} of training); lower the learning rate",
                                        e.from->place, error.what(), step));
    }
  }

  double rate_of(std::int64_t step) const {
    const double left = static_cast<double>(settings.steps - step) /
                        static_cast<double>(std::max<std::int64_t>(1, settings.steps));
    const double risen =
        settings.warmup == 0
            ? 1
            : std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(settings.warmup));
    return settings.learning_rate * left * risen;
  }

  void train(std::span<const EpmanExample> examples,
             const std::function<bool(const EpmanStep&)>& after_step) {
    if (examples.empty()) throw DataError("training: no examples; give at least one");
    std::vector<EncodedExample> encoded;
    for (const EpmanExample& e : examples) encoded.push_back(encode(e));
    const auto began = std::chrono::steady_clock::now();
    std::vector<std::size_t> order(encoded.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::size_t next = order.size();
    for (std::int64_t s = 0; s < settings.steps; ++s) {
      optimiser.zero_grad();
      EpmanStep done;
      std::int64_t tokens = 0, right = 0, retrievals = 0;
      double retrieval = 0;
      for (std::int64_t b = 0; b < settings.batch; ++b) {
        if (next == order.size()) {
          shuffle(order, random);
          next = 0;
        }
        EncodedExample& e = encoded[order[next++]];
        if (settings.shuffle) shuffle(e.entries, random);
        EpmanOutcome outcome;
        const at::Tensor loss = run_named(e, true, s + 1, outcome);
        (loss / static_cast<double>(settings.batch)).backward();
        done.loss += outcome.loss / static_cast<double>(settings.batch);
        tokens += outcome.tokens;
        right += outcome.right;
        if (outcome.retrieval_loss >= 0) {
          retrieval += outcome.retrieval_loss;
          ++retrievals;
        }
      }
      if (retrievals > 0) done.retrieval_loss = retrieval / static_cast<double>(retrievals);
      done.step = s + 1;
      done.right = static_cast<double>(right) / static_cast<double>(tokens);
      done.learning_rate = rate_of(s);
      done.gradient = optimiser.clip(settings.clip);
      if (!std::isfinite(done.gradient))
        throw DataError(
            fmt::format("training: the gradient of step {} is not finite; lower the "
                        "learning rate",
                        done.step));
      optimiser.step(done.learning_rate);
      done.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      if (after_step && !after_step(done)) return;
    }
  }
};

EpmanTrainer::EpmanTrainer(const OpenModel& model, const Tokenizer& tokenizer,
                           EpmanSettings settings, std::shared_ptr<FrozenProducts> products) {
  settings.validate();
  impl_ = std::make_unique<Impl>(model, tokenizer, std::move(settings), std::move(products));
}
EpmanTrainer::~EpmanTrainer() = default;

void EpmanTrainer::train(std::span<const EpmanExample> examples,
                         const std::function<bool(const EpmanStep&)>& after_step) {
  impl_->train(examples, after_step);
}

EpmanOutcome EpmanTrainer::evaluate(const EpmanExample& example) {
  const at::NoGradGuard no_grad;
  EpmanOutcome outcome;
  impl_->run_named(impl_->encode(example), false, 0, outcome);
  return outcome;
}

ReaderHeads EpmanTrainer::heads() const {
  if (!impl_->settings.reader)
    throw ConfigError("training: no reader is trained; set `reader`, then there are heads");
  const auto numbers = [](const at::Tensor& head) {
    const at::Tensor packed = head.detach().contiguous();
    const float* from = packed.const_data_ptr<float>();
    return std::vector<float>(from, from + packed.numel());
  };
  return {.layers = impl_->read_head.size(0),
          .width = impl_->read_head.size(2),
          .out = impl_->read_head.size(1),
          .read = numbers(impl_->read_head),
          .write = numbers(impl_->write_head),
          .model = impl_->model_weights};
}

TrainableDecoder& EpmanTrainer::decoder() { return impl_->decoder; }
const EpmanSettings& EpmanTrainer::settings() const { return impl_->settings; }

void require_new_folder(const fs::path& dir) {
  std::error_code ignored;
  if (fs::exists(dir, ignored) && !(fs::is_directory(dir, ignored) && fs::is_empty(dir, ignored)))
    throw FileError(
        fmt::format("{}: is there already; name a folder that is not, or remove it", dir.string()));
  const fs::path around = fs::absolute(dir).lexically_normal().parent_path();
  if (!fs::is_directory(around, ignored))
    throw FileError(
        fmt::format("{}: there is no folder {} for it; make it", dir.string(), around.string()));
}

void EpmanTrainer::save(const fs::path& dir, const std::string& base,
                        std::span<const std::pair<std::string, std::string>> further) const {
  require_new_folder(dir);
  fs::path whole = fs::absolute(dir).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "DIR/"
  fs::path part = whole;
  part += fmt::format(".{}.part", ::getpid());
  const auto fail = [&](const std::error_code& code) {
    throw FileError(
        fmt::format("{}: cannot be written ({}); check the directory and the space left",
                    dir.string(), code.message()));
  };
  std::error_code code;
  fs::remove_all(part, code);
  if (!fs::create_directory(part, code)) fail(code);
  try {
    impl_->decoder.save(part, base);
    if (impl_->settings.reader) heads().save(part);
    for (const auto& [name, content] : further) {
      AtomicFile file(part / name);
      file.write(content.data(), content.size());
      file.commit();
    }
    fs::rename(part, whole, code);
    if (code) fail(code);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(part, ignored);
    throw;
  }
}

}  // namespace episodic
