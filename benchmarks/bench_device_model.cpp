// SPDX-License-Identifier: Apache-2.0
// A whole decoder with its memory on a CUDA device: prefill in tokens/s beside a product of as many
// flops, decoding in ms/token beside a copy of as many bytes.

#include <cuda_profiler_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/strict_json.hpp"
#include "episodic/base/config.hpp"
#include "episodic/device/device_decoder.hpp"
#include "episodic/model/safetensors.hpp"
#include "flags.hpp"
#include "kernels/codes.hpp"
#include "support/device.hpp"

namespace episodic::bench {
namespace {

using Json = nlohmann::json;

struct Flags {
  std::filesystem::path model, json;
  bool make_random = false, profile = false, early_launches = false;
  /// Of a random model; the defaults are those of Llama 3.1 8B.
  std::int64_t vocab = 128256, hidden = 4096, inner = 14336, layers = 32, heads = 32, kv_heads = 8;
  std::string memory = "{}", commit;
  std::int64_t context = 65536, last = 8192, decode = 64;
  std::int64_t sequences = 1, event_tokens = 0;
  std::int64_t codes_from = DeviceMemoryOptions::kCodesWherePaid;
  std::string representatives = "float32";
  int device = 0;
};

/// Random bfloat16 weights of a LLaMA shape. Every tensor is the beginning of one array.
void write_random_model(const Flags& f) {
  if (std::filesystem::exists(f.model / "config.json"))
    throw std::runtime_error(
        fmt::format("--make-random: {} has a model already", f.model.string()));
  std::filesystem::create_directories(f.model);
  const std::int64_t head_dim = f.hidden / f.heads;
  constexpr std::size_t kPeriod = 4194301;  // a prime: no two rows are alike
  const auto most = static_cast<std::size_t>(std::max(f.vocab, f.inner) * f.hidden);
  std::vector<std::uint16_t> weights(most);
  const std::vector<std::uint16_t> ones(static_cast<std::size_t>(f.hidden), to_bfloat16(1.0f));
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (std::size_t i = 0; i < std::min(kPeriod, most); ++i)
    weights[i] = to_bfloat16(normal(random));
  for (std::size_t i = kPeriod; i < most; ++i) weights[i] = weights[i - kPeriod];

  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    tensors.push_back({name + ".weight", TensorType::bf16, {out, in}, weights.data()});
  };
  const auto norm = [&](const std::string& name) {
    tensors.push_back({name + ".weight", TensorType::bf16, {f.hidden}, ones.data()});
  };
  add("model.embed_tokens", f.vocab, f.hidden);
  for (std::int64_t l = 0; l < f.layers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    norm(at + "input_layernorm");
    norm(at + "post_attention_layernorm");
    add(at + "self_attn.q_proj", f.heads * head_dim, f.hidden);
    add(at + "self_attn.k_proj", f.kv_heads * head_dim, f.hidden);
    add(at + "self_attn.v_proj", f.kv_heads * head_dim, f.hidden);
    add(at + "self_attn.o_proj", f.hidden, f.heads * head_dim);
    add(at + "mlp.gate_proj", f.inner, f.hidden);
    add(at + "mlp.up_proj", f.inner, f.hidden);
    add(at + "mlp.down_proj", f.hidden, f.inner);
  }
  norm("model.norm");
  add("lm_head", f.vocab, f.hidden);
  write_safetensors(f.model / "model.safetensors", tensors);
  std::ofstream out(f.model / "config.json");  // last: a broken run leaves no model
  out << Json{{"model_type", "llama"},
              {"vocab_size", f.vocab},
              {"hidden_size", f.hidden},
              {"intermediate_size", f.inner},
              {"num_hidden_layers", f.layers},
              {"num_attention_heads", f.heads},
              {"num_key_value_heads", f.kv_heads},
              {"head_dim", head_dim},
              {"rms_norm_eps", 1e-5},
              {"rope_theta", 500000.0},
              {"tie_word_embeddings", false},
              {"attention_bias", false},
              {"mlp_bias", false}}
             .dump(1);
  if (!out.flush())
    throw std::runtime_error(fmt::format("{}: cannot be written", f.model.string()));
}

/// Bytes of representatives that a layer's search reads. Of candidates those that are recalled are
/// counted: how many more there are only the device knows.
double searched_bytes(const MemoryConfig& config, const DeviceMemory& memory) {
  const MemoryShape& shape = memory.shape();
  const std::int64_t lanes =
      config.scope == EventScope::head ? shape.n_kv_heads : config.recall_groups;
  const std::int64_t width = shape.n_heads * shape.head_dim / lanes;
  const DType dtype = memory.options().representatives;
  std::int64_t from = memory.options().codes_from;
  if (from == DeviceMemoryOptions::kCodesWherePaid)
    from = kernels::codes_pay_from(width, lanes, dtype);
  const std::int64_t events = memory.events().size();
  const std::int64_t row = width * size_of(dtype);
  const bool by_each = config.score == RepresentativeScore::max;
  if (from == 0 || events < from || by_each)
    return static_cast<double>(lanes * events * row * (by_each ? config.n_repr : 1));
  const std::int64_t coded = kernels::coded_rows(events), tokens = memory.events().tokens();
  const std::int64_t recalled =
      std::min(events, config.n_mem * events / std::max<std::int64_t>(1, tokens));
  return static_cast<double>(
      lanes * (coded * kernels::code_bytes(width) + (events - coded + recalled) * row));
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run(const Flags& flags) {
  use_device(flags.device);
  const MemoryConfig config = parse_memory_config(flags.memory);
  if (flags.make_random) write_random_model(flags);
  DeviceDecoder::Options options;
  options.device = flags.device;
  options.early_launches = flags.early_launches;
  options.event_tokens = flags.event_tokens;
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    if (flags.representatives == name_of(dtype)) options.representatives = dtype;
  options.codes_from = flags.codes_from;
  DeviceDecoder model = DeviceDecoder::load(flags.model, options);
  model.attach_memory(config, flags.context + flags.decode + 2);
  std::vector<DeviceDecoder> others;  // of a batch
  for (std::int64_t i = 1; i < flags.sequences; ++i) {
    others.push_back(model.share_weights());
    others.back().attach_memory(config, flags.context + flags.decode + 2);
  }
  const ModelConfig& c = model.config();
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };

  std::mt19937_64 random(1);
  std::vector<std::int64_t> ids;
  const auto draw = [&](std::int64_t n) {
    ids.clear();
    for (std::int64_t i = 0; i < n; ++i)
      ids.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(c.vocab_size)));
  };
  const auto feed = [&](std::int64_t n) {
    draw(n);
    model.step(ids);
  };
  // A step that a profiler of `--profile-from-start off` sees, by itself.
  const auto feed_profiled = [&](std::int64_t n) {
    model.memory().check();
    check(cudaProfilerStart(), "the profiler");
    feed(n);
    model.memory().check();
    check(cudaProfilerStop(), "the profiler");
  };
  // Prefill. The host runs ahead of the device and waits at the beginning of the last part and at
  // the end.
  const std::int64_t chunk = model.chunk(), before = flags.context - flags.last;
  const double begin = seconds_now();
  double last_begin = begin;
  for (std::int64_t done = 0; done < flags.context;) {
    const std::int64_t end = done < before ? before : flags.context;
    if (done == before) {
      model.memory().check();
      last_begin = seconds_now();
    }
    const std::int64_t n = std::min(chunk, end - done);
    if (flags.profile && done + n == flags.context)
      feed_profiled(n);
    else
      feed(n);
    done += n;
  }
  model.memory().check();
  const double end = seconds_now();
  for (DeviceDecoder& other : others) {
    for (std::int64_t done = 0; done < flags.context; done += chunk) {
      draw(std::min(chunk, flags.context - done));
      other.step(ids);
    }
    other.memory().check();
  }
  // A token of each sequence.
  const auto feed_all = [&] {
    if (others.empty()) return feed(1);
    draw(flags.sequences);
    std::vector<DeviceDecoder::SequenceStep> batch;
    for (std::size_t i = 0; i < ids.size(); ++i)
      batch.push_back({i == 0 ? &model : &others[i - 1], std::span(ids).subspan(i, 1)});
    DeviceDecoder::step_batch(batch);
  };
  constexpr std::int64_t kFirst = 16;  // of which some make graphs
  std::vector<double> decode, first_ones;
  for (std::int64_t i = 0; i <= flags.decode; ++i) {
    const double start = seconds_now();
    feed_all();
    static_cast<void>(model.logits());  // waits
    for (DeviceDecoder& other : others) static_cast<void>(other.logits());
    const double took = seconds_now() - start;
    if (i > 0) decode.push_back(took);
    if (i < kFirst) first_ones.push_back(took);
  }
  const bool graphs = model.graphs();
  if (flags.profile) feed_profiled(1);
  const std::int64_t events = model.memory().events().size();
  const DeviceMemoryBytes bytes = model.memory().bytes();

  // The limits, on what is left of the device.
  const std::int64_t element = size_of(model.dtype());
  const double embedding = d(c.vocab_size * c.hidden_size);
  const double weights = d(model.bytes().weights / element);
  const std::int64_t width = c.n_heads * c.head_dim;
  const double attended =
      std::min(d(config.n_init + config.n_mem + config.n_local), d(flags.context));
  const double flops = 2 * d(chunk) * (weights - (c.tie_word_embeddings ? 0 : embedding)) +
                       4 * d(c.n_layers * chunk * width) * attended;
  // Of a step: the weights once, the rest for each sequence.
  const double of_sequence =
      d(element) * 2 * d(c.n_layers * c.n_kv_heads * c.head_dim) * attended +
      (config.recall ? d(c.n_layers) * searched_bytes(config, model.memory()) : 0);
  const double read = d(element) * (weights - (c.tie_word_embeddings ? 0 : embedding)) +
                      d(flags.sequences) * of_sequence;
  DeviceClock clock;
  constexpr double kProduct = 1e12, kCopy = 2e9;  // of the limits' own size, scaled to the work's
  const DeviceClock::Square product = clock.square_product(std::min(flops, kProduct));
  const double copied = std::min(read, kCopy);
  const auto limits = clock.in_turn(
      {{product.run, {}}, {clock.copy(static_cast<std::int64_t>(copied)), {}}}, 20, 3);
  const double chunk_limit = flops / product.flops * median(limits[0]);
  const double token_limit = read / copied * median(limits[1]);

  const double rate = d(flags.context) / (end - begin),
               last_rate = d(flags.last) / (end - last_begin);
  const double token = median(decode);
  const auto [least, most] = std::minmax_element(decode.begin(), decode.end());
  std::vector<double> first_milliseconds;
  for (const double seconds : first_ones) first_milliseconds.push_back(1e3 * seconds);
  const Json environment = device_environment(flags.commit);
  std::printf(
      "%s\n",
      fmt::format(
          "{}, CUDA {}, commit {}, {}\n"
          "prefill  {:10.0f} tokens/s over {} tokens, {:.0f} over the last {}; a gemm of as "
          "many flops would make {:.0f} (fraction {:.2f})\n"
          "decode   {:10.3f} ms/token (min {:.3f}) at {} tokens, {} events; a copy of as many "
          "bytes takes {:.3f} ms (fraction {:.2f})\n"
          "batch    {} sequences: {:.1f} tokens/s together, {:.3f} ms a step; graphs {}, early "
          "launches {}\n"
          "first    {:.2f} ms\n"
          "memory   weights {:.2f} GB, window {:.2f}, events {:.2f}, representatives {:.2f}, "
          "a step {:.2f}",
          environment["device"].get<std::string>(), environment["toolkit"].get<std::string>(),
          environment["commit"].get<std::string>(), environment["date"].get<std::string>(), rate,
          flags.context, last_rate, flags.last, d(chunk) / chunk_limit,
          last_rate * chunk_limit / d(chunk), 1e3 * token, 1e3 * *least, flags.context, events,
          1e3 * token_limit, token_limit / token, flags.sequences, d(flags.sequences) / token,
          1e3 * token, graphs ? "on" : "off", flags.early_launches ? "on" : "off",
          fmt::join(first_milliseconds, " "), 1e-9 * d(model.bytes().weights),
          1e-9 * d(bytes.window), 1e-9 * d(bytes.events), 1e-9 * d(bytes.representatives),
          1e-9 * d(bytes.workspace + model.bytes().activations))
          .c_str());
  if (flags.json.empty()) return;
  const Json document{
      {"program", "bench_device_model"},
      {"environment", environment},
      {"model", flags.model.string()},
      {"dtype", name_of(model.dtype())},
      {"layers", c.n_layers},
      {"memory", parse_strict(to_json(config), "memory", {})},
      {"context", flags.context},
      {"events", events},
      {"prefill_tokens_per_second", rate},
      {"prefill_last_tokens", flags.last},
      {"prefill_last_tokens_per_second", last_rate},
      {"chunk_flops", flops},
      {"chunk_flops_counted",
       "2 for each weight but the embedding's and token; 4 H d (n_init + n_mem + n_local) a token "
       "and layer"},
      {"chunk_limit_seconds", chunk_limit},
      {"decode_seconds_per_token", {{"min", *least}, {"median", token}, {"max", *most}}},
      {"decode_bytes", read},
      {"decode_bytes_counted",
       "weights but the embedding's; for each sequence keys and values attended, and "
       "representatives: all vectors, or codes and the vectors of what has none or is recalled"},
      {"sequences", flags.sequences},
      {"tokens_per_second", d(flags.sequences) / token},
      {"first_steps_seconds", first_ones},
      {"graphs", graphs},
      {"early_launches", flags.early_launches},
      {"representatives", flags.representatives},
      {"codes_from", flags.codes_from},
      {"event_tokens", flags.event_tokens},
      {"decode_limit_seconds", token_limit},
      {"weight_bytes", model.bytes().weights},
      {"memory_bytes", bytes.total()},
      {"activation_bytes", model.bytes().activations}};
  std::ofstream out(flags.json);
  out << document.dump(1) << '\n';
  if (!out.flush())
    throw std::runtime_error(fmt::format("{}: cannot be written", flags.json.string()));
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  using namespace episodic::bench;
  using episodic::tools::UsageError;
  episodic::tools::CommandLine app{
      "Prefill and decoding of a whole model on a CUDA device, beside their limits",
      "bench_device_model"};
  app.footer(
      "Example (a random model of the shape of Llama 3.1 8B, 16 GB on disk):\n"
      "  bench_device_model --model /tmp/random-8b --make-random --context 500000 --json "
      "out.json\n\n"
      "Exit codes: 0 measured, 1 no device or an error (one line on stderr), 2 wrong usage.");
  Flags flags;
  const auto add = [&](const char* name, std::int64_t& value, const char* text, std::int64_t least,
                       std::int64_t most) {
    app.option(name, value, text).between(least, most).shows_default();
  };
  app.option("--model", flags.model, "Hugging Face directory").required();
  app.flag("--early-launches", flags.early_launches, "Let kernels of a token begin early");
  app.flag("--make-random", flags.make_random, "Write a random model there first");
  add("--vocab", flags.vocab, "Of a random model", 2, 1 << 20);
  add("--hidden", flags.hidden, "Of a random model, a multiple of 16 times --heads", 16, 1 << 16);
  add("--inner", flags.inner, "Of a random model", 16, 1 << 18);
  add("--layers", flags.layers, "Of a random model", 1, 1024);
  add("--heads", flags.heads, "Of a random model, a multiple of --kv-heads", 1, 1024);
  add("--kv-heads", flags.kv_heads, "Of a random model", 1, 1024);
  app.option("--memory", flags.memory, "The memory's settings, a JSON object").shows_default();
  add("--context", flags.context, "Tokens read before decoding", 2, 1 << 30);
  add("--last", flags.last, "Of them, the last ones whose rate is told apart", 1, 1 << 30);
  add("--decode", flags.decode, "Tokens decoded", 1, 1 << 20);
  add("--sequences", flags.sequences, "Decoded together, each with a context of its own", 1, 1024);
  app.option("--representatives", flags.representatives, "Their dtype")
      .one_of({"float32", "float16", "bfloat16"})
      .shows_default();
  add("--codes-from", flags.codes_from,
      "Events from which a search reads codes; 0: none, -1: where they pay", -1, 1 << 30);
  add("--event-tokens", flags.event_tokens, "Tokens of an event to plan memory for; 0: the least",
      0, 1 << 20);
  app.flag("--profile", flags.profile,
           "The last step of reading and one of decoding between cudaProfilerStart and Stop");
  app.option("--device", flags.device, "Number of the device").not_negative();
  app.option("--commit", flags.commit,
             "Commit to name in the result (default: EPISODIC_COMMIT, else the build's)");
  app.option("--json", flags.json, "Result file");
  try {
    if (!app.parse(argc, argv)) return 0;
    if (flags.last >= flags.context) throw UsageError("--last: must be less than --context");
    if (flags.heads % flags.kv_heads != 0)
      throw UsageError("--heads: must be a multiple of --kv-heads");
    if (flags.hidden % (16 * flags.heads) != 0)
      throw UsageError("--hidden: must be a multiple of 16 times --heads");
    run(flags);
  } catch (const UsageError& e) {
    return app.refuse(e);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_device_model: %s\n", e.what());
    return 1;
  }
  return 0;
}
