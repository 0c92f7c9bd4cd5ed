// SPDX-License-Identifier: Apache-2.0
// Patching a torch::nn model of your own (your_model.hpp): the same logits inside the window, a
// passage found again far outside of it, and the former numbers to the bit after unpatching.
#include <torch/utils.h>

#include <cstdio>
#include <exception>

#include "your_model.hpp"

int main() try {
  torch::manual_seed(1);
  yours::Model model = yours::random_model();
  yours::Sequence sequence(model);
  const auto random = [](std::int64_t n) { return torch::randint(16, 96, {n}, torch::kLong); };
  const torch::Tensor text = random(128);
  const torch::Tensor before = sequence.step(text);

  const episodic::MemoryConfig config{
      .n_init = 4, .n_local = 256, .n_mem = 64, .chunk = 64, .min_block = 8};
  const auto memory =
      std::make_shared<episodic::EpisodicMemory>(config, sequence.shape(sequence.n_layers()));
  episodic::patch(sequence, memory);

  // Inside the window: in two steps what it computed in one.
  const torch::Tensor first = sequence.step(text.slice(0, 0, 64));
  const torch::Tensor second = sequence.step(text.slice(0, 64, 128));
  const double difference = (torch::cat({first, second}) - before).abs().max().item<double>();

  // Outside: a passage that is read, left far behind, and read once more.
  const torch::Tensor passage = torch::arange(0, 16, torch::kLong);
  const std::int64_t where = memory->tokens();
  sequence.step(passage);
  for (int i = 0; i < 40; ++i) sequence.step(random(64));
  sequence.step(passage);
  bool found = false;
  for (const episodic::EventId event : memory->recalled(0).similarity()) {
    const episodic::TokenRange range = memory->events()[event];
    found = found || (range.start < where + 16 && range.end > where);
  }

  episodic::unpatch(sequence);
  const bool same = torch::equal(sequence.step(text), before);
  std::printf(
      "largest difference inside the window: %.0e\n"
      "%ld tokens in %ld events; the passage at token %ld was %s at token %ld\n"
      "after unpatching: %s\n",
      difference, long{memory->tokens()}, long{memory->events().size()}, long{where},
      found ? "recalled" : "not recalled", long{memory->tokens() - 16},
      same ? "the same bits" : "other numbers");
  return difference < 1e-3 && found && same ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "patch_your_model: %s\n", e.what());
  return 1;
}
