// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "episodic/base/error.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/hf_config.hpp"
#include "support/gguf_writer.hpp"
#include "support/temp_dir.hpp"
#include "tensors.hpp"

using namespace episodic;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::uint8_t> copy(data, data + size);  // exact size: sanitizers see overruns
  const auto bytes = std::as_bytes(std::span(copy));
  try {
    const GgufContent content = parse_gguf(bytes, "fuzz");
    fuzz::check_tensors(content.tensors, bytes);
    for (const auto& [key, value] : content.metadata)
      if (const auto* list = std::get_if<std::vector<std::string_view>>(&value))
        for (const std::string_view s : *list)
          fuzz::require(
              s.empty() || (reinterpret_cast<const std::byte*>(s.data()) >= bytes.data() &&
                            reinterpret_cast<const std::byte*>(s.data() + s.size()) <=
                                bytes.data() + bytes.size()),
              "strings lie within the file");
    // and what its settings say of a model
    static const TempDir folder;
    const std::filesystem::path file = folder / "m.gguf";
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    const ModelConfig config = parse_model_config(GgufSource(file).config_json(), "", "fuzz");
    for (const Rope& rope : config.ropes)
      for (const std::int64_t length : {1, 1 << 20})
        for (const double f : rope.at(length).inverse_frequency)
          fuzz::require(std::isfinite(f), "frequencies are finite");
  } catch (const Error&) {
  }
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  using W = GgufWriter;
  W plain, aligned, nested;
  plain.put("general.architecture", "llama").put("x.count", 7u).put("x.eps", 1e-6f);
  plain.put_array("tokens", W::string, std::vector<std::string>{"<s>", "a", "bc"});
  plain.put_array("scores", W::f32, std::vector<float>{0, -1, -2});
  plain.floats("a", {2, 3}, {1, 2, 3, 4, 5, 6}).tensor("b", 8, {32}, std::string(34, 'b'));
  aligned.alignment = 8;
  aligned.put("general.alignment", 8u).put("flag", true);
  aligned.tensor("k", 12, {1, 256}, std::string(144, 'k')).floats("e", {0}, {});
  nested.put("l", W::array,
             W::raw(std::uint32_t{W::array}) + W::raw(std::uint64_t{1}) +
                 W::raw(std::uint32_t{W::u16}) + W::raw(std::uint64_t{2}) + "wxyz");
  W model;
  const std::string a = "llama.", scaling = a + "rope.scaling.";
  model.put("general.architecture", "llama").put(a + "context_length", 64u);
  model.put(a + "embedding_length", 8u).put(a + "block_count", 1u);
  model.put(a + "feed_forward_length", 16u).put(a + "rope.freq_base", 500000.0f);
  model.put_array(a + "attention.head_count", W::i32, std::vector<std::int32_t>{2});
  model.put(a + "attention.layer_norm_rms_epsilon", 1e-6f).put(scaling + "type", "linear");
  model.put(scaling + "factor", 4.0f).put(scaling + "attn_factor", 1.5f);
  model.put(scaling + "original_context_length", 16u).put("tokenizer.ggml.eos_token_id", 2u);
  model.floats("token_embd.weight", {10, 8}, std::vector<float>(80, 0.5f));
  model.floats("rope_freqs.weight", {2}, {1, 2});
  return {plain.bytes(), aligned.bytes(), nested.bytes(), W().bytes(), model.bytes()};
}

/// The magic, without which nothing else is looked at.
void repair(std::string& input) {
  if (input.size() >= 4) std::memcpy(input.data(), "GGUF", 4);
}

}  // namespace fuzz
