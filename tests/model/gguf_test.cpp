// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/gguf.hpp"

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "episodic/attention/rotary.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/hf_config.hpp"
#include "support/gguf_writer.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace gguf_test {

using Json = nlohmann::json;
using W = GgufWriter;

GgufContent parse(const std::string& bytes) {
  return parse_gguf(std::as_bytes(std::span(bytes)), "some.gguf");
}

void refuses(const std::string& bytes, const std::string& because) {
  const std::string error = refusal<FileError>([&] { parse(bytes); });
  INFO(error << "   should contain   " << because);
  REQUIRE(error.find("some.gguf: ") == 0);
  REQUIRE(mentions(error, because));
}

void contains(const std::string& text, const std::string& part) {
  INFO(text << "   should contain   " << part);
  REQUIRE(mentions(text, part));
}

/// A file with a value of each kind and three tensors.
W example() {
  W w;
  w.put("general.architecture", "llama").put("a.u8", W::u8, W::raw(std::uint8_t{200}));
  w.put("a.i8", W::i8, W::raw(std::int8_t{-5})).put("a.u16", W::u16, W::raw(std::uint16_t{65535}));
  w.put("a.i16", W::i16, W::raw(std::int16_t{-300})).put("a.u32", 4000000000u);
  w.put("a.i32", W::i32, W::raw(-7)).put("a.f32", 0.5f).put("a.bool", true);
  w.put("a.u64", W::u64, W::raw(std::uint64_t{1} << 60));
  w.put("a.i64", W::i64, W::raw(-(std::int64_t{1} << 60))).put("a.f64", W::f64, W::raw(1e300));
  w.put_array("l.strings", W::string, std::vector<std::string>{"", "b", "\xff"});
  w.put_array("l.i32", W::i32, std::vector<int>{1, -2});
  w.put_array("l.f32", W::f32, std::vector<float>{1.5f});
  w.put_array("l.bool", W::boolean, std::vector<std::uint8_t>{1, 0});
  w.put("l.nested", W::array,
        W::raw(std::uint32_t{W::array}) + W::raw(std::uint64_t{1}) + W::raw(std::uint32_t{W::u8}) +
            W::raw(std::uint64_t{2}) + "xy");
  w.floats("z", {2, 3}, {0, 1, 2, 3, 4, 5});
  w.tensor("q", 8, {1, 32}, std::string(34, 'q')).floats("empty", {0, 4}, {});
  return w;
}

/// The least that a llama has; one layer of width 8 with two heads of 4 and one of keys.
W small_llama(const std::string& architecture = "llama") {
  W w;
  const std::string a = architecture + ".";
  w.put("general.architecture", architecture).put(a + "context_length", 64u);
  w.put(a + "embedding_length", 8u).put(a + "block_count", 1u).put(a + "feed_forward_length", 16u);
  w.put(a + "attention.head_count", 2u).put(a + "attention.head_count_kv", 1u);
  w.put(a + "attention.layer_norm_rms_epsilon", 1e-6f).put(a + "rope.freq_base", 500000.0f);
  std::vector<float> x(10 * 8);
  std::iota(x.begin(), x.end(), 0.0f);
  w.floats("token_embd.weight", {10, 8}, x)
      .floats("output_norm.weight", {8}, {8, 7, 6, 5, 4, 3, 2, 1});
  return w;
}

std::vector<float> floats(const StoredTensor* view) {
  REQUIRE(view != nullptr);
  std::vector<float> x(static_cast<std::size_t>(view->bytes / 4));
  std::memcpy(x.data(), view->data, x.size() * 4);
  return x;
}

std::vector<float> rows(const std::vector<float>& starts, int width) {
  std::vector<float> x;
  for (const float s : starts)
    for (int c = 0; c < width; ++c) x.push_back(s * 100 + static_cast<float>(c));
  return x;
}

TEST_CASE("gguf: metadata of every kind and tensors are read") {
  const TempDir dir;
  for (const std::uint32_t version : {2u, 3u}) {
    W w = example();
    w.version = version;
    dir.write("a.gguf", w.bytes());
    const GgufFile file(dir / "a.gguf");
    CHECK(file.string("general.architecture") == "llama");
    CHECK(file.integer("a.u8") == 200);
    CHECK(file.integer("a.i8") == -5);
    CHECK(file.integer("a.u16") == 65535);
    CHECK(file.integer("a.i16") == -300);
    CHECK(file.integer("a.u32") == 4000000000);
    CHECK(file.integer("a.i32") == -7);
    CHECK(file.integer("a.u64") == std::int64_t{1} << 60);
    CHECK(file.integer("a.i64") == -(std::int64_t{1} << 60));
    CHECK(file.number("a.f32") == 0.5);
    CHECK(file.number("a.f64") == 1e300);
    CHECK(file.number("a.i32") == -7.0);
    CHECK(file.boolean("a.bool") == true);
    CHECK(*file.strings("l.strings") == std::vector<std::string_view>{"", "b", "\xff"});
    CHECK(*file.integers("l.i32") == std::vector<std::int64_t>{1, -2});
    CHECK(*file.numbers("l.f32") == std::vector<double>{1.5});
    CHECK(*file.booleans("l.bool") == std::vector<bool>{true, false});
    CHECK_FALSE(file.integer("nothing").has_value());
    CHECK(file.strings("nothing") == nullptr);
    contains(refusal<FileError>([&] { file.integer("a.f32"); }), "a.gguf: a.f32 is no integer");
    contains(refusal<FileError>([&] { file.strings("l.i32"); }), "l.i32 is no list of strings");
    contains(refusal<FileError>([&] { file.string("l.nested"); }), "l.nested is no string");

    REQUIRE(file.tensors().size() == 3);
    CHECK(floats(file.find("z")) == std::vector<float>{0, 1, 2, 3, 4, 5});
    CHECK(file.find("z")->shape == std::vector<std::int64_t>{2, 3});
    CHECK(file.find("q")->type == TensorType::q8_0);
    CHECK(file.find("q")->elements() == 32);
    CHECK(file.find("empty")->data == nullptr);
    CHECK(file.find("none") == nullptr);
    CHECK(file.file_of("z") == dir / "a.gguf");
  }
}

TEST_CASE("gguf: another alignment") {
  W w;
  w.alignment = 4;
  w.put("general.alignment", 4u).tensor("a", 24, {3}, "abc").tensor("b", 24, {5}, "hello");
  const std::string bytes = w.bytes();
  const GgufContent content = parse(bytes);
  REQUIRE(std::memcmp(content.tensors.at(1).data, "hello", 5) == 0);
  for (const std::uint32_t bad : {0u, 3u, 1u << 21}) {
    W other;
    refuses(other.put("general.alignment", bad).bytes(), "general.alignment");
  }
  W text;
  refuses(text.put("general.alignment", "32").bytes(), "general.alignment");
}

TEST_CASE("gguf: a truncated file") {
  const std::string whole = example().bytes();
  REQUIRE(parse(whole).tensors.size() == 3);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string part = whole.substr(0, n);
    const std::string error = refusal<FileError>([&] { parse(part); });
    INFO(n << " of " << whole.size() << ": " << error);
    REQUIRE(error.find("some.gguf: ") == 0);
  }
}

TEST_CASE("gguf: any byte another") {
  const std::string whole = example().bytes();
  int accepted = 0, refused = 0;
  for (std::size_t i = 0; i < whole.size(); ++i)
    for (const int flip : {0x01, 0x10, 0x80, 0xff}) {
      std::string other = whole;
      other[i] = static_cast<char>(other[i] ^ flip);
      try {
        const GgufContent content = parse(other);
        for (const StoredTensor& t : content.tensors)
          if (t.bytes > 0)
            REQUIRE((t.data >= std::as_bytes(std::span(other)).data() &&
                     t.data + t.bytes <= std::as_bytes(std::span(other)).data() + other.size()));
        ++accepted;
      } catch (const FileError&) {
        ++refused;
      }
    }
  REQUIRE(accepted > 100);
  REQUIRE(refused > 100);
}

TEST_CASE("gguf: what is no GGUF file, or of another kind") {
  refuses("", "too few");
  refuses(std::string(100, 'x'), "does not begin with GGUF");
  W old;
  old.version = 1;
  refuses(old.bytes(), "version 1; supported are 2 and 3");
  old.version = 0x03000000;
  refuses(old.bytes(), "big-endian");
}

TEST_CASE("gguf: counts and lengths that lie") {
  const auto big = W::raw(std::uint64_t{1} << 60);
  refuses("GGUF" + W::raw(3) + big + W::raw(std::uint64_t{0}) + std::string(64, '\0'),
          "its list of tensors claims 1152921504606846976 elements");
  refuses("GGUF" + W::raw(3) + W::raw(std::uint64_t{0}) + big + std::string(64, '\0'),
          "its metadata claims");
  refuses(W().put("k", W::string, big).bytes(), "'k' claims");
  refuses(W().put("k", W::array, W::raw(std::uint32_t{W::u8}) + big).bytes(), "'k' claims");
  refuses(W().put("k", W::array, W::raw(std::uint32_t{W::string}) + big).bytes(), "'k' claims");
  refuses(W().put("k", W::array, W::raw(std::uint32_t{77}) + big).bytes(), "kind 77");
  refuses(W().put("k", static_cast<W::Kind>(13), "").bytes(), "kind 13");
  refuses(W().put("k", W::boolean, "\x02").bytes(), "'k' is a truth value of 2");
  refuses(W().put("k", W::u64, W::raw(~std::uint64_t{0})).bytes(), "out of range");
  refuses(W().put("k", 1u).put("k", 1u).bytes(), "'k' stands twice");
  std::string nested;
  for (int i = 0; i < 6; ++i) nested += W::raw(std::uint32_t{W::array}) + W::raw(std::uint64_t{1});
  refuses(W().put("k", W::array, nested + std::string(64, '\0')).bytes(), "nested too deep");
}

TEST_CASE("gguf: tensors that do not hold") {
  const std::string four(16, '\0');
  refuses(W().tensor("w", 99, {4}, four).bytes(), "tensor 'w' is of type number 99");
  refuses(W().tensor("w", 4, {4}, four).bytes(), "IQ4_NL");  // Q4_2: gone, and the list of names
  refuses(W().tensor("w", 0, {1, 1, 1, 1, 4}, four).bytes(), "5 dimensions");
  refuses(W().tensor("w", 0, {std::uint64_t{1} << 40, std::uint64_t{1} << 40}, four).bytes(),
          "overflows");
  refuses(W().tensor("w", 0, {~std::uint64_t{0}}, four).bytes(), "overflows");
  // nor in a part of the shape, though the tensor holds nothing
  refuses(W().tensor("w", 0, {0, std::uint64_t{1} << 40, std::uint64_t{1} << 40}, "").bytes(),
          "overflows");
  refuses(W().tensor("w", 8, {2, 16}, std::string(34, 'q')).bytes(), "no whole blocks of 32");
  refuses(W().tensor("w", 12, {32}, std::string(144, 'q')).bytes(), "no whole blocks of 256");
  refuses(W().tensor("w", 0, {5}, four).bytes(), "needs 20 bytes at offset 0");
  refuses(W().listed("w", 0, {4}, 16, four).bytes(), "offset 16 is no multiple");
  refuses(W().listed("w", 0, {4}, 32, four).bytes(), "truncated");
  refuses(W().listed("w", 0, {4}, ~std::uint64_t{31}, four).bytes(), "truncated");
  refuses(W().tensor("w", 0, {4}, four).tensor("w", 0, {4}, four).bytes(), "'w' stands twice");
  refuses(W().tensor("a", 0, {4}, four).listed("b", 0, {4}, 0, four).bytes(),
          "'a' and 'b' overlap");
}

TEST_CASE("gguf: the parts of a split file") {
  const TempDir dir;
  const auto part = [&](int number, int count, int no, const char* tensor) {
    W w;
    w.put("split.no", W::u16, W::raw(static_cast<std::uint16_t>(no)));
    w.put("split.count", W::u16, W::raw(static_cast<std::uint16_t>(count)));
    if (no == 0) w.put("key", "of the first");
    w.floats(tensor, {1}, {static_cast<float>(no)});
    dir.write("m-0000" + std::to_string(number) + "-of-00003.gguf", w.bytes());
  };
  part(1, 3, 0, "a");
  part(2, 3, 1, "b");
  contains(refusal<FileError>([&] { GgufFile(dir / "m-00001-of-00003.gguf"); }),
           "m-00003-of-00003.gguf: part 3 of 3 is not beside m-00001-of-00003.gguf");
  part(3, 3, 2, "c");
  for (const char* name : {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}) {
    const GgufFile file(dir / name);
    REQUIRE(file.tensors().size() == 3);
    CHECK(file.string("key") == "of the first");
    CHECK(floats(file.find("c")) == std::vector<float>{2});
    CHECK(file.file_of("b").filename() == "m-00002-of-00003.gguf");
    CHECK(file.path().filename() == "m-00001-of-00003.gguf");
  }
  part(2, 3, 1, "a");
  contains(refusal<FileError>([&] { GgufFile(dir / "m-00001-of-00003.gguf"); }),
           "'a' stands in another part too");
  part(2, 3, 2, "b");
  contains(refusal<FileError>([&] { GgufFile(dir / "m-00001-of-00003.gguf"); }),
           "m-00002-of-00003.gguf: says that it is part 3 of 3");
}

TEST_CASE("gguf: a llama as Hugging Face has it") {
  const TempDir dir;
  W w = small_llama();
  w.put("tokenizer.ggml.bos_token_id", 1u).put("tokenizer.ggml.eos_token_id", 2u);
  w.put("tokenizer.ggml.eot_token_id", 5u);
  // Rows of each head as the conversion puts them: first of both halves, then second, ... They are
  // used as they lie, and the settings say so.
  w.floats("blk.0.attn_q.weight", {8, 8}, rows({0, 2, 1, 3, 4, 6, 5, 7}, 8));
  w.floats("blk.0.attn_k.weight", {4, 8}, rows({0, 2, 1, 3}, 8));
  w.floats("blk.0.attn_q.bias", {8}, {0, 2, 1, 3, 4, 6, 5, 7});
  w.floats("blk.0.attn_v.weight", {4, 8}, rows({0, 1, 2, 3}, 8));
  w.floats("blk.0.ffn_norm.weight", {8}, std::vector<float>(8, 1.0f));
  w.floats("output.weight", {10, 8}, std::vector<float>(80));
  w.floats("rope_freqs.weight", {2}, {1.0f, 8.0f});
  dir.write("m.gguf", w.bytes());
  const GgufSource source(dir / "m.gguf");
  const std::string layer = "model.layers.0.";
  for (const auto& [ours, theirs] :
       {std::pair{"q_proj.weight", "attn_q.weight"}, std::pair{"k_proj.weight", "attn_k.weight"},
        std::pair{"q_proj.bias", "attn_q.bias"}})
    CHECK(source.find(layer + "self_attn." + ours)->data ==
          source.file().find(std::string("blk.0.") + theirs)->data);
  CHECK(floats(source.find(layer + "self_attn.q_proj.weight")) ==
        rows({0, 2, 1, 3, 4, 6, 5, 7}, 8));
  CHECK(parse_model_config(source.config_json(), "", "m.gguf").ropes[0].table.pairs ==
        RotaryPairs::interleaved);
  CHECK(floats(source.find(layer + "self_attn.v_proj.weight")) == rows({0, 1, 2, 3}, 8));
  CHECK(floats(source.find(layer + "post_attention_layernorm.weight")) ==
        std::vector<float>(8, 1.0f));
  CHECK(floats(source.find("model.norm.weight")) == std::vector<float>{8, 7, 6, 5, 4, 3, 2, 1});
  CHECK(source.find("model.embed_tokens.weight")->data ==
        source.file().find("token_embd.weight")->data);
  CHECK(source.find("lm_head.weight")->name == "lm_head.weight");
  CHECK(source.tensors().size() == 8);
  CHECK(source.find("rope_freqs.weight") == nullptr);
  CHECK(source.file_of("lm_head.weight") == dir / "m.gguf");
  const Json config = Json::parse(source.config_json());
  const Json factors = {1.0, 8.0};
  const Json expected = {{"model_type", "llama"},
                         {"vocab_size", 10},
                         {"hidden_size", 8},
                         {"intermediate_size", 16},
                         {"num_hidden_layers", 1},
                         {"num_attention_heads", 2},
                         {"num_key_value_heads", 1},
                         {"head_dim", 4},
                         {"max_position_embeddings", 64},
                         {"rms_norm_eps", 1e-6},
                         {"hidden_act", "silu"},
                         {"tie_word_embeddings", false},
                         {"rope_theta", 500000.0},
                         {"_rope_interleaved", true},
                         {"attention_bias", true},
                         {"mlp_bias", false},
                         {"bos_token_id", 1},
                         {"eos_token_id", {2, 5}},
                         {"rope_scaling",
                          {{"rope_type", "longrope"},
                           {"type", "longrope"},
                           {"short_factor", factors},
                           {"long_factor", factors},
                           {"attention_factor", 1.0},
                           {"original_max_position_embeddings", 64}}}};
  CHECK(config == expected);
}

TEST_CASE("gguf: other families") {
  const TempDir dir;
  const auto config_of = [&](W& w) {
    dir.write("m.gguf", w.bytes());
    return Json::parse(GgufSource(dir / "m.gguf").config_json());
  };
  {
    W w = small_llama("gemma3");
    w.put("gemma3.attention.sliding_window", 5u).put("gemma3.attention.key_length", 4u);
    w.floats("blk.0.attn_norm.weight", {8}, std::vector<float>(8, 1.5f));
    w.floats("blk.0.ffn_norm.weight", {8}, std::vector<float>(8, 0.25f));
    const Json config = config_of(w);
    CHECK(config["model_type"] == "gemma3_text");
    CHECK(config["layer_types"] == Json{"sliding_attention"});
    CHECK(config["rope_local_base_freq"] == 10000.0);
    CHECK(config["query_pre_attn_scalar"] == 4);
    CHECK(config["tie_word_embeddings"] == true);
    CHECK(config["rope_scaling"].is_null());
    const GgufSource source(dir / "m.gguf");
    CHECK(floats(source.find("model.layers.0.input_layernorm.weight")) ==
          std::vector<float>(8, 0.5f));
    CHECK(floats(source.find("model.layers.0.pre_feedforward_layernorm.weight")) ==
          std::vector<float>(8, -0.75f));
    CHECK(floats(source.find("model.norm.weight")) == std::vector<float>{7, 6, 5, 4, 3, 2, 1, 0});
  }
  {
    W w = small_llama("gemma2");
    w.put("gemma2.attention.sliding_window", 5u).put("gemma2.attn_logit_softcapping", 50.0f);
    const Json config = config_of(w);
    CHECK(config["attn_logit_softcapping"] == 50.0);
    CHECK_FALSE(config.contains("rope_local_base_freq"));
  }
  {
    W w = small_llama("qwen3");
    w.put("qwen3.rope.scaling.type", "yarn").put("qwen3.rope.scaling.factor", 4.0f);
    w.put("qwen3.rope.scaling.original_context_length", 16u);
    w.floats("blk.0.attn_q_norm.weight", {4}, {1, 2, 3, 4});
    const Json config = config_of(w);
    CHECK(config["rope_scaling"] == Json{{"rope_type", "yarn"},
                                         {"type", "yarn"},
                                         {"factor", 4.0},
                                         {"original_max_position_embeddings", 16}});
    CHECK(floats(GgufSource(dir / "m.gguf").find("model.layers.0.self_attn.q_norm.weight")) ==
          std::vector<float>{1, 2, 3, 4});
  }
  {
    W w = small_llama("phi3");
    w.put("phi3.rope.dimension_count", 2u).put("phi3.rope.scaling.original_context_length", 16u);
    w.put("phi3.rope.scaling.attn_factor", 1.19f);
    w.floats("rope_factors_short.weight", {1}, {1.0f});
    w.floats("rope_factors_long.weight", {1}, {2.5f});
    w.floats("blk.0.attn_qkv.weight", {16, 8}, std::vector<float>(128));
    const Json config = config_of(w);
    CHECK(config["partial_rotary_factor"] == 0.5);
    CHECK(config["rope_scaling"]["long_factor"] == Json{2.5});
    CHECK(config["rope_scaling"]["attention_factor"] == 1.19);
    CHECK(config["original_max_position_embeddings"] == 16);
    CHECK(GgufSource(dir / "m.gguf").find("model.layers.0.self_attn.qkv_proj.weight") != nullptr);
  }
  {
    W w = small_llama("granite");
    w.put("granite.attention.scale", 0.015625f).put("granite.logit_scale", 8.0f);
    w.put("granite.embedding_scale", 12.0f).put("granite.residual_scale", 0.22f);
    const Json config = config_of(w);
    CHECK(config["attention_multiplier"] == 0.015625);
    CHECK(config["embedding_multiplier"] == 12.0);
    CHECK(config["residual_multiplier"] == 0.22);
    CHECK(config["logits_scaling"] == 8.0);
  }
  {
    W w = small_llama("olmo2");
    w.floats("blk.0.post_ffw_norm.weight", {8}, std::vector<float>(8));
    CHECK(config_of(w)["model_type"] == "olmo2");
  }
  {
    W w = small_llama("smollm3");
    CHECK(config_of(w)["no_rope_layer_interval"] == 4);
  }
  {
    W w = small_llama("qwen2");
    w.put("qwen2.rope.scale_linear", 2.0f);
    const Json config = config_of(w);
    CHECK(config["rope_scaling"]["rope_type"] == "linear");
    CHECK_FALSE(config.contains("attention_bias"));
  }
}

TEST_CASE("gguf: models that are not known are refused by name") {
  const TempDir dir;
  const auto error = [&](const W& w) {
    dir.write("m.gguf", w.bytes());
    return refusal<FileError>([&] { GgufSource(dir / "m.gguf"); });
  };
  contains(error(small_llama("mamba")), "general.architecture = 'mamba' is not supported");
  contains(error(W()), "m.gguf: general.architecture is missing");
  contains(error(small_llama().floats("blk.0.attn_sinks.weight", {1}, {1})),
           "tensor 'blk.0.attn_sinks.weight' is not known for the architecture 'llama'");
  contains(error(small_llama().floats("blk.1.attn_q.weight", {1}, {1})), "'blk.1.attn_q.weight'");
  contains(error(small_llama().floats("blk.00.attn_q.weight", {1}, {1})), "'blk.00.attn_q.weight'");
  contains(error(small_llama().floats("blk.0.attn_q", {1}, {1})), "is not known");
  contains(error(small_llama().put("llama.expert_count", 8u)),
           "llama.expert_used_count is missing");
  contains(error(small_llama("qwen2").put("qwen2.expert_count", 8u)), "mixtures of experts");
  contains(error(small_llama("qwen3moe")), "qwen3moe.expert_count is missing or 0");
  contains(error(small_llama().put("llama.rope.scaling.type", "su")), "'su' is not supported");
  // as in llama.cpp a factor that is not there is 1
  contains(error(small_llama().put("llama.rope.scaling.type", "yarn")), "no error");
  for (const auto& [type, what] : {std::pair{"imatrix", "importance matrix"},
                                   {"mmproj", "the file of its language model"},
                                   {"adapter", "give the model's file"}})
    contains(error(W().put("general.type", type)), what);
  contains(error(small_llama("clip")), "the file of its language model");
  contains(error(small_llama().put("llama.attention.key_length", 0u)), "= 0 is out of range");
  contains(error(small_llama().put("llama.attention.value_length", 5u)), "value_length differs");
  contains(error(small_llama().floats("blk.0.attn_q.weight", {6, 8}, std::vector<float>(48))),
           "blk.0.attn_q.weight has 6 rows");
  contains(error(small_llama("gemma3")), "gemma3.attention.sliding_window is missing");
  W empty;
  contains(error(empty.put("general.architecture", "llama")), "token_embd.weight is missing");
}

}  // namespace gguf_test
