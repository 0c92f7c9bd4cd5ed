// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// GGUF files (versions 2 and 3, little-endian), read in place. Torch-free. Whatever a file says is
/// checked before it is believed, as with safetensors.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "episodic/base/mapped_file.hpp"
#include "episodic/model/tensor_source.hpp"

namespace episodic {

class Tokenizer;  // text/tokenizer.hpp

/// A value of a GGUF file's metadata. Integers of all widths are one type, floats of both another;
/// strings point into the file. Arrays of arrays are checked but not kept.
struct GgufNested {};
using GgufValue =
    std::variant<std::int64_t, double, bool, std::string_view, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<bool>, std::vector<std::string_view>, GgufNested>;

/// What the bytes of one GGUF file hold; strings and views point into them.
struct GgufContent {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<StoredTensor> tensors;  ///< in the order of their names; shapes with rows first
};

/// Reads header and tensor list, and checks every range of it.
/// \param label the file's path, for messages
/// \throws FileError naming the file, the key or tensor, and the remedy
GgufContent parse_gguf(std::span<const std::byte> bytes, std::string_view label);

/// One file, or all parts of a split one (NAME-00001-of-0000N.gguf beside each other): mapped.
class GgufFile {
 public:
  /// \param path the file; of a split one, any part of it
  /// \throws FileError as parse_gguf; also for a part that is missing or belongs elsewhere
  explicit GgufFile(const std::filesystem::path& path);

  /// The file, or the first part.
  const std::filesystem::path& path() const { return parts_.front().file.path(); }
  /// All tensors in the order of their names.
  std::vector<const StoredTensor*> tensors() const;
  /// Null if there is no such tensor.
  const StoredTensor* find(std::string_view name) const;
  std::filesystem::path file_of(std::string_view name) const;

  /// A value of the metadata as it stands; null if the key is not there.
  const GgufValue* value(std::string_view key) const;

  /// Typed access to metadata; nothing if the key is not there.
  /// \throws FileError naming file and key if the value is of another kind
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  ///< an integer counts as one
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  /// An array, by reference; null if the key is not there. Integer arrays do not count as numbers.
  const std::vector<std::int64_t>* integers(std::string_view key) const;
  const std::vector<double>* numbers(std::string_view key) const;
  const std::vector<bool>* booleans(std::string_view key) const;
  const std::vector<std::string_view>* strings(std::string_view key) const;

  /// \throws FileError "PATH: KEY WHAT"
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

 private:
  struct Part {
    MappedFile file;
    GgufContent content;
  };
  struct Place {
    std::size_t part;
    const StoredTensor* view;
  };
  std::vector<Part> parts_;
  std::map<std::string, Place, std::less<>> places_;
};

/// A model out of a GGUF file as if it were a Hugging Face directory: tensors by Hugging Face's
/// names and in its conventions, and a config.json. What conversion changed is undone or said:
/// norms of Gemma are without the 1 that was added (copies), and where rows of q and k were put in
/// another order, the rotary tables of the configuration are interleaved. All other tensors are
/// views of the mapped file. Architectures: llama (also Mistral's), qwen2, qwen3, phi3, gemma2,
/// gemma3, olmo2, granite, smollm3.
class GgufSource final : public TensorSource {
 public:
  /// \throws FileError as GgufFile; for an architecture, a tensor or a setting that is not known
  explicit GgufSource(const std::filesystem::path& path);

  const StoredTensor* find(std::string_view name) const override;
  std::vector<const StoredTensor*> tensors() const override;
  std::filesystem::path file_of(std::string_view name) const override;

  const GgufFile& file() const { return file_; }
  /// Text of a config.json that says what the metadata say.
  const std::string& config_json() const { return config_json_; }

 private:
  struct Place {
    StoredTensor view;
    std::filesystem::path file;
  };
  GgufFile file_;
  std::map<std::string, Place, std::less<>> places_;
  std::deque<std::vector<std::byte>> copies_;  // of tensors that cannot be used as they lie
  std::string config_json_;
};

/// Text of a config.json that says what the file's metadata say.
/// \throws FileError for an architecture or a setting that is not known
std::string gguf_config_json(const GgufFile& file);

/// The tokenizer that a GGUF file holds.
/// \throws FileError naming the file and what in it is missing or unsupported
std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file);

/// The Jinja text of the file's chat template; nothing if it has none.
std::optional<std::string_view> chat_template(const GgufFile& file);

}  // namespace episodic
