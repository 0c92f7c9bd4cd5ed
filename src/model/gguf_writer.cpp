// SPDX-License-Identifier: Apache-2.0
// A model as a GGUF file: the other way of gguf_source.cpp. What was written is read back before
// the file gets its name, so that what GGUF has no words for is refused and not lost.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "atomic_file.hpp"
#include "base/strict_json.hpp"
#include "elementwise.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "episodic/model/weight_plan.hpp"
#include "gguf_header.hpp"
#include "gguf_names.hpp"
#include "gguf_rope.hpp"
#include "mixture_plan.hpp"
#include "row_order.hpp"
#include "text/added_vocabulary.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// ggml's number of a type; nothing for those that models are not written in here.
std::optional<std::uint32_t> ggml_type(TensorType type) {
  switch (type) {
    case TensorType::i8:
    case TensorType::i16:
    case TensorType::i32:
    case TensorType::i64:
    case TensorType::f64:
    case TensorType::nvfp4:  // whose scales are tensors of their own
      return std::nullopt;
    default:
      return gguf_type_number(type);
  }
}

/// general.file_type: what most matrices are stored as.
std::int64_t file_type(TensorType type) {
  switch (type) {
    case TensorType::f16:
      return 1;
    case TensorType::q4_0:
      return 2;
    case TensorType::q4_1:
      return 3;
    case TensorType::q8_0:
      return 7;
    case TensorType::q5_0:
      return 8;
    case TensorType::q5_1:
      return 9;
    case TensorType::q4_k:
      return 14;
    case TensorType::q5_k:
      return 16;
    case TensorType::q6_k:
      return 18;
    case TensorType::bf16:
      return 32;
    case TensorType::mxfp4:
      return 38;
    default:
      return 0;
  }
}

// -- what a model is called -----------------------------------------------------------------------

[[noreturn]] void refuse(const OpenModel& model, const std::string& what) {
  throw ConfigError(
      fmt::format("{}: {} cannot be said in a GGUF file; use the model as it is, its weights "
                  "rounded when it is loaded (ModelOptions::quantize)",
                  model.path.string(), what));
}

const GgufArchitecture& architecture_for(const OpenModel& model) {
  const std::string& type = model.config.model_type;
  const std::string_view wanted = type == "mistral" ? "llama"
                                  : type == "olmo3" ? "olmo2"
                                                    : std::string_view(type);
  for (const GgufArchitecture& a : gguf_architectures())
    if (a.model_type == wanted && !a.traits.read_only) return a;
  refuse(model, fmt::format("model_type \"{}\" is not written, and", type));
}

/// "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight"
std::string gguf_name(const GgufArchitecture& a, std::string_view name) {
  const std::size_t dot = name.rfind('.');
  const std::string_view suffix = name.substr(dot);  // .weight or .bias
  name = name.substr(0, dot);
  for (const GgufName& top : a.top)
    if (name == top.hugging_face) return std::string(top.gguf) + std::string(suffix);
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return "";
  name.remove_prefix(kLayers.size());
  const std::size_t end = name.find('.');
  const std::string_view layer = name.substr(0, end);
  name.remove_prefix(std::min(name.size(), end + 1));
  for (const auto& table : {a.attention, a.mlp, a.norms, a.head_norms})
    for (const GgufName& n : table)
      if (name == n.hugging_face) return fmt::format("blk.{}.{}{}", layer, n.gguf, suffix);
  return "";
}

bool is_xielu(WeightRole role) {
  return std::find(std::begin(kXieluRoles), std::end(kXieluRoles), role) != std::end(kXieluRoles);
}

/// A tensor as it goes into the file.
struct Written {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;
  const StoredTensor* from = nullptr;  ///< null: `own`
  std::vector<float> own;
  std::int64_t interleaved_heads = 0;  ///< rows to be put in another order, of so many heads
  std::vector<WeightView> parts;       ///< of the experts, one behind another; then `from` is null

  std::int64_t bytes() const {
    std::int64_t elements = 1;
    for (const std::int64_t d : shape) elements *= d;
    return elements / block_elements(type) * block_bytes(type);
  }
};

class Writing {
 public:
  Writing(const OpenModel& model, const fs::path& path)
      : model_(model), path_(path), a_(architecture_for(model)) {}

  void run(const ProgressCallback& progress) {
    collect_tensors();
    add_settings();
    add_rope();
    add_tokenizer();
    std::uint64_t offset = 0;
    for (const Written& w : tensors_) {
      header_.tensor(w.name, *ggml_type(w.type), w.shape, offset);
      offset += padded(static_cast<std::uint64_t>(w.bytes()));
    }
    AtomicFile file(path_);
    const std::string head = header_.finish();
    file.write(head.data(), head.size());
    std::int64_t done = 0;
    const auto total = static_cast<std::int64_t>(offset);
    for (const Written& w : tensors_) {
      write_tensor(w, file);
      done += static_cast<std::int64_t>(padded(static_cast<std::uint64_t>(w.bytes())));
      if (progress && !progress(done, total))
        throw DataError(fmt::format("{}: writing was cancelled", path_.string()));
    }
    file.finish();
    read_back(file.temporary());
    file.commit();
  }

 private:
  static std::uint64_t padded(std::uint64_t bytes) {
    return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
  }

  void collect_tensors() {
    if (a_.traits.recurrence != GgufRecurrence::none)
      refuse(model_, fmt::format("a model of model_type \"{}\"", model_.config.model_type));
    for (const LayerSpec& layer : model_.config.layers)
      if (a_.mixture && !layer.mixture) refuse(model_, "a mixture of experts with dense layers");
    const PlannedWeights planned(model_.config, model_.tensors);
    std::set<std::string> seen;  // parts of a fused tensor, and a tied head, share one
    for (const WeightEntry& e : planned.entries()) {
      if (info_of(e.role).block == WeightBlock::mixture) {
        if (e.expert <= 0) collect_mixture(planned, e);
        continue;
      }
      if (!seen.insert(e.tensor).second) continue;
      if (is_xielu(e.role)) continue;  // among the settings
      const StoredTensor& t = *model_.tensors->find(e.tensor);
      Written w{gguf_name(a_, e.tensor), t.type, t.shape, &t, {}, 0, {}};
      if (w.name.empty()) refuse(model_, fmt::format("tensor '{}'", e.tensor));
      if (!ggml_type(t.type))
        refuse(model_, fmt::format("tensor '{}', stored as {},", e.tensor, name_of(t.type)));
      if (t.shape.size() == 1 || e.role == WeightRole::conv) {  // norms, biases: F32 there
        w.from = nullptr;
        w.type = TensorType::f32;
        if (e.role == WeightRole::conv && !e.bias) w.shape = {t.shape[0], t.shape[2]};
        const std::int64_t elements = w.bytes() / 4;
        w.own.resize(static_cast<std::size_t>(elements));
        widen(t.type, t.data, elements, w.own.data());
        if (a_.traits.one_plus && e.tensor.ends_with("norm.weight"))
          for (float& x : w.own) x += 1.0f;  // what such a norm multiplies by
      } else if (e.role == WeightRole::q) {
        main_type_ = t.type;
      }
      w.interleaved_heads = heads_to_interleave(e.role);
      tensors_.push_back(std::move(w));
    }
  }

  /// A weight of a mixture: all experts' in one tensor, and in F32 what the router decides by.
  void collect_mixture(const PlannedWeights& planned, const WeightEntry& e) {
    const std::string name =
        fmt::format("blk.{}.{}.{}", e.layer, info_of(e.role).gguf, e.bias ? "bias" : "weight");
    if (e.bias) refuse(model_, fmt::format("the router's bias '{}'", e.tensor));
    if (e.role == WeightRole::router || e.role == WeightRole::shared_router) {
      const WeightView view = planned.at(e.role, e.layer);
      Written w{name, TensorType::f32, {view.rows, view.columns}, nullptr, {}, 0, {}};
      if (e.role == WeightRole::shared_router) w.shape = {view.rows * view.columns};
      w.own.resize(static_cast<std::size_t>(view.rows * view.columns));
      widen(view.type, view.data, view.rows * view.columns, w.own.data());
      tensors_.push_back(std::move(w));
      return;
    }
    std::vector<WeightView> parts;
    if (e.expert < 0) parts.push_back(planned.at(e.role, e.layer));
    const MixtureSpec& spec = model_.config.layers[static_cast<std::size_t>(e.layer)].mixture;
    for (std::int64_t i = 0; e.expert == 0 && i < spec.experts; ++i)
      parts.push_back(planned.of_expert(e.role, e.layer, i));
    Written w{name, parts[0].type, {parts[0].rows, parts[0].columns}, nullptr, {}, 0, parts};
    if (e.expert == 0) w.shape.insert(w.shape.begin(), spec.experts);
    for (const WeightView& part : parts)
      if (part.type != w.type || !ggml_type(part.type))
        refuse(model_, fmt::format("{} of layer {}, stored as {} and {},", name_of(e.role), e.layer,
                                   name_of(w.type), name_of(part.type)));
    tensors_.push_back(std::move(w));
  }

  /// Heads whose rows are to be put in another order; 0: none.
  std::int64_t heads_to_interleave(WeightRole role) const {
    const ModelConfig& c = model_.config;
    if (!a_.interleaved) return 0;
    return role == WeightRole::q ? c.n_heads : role == WeightRole::k ? c.n_kv_heads : 0;
  }

  std::string key(const char* name) const { return fmt::format("{}.{}", a_.gguf, name); }

  void add_settings() {
    const ModelConfig& c = model_.config;
    if (c.max_positions < 1) refuse(model_, "a model without max_position_embeddings");
    header_.put("general.architecture", a_.gguf);
    header_.put("general.name", fs::weakly_canonical(model_.path).filename().string());
    header_.put("general.file_type", file_type(main_type_));
    header_.put("general.quantization_version", std::int64_t{2});
    header_.put(key("context_length"), c.max_positions);
    header_.put(key("embedding_length"), c.hidden_size);
    header_.put(key("block_count"), c.n_layers);
    header_.put(key("feed_forward_length"), c.intermediate_size);
    header_.put(key("attention.head_count"), c.n_heads);
    if (has_recurrent_layers(c)) {
      std::vector<std::int32_t> kv_heads;  // of each layer: 0 where it has a convolution
      std::int64_t taps = 0;
      for (const LayerSpec& layer : c.layers) {
        const bool attends = layer.mixer == Mixer::attention;
        kv_heads.push_back(attends ? static_cast<std::int32_t>(layer.n_kv_heads) : 0);
        taps = std::max(taps, layer.conv_taps);
      }
      header_.put(key("attention.head_count_kv"), kv_heads);
      header_.put(key("shortconv.l_cache"), taps);
    } else {
      header_.put(key("attention.head_count_kv"), c.n_kv_heads);
    }
    header_.put(key("attention.key_length"), c.head_dim);
    header_.put(key("attention.value_length"), c.head_dim);
    header_.put(key(a_.traits.layer_norm ? "attention.layer_norm_epsilon"
                                         : "attention.layer_norm_rms_epsilon"),
                c.rms_norm_eps);
    header_.put(key("vocab_size"), c.vocab_size);
    if (a_.model_type == std::string_view("phi3") && c.layers[0].window > 0)
      header_.put(key("attention.sliding_window"), c.layers[0].window);
    if (a_.gemma) add_gemma();
    add_dense();
    if (a_.mixture) add_mixture();
    if (a_.granite) {
      header_.put(key("attention.scale"), c.layers[0].scale);
      header_.put(key("embedding_scale"), c.embedding_multiplier);
      header_.put(key("residual_scale"), c.residual_multiplier);
      header_.put(key("logit_scale"), 1 / c.logit_multiplier);
    }
  }

  void add_mixture() {
    const MixtureSpec& m = model_.config.layers[0].mixture;
    header_.put(key("expert_count"), m.experts);
    header_.put(key("expert_used_count"), m.chosen);
    header_.put(key("expert_feed_forward_length"), m.width);
    if (m.shared_width > 0) header_.put(key("expert_shared_feed_forward_length"), m.shared_width);
  }

  /// Caps, windows and which layers have them. What the reader assumes is not written.
  void add_gemma() {
    const ModelConfig& c = model_.config;
    const bool gemma3 = a_.model_type == std::string_view("gemma3_text");
    std::int64_t window = 0;
    std::vector<bool> slides;
    for (const LayerSpec& layer : c.layers) {
      window = std::max(window, layer.window);
      slides.push_back(layer.window > 0);
    }
    if (window == 0) refuse(model_, "a Gemma without sliding windows");
    header_.put(key("attention.sliding_window"), window);
    const std::size_t every = gemma3 ? 6 : 2;
    bool usual = true;
    for (std::size_t l = 0; l < slides.size(); ++l)
      usual = usual && slides[l] == ((l + 1) % every != 0);
    if (!usual) header_.put(key("attention.sliding_window_pattern"), slides);
    if (c.layers[0].soft_cap > 0) header_.put(key("attn_logit_softcapping"), c.layers[0].soft_cap);
    if (c.logit_soft_cap > 0) header_.put(key("final_logit_softcapping"), c.logit_soft_cap);
    if (std::abs(c.layers[0].scale * std::sqrt(static_cast<double>(c.head_dim)) - 1) > 1e-9)
      header_.put(key("attention.scale"), c.layers[0].scale);
    if (gemma3 && c.ropes.size() > 1) {
      const std::vector<double>& f = c.ropes[1].table.inverse_frequency;
      const double n = static_cast<double>(f.size());  // f[1] = theta^(-1/n)
      header_.put(key("rope.freq_base_swa"), f.size() > 1 ? std::pow(f[1], -n) : 10000.0);
    }
  }

  /// What gguf_dense.cpp reads.
  void add_dense() {
    const ModelConfig& c = model_.config;
    if (!a_.gemma && c.model_type != "phi3" && c.model_type != "llama") add_windows();
    if (a_.traits.parallel) header_.put(key("logit_scale"), c.logit_multiplier);
    if (c.query_scale.beta != 0) {
      header_.put(key("attention.temperature_scale"), c.query_scale.beta);
      header_.put(key("rope.scaling.yarn_log_multiplier"), rope_settings(model_).mscale_all_dim);
    }
    if (!a_.traits.xielu) return;
    const PlannedWeights planned(model_.config, model_.tensors);
    for (const WeightRole role : kXieluRoles) {
      std::vector<float> of_layers(static_cast<std::size_t>(c.n_layers));
      for (std::int64_t l = 0; l < c.n_layers; ++l) {
        const WeightView view = planned.at(role, l);
        widen(view.type, view.data, 1, &of_layers[static_cast<std::size_t>(l)]);
      }
      header_.put(info_of(role).gguf, of_layers);
    }
  }

  /// A window, and a flag for each layer that has it.
  void add_windows() {
    std::int64_t window = 0;
    std::vector<bool> slides;
    for (const LayerSpec& layer : model_.config.layers) {
      window = std::max(window, layer.window);
      slides.push_back(layer.window > 0);
    }
    if (window == 0) return;
    header_.put(key("attention.sliding_window"), window);
    header_.put(key("attention.sliding_window_pattern"), slides);
  }

  void add_rope() {
    const Rope& rope = model_.config.ropes[0];
    const RopeSettings said = rope_settings(model_);
    const double theta = said.theta;
    header_.put(key("rope.freq_base"), theta);
    header_.put(key("rope.dimension_count"), rope.table.rotary_dim());
    const RotaryTable plain = plain_rotary(rope.table.rotary_dim(), theta);
    const auto add = [&](const char* name, std::vector<float> factors) {
      if (factors.empty()) factors.assign(plain.inverse_frequency.size(), 1.0f);
      const auto n = static_cast<std::int64_t>(factors.size());
      tensors_.push_back({name, TensorType::f32, {n}, nullptr, std::move(factors), 0, {}});
    };
    const std::vector<float> factors =
        rope_factors(plain.inverse_frequency, rope.table.inverse_frequency);
    if (said.yarn) {
      header_.put(key("rope.scaling.type"), "yarn");
      header_.put(key("rope.scaling.factor"), said.factor);
      if (said.original >= 1)
        header_.put(key("rope.scaling.original_context_length"),
                    static_cast<std::int64_t>(said.original));
    } else if (!rope.long_inverse_frequency.empty()) {
      header_.put(key("rope.scaling.original_context_length"), rope.original);
      header_.put(key("rope.scaling.attn_factor"), rope.table.attention_factor);
      add("rope_factors_short.weight", factors);
      add("rope_factors_long.weight",
          rope_factors(plain.inverse_frequency, rope.long_inverse_frequency));
    } else if (!factors.empty() && std::all_of(factors.begin(), factors.end(), [&](float f) {
                 return std::abs(f - factors[0]) < 1e-6f * factors[0];
               })) {
      header_.put(key("rope.scaling.type"), "linear");
      header_.put(key("rope.scaling.factor"), double{factors[0]});
    } else if (!factors.empty()) {
      add("rope_freqs.weight", factors);
    }
  }

  /// tokenizer.json as it is, under the key that GGUF has for it, and what says which tokens stand
  /// around a text.
  void add_tokenizer() {
    const ModelConfig& c = model_.config;
    if (c.bos_token >= 0) header_.put("tokenizer.ggml.bos_token_id", c.bos_token);
    constexpr const char* kEnds[] = {"eos", "eot", "eom"};
    for (std::size_t i = 0; i < std::min<std::size_t>(3, c.eos_tokens.size()); ++i)
      header_.put(fmt::format("tokenizer.ggml.{}_token_id", kEnds[i]), c.eos_tokens[i]);
    const fs::path& dir = model_.tokenizer_dir;
    std::error_code ignored;
    if (dir.empty() || !fs::exists(dir / "tokenizer.json", ignored)) {
      if (const fs::path other = dir.empty() ? fs::path() : text::tokenizer_file(dir);
          !other.empty())
        refuse(model_, fmt::format("a tokenizer that is a {} alone", other.filename().string()));
      header_.put("tokenizer.ggml.model", "no_vocab");
      return;
    }
    if (!text::changes_by_token_files(dir).empty())
      refuse(model_, "tokens that special_tokens_map.json or added_tokens.json adds");
    header_.put("tokenizer.ggml.model", "no_vocab");  // llama.cpp's word for: by token ids only
    const MappedFile tokenizer(dir / "tokenizer.json");
    header_.put(kGgufTokenizerJson, text_of(tokenizer));
    if (fs::exists(dir / "tokenizer_config.json", ignored)) {
      const MappedFile config(dir / "tokenizer_config.json");
      header_.put(kGgufTokenizerConfig, text_of(config));
    }
    if (const std::string chat = chat_template_text(dir); !chat.empty())
      header_.put("tokenizer.chat_template", chat);
  }

  static std::string_view text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }

  static std::string chat_template_text(const fs::path& dir) {
    std::error_code ignored;
    if (fs::exists(dir / "chat_template.jinja", ignored))
      return std::string(text_of(MappedFile(dir / "chat_template.jinja")));
    if (!fs::exists(dir / "tokenizer_config.json", ignored)) return "";
    const MappedFile file(dir / "tokenizer_config.json");
    const Json config = parse_strict(text_of(file), file.path().string(), {});
    const auto it = config.is_object() ? config.find("chat_template") : config.end();
    return config.is_object() && it != config.end() && it->is_string() ? it->get<std::string>()
                                                                       : "";
  }

  static void write_tensor(const Written& w, AtomicFile& file) {
    const auto bytes = static_cast<std::size_t>(w.bytes());
    constexpr char kZeros[kGgufAlignment] = {};
    if (!w.parts.empty()) {
      for (const WeightView& part : w.parts)
        file.write(part.data, static_cast<std::size_t>(part.rows * part.row_bytes()));
      file.write(kZeros, static_cast<std::size_t>(padded(bytes) - bytes));
      return;
    }
    const void* from = w.from ? static_cast<const void*>(w.from->data) : w.own.data();
    std::vector<std::byte> ordered;
    if (w.interleaved_heads > 0) {
      ordered = pairs_together(from, bytes, w.shape[0], w.interleaved_heads);
      from = ordered.data();
    }
    file.write(from, bytes);
    file.write(kZeros, static_cast<std::size_t>(padded(bytes) - bytes));
  }

  /// \throws ConfigError if the file says another model than was to be written
  void read_back(const fs::path& temporary) const {
    const GgufSource source(temporary);
    ModelConfig read = parse_model_config(source.config_json(), "", path_.string());
    find_mixture_tensors(source, read);
    ModelConfig written = model_.config;
    if (a_.interleaved)
      for (Rope& rope : written.ropes) rope.table.pairs = RotaryPairs::interleaved;
    if (const std::string what = difference(written, read); !what.empty())
      refuse(model_, fmt::format("its {}", what));
    const PlannedWeights planned(read, std::shared_ptr<const TensorSource>(&source, [](auto*) {}));
    read_back_mixtures(planned);
    for (const WeightEntry& e : planned.entries()) {
      if (info_of(e.role).block == WeightBlock::mixture) continue;
      const StoredTensor &then = *model_.tensors->find(e.tensor), &now = *source.find(e.tensor);
      if (then.type != now.type) continue;
      if (a_.traits.one_plus && now.shape.size() == 1)
        continue;  // 1 + w - 1 is w, but for its last bits
      const auto bytes = static_cast<std::size_t>(then.bytes);
      std::vector<std::byte> ordered;
      if (const std::int64_t heads = heads_to_interleave(e.role); heads > 0)
        ordered = pairs_together(then.data, bytes, then.shape[0], heads);
      if (then.bytes != now.bytes ||
          std::memcmp(ordered.empty() ? then.data : ordered.data(), now.data, bytes) != 0)
        throw FileError(fmt::format("{}: tensor '{}' was not written as it is; check the disk",
                                    path_.string(), e.tensor));
    }
  }

  /// Experts' tensors have other names and shapes there, and the same rows.
  void read_back_mixtures(const PlannedWeights& read) const {
    if (!model_.config.has_mixture()) return;
    const PlannedWeights written(model_.config, model_.tensors);
    for (const WeightEntry& e : read.entries()) {
      if (info_of(e.role).block != WeightBlock::mixture) continue;
      const auto view = [&](const PlannedWeights& of) {
        return e.expert < 0 ? of.at(e.role, e.layer) : of.of_expert(e.role, e.layer, e.expert);
      };
      const WeightView then = view(written), now = view(read);
      if (then.type == now.type &&
          std::memcmp(then.data, now.data,
                      static_cast<std::size_t>(then.rows * then.row_bytes())) != 0)
        throw FileError(fmt::format("{}: tensor '{}' was not written as it is; check the disk",
                                    path_.string(), e.tensor));
    }
  }

  /// What of a model's settings did not come back; empty if all did.
  static std::string difference(const ModelConfig& a, const ModelConfig& b) {
    const auto near = [](double x, double y) { return std::abs(x - y) <= 1e-6 * std::abs(x); };
    const auto near_all = [&](const std::vector<double>& x, const std::vector<double>& y) {
      return std::equal(x.begin(), x.end(), y.begin(), y.end(), near);
    };
    if (a.vocab_size != b.vocab_size || a.hidden_size != b.hidden_size ||
        a.intermediate_size != b.intermediate_size || a.n_layers != b.n_layers ||
        a.n_heads != b.n_heads || a.n_kv_heads != b.n_kv_heads || a.head_dim != b.head_dim ||
        a.max_positions != b.max_positions)
      return "sizes";
    if (!near(a.rms_norm_eps, b.rms_norm_eps)) return "rms_norm_eps";
    if (a.tie_word_embeddings != b.tie_word_embeddings) return "tie_word_embeddings";
    if (a.ropes.size() != b.ropes.size()) return "ropes";
    for (std::size_t i = 0; i < a.ropes.size(); ++i)
      for (const std::int64_t context : {std::int64_t{1}, 4 * a.max_positions}) {
        const RotaryTable x = a.ropes[i].at(context), y = b.ropes[i].at(context);
        if (!near_all(x.inverse_frequency, y.inverse_frequency) ||
            !near(x.attention_factor, y.attention_factor) || x.pairs != y.pairs)
          return "rope";
      }
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      LayerSpec x = a.layers[l], y = b.layers[l];
      if (!near(x.scale, y.scale) || !near(x.soft_cap, y.soft_cap)) return "attention's scale";
      x.scale = y.scale = x.soft_cap = y.soft_cap = 0;
      x.mixture.tensors = y.mixture.tensors = MixtureTensors::stacked;
      if (x.window != y.window) return "sliding windows";
      if (!(x == y)) return "layers";
    }
    if (!(a.query_scale.original == b.query_scale.original &&
          near(a.query_scale.beta, b.query_scale.beta)))
      return "llama_4_scaling_beta";
    if (a.norm_offset != b.norm_offset || !near(a.embedding_multiplier, b.embedding_multiplier) ||
        !near(a.residual_multiplier, b.residual_multiplier) ||
        !near(a.logit_multiplier, b.logit_multiplier) || !near(a.logit_soft_cap, b.logit_soft_cap))
      return "multipliers";
    if (a.bos_token != b.bos_token) return "bos_token_id";
    if (a.eos_tokens != b.eos_tokens) return "eos_token_id";
    return "";
  }

  const OpenModel& model_;
  fs::path path_;
  const GgufArchitecture& a_;
  TensorType main_type_ = TensorType::f32;
  std::vector<Written> tensors_;
  GgufHeader header_;
};

}  // namespace

void write_gguf(const OpenModel& model, const fs::path& path, bool overwrite,
                const ProgressCallback& progress) {
  std::error_code error;
  if (fs::is_directory(path, error))
    throw FileError(fmt::format("{}: is a directory; name the GGUF file to write", path.string()));
  if (fs::exists(path, error) && !overwrite)
    throw FileError(
        fmt::format("{}: is there already; name another file, or allow to replace it (overwrite)",
                    path.string()));
  if (is_model_file(model.path))
    throw ConfigError(
        fmt::format("{}: is one file already, whose tokenizer would be lost; give the directory of "
                    "the model in Hugging Face layout",
                    model.path.string()));
  if (!model.adapters.empty() && !model.merged)
    throw ConfigError(
        fmt::format("{}: adapters beside the weights have no place in a GGUF file; "
                    "merge them",
                    path.string()));
  Writing(model, path).run(progress);
}

}  // namespace episodic
