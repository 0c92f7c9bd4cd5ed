// SPDX-License-Identifier: Apache-2.0
// Unigram and BPE models by the library SentencePiece. Ids are the library's; texts of ids are put
// together here, for the library turns bytes of characters that are not whole yet into U+FFFD.
#include "sentence_piece.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <charconv>

#include "episodic/base/error.hpp"
#include "json_node.hpp"

namespace episodic::text {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kMark = "\xe2\x96\x81";  // U+2581, SentencePiece's space

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const fs::path& file) : file_(file) {
    if (const auto status = model_.Load(file.string()); !status.ok())
      throw FileError(
          fmt::format("{}: is no SentencePiece model ({}); LLaMA 3's files of this name are of "
                      "another kind: take the model's tokenizer.json",
                      file.string(), status.message()));
    bos_ = model_.bos_id();
    eos_ = model_.eos_id();
    begins_with_space_ = !pieces("a").empty() && pieces("a").front().starts_with(kMark);
    drops_spaces_ = pieces("a ") == pieces("a");
  }

  /// What tokenizer_config.json changes; without it a text begins with bos, if there is one.
  void configure(const JsonNode& config) {
    const auto id = [&](const char* key, std::int64_t otherwise) {
      const JsonNode node = config.at(key);
      if (node.null()) return otherwise;
      const std::string& content = (node.is_object() ? node.at("content") : node).str();
      const std::int64_t found = id_of(content);
      if (found < 0) node.fail(fmt::format("'{}' is not a token of {}", content, file_.string()));
      return found;
    };
    bos_ = id("bos_token", bos_);
    eos_ = id("eos_token", eos_);
    add_bos_ = config.at("add_bos_token").boolean(true);
    add_eos_ = config.at("add_eos_token").boolean(false);
  }

  std::vector<std::int64_t> encode(std::string_view text, bool add_special) const override {
    std::vector<int> ids;
    if (const auto status = model_.Encode({text.data(), text.size()}, &ids); !status.ok())
      throw DataError(
          fmt::format("{}: cannot encode the text: {}", file_.string(), status.message()));
    std::vector<std::int64_t> out;
    if (add_special && add_bos_ && bos_ >= 0) out.push_back(bos_);
    out.insert(out.end(), ids.begin(), ids.end());
    if (add_special && add_eos_ && eos_ >= 0) out.push_back(eos_);
    return out;
  }

  std::string decode(const std::vector<std::int64_t>& ids, bool skip_special) const override {
    std::string out;
    bool begins = begins_with_space_ || drops_spaces_;
    std::size_t named = 0;  // bytes of special tokens' names, which are no text
    for (const std::int64_t id : ids) {
      std::string_view piece = model_.IdToPiece(checked(id));
      if (special(id)) {
        if (skip_special) continue;
        out += piece;
        named += piece.size();
      } else if (model_.IsUnknown(checked(id))) {
        out += " \xe2\x81\x87 ";  // what the library writes for it
      } else if (model_.IsByte(checked(id))) {
        out += byte_of(piece);
      } else {
        // the space before a text is not part of it
        if (begins && out.size() == named && piece.starts_with(kMark)) {
          piece.remove_prefix(kMark.size());
          begins = drops_spaces_;  // else one space is all that was put there
        }
        append(piece, out);
      }
    }
    return out;
  }

  std::string token(std::int64_t id) const override { return model_.IdToPiece(checked(id)); }
  std::int64_t id_of(std::string_view token) const override {
    const int id = model_.PieceToId({token.data(), token.size()});
    // the library gives the unknown piece's id for what it does not know
    return model_.IdToPiece(id) == token ? id : -1;
  }
  std::int64_t vocab_size() const override { return model_.GetPieceSize(); }
  std::int64_t bos() const override { return bos_; }
  std::int64_t eos() const override { return eos_; }

 private:
  std::vector<std::string> pieces(const char* text) const {
    std::vector<std::string> out;
    if (!model_.Encode(text, &out).ok()) out.clear();
    return out;
  }

  int checked(std::int64_t id) const {
    if (id < 0 || id >= vocab_size())
      throw DataError(fmt::format("token id {} is not in the vocabulary of {} ids of {}", id,
                                  vocab_size(), file_.string()));
    return static_cast<int>(id);
  }

  bool special(std::int64_t id) const { return model_.IsControl(static_cast<int>(id)); }

  /// Of a piece such as <0x0A>.
  static char byte_of(std::string_view piece) {
    unsigned value = 0;
    if (piece.size() == 6) std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
    return static_cast<char>(value);
  }

  static void append(std::string_view piece, std::string& out) {
    for (std::size_t at; (at = piece.find(kMark)) != std::string_view::npos;) {
      out += piece.substr(0, at);
      out += ' ';
      piece.remove_prefix(at + kMark.size());
    }
    out += piece;
  }

  fs::path file_;
  sentencepiece::SentencePieceProcessor model_;
  std::int64_t bos_ = -1, eos_ = -1;
  bool add_bos_ = true, add_eos_ = false;
  bool begins_with_space_ = false;  // a text gets a space in front
  bool drops_spaces_ = false;       // spaces around a text, and between words all but one, go
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentence_piece(const fs::path& model_dir) {
  auto tokenizer = std::make_unique<SentencePieceTokenizer>(model_dir / "tokenizer.model");
  if (const fs::path file = model_dir / "tokenizer_config.json"; fs::exists(file)) {
    const nlohmann::json config = parse_json_file(file);
    tokenizer->configure(JsonNode(file, config));
  }
  return tokenizer;
}

}  // namespace episodic::text
