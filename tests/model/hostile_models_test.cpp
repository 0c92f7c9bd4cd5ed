// SPDX-License-Identifier: Apache-2.0
// Model files that are odd, damaged or of another kind: each is an error of ours that says what was
// found, soon, and within memory of the files' size. Tables, so that another case is another line.
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/lora.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/model/sentence_encoder.hpp"
#include "episodic/model/weight_plan.hpp"
#include "support/gguf_writer.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"
#include "tiny_llama.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace hostile_models_test {

using Json = nlohmann::json;
using W = GgufWriter;

/// A directory with a whole model, to be made odd.
struct Model {
  Model() : tiny({.tied = false}, 21), tensors(tiny.tensors()), config(tiny.config()) {}

  void write(const TempDir& dir) const {
    dir.write("config.json", text.empty() ? config.dump() : text);
    if (!tensors.empty()) write_safetensors(dir / "model.safetensors", tensors);
  }
  /// A tensor of zeros beside the others.
  void add(const std::string& name, TensorType type, std::vector<std::int64_t> shape) {
    tensors.push_back({name, type, std::move(shape), zeros.data()});
  }
  void rename(const std::string& from, const std::string& to) {
    for (TensorToWrite& t : tensors)
      for (std::size_t at = t.name.find(from); at != std::string::npos; at = std::string::npos)
        t.name.replace(at, from.size(), to);
  }
  void drop(const std::string& part) {
    std::erase_if(tensors, [&](const TensorToWrite& t) { return mentions(t.name, part); });
  }

  TinyLlama tiny;
  std::vector<TensorToWrite> tensors;
  Json config;
  std::string text;  // of config.json, if it is not `config`
  std::vector<char> zeros = std::vector<char>(1 << 16);
};

std::string opened(const fs::path& path) {
  return refusal<Error>([&] {
    const OpenModel model = open_model(path);
    PlannedWeights(model.config, model.tensors);
  });
}

/// An error of ours, of one line that a terminal may be sent, and what it must say.
void check(const std::string& error, const std::vector<const char*>& parts) {
  INFO(error);
  CHECK(error != "no error");
  for (const char c : error) CHECK(static_cast<unsigned char>(c) >= 0x20);
  CHECK(error.size() < 1500);
  for (const char* part : parts) {
    INFO("should contain: " << part);
    CHECK(mentions(error, part));
  }
}

class Clock {
 public:
  ~Clock() {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
    CHECK(spent.count() < 30);  // a second each on an idle machine; tests share theirs
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

struct Odd {
  const char* what;
  std::function<void(Model&)> change;
  std::vector<const char*> says;
};

Json quantised(const char* method) { return {{"quant_method", method}, {"bits", 4}}; }

/// Takes away the matrix and puts in what a scheme stores of it.
void pack(Model& m, std::initializer_list<const char*> endings, TensorType type = TensorType::i32) {
  for (const char* module : {"self_attn.q_proj", "mlp.down_proj"})
    for (int layer = 0; layer < 2; ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + "." + module;
      m.drop(at + ".weight");
      for (const char* end : endings) m.add(at + end, type, {4, 4});
    }
}

TEST_CASE("hostile models: a checkpoint of another scheme is told by the scheme's name") {
  const char* q = "quantization_config";
  const std::vector<Odd> table{
      {"gptq",
       [&](Model& m) {
         m.config[q] = quantised("gptq");
         pack(m, {".qweight", ".qzeros", ".g_idx", ".scales"});
       },
       {"GPTQ", "'model.layers.0.mlp.down_proj.scales'", "stored as I32", "GGUF"}},
      {"gptq, unsaid",
       [](Model& m) {
         pack(m, {".qweight", ".qzeros", ".g_idx", ".scales"});
       },
       {"GPTQ"}},
      {"awq",
       [&](Model& m) {
         m.config[q] = quantised("awq");
         pack(m, {".qweight", ".qzeros", ".scales"});
       },
       {"AWQ"}},
      {"awq, unsaid",
       [](Model& m) {
         pack(m, {".qweight", ".qzeros", ".scales"});
       },
       {"AWQ"}},
      {"bnb 4",
       [&](Model& m) {
         m.config[q] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
         pack(m, {".weight", ".weight.absmax", ".weight.quant_state.bitsandbytes__nf4"},
              TensorType::u8);
       },
       {"bitsandbytes (4 bits)"}},
      {"bnb 8, unsaid",
       [](Model& m) {
         pack(m, {".weight", ".SCB"}, TensorType::i8);
       },
       {"bitsandbytes (8 bits)"}},
      {"compressed-tensors",
       [&](Model& m) {
         m.config[q] = quantised("compressed-tensors");
         pack(m, {".weight_packed", ".weight_scale", ".weight_shape"});
       },
       {"compressed-tensors"}},
      {"compressed-tensors, older",
       [](Model& m) {
         m.config["compression_config"] = {{"config_groups", Json::object()}};
         pack(m, {".weight_packed"});
       },
       {"compressed-tensors"}},
      {"fp8",
       [&](Model& m) {
         m.config[q] = quantised("fp8");
         pack(m, {".weight", ".weight_scale_inv"}, TensorType::f8_e4m3);
       },
       {"FP8"}},
      {"fp8, unsaid", [](Model& m) { pack(m, {".weight"}, TensorType::f8_e4m3); }, {"FP8"}},
      {"fp8 of the right shape",
       [](Model& m) {
         for (TensorToWrite& t : m.tensors)
           if (t.name.ends_with("down_proj.weight")) {
             t.type = TensorType::f8_e4m3;
             t.data = m.zeros.data();
           }
       },
       {"FP8"}},
      {"mlx",
       [](Model& m) {
         m.config["quantization"] = {{"group_size", 64}, {"bits", 4}};
         pack(m, {".weight", ".scales", ".biases"}, TensorType::u32);
       },
       {"MLX"}},
      {"mlx, unsaid",
       [](Model& m) {
         pack(m, {".weight", ".scales", ".biases"}, TensorType::u32);
       },
       {"MLX"}},
      {"hqq",
       [](Model& m) {
         pack(m, {".W_q", ".meta"}, TensorType::u8);
       },
       {"HQQ"}},
      {"aqlm",
       [](Model& m) {
         pack(m, {".codes", ".codebooks", ".scales"}, TensorType::i16);
       },
       {"AQLM"}},
      {"eetq",
       [](Model& m) {
         pack(m, {".weight", ".weight_scales"}, TensorType::i8);
       },
       {"EETQ"}},
      {"quanto",
       [](Model& m) {
         pack(m, {".weight._data", ".weight._scale"}, TensorType::i8);
       },
       {"Quanto"}},
      {"torchao",
       [&](Model& m) {
         m.config[q] = quantised("torchao");
         pack(m, {".weight_qdata"}, TensorType::i8);
       },
       {"torchao"}},
      {"mxfp4",
       [&](Model& m) {
         m.config[q] = quantised("mxfp4");
         pack(m, {"_blocks", "_scales"}, TensorType::u8);
       },
       {"MXFP4"}},
      {"modelopt",
       [&](Model& m) {
         m.config[q] = {{"quant_algo", "NVFP4"}};
         pack(m, {".weight", ".weight_scale_2"}, TensorType::u8);
       },
       {"ModelOpt"}},
      {"exl2",
       [](Model& m) {
         pack(m, {".q_weight", ".q_scale"});
       },
       {"EXL2"}},
      {"vptq",
       [](Model& m) {
         pack(m, {".centroids", ".indices"});
       },
       {"VPTQ"}},
      {"a scheme of the future",
       [&](Model& m) {
         m.config[q] = quantised("next year's");
         pack(m, {".secret"});
       },
       {"\"next year's\""}},
  };
  for (const Odd& odd : table) {
    INFO(odd.what);
    const TempDir dir;
    const Clock clock;
    Model m;
    odd.change(m);
    m.write(dir);
    check(opened(dir.path()), odd.says);
  }
}

TEST_CASE("hostile models: said to be quantised, stored plain: used, with a note") {
  const TempDir dir;
  Model m;
  m.config["quantization_config"] = quantised("gptq");
  m.write(dir);
  CHECK(opened(dir.path()) == "no error");
  const OpenModel model = open_model(dir.path());
  REQUIRE(model.notes.size() == 1);
  CHECK(mentions(model.notes[0], "quantised (gptq), but they are plain F32"));
}

TEST_CASE("hostile models: a flag that contradicts the file is told by its name") {
  const std::vector<Odd> table{
      {"attention_bias unsaid",
       [](Model& m) { m.add("model.layers.0.self_attn.q_proj.bias", TensorType::f32, {48}); },
       {"q_proj.bias", "attention_bias false"}},
      {"attention_bias said",
       [](Model& m) { m.config["attention_bias"] = true; },
       {"q_proj.bias", "attention_bias true"}},
      {"mlp_bias unsaid",
       [](Model& m) { m.add("model.layers.0.mlp.up_proj.bias", TensorType::f32, {44}); },
       {"up_proj.bias", "mlp_bias false"}},
      {"mlp_bias said",
       [](Model& m) { m.config["mlp_bias"] = true; },
       {"gate_proj.bias", "mlp_bias true"}},
      {"biases of a class", [](Model& m) { m.config["model_type"] = "qwen2"; }, {"q_proj.bias"}},
      {"norms of heads unsaid",
       [](Model& m) { m.add("model.layers.0.self_attn.q_norm.weight", TensorType::f32, {12}); },
       {"q_norm", "no place"}},
      {"norms of heads said",
       [](Model& m) { m.config["model_type"] = "qwen3"; },
       {"q_norm", "model_type"}},
      {"no head", [](Model& m) { m.drop("lm_head"); }, {"lm_head.weight", "tie_word_embeddings"}},
      {"more rows of the vocabulary",
       [](Model& m) { m.config["vocab_size"] = 60; },
       {"[61, 24]", "[60, 24]", "vocab_size"}},
      {"fewer rows of the vocabulary",
       [](Model& m) { m.config["vocab_size"] = 64; },
       {"vocab_size"}},
      {"another head_dim", [](Model& m) { m.config["head_dim"] = 6; }, {"q_proj", "head_dim"}},
      {"no head_dim", [](Model& m) { m.config.erase("head_dim"); }, {"q_proj", "head_dim"}},
      {"more key heads",
       [](Model& m) { m.config["num_key_value_heads"] = 4; },
       {"k_proj", "num_key_value_heads"}},
      {"another inner size",
       [](Model& m) { m.config["intermediate_size"] = 40; },
       {"gate_proj", "intermediate_size"}},
      {"another width", [](Model& m) { m.config["hidden_size"] = 48; }, {"hidden_size"}},
      {"fewer layers",
       [](Model& m) { m.config["num_hidden_layers"] = 1; },
       {"model.layers.1.", "num_hidden_layers 1"}},
      {"more layers", [](Model& m) { m.config["num_hidden_layers"] = 3; }, {"model.layers.2."}},
      {"experts",
       [](Model& m) {
         m.add("model.layers.0.mlp.experts.0.w1.weight", TensorType::f32, {4, 4});
       },
       {"mixture of experts"}},
      {"an adapter within",
       [](Model& m) {
         m.add("model.layers.0.self_attn.q_proj.lora_A.weight", TensorType::f32, {2, 24});
       },
       {"adapter"}},
      {"a model that sees",
       [](Model& m) {
         m.add("vision_tower.patch.weight", TensorType::f32, {4, 4});
       },
       {"sees"}},
      {"two embeddings",
       [](Model& m) {
         m.rename("model.embed", "a.embed");
         m.add("b.embed_tokens.weight", TensorType::f32, {61, 24});
       },
       {"under a prefix of their own"}},
      {"another naming",
       [](Model& m) {
         m.rename("model.layers", "transformer.h");
         m.rename("model.embed_tokens", "transformer.wte");
       },
       {"prefix of their own"}},
      {"double precision",
       [](Model& m) {
         m.drop("model.norm");
         m.add("model.norm.weight", TensorType::f64, {24});
       },
       {"model.norm.weight", "F64"}},
      {"whole numbers",
       [](Model& m) {
         m.drop("lm_head");
         m.add("lm_head.weight", TensorType::i8, {61, 24});
       },
       {"lm_head.weight", "I8"}},
      {"zeros: embedding",
       [](Model& m) {
         m.drop("embed_tokens");
         m.add("model.embed_tokens.weight", TensorType::f32, {61, 24});
       },
       {"embed_tokens.weight' are 0"}},
      {"zeros: head",
       [](Model& m) {
         m.drop("lm_head");
         m.add("lm_head.weight", TensorType::bf16, {61, 24});
       },
       {"lm_head.weight' are 0"}},
      {"zeros: last norm",
       [](Model& m) {
         m.drop("model.norm");
         m.add("model.norm.weight", TensorType::f32, {24});
       },
       {"model.norm.weight' are 0"}},
      {"transposed",
       [](Model& m) {
         m.drop("lm_head");
         m.add("lm_head.weight", TensorType::f32, {24, 61});
       },
       {"[24, 61]"}},
      {"a scalar",
       [](Model& m) {
         m.drop("model.norm");
         m.add("model.norm.weight", TensorType::f32, {});
       },
       {"model.norm.weight"}},
      {"an empty matrix",
       [](Model& m) {
         m.drop("lm_head");
         m.add("lm_head.weight", TensorType::f32, {0, 24});
       },
       {"[0, 24]"}},
      {"rope by type of layer",
       [](Model& m) {
         m.config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
       },
       {"rope_parameters is given by type of layer"}},
      {"an unknown model",
       [](Model& m) { m.config["model_type"] = "gpt_oss_2"; },
       {"gpt_oss_2", "supported are"}},
      {"a config that is a list", [](Model& m) { m.text = "[]"; }, {"expected a JSON object"}},
      {"a config that is deep", [](Model& m) { m.text = std::string(100000, '['); }, {"deep"}},
      {"a config that is empty", [](Model& m) { m.text = " "; }, {"not valid JSON"}},
      {"a config of control characters",
       [](Model& m) { m.config["model_type"] = "a\x1b[31m\r\nb"; },
       {"is not supported"}},
      {"quantization that is a number",
       [](Model& m) {
         m.config["quantization_config"] = 4;
         m.config["vocab_size"] = 3;
       },
       {"vocab_size"}},
  };
  for (const Odd& odd : table) {
    INFO(odd.what);
    const TempDir dir;
    const Clock clock;
    Model m;
    odd.change(m);
    m.write(dir);
    check(opened(dir.path()), odd.says);
  }
}

struct OddFolder {
  const char* what;
  std::vector<std::pair<const char*, std::string>> files;
  std::vector<const char*> says;
};

TEST_CASE("hostile models: a folder of another kind says what it is") {
  const std::string config = TinyLlama({}, 1).config().dump();
  const std::string nothing;
  const std::vector<OddFolder> table{
      {"a .bin alone",
       {{"config.json", config}, {"pytorch_model.bin", "PK"}},
       {"pytorch_model.bin", "safe_serialization"}},
      {"parts of .bin",
       {{"config.json", config}, {"pytorch_model.bin.index.json", "{}"}},
       {"pytorch_model.bin.index.json"}},
      {"an adapter",
       {{"adapter_config.json", "{}"}, {"adapter_model.safetensors", nothing}},
       {"adapter_config.json", "ModelOptions::lora"}},
      {"Mistral's own",
       {{"params.json", "{}"}, {"consolidated.safetensors", nothing}},
       {"params.json", "Hugging Face"}},
      {"Mistral's own, with a config",
       {{"config.json", config}, {"consolidated.safetensors", nothing}},
       {"consolidated"}},
      {"Meta's own",
       {{"params.json", "{}"}, {"consolidated.00.pth", nothing}},
       {"makers' own layout"}},
      {"GGUF files", {{"m-Q4_K_M.gguf", nothing}}, {"give the file itself", "m-Q4_K_M.gguf"}},
      {"GGUF files beside a config", {{"config.json", config}, {"m.gguf", nothing}}, {"m.gguf"}},
      {"ONNX", {{"config.json", config}, {"model.onnx", nothing}}, {"ONNX"}},
      {"TensorFlow", {{"config.json", config}, {"tf_model.h5", nothing}}, {"tf_model.h5"}},
      {"Flax", {{"config.json", config}, {"flax_model.msgpack", nothing}}, {"flax_model.msgpack"}},
      {"parts without a list",
       {{"config.json", config}, {"model-00001-of-00002.safetensors", nothing}},
       {"model-00001-of-00002.safetensors", "index.json"}},
      {"another name",
       {{"config.json", config}, {"model.fp16.safetensors", nothing}},
       {"model.fp16.safetensors"}},
      {"a sentence encoder", {{"modules.json", "[]"}}, {"sentence encoder"}},
      {"nothing at all", {}, {"config.json: cannot be opened"}},
      {"no weights", {{"config.json", config}}, {"neither model.safetensors"}},
      {"a list with a part missing",
       {{"config.json", config},
        {"model.safetensors.index.json",
         R"({"weight_map":{"a":"model-00002-of-00002.safetensors"}})"}},
       {"model-00002-of-00002.safetensors: is not there", "all parts"}},
      {"a list that leaves the folder",
       {{"config.json", config},
        {"model.safetensors.index.json", R"({"weight_map":{"a":"../x"}})"}},
       {"plain file name"}},
      {"a list of numbers",
       {{"config.json", config}, {"model.safetensors.index.json", R"({"weight_map":{"a":5}})"}},
       {"is not a file name"}},
      {"a list of nothing",
       {{"config.json", config}, {"model.safetensors.index.json", R"({"weight_map":{}})"}},
       {"has no tensor"}},
      {"no list",
       {{"config.json", config}, {"model.safetensors.index.json", "[]"}},
       {"weight_map"}},
      {"an LFS pointer",
       {{"config.json", config},
        {"model.safetensors",
         "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"}},
       {"model.safetensors"}},
      {"weights that are a web page",
       {{"config.json", config}, {"model.safetensors", "<!DOCTYPE html><html></html>"}},
       {"model.safetensors"}},
      {"empty weights", {{"config.json", config}, {"model.safetensors", nothing}}, {"too few"}},
  };
  for (const OddFolder& odd : table) {
    INFO(odd.what);
    const TempDir dir;
    const Clock clock;
    for (const auto& [name, bytes] : odd.files) dir.write(name, bytes);
    check(opened(dir.path()), odd.says);
  }
}

TEST_CASE("hostile models: a file that is no GGUF file says what it is") {
  W other;
  other.put("general.architecture", "llama");
  const std::vector<std::tuple<const char*, std::string, const char*>> table{
      {"m.safetensors", std::string(8, '\1') + "{\"a\":1}", "safetensors file"},
      {"m.bin", std::string("PK\3\4") + std::string(40, 'x'), "torch.save"},
      {"m.pt", std::string("\x80\2") + std::string(40, 'x'), "torch.save"},
      {"old.bin", "lmgg" + std::string(40, 'x'), "older than GGUF"},
      {"m.gguf", "version https://git-lfs.github.com/spec/v1", "Git LFS"},
      {"page.gguf", "<!DOCTYPE html>", "web page"},
      {"empty.gguf", "", "too few"},
      {"short.gguf", "GGUF", "too few"},
      {"config.json", "{\"model_type\": \"llama\", \"x\": 1}", "no GGUF file"},
      {"vocabulary.gguf", other.bytes(), "token_embd.weight is missing"},
      {"m-00002-of-00003.gguf", other.bytes(), "m-00001-of-00003.gguf: part 1 of 3 is not beside"},
  };
  for (const auto& [name, bytes, says] : table) {
    INFO(name);
    const TempDir dir;
    const Clock clock;
    check(opened(dir.write(name, bytes)), {says});
  }
}

/// Bytes that the process has had resident at most, so far.
std::int64_t peak() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

TEST_CASE("hostile models: many small entries take memory in proportion, and end", "[heavy]") {
  const TempDir dir;
  std::string header = "{";
  for (int i = 0; i < 1000000; ++i)
    header += (i ? ",\"" : "\"") + std::to_string(i) +
              R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  header += "}";
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  dir.write("model.safetensors", bytes + header);
  dir.write("config.json", TinyLlama({}, 1).config().dump());
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t before = peak();
  check(opened(dir.path()), {"has no tensor 'model.embed_tokens.weight'"});
  CHECK(peak() - before < std::int64_t{700} << 20);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kMostSeconds = 600;
#else
  constexpr double kMostSeconds = 60;
#endif
  CHECK(spent.count() < kMostSeconds);
}

TEST_CASE("hostile models: files that ask for gigabytes are refused by what they hold") {
  const auto claim = [](W::Kind kind, std::uint64_t n) {
    W w;
    w.put("general.architecture", "llama");
    w.put("a.list", W::array, W::raw(static_cast<std::uint32_t>(kind)) + W::raw(n));
    return w.bytes();
  };
  std::vector<std::pair<const char*, std::string>> table{
      {"a list of 2^40", claim(W::u8, std::uint64_t{1} << 40)},
      {"a list of 2^63 texts", claim(W::string, std::uint64_t{1} << 63)},
      {"a list of all", claim(W::f64, ~std::uint64_t{0})},
  };
  std::string counts = "GGUF" + W::raw(3u);
  table.push_back(
      {"2^60 tensors", counts + W::raw(std::uint64_t{1} << 60) + W::raw(std::uint64_t{0})});
  table.push_back(
      {"2^60 keys", counts + W::raw(std::uint64_t{0}) + W::raw(std::uint64_t{1} << 60)});
  W keys;
  for (int i = 0; i < 70000; ++i) keys.put(std::to_string(i), W::u8, "x");
  table.push_back({"70,000 keys", keys.bytes()});
  for (const auto& [what, bytes] : table) {
    INFO(what);
    const TempDir dir;
    const Clock clock;
    const std::int64_t before = peak();
    check(opened(dir.write("m.gguf", bytes)), {"m.gguf"});
    CHECK(peak() - before < std::int64_t{64} << 20);
  }
  for (const char* key : {"num_hidden_layers", "num_attention_heads", "vocab_size",
                          "intermediate_size", "hidden_size", "head_dim", "num_key_value_heads"})
    for (const std::int64_t n :
         {std::int64_t{1} << 14, std::int64_t{1} << 20, std::int64_t{1} << 24}) {
      INFO(key << ' ' << n);
      const TempDir dir;
      const Clock clock;
      Model m;
      m.config[key] = n;
      m.write(dir);
      const std::int64_t before = peak();
      check(opened(dir.path()), {});
      CHECK(peak() - before < std::int64_t{256} << 20);
    }
}

TEST_CASE("hostile models: adapters that are odd are refused by what they are") {
  const TempDir base;
  Model m;
  m.write(base);
  const OpenModel model = open_model(base.path());
  const std::string p = "base_model.model.model.layers.0.self_attn.q_proj.";
  struct OddAdapter {
    const char* what;
    std::string config;
    std::vector<TensorToWrite> tensors;
    const char* says;
  };
  const std::string good =
      R"({"peft_type":"LORA","r":2,"lora_alpha":4,"target_modules":["layers.0.self_attn.q_proj"]})";
  const auto tensor = [&](const std::string& name, std::vector<std::int64_t> shape,
                          TensorType type = TensorType::f32) {
    return TensorToWrite{name, type, std::move(shape), m.zeros.data()};
  };
  const TensorToWrite a = tensor(p + "lora_A.weight", {2, 24}),
                      b = tensor(p + "lora_B.weight", {48, 2});
  const std::vector<OddAdapter> table{
      {"no A", good, {b}, "lora_A"},
      {"no B", good, {a}, "lora_B"},
      {"another rank", good, {tensor(p + "lora_A.weight", {3, 24}), b}, "lora_A"},
      {"an empty rank", good, {tensor(p + "lora_A.weight", {0, 24}), b}, "lora_A"},
      {"another width", good, {tensor(p + "lora_A.weight", {2, 23}), b}, "lora_A"},
      {"8 bits", good, {tensor(p + "lora_A.weight", {2, 24}, TensorType::i8), b}, "I8"},
      {"double", good, {tensor(p + "lora_A.weight", {2, 24}, TensorType::f64), b}, "F64"},
      {"a layer that is not there",
       good,
       {a, b, tensor("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", {2, 24})},
       "has no place"},
      {"an embedding's",
       good,
       {a, b, tensor("base_model.model.model.embed_tokens.lora_embedding_A", {2, 61})},
       "embedding"},
      {"a whole embedding of others",
       good,
       {a, b, tensor("base_model.model.model.embed_tokens.weight", {61, 24})},
       "is not what the model has"},
      {"a head that is resized",
       good,
       {a, b, tensor("base_model.model.lm_head.weight", {64, 24})},
       "[64, 24]"},
      {"a head that is a list",
       good,
       {a, b, tensor("base_model.model.lm_head.weight", {61})},
       "is not what the model has"},
      {"a head of whole numbers",
       good,
       {a, b, tensor("base_model.model.lm_head.weight", {61, 24}, TensorType::i8)},
       "is not what the model has"},
      {"no prefix",
       good,
       {tensor("model.layers.0.self_attn.q_proj.lora_A.weight", {2, 24})},
       "is not known"},
      {"r of 0", R"({"peft_type":"LORA","r":0,"lora_alpha":4})", {a, b}, "r is 0"},
      {"r of 2^40", R"({"peft_type":"LORA","r":1099511627776,"lora_alpha":4})", {a, b}, "r is"},
      {"alpha NaN", R"({"peft_type":"LORA","r":2,"lora_alpha":NaN})", {a, b}, "lora_alpha is NaN"},
      {"alpha below 0", R"({"peft_type":"LORA","r":2,"lora_alpha":-1})", {a, b}, "lora_alpha"},
      {"another kind", R"({"peft_type":"IA3","r":2,"lora_alpha":4})", {a, b}, "IA3"},
      {"DoRA", R"({"peft_type":"LORA","r":2,"lora_alpha":4,"use_dora":true})", {a, b}, "use_dora"},
      {"a list", "[]", {a, b}, "expected a JSON object"},
  };
  for (const OddAdapter& odd : table) {
    INFO(odd.what);
    const TempDir dir;
    const Clock clock;
    dir.write("adapter_config.json", odd.config);
    write_safetensors(dir / "adapter_model.safetensors", odd.tensors);
    check(refusal<Error>([&] { LoraAdapter::load(dir.path(), model); }), {odd.says});
  }
}

TEST_CASE("hostile models: folders that are no sentence encoder say so") {
  const std::string bert =
      R"({"model_type":"bert","vocab_size":30,"hidden_size":8,"num_hidden_layers":1,)"
      R"("num_attention_heads":2,"intermediate_size":16,"max_position_embeddings":16)";
  const std::vector<OddFolder> table{
      {"nothing", {}, {"config.json"}},
      {"a decoder", {{"config.json", TinyLlama({}, 1).config().dump()}}, {"llama", "bert"}},
      {"another activation", {{"config.json", bert + R"(,"hidden_act":"relu"})"}}, {"relu"}},
      {"relative positions",
       {{"config.json", bert + R"(,"position_embedding_type":"relative_key"})"}},
       {"relative_key"}},
      {"a decoder of BERT's", {{"config.json", bert + R"(,"is_decoder":true})"}}, {"is_decoder"}},
      {"NaN", {{"config.json", bert + R"(,"layer_norm_eps":NaN})"}}, {"layer_norm_eps is NaN"}},
      {"max pooling",
       {{"config.json", bert + "}"},
        {"1_Pooling/config.json", R"({"pooling_mode_max_tokens":true})"}},
       {"max_tokens"}},
      {"no tokenizer", {{"config.json", bert + "}"}}, {""}},
      {"heads that do not divide",
       {{"config.json",
         R"({"model_type":"bert","vocab_size":30,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":3,"intermediate_size":16,"max_position_embeddings":16})"}},
       {"num_attention_heads"}},
      {"a million layers",
       {{"config.json",
         R"({"model_type":"bert","vocab_size":30,"hidden_size":8,"num_hidden_layers":1000000,"num_attention_heads":2,"intermediate_size":16,"max_position_embeddings":16})"}},
       {"num_hidden_layers"}},
  };
  for (const OddFolder& odd : table) {
    INFO(odd.what);
    const TempDir dir;
    const Clock clock;
    fs::create_directories(dir / "1_Pooling");
    for (const auto& [name, bytes] : odd.files) dir.write(name, bytes);
    check(refusal<Error>([&] { SentenceEncoder::open(dir.path()); }), odd.says);
  }
}

}  // namespace hostile_models_test
