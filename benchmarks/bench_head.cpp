// SPDX-License-Identifier: Apache-2.0
// What the surprise of a step's tokens costs: the head in pieces of the vocabulary beside all rows
// of logits, on random weights. One layer stands before the head, so that it is nearly all there
// is.

#include <fmt/format.h>

#include <filesystem>
#include <random>

#include "episodic/base/dtype.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/timeline/surprise.hpp"
#include "support/environment.hpp"

namespace episodic::bench {
namespace {

namespace fs = std::filesystem;

struct Flags {
  tools::CommonFlags common;
  std::vector<std::int64_t> vocab{32'000, 128'256, 262'144};
  std::int64_t hidden = 640, rows = 512, rounds = 3;
  tools::JsonFlag json;
};

/// A model directory of one small layer under a large head.
void write_model(const fs::path& dir, std::int64_t vocab, std::int64_t hidden) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<std::uint16_t> pool(1 << 20);  // weights repeat: making them is not what is measured
  for (std::uint16_t& w : pool) w = to_bfloat16(normal(random));
  std::vector<std::vector<std::uint16_t>> data;
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::size_t n = 1;
    for (const std::int64_t s : shape) n *= static_cast<std::size_t>(s);
    std::vector<std::uint16_t> weights(n);
    for (std::size_t i = 0; i < n; ++i) weights[i] = pool[(i * 7919 + n) % pool.size()];
    data.push_back(std::move(weights));
    tensors.push_back({name, TensorType::bf16, std::move(shape), data.back().data()});
  };
  const std::int64_t inner = 256, head = 64;
  add("model.embed_tokens.weight", {vocab, hidden});
  const std::string layer = "model.layers.0.";
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    add(layer + norm + ".weight", {hidden});
  add(layer + "self_attn.q_proj.weight", {head, hidden});
  add(layer + "self_attn.k_proj.weight", {head, hidden});
  add(layer + "self_attn.v_proj.weight", {head, hidden});
  add(layer + "self_attn.o_proj.weight", {hidden, head});
  add(layer + "mlp.gate_proj.weight", {inner, hidden});
  add(layer + "mlp.up_proj.weight", {inner, hidden});
  add(layer + "mlp.down_proj.weight", {hidden, inner});
  add("model.norm.weight", {hidden});
  write_safetensors(dir / "model.safetensors", tensors);
  tools::write_json(dir / "config.json", {{"model_type", "llama"},
                                          {"vocab_size", vocab},
                                          {"hidden_size", hidden},
                                          {"intermediate_size", inner},
                                          {"num_hidden_layers", 1},
                                          {"num_attention_heads", 1},
                                          {"num_key_value_heads", 1},
                                          {"head_dim", head},
                                          {"rms_norm_eps", 1e-5},
                                          {"tie_word_embeddings", true}});
}

Json measure(const Flags& flags, std::int64_t vocab) {
  const fs::path dir = fs::temp_directory_path() / fmt::format("bench_head_{}_{}", vocab, getpid());
  fs::create_directories(dir);
  Json result;
  try {
    write_model(dir, vocab, flags.hidden);
    Decoder model = Decoder::load(dir);
    std::mt19937 random(2);
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < flags.rows; ++i)
      ids.push_back(static_cast<std::int64_t>(random() % static_cast<unsigned>(vocab)));
    std::vector<float> pieces(ids.size() - 1), whole(ids.size() - 1);
    std::vector<double> wall[2], cpu[2];
    std::int64_t resident[2] = {0, 0};
    for (std::int64_t round = 0; round < flags.rounds; ++round)
      for (const int way : {0, 1}) {  // alternating, so that the machine's load hits both
        model.reset();
        Laps laps;
        if (way == 0) {
          model.forward_surprise(ids, pieces);
        } else {
          const LogitsView logits = model.forward(ids);
          token_surprise(logits.floats().data(), flags.rows - 1, vocab, vocab, ids.data() + 1,
                         whole.data());
        }
        const Laps::Times t = laps.lap();
        wall[way].push_back(t.wall);
        cpu[way].push_back(t.cpu);
        // the peak only grows: the first round shows what each way adds
        if (round == 0) resident[way] = tools::peak_resident_bytes();
      }
    result = {{"vocab", vocab},
              {"hidden", flags.hidden},
              {"rows", flags.rows},
              {"equal_to_the_bit", pieces == whole},
              {"seconds", {{"pieces", summary(wall[0])}, {"all_rows", summary(wall[1])}}},
              {"cpu_seconds", {{"pieces", summary(cpu[0])}, {"all_rows", summary(cpu[1])}}},
              {"logits_bytes", flags.rows * vocab * 4},
              {"peak_bytes_added_by_all_rows", resident[1] - resident[0]}};
  } catch (...) {
    fs::remove_all(dir);
    throw;
  }
  fs::remove_all(dir);
  return result;
}

void run(const Flags& flags) {
  flags.common.apply_on_host();
  Json all{{"environment", environment()}, {"heads", Json::array()}};
  for (const std::int64_t vocab : flags.vocab) {
    all["heads"].push_back(measure(flags, vocab));
    const Json& h = all["heads"].back();
    flags.json.say(
        fmt::format("vocabulary {}: {:.3f} s in pieces, {:.3f} s with all rows (processor, best), "
                    "{:.0f} MB less, {}\n",
                    vocab, h["cpu_seconds"]["pieces"]["min"].get<double>(),
                    h["cpu_seconds"]["all_rows"]["min"].get<double>(),
                    h["peak_bytes_added_by_all_rows"].get<double>() / 1e6,
                    h["equal_to_the_bit"].get<bool>() ? "the same bits" : "other bits"));
  }
  flags.json.write(all);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
  episodic::tools::CommandLine app{"The output head in pieces beside all rows of logits",
                                   "bench_head"};
  episodic::bench::Flags flags;
  app.option("--vocab", flags.vocab, "Vocabularies").separated_by(',').positive();
  app.option("--hidden", flags.hidden, "Width").positive().shows_default();
  app.option("--rows", flags.rows, "Tokens of the step").between(2, 65536).shows_default();
  app.option("--rounds", flags.rounds, "Repetitions").positive().shows_default();
  flags.json.add_to(app);
  flags.common.add_to(app);
  app.footer("Example:\n  bench_head --vocab 32000,262144 --threads 2 --json head.json");
  return episodic::bench::run_program(app, argc, argv, [&] { episodic::bench::run(flags); });
}
