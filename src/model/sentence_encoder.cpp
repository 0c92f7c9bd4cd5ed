// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/sentence_encoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/strict_json.hpp"
#include "elementwise.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/text/tokenizer.hpp"
#include "json_object.hpp"
#include "model_tensors.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;
using Floats = std::vector<float>;
using Json = nlohmann::json;

Json read_config(const fs::path& path) {
  const MappedFile file(path);
  return parse_strict(
      {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string(),
      {.depth = 12, .array_length = 1 << 16, .keys = 1 << 16, .python_numbers = true});
}

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

// -- what the files say --

struct Shape {
  std::int64_t vocab = 0, width = 0, layers = 0, heads = 0, inner = 0, positions = 0, types = 0;
  float epsilon = 0;  // of the norms
  std::int64_t head_width() const { return width / heads; }
};

Shape read_shape(const fs::path& file) {
  const Json json = read_config(file);
  const JsonObject in(json, file.string());
  if (const std::string type = in.string("model_type", ""); type != "bert")
    in.unsupported("model_type", type, "bert (a sentence encoder such as all-MiniLM-L6-v2)");
  if (const std::string act = in.string("hidden_act", "gelu"); act != "gelu")
    in.unsupported("hidden_act", act, "gelu");
  if (const std::string kind = in.string("position_embedding_type", "absolute"); kind != "absolute")
    in.unsupported("position_embedding_type", kind, "absolute");
  if (in.boolean("is_decoder", false)) in.fail("is_decoder", "= true: an encoder is needed");
  constexpr std::int64_t kMost = 1 << 20;
  Shape s{.vocab = in.integer("vocab_size", 1, std::int64_t{1} << 31),
          .width = in.integer("hidden_size", 1, kMost),
          .layers = in.integer("num_hidden_layers", 1, 1000),
          .heads = in.integer("num_attention_heads", 1, kMost),
          .inner = in.integer("intermediate_size", 1, kMost),
          .positions = in.integer("max_position_embeddings", 3, kMost),
          .types = in.integer("type_vocab_size", 1, kMost, 2),
          .epsilon = static_cast<float>(in.positive("layer_norm_eps", 1e-12))};
  if (s.width % s.heads != 0)
    in.fail("num_attention_heads",
            fmt::format("= {} does not divide hidden_size = {}", s.heads, s.width));
  return s;
}

enum class Pooling : std::uint8_t { mean, first_token };

Pooling read_pooling(const fs::path& file) {
  if (!fs::exists(file)) return Pooling::mean;
  const Json json = read_config(file);
  const JsonObject in(json, file.string());
  const bool mean = in.boolean("pooling_mode_mean_tokens", false);
  const bool first = in.boolean("pooling_mode_cls_token", false);
  for (const auto& [key, value] : json.items())
    if (key.starts_with("pooling_mode_") && value == true && key != "pooling_mode_mean_tokens" &&
        key != "pooling_mode_cls_token")
      in.fail(key, "= true is not supported; mean_tokens and cls_token are");
  if (mean == first)
    in.fail("pooling_mode_mean_tokens", "or pooling_mode_cls_token, one of them, must be true");
  return mean ? Pooling::mean : Pooling::first_token;
}

/// Layers behind the pooling that change more than the vector's length would be left out.
void check_modules(const fs::path& file) {
  if (!fs::exists(file)) return;
  const Json json = read_config(file);
  if (!json.is_array()) throw FileError(fmt::format("{}: must be a list", file.string()));
  for (const Json& module : json) {
    const JsonObject in(module, file.string());
    const std::string type = in.string("type", "");
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name != "Transformer" && name != "Pooling" && name != "Normalize")
      in.unsupported("type", type, "Transformer, Pooling, Normalize");
  }
}

std::int64_t longest_text(const fs::path& dir, const Shape& shape, std::int64_t asked) {
  if (asked == SentenceEncoder::kAllPositions) return shape.positions;
  if (asked != 0 && (asked < 3 || asked > shape.positions))
    throw ConfigError(
        fmt::format("sentence encoder: max_tokens = {} must be from 3 to {}, the positions of {}",
                    asked, shape.positions, dir.string()));
  if (asked != 0) return asked;
  const fs::path file = dir / "sentence_bert_config.json";
  if (!fs::exists(file)) return shape.positions;
  const Json json = read_config(file);
  return JsonObject(json, file.string())
      .integer("max_seq_length", 3, shape.positions, shape.positions);
}

// -- weights --

/// y = x W^T + b; W as it is stored, in the file's mapping.
struct Dense {
  const StoredTensor* weight = nullptr;
  Floats bias;
};

struct Norm {
  Floats weight, bias;
};

struct Layer {
  Dense query, key, value, output;
  Norm after_attention;
  Dense up, down;
  Norm after_inner;
};

class Loader {
 public:
  /// Checkpoints with a head on top call the encoder "bert.".
  explicit Loader(const ModelTensors& tensors)
      : tensors_(tensors),
        prefix_(tensors.has("bert.embeddings.word_embeddings.weight") ? "bert." : "") {}

  const StoredTensor& view(const std::string& name, const std::vector<std::int64_t>& shape) const {
    return tensors_.at(prefix_ + name, shape);
  }
  Floats floats(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const StoredTensor& v = view(name, shape);
    Floats out(size_of(v.elements()));
    widen(v.type, v.data, v.elements(), out.data());
    return out;
  }
  Dense dense(const std::string& name, std::int64_t out, std::int64_t in) const {
    return {&view(name + ".weight", {out, in}), floats(name + ".bias", {out})};
  }
  Norm norm(const std::string& name, std::int64_t width) const {
    return {floats(name + ".weight", {width}), floats(name + ".bias", {width})};
  }
  Layer layer(std::int64_t i, const Shape& s) const {
    const std::string at = fmt::format("encoder.layer.{}.", i);
    const std::string self = at + "attention.self.", out = at + "attention.output.";
    return {.query = dense(self + "query", s.width, s.width),
            .key = dense(self + "key", s.width, s.width),
            .value = dense(self + "value", s.width, s.width),
            .output = dense(out + "dense", s.width, s.width),
            .after_attention = norm(out + "LayerNorm", s.width),
            .up = dense(at + "intermediate.dense", s.inner, s.width),
            .down = dense(at + "output.dense", s.width, s.inner),
            .after_inner = norm(at + "output.LayerNorm", s.width)};
  }

 private:
  const ModelTensors& tensors_;
  std::string prefix_;
};

std::string fingerprint_of(const Json& config, const ModelTensors& tensors) {
  ByteWriter all;
  all.put_string(config.dump());
  for (const StoredTensor* t : tensors.all()) {
    all.put_string(t->name);
    all.put(checksum({t->data, size_of(t->bytes)}));
  }
  return fmt::format("{:016x}", checksum(all.bytes()));
}

// -- the steps of a layer, over the rows of several texts --

struct Product {
  const Dense* dense;
  const Floats* x;
  Floats* y;
};

/// For the same n rows.
void multiply(std::int64_t n, std::initializer_list<Product> products) {
  std::vector<cpu::WeightProduct> list;
  for (const Product& p : products) {
    const std::int64_t out = p.dense->weight->shape[0], in = p.dense->weight->shape[1];
    p.y->resize(size_of(n * out));
    list.push_back({p.dense->weight->type, p.dense->weight->data, out, in, p.dense->bias.data(),
                    p.x->data(), in, p.y->data(), out, false});
  }
  cpu::multiply_weights(n, list);
}

/// Rows side by side on all threads; enough of them in a task to be worth handing out.
template <class F>
void for_rows(std::int64_t n, F&& f) {
  constexpr std::int64_t kRows = 32;
  parallel_for((n + kRows - 1) / kRows, [&](std::int64_t task) {
    for (std::int64_t i = task * kRows; i < std::min(n, (task + 1) * kRows); ++i) f(i);
  });
}

/// x[i, :] = (x[i, :] + added[i, :]) brought to mean 0 and variance 1, times weight, plus bias.
void add_and_norm(std::int64_t n, const Floats* added, const Norm& norm, float epsilon, Floats& x) {
  const std::size_t width = norm.weight.size();
  for_rows(n, [&](std::int64_t i) {
    float* row = x.data() + size_of(i) * width;
    if (added)
      for (std::size_t c = 0; c < width; ++c) row[c] += (*added)[size_of(i) * width + c];
    double sum = 0, squares = 0;
    for (std::size_t c = 0; c < width; ++c) sum += static_cast<double>(row[c]);
    const double mean = sum / static_cast<double>(width);
    for (std::size_t c = 0; c < width; ++c) {
      const double off = static_cast<double>(row[c]) - mean;
      squares += off * off;
    }
    const double variance = squares / static_cast<double>(width);
    const auto scale = static_cast<float>(1 / std::sqrt(variance + static_cast<double>(epsilon)));
    for (std::size_t c = 0; c < width; ++c)
      row[c] = (row[c] - static_cast<float>(mean)) * scale * norm.weight[c] + norm.bias[c];
  });
}

/// GELU by the error function, as BERT has it.
void gelu(std::int64_t n, std::int64_t width, Floats& x) {
  for_rows(n, [&](std::int64_t i) {
    float* row = x.data() + i * width;
    for (std::int64_t c = 0; c < width; ++c)
      row[c] = 0.5f * row[c] * (1.0f + std::erf(row[c] * 0.70710678118654752f));
  });
}

/// Rows of a text among those of a batch.
struct TextRows {
  std::int64_t first, n;
};

/// Each row of a text attends to all rows of the text, head by head.
void attend(const std::vector<TextRows>& texts, const Shape& shape, const Floats& q,
            const Floats& k, const Floats& v, Floats& out) {
  const cpu::Kernels& kernels = cpu::kernels();
  const std::int64_t width = shape.width, d = shape.head_width();
  // scores in units of log2, as the kernels' exponential takes them
  const float scale = 1.44269504088896341f / std::sqrt(static_cast<float>(d));
  out.assign(q.size(), 0.0f);
  parallel_for(static_cast<std::int64_t>(texts.size()) * shape.heads, [&](std::int64_t task) {
    const TextRows& text = texts[size_of(task / shape.heads)];
    const std::int64_t at = text.first * width + task % shape.heads * d;
    const cpu::Rows keys{k.data() + at, DType::float32, width, text.n, nullptr, 0};
    const cpu::Rows values{v.data() + at, DType::float32, width, text.n, nullptr, 0};
    constexpr std::int64_t kBlock = 16;  // queries whose scores are held at a time
    Floats scores(size_of(kBlock * text.n));
    for (std::int64_t first = 0; first < text.n; first += kBlock) {
      const std::int64_t rows = std::min(kBlock, text.n - first);
      const std::int64_t block = at + first * width;
      kernels.dot_rows(q.data() + block, width, rows, keys, d, scores.data(), text.n);
      for (std::int64_t r = 0; r < rows; ++r) {
        float* row = scores.data() + r * text.n;
        for (std::int64_t i = 0; i < text.n; ++i) row[i] *= scale;
        const float sum = kernels.exp2_row(row, text.n, kernels.max_row(row, text.n));
        for (std::int64_t i = 0; i < text.n; ++i) row[i] /= sum;
      }
      kernels.add_rows(scores.data(), text.n, rows, values, d, out.data() + block, width);
    }
  });
}

}  // namespace

struct SentenceEncoder::Impl {
  fs::path dir;
  Shape shape;
  Pooling pooling;
  std::int64_t max_tokens;
  std::unique_ptr<Tokenizer> tokenizer;
  ModelTensors tensors;
  const StoredTensor* words;
  Floats positions, type;  // [positions, width]; [width], of the first type: there is one text
  Norm after_embedding;
  std::vector<Layer> layers;
  std::string fingerprint;

  Impl(const fs::path& directory, std::int64_t asked)
      : dir(directory),
        shape(read_shape(dir / "config.json")),
        pooling(read_pooling(dir / "1_Pooling" / "config.json")),
        max_tokens(longest_text(dir, shape, asked)),
        tokenizer(load_tokenizer(dir)),
        tensors(dir) {
    check_modules(dir / "modules.json");
    if (tokenizer->vocab_size() > shape.vocab)
      throw FileError(
          fmt::format("{}: the tokenizer has {} entries, config.json a vocab_size of {}; they must "
                      "be of one model",
                      dir.string(), tokenizer->vocab_size(), shape.vocab));
    const std::size_t around = tokenizer->encode("").size();
    if (around == 0 || around >= size_of(max_tokens))
      throw FileError(
          fmt::format("{}: the tokenizer puts {} special tokens around a text; an encoder that "
                      "reads {} tokens needs at least one, and room for the text",
                      dir.string(), around, max_tokens));
    const Loader load(tensors);
    words = &load.view("embeddings.word_embeddings.weight", {shape.vocab, shape.width});
    positions =
        load.floats("embeddings.position_embeddings.weight", {shape.positions, shape.width});
    type = load.floats("embeddings.token_type_embeddings.weight", {shape.types, shape.width});
    type.resize(size_of(shape.width));
    after_embedding = load.norm("embeddings.LayerNorm", shape.width);
    for (std::int64_t i = 0; i < shape.layers; ++i) layers.push_back(load.layer(i, shape));
    fingerprint = fingerprint_of(read_config(dir / "config.json"), tensors);
  }

  /// The text's ids with the special tokens; a long text loses its end, not those.
  std::vector<std::int64_t> ids_of(std::string_view text) const {
    std::vector<std::int64_t> ids = tokenizer->encode(text, true);
    if (ids.size() <= size_of(max_tokens)) return ids;
    const std::size_t behind = tokenizer->encode("").size() / 2;  // [CLS] text [SEP]
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(size_of(max_tokens) - behind),
              ids.end() - static_cast<std::ptrdiff_t>(behind));
    return ids;
  }

  Floats embed(const std::vector<std::vector<std::int64_t>>& batch) const {
    Floats x;
    Floats word(size_of(shape.width));
    const std::int64_t row_bytes = cpu::row_bytes(words->type, shape.width);
    for (const auto& ids : batch)
      for (std::size_t i = 0; i < ids.size(); ++i) {
        widen(words->type, words->data + ids[i] * row_bytes, shape.width, word.data());
        for (std::size_t c = 0; c < word.size(); ++c)
          x.push_back(word[c] + type[c] + positions[i * word.size() + c]);
      }
    return x;
  }

  /// \param out [batch.size(), width]
  void run(const std::vector<std::vector<std::int64_t>>& batch, float* out) const {
    std::vector<TextRows> texts;
    std::int64_t n = 0;
    for (const auto& ids : batch) {
      texts.push_back({n, static_cast<std::int64_t>(ids.size())});
      n += texts.back().n;
    }
    Floats x = embed(batch), q, k, v, attended, y, inner;
    add_and_norm(n, nullptr, after_embedding, shape.epsilon, x);
    for (const Layer& layer : layers) {
      multiply(n, {{&layer.query, &x, &q}, {&layer.key, &x, &k}, {&layer.value, &x, &v}});
      attend(texts, shape, q, k, v, attended);
      multiply(n, {{&layer.output, &attended, &y}});
      add_and_norm(n, &y, layer.after_attention, shape.epsilon, x);
      multiply(n, {{&layer.up, &x, &inner}});
      gelu(n, shape.inner, inner);
      multiply(n, {{&layer.down, &inner, &y}});
      add_and_norm(n, &y, layer.after_inner, shape.epsilon, x);
    }
    for (const TextRows& text : texts) {
      pool(x.data() + text.first * shape.width, text.n, out);
      out += shape.width;
    }
  }

  void pool(const float* rows, std::int64_t n, float* out) const {
    const std::int64_t pooled = pooling == Pooling::mean ? n : 1;
    std::vector<double> sum(size_of(shape.width));
    for (std::int64_t i = 0; i < pooled; ++i)
      for (std::int64_t c = 0; c < shape.width; ++c)
        sum[size_of(c)] += static_cast<double>(rows[i * shape.width + c]);
    const double length = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
    if (!(length > 0) || !std::isfinite(length))
      throw DataError(fmt::format(
          "{}: the encoder gives a vector of length {} for a text; its weights are damaged",
          dir.string(), length));
    for (const double s : sum) *out++ = static_cast<float>(s / length);
  }
};

SentenceEncoder::SentenceEncoder(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
SentenceEncoder::SentenceEncoder(SentenceEncoder&&) noexcept = default;
SentenceEncoder& SentenceEncoder::operator=(SentenceEncoder&&) noexcept = default;
SentenceEncoder::~SentenceEncoder() = default;

SentenceEncoder SentenceEncoder::open(const fs::path& dir, std::int64_t max_tokens) {
  return SentenceEncoder(std::make_unique<const Impl>(dir, max_tokens));
}

std::int64_t SentenceEncoder::width() const { return impl_->shape.width; }
std::int64_t SentenceEncoder::max_tokens() const { return impl_->max_tokens; }
std::int64_t SentenceEncoder::count_tokens(std::string_view text) const {
  return static_cast<std::int64_t>(impl_->tokenizer->encode(text, true).size());
}
const std::string& SentenceEncoder::fingerprint() const { return impl_->fingerprint; }

std::vector<float> SentenceEncoder::encode(std::string_view text) const {
  Floats out(size_of(impl_->shape.width));
  impl_->run({impl_->ids_of(text)}, out.data());
  return out;
}

std::vector<float> SentenceEncoder::encode_all(std::span<const std::string> texts) const {
  constexpr std::size_t kBatchTokens = 1024;  // of several texts; bounds the scratch memory
  Floats out(texts.size() * size_of(impl_->shape.width));
  std::vector<std::vector<std::int64_t>> batch;
  std::size_t tokens = 0, done = 0;
  const auto run = [&] {
    impl_->run(batch, out.data() + done * size_of(impl_->shape.width));
    done += batch.size();
    batch.clear();
    tokens = 0;
  };
  for (const std::string& text : texts) {
    std::vector<std::int64_t> ids = impl_->ids_of(text);
    if (!batch.empty() && tokens + ids.size() > kBatchTokens) run();
    tokens += ids.size();
    batch.push_back(std::move(ids));
  }
  if (!batch.empty()) run();
  return out;
}

}  // namespace episodic
