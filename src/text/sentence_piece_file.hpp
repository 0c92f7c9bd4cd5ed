// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a tokenizer.model file holds: SentencePiece's ModelProto.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace episodic::text {

/// SentencePiece's space, U+2581.
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

/// Kinds of pieces, by their numbers in the file.
enum class PieceType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,  ///< in no cut; under BPE others may still be joined by way of it
  kByte = 6
};

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;

  /// A text can be cut into such pieces; the others stand beside it.
  bool in_text() const { return type == PieceType::kNormal || type == PieceType::kUserDefined; }
};

enum class PieceModel : std::uint8_t { kUnigram = 1, kBpe = 2 };

/// How a text is changed before it is cut.
struct SentencePieceRules {
  std::string characters;     ///< "precompiled_charsmap"; empty: none are changed
  bool space_before = true;   ///< a text gets a space in front
  bool space_behind = false;  ///< or, instead, at its end
  bool drops_spaces = true;   ///< around a text, and all but one between words
  bool marks_spaces = true;   ///< spaces become kSpaceMark
};

struct SentencePieceFile {
  std::filesystem::path path;
  PieceModel model = PieceModel::kUnigram;
  std::vector<SentencePiece> pieces;  ///< by id
  std::int64_t unknown = -1;          ///< the one piece of its type
  bool bytes = false;  ///< what no piece has becomes bytes, for each of which there is one
  std::string unknown_surface = " \xe2\x81\x87 ";  ///< the text of the unknown piece
  std::string bos = "<s>", eos = "</s>";
  SentencePieceRules rules;
};

/// The name of a byte's piece, such as <0x0A>.
std::string byte_piece(unsigned char byte);

/// \throws FileError naming the file: not such a model, damaged, or of a kind that is not supported
SentencePieceFile read_sentence_piece_file(const std::filesystem::path& path);

}  // namespace episodic::text
