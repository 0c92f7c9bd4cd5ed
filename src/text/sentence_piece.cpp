// SPDX-License-Identifier: Apache-2.0
// Our own reader and not the library SentencePiece: as distributions build it, the library exports
// a symbol of libtorch's (FLAGS_minloglevel) and constructs a larger object in its place, over what
// lies beside it (google/sentencepiece#944).
#include "sentence_piece.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "added_vocabulary.hpp"
#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "json_node.hpp"
#include "sentence_piece_cut.hpp"
#include "sentence_piece_file.hpp"
#include "sentence_piece_normalizer.hpp"

namespace episodic::text {
namespace {

namespace fs = std::filesystem;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const fs::path& path)
      : file_(read_sentence_piece_file(path)),
        normalizer_(file_),
        cutter_(make_piece_cutter(file_, normalizer_)) {
    for (std::size_t id = 0; id < file_.pieces.size(); ++id) {
      ids_.emplace(file_.pieces[id].text, static_cast<std::int64_t>(id));
    }
    for (int b = 0; file_.bytes && b < 256; ++b)
      byte_ids_.push_back(id_of(byte_piece(static_cast<unsigned char>(b))));
    bos_ = control(file_.bos);
    eos_ = control(file_.eos);
  }

  /// What the files beside it change; without them a text begins with bos, if there is one.
  /// \throws FileError for tokens that the model has not: this reader finds none in a text
  void configure(const TokenFiles& files) {
    StringToId ids;
    for (std::size_t id = 0; id < file_.pieces.size(); ++id)
      ids.emplace(file_.pieces[id].text, static_cast<std::int64_t>(id));
    AddedVocabulary added(ids);
    const NamedTokens named(files, added, {});
    added.each([&](const TokenDescription& token, std::int64_t id) {
      if (id < vocab_size() || token.content == named.content("pad_token")) return;
      throw FileError(fmt::format(
          "{}: the files beside it add the token '{}', which it has not and which would be spelt "
          "in letters; have transformers write a tokenizer.json: "
          "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
          file_.path.string(), printable(token.content)));
    });
    const auto id = [&](const char* key, std::int64_t otherwise) {
      const std::string content = named.content(key);
      return content.empty() ? otherwise : id_of(content);
    };
    bos_ = id("bos_token", bos_);
    eos_ = id("eos_token", eos_);
    if (files.config.is_null()) return;
    const JsonNode config(files.config_file, files.config);
    add_bos_ = config.at("add_bos_token").boolean(true);
    add_eos_ = config.at("add_eos_token").boolean(false);
  }

  std::vector<std::int64_t> encode(std::string_view text, bool add_special) const override {
    std::vector<std::int64_t> out;
    if (add_special && add_bos_ && bos_ >= 0) out.push_back(bos_);
    const std::string normalized = normalizer_(text);
    if (normalized.size() > std::numeric_limits<std::int32_t>::max())
      throw DataError(
          "a text that is 2 GiB or more once its characters are changed and its spaces are marked "
          "cannot be tokenized; cut it");
    bool unknown = false;  // the last one was; those beside it are the same
    for (const Cut& cut : cutter_->cut(normalized)) {
      const bool again = unknown;
      unknown = cut.id == file_.unknown;
      if (!unknown)
        out.push_back(cut.id);
      else if (file_.bytes)
        for (const char c : cut.text) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      else if (!again)
        out.push_back(file_.unknown);
    }
    if (add_special && add_eos_ && eos_ >= 0) out.push_back(eos_);
    return out;
  }

  /// Reads no special tokens out of any text.
  std::vector<std::int64_t> encode_marked(std::string_view text,
                                          std::span<const TextSpan>) const override {
    return encode(text, false);
  }

  std::string decode(const std::vector<std::int64_t>& ids, bool skip_special) const override {
    std::string out;
    bool begins = file_.rules.space_before || file_.rules.drops_spaces;
    std::size_t named = 0;  // bytes of special tokens' names, which are no text
    for (const std::int64_t id : ids) {
      const auto& [text, score, type] = piece_of(id);
      std::string_view piece = text;
      if (type == PieceType::kControl) {
        if (skip_special) continue;
        out += piece;
        named += piece.size();
      } else if (type == PieceType::kUnknown) {
        out += file_.unknown_surface;
      } else if (type == PieceType::kByte) {
        out += byte_of(piece);
      } else {
        // the space before a text is not part of it
        if (begins && out.size() == named && piece.starts_with(kSpaceMark)) {
          piece.remove_prefix(kSpaceMark.size());
          begins = file_.rules.drops_spaces;  // else one space is all that was put there
        }
        append(piece, out);
      }
    }
    return out;
  }

  std::string token(std::int64_t id) const override { return piece_of(id).text; }
  std::int64_t id_of(std::string_view token) const override {
    const auto it = ids_.find(token);
    return it == ids_.end() ? -1 : it->second;
  }
  std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(file_.pieces.size());
  }
  std::int64_t bos() const override { return bos_; }
  std::int64_t eos() const override { return eos_; }

 private:
  const SentencePiece& piece_of(std::int64_t id) const {
    if (id < 0 || id >= vocab_size())
      throw DataError(fmt::format("token id {} is not in the vocabulary of {} ids of {}", id,
                                  vocab_size(), file_.path.string()));
    return file_.pieces[static_cast<std::size_t>(id)];
  }

  /// The id of a control piece; -1: there is none of this name.
  std::int64_t control(const std::string& name) const {
    const std::int64_t id = id_of(name);
    return id >= 0 && piece_of(id).type == PieceType::kControl ? id : -1;
  }

  /// Of a piece such as <0x0A>.
  static char byte_of(std::string_view piece) {
    unsigned value = 0;
    if (piece.size() == 6) std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
    return static_cast<char>(value);
  }

  static void append(std::string_view piece, std::string& out) {
    for (std::size_t at; (at = piece.find(kSpaceMark)) != std::string_view::npos;) {
      out += piece.substr(0, at);
      out += ' ';
      piece.remove_prefix(at + kSpaceMark.size());
    }
    out += piece;
  }

  SentencePieceFile file_;
  SentencePieceNormalizer normalizer_;
  std::unique_ptr<PieceCutter> cutter_;
  std::unordered_map<std::string_view, std::int64_t> ids_;
  std::vector<std::int64_t> byte_ids_;
  std::int64_t bos_ = -1, eos_ = -1;
  bool add_bos_ = true, add_eos_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentence_piece(const fs::path& model_dir) {
  auto tokenizer = std::make_unique<SentencePieceTokenizer>(model_dir / "tokenizer.model");
  tokenizer->configure(read_token_files(model_dir));
  return tokenizer;
}

}  // namespace episodic::text
