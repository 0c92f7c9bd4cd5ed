// SPDX-License-Identifier: Apache-2.0
#include "other_formats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/strict_json.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// A scheme as config.json names it, and as people do.
struct SchemeName {
  const char* said;
  const char* name;
};
constexpr SchemeName kSchemes[] = {
    {"gptq", "GPTQ"},
    {"awq", "AWQ"},
    {"bitsandbytes", "bitsandbytes"},
    {"bitsandbytes_4bit", "bitsandbytes (4 bits)"},
    {"bitsandbytes_8bit", "bitsandbytes (8 bits)"},
    {"compressed-tensors", "compressed-tensors"},
    {"fp8", "FP8 in blocks"},
    {"fbgemm_fp8", "FBGEMM FP8"},
    {"mlx", "MLX"},
    {"hqq", "HQQ"},
    {"aqlm", "AQLM"},
    {"eetq", "EETQ"},
    {"quanto", "Quanto"},
    {"torchao", "torchao"},
    {"mxfp4", "MXFP4"},
    {"modelopt", "NVIDIA ModelOpt"},
    {"bitnet", "BitNet"},
    {"vptq", "VPTQ"},
    {"spqr", "SpQR"},
    {"higgs", "HIGGS"},
    {"quip", "QuIP#"},
    {"exl2", "EXL2"},
    {"exl3", "EXL3"},
};

/// Tensors that only a scheme has, by the end of their names. The first that is found tells it.
struct SchemeSign {
  const char* end;
  const char* beside;  ///< another ending that must be there too; null: none
  const char* said;
};
constexpr SchemeSign kSigns[] = {
    {".qweight", ".g_idx", "gptq"},
    {".qweight", ".qzeros", "awq"},
    {".q_weight", ".q_scale", "exl2"},
    {".trellis", nullptr, "exl3"},
    {".absmax", nullptr, "bitsandbytes_4bit"},
    {".quant_state.bitsandbytes__nf4", nullptr, "bitsandbytes_4bit"},
    {".quant_state.bitsandbytes__fp4", nullptr, "bitsandbytes_4bit"},
    {".SCB", nullptr, "bitsandbytes_8bit"},
    {".weight_packed", nullptr, "compressed-tensors"},
    {".weight_scale_inv", nullptr, "fp8"},
    {".weight_scale_2", nullptr, "modelopt"},
    {".W_q", nullptr, "hqq"},
    {".codebooks", nullptr, "aqlm"},
    {".Qidxs", nullptr, "quip"},
    {".centroids", nullptr, "vptq"},
    {".dense_weights", nullptr, "spqr"},
    {".weight._data", nullptr, "quanto"},
    {".weight_qdata", nullptr, "torchao"},
    {":_weight_qdata", nullptr, "torchao"},
    {"_blocks", "_scales", "mxfp4"},
    {".scales", ".biases", "mlx"},
    {".weight_scales", nullptr, "eetq"},
    {".weight_scale", nullptr, "compressed-tensors"},
};

std::string name_of_scheme(const std::string& said) {
  for (const SchemeName& scheme : kSchemes)
    if (said == scheme.said) return scheme.name;
  return fmt::format("\"{}\"", printable(said));
}

const Json* member(const Json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return !object.is_object() || it == object.end() || it->is_null() ? nullptr : &*it;
}

bool is_true(const Json* value) { return value && *value == true; }

/// Of quantization_config and its like.
std::string scheme_said(const Json& config) {
  if (config.is_string()) return config.get<std::string>();
  if (!config.is_object() || config.empty()) return "";
  const bool in4 = is_true(member(config, "load_in_4bit")),
             in8 = is_true(member(config, "load_in_8bit"));
  const Json* method = member(config, "quant_method");
  if (!method) method = member(config, "quant_library");
  if (!method && member(config, "quant_algo")) return "modelopt";
  if (!method && (in4 || in8)) return in4 ? "bitsandbytes_4bit" : "bitsandbytes_8bit";
  if (!method && (member(config, "load_in_4bit") || member(config, "load_in_8bit"))) return "";
  if (!method && member(config, "group_size") && member(config, "bits")) return "mlx";
  if (!method && member(config, "config_groups")) return "compressed-tensors";
  if (!method || !method->is_string()) return "of an unnamed method";
  const auto said = method->get<std::string>();
  if (said == "none" || said.empty()) return "";
  if (said == "bitsandbytes") {
    const bool told = member(config, "load_in_4bit") || member(config, "load_in_8bit");
    if (told && !in4 && !in8) return "";
    return in4 ? "bitsandbytes_4bit" : in8 ? "bitsandbytes_8bit" : said;
  }
  return said;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Names of the directory's files with an ending, in order; at most a few thousand are looked at.
std::vector<std::string> files_with(const fs::path& dir, std::string_view end) {
  std::vector<std::string> names;
  std::error_code error;
  int looked = 0;
  for (fs::directory_iterator it(dir, error), last; !error && it != last && looked < 4096;
       it.increment(error), ++looked)
    if (const std::string name = it->path().filename().string(); name.ends_with(end))
      names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string quantization_said(const Json& config) {
  for (const char* key : {"quantization_config", "compression_config", "quantization"})
    if (const Json* value = member(config, key))
      if (const std::string said = scheme_said(*value); !said.empty()) return said;
  return "";
}

std::string quantization_found(const TensorSource& tensors, const std::string& said) {
  const std::vector<const StoredTensor*> all = tensors.tensors();
  const auto any = [&](std::string_view end) {
    return std::any_of(all.begin(), all.end(),
                       [&](const StoredTensor* t) { return t->name.ends_with(end); });
  };
  if (!said.empty()) return name_of_scheme(said);
  for (const SchemeSign& sign : kSigns)
    if (any(sign.end) && (!sign.beside || any(sign.beside))) return name_of_scheme(sign.said);
  for (const StoredTensor* t : all)
    if (t->type == TensorType::f8_e4m3 || t->type == TensorType::f8_e5m2) return "FP8";
  return "";
}

std::string found_instead(const fs::path& dir) {
  if (is_there(dir / "adapter_config.json"))
    return "it holds an adapter (adapter_config.json): give the model that the adapter was trained "
           "for, and the adapter beside it (ModelOptions::lora)";
  if (const auto gguf = files_with(dir, ".gguf"); !gguf.empty())
    return fmt::format("it holds GGUF files: give the file itself, such as {}",
                       printable((dir / gguf[0]).string()));
  if (is_there(dir / "params.json") || is_there(dir / "consolidated.safetensors") ||
      is_there(dir / "consolidated.00.pth"))
    return "it holds the model in its makers' own layout (params.json, consolidated.*): give the "
           "files in Hugging Face's layout, or a GGUF file";
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (is_there(dir / name))
      return fmt::format(
          "it holds {}, which is not read, for it may hold programs: save the model "
          "anew with safe_serialization=True, or give a GGUF file",
          name);
  for (const char* name : {"tf_model.h5", "flax_model.msgpack", "model.ckpt.index"})
    if (is_there(dir / name))
      return fmt::format(
          "it holds {}, which is not read: give the weights as safetensors, or a "
          "GGUF file",
          name);
  if (is_there(dir / "onnx") || !files_with(dir, ".onnx").empty())
    return "it holds the model as ONNX, which is not read: give the weights as safetensors, or a "
           "GGUF file";
  if (const auto others = files_with(dir, ".safetensors"); !others.empty()) {
    if (others[0].find("-of-") != std::string::npos)
      return fmt::format(
          "it holds {}, but not model.safetensors.index.json, which lists the "
          "parts: fetch it too",
          printable(others[0]));
    return fmt::format("it holds {}: rename it if it is the model", printable(others[0]));
  }
  if (is_there(dir / "modules.json") && !is_there(dir / "config.json"))
    return "it is a sentence encoder: those are opened as such, they are no decoders";
  return "";
}

std::string found_instead(std::span<const std::byte> begin, const fs::path& file) {
  const std::string_view bytes(reinterpret_cast<const char*>(begin.data()), begin.size());
  const std::string name = file.filename().string();
  if (name.ends_with(".safetensors") || (bytes.size() > 9 && bytes.substr(8, 2) == "{\""))
    return "it is a safetensors file: give the directory that it lies in, with config.json";
  if (bytes.starts_with("PK\x03\x04") || bytes.starts_with("\x80\x02"))
    return "it is a checkpoint of torch.save, which is not read, for it may hold programs: give "
           "the weights as safetensors, or a GGUF file";
  if (bytes.starts_with("ggml") || bytes.starts_with("lmgg") || bytes.starts_with("fmgg") ||
      bytes.starts_with("tjgg"))
    return "it is a GGML file, older than GGUF: fetch a GGUF file of the model";
  if (bytes.starts_with("version https://git-lfs"))
    return "it is a pointer of Git LFS in place of the file: fetch the file itself (git lfs pull)";
  if (bytes.starts_with("<!DOCTYPE") || bytes.starts_with("<html"))
    return "it is a web page: the download failed";
  return "";
}

}  // namespace episodic
