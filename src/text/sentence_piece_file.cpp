// SPDX-License-Identifier: Apache-2.0
#include "sentence_piece_file.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"

namespace episodic::text {
namespace {

/// A damaged or foreign file; its path is put before it where it is known.
class Damaged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The fields of one message in protocol buffers' wire format.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  /// Goes to the next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = varint();
    field_ = key >> 3;
    wire_ = key & 7;
    if (field_ == 0) throw Damaged("a field has number 0");
    switch (wire_) {
      case 0:
        number_ = varint();
        break;
      case 1:
        bytes_ = take(8);
        break;
      case 2:
        bytes_ = take(varint());
        break;
      case 5:
        bytes_ = take(4);
        break;
      default:
        throw Damaged(fmt::format("a field is of the unknown wire type {}", wire_));
    }
    return true;
  }

  std::uint64_t field() const { return field_; }
  std::uint64_t number() const { return of_wire(0), number_; }
  bool flag() const { return number() != 0; }
  std::string_view bytes() const { return of_wire(2), bytes_; }
  float real() const {
    of_wire(5);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 4; ++i)
      bits |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes_[i])) << (8 * i);
    return std::bit_cast<float>(bits);
  }

 private:
  void of_wire(std::uint64_t wire) const {
    if (wire_ != wire)
      throw Damaged(fmt::format("field {} is of wire type {}, expected {}", field_, wire_, wire));
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw Damaged("a number does not end");
  }

  std::string_view take(std::uint64_t n) {
    if (n > rest_.size()) throw Damaged("it ends within a field");
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return taken;
  }

  std::string_view rest_, bytes_;
  std::uint64_t field_ = 0, wire_ = 0, number_ = 0;
};

SentencePiece read_piece(std::string_view bytes, std::size_t id) {
  SentencePiece piece;
  for (Message m(bytes); m.next();) {
    if (m.field() == 1) piece.text = m.bytes();
    if (m.field() == 2) piece.score = m.real();
    if (m.field() == 3) {
      if (m.number() < 1 || m.number() > 6)
        throw Damaged(fmt::format("piece {} is of the unknown type {}", id, m.number()));
      piece.type = static_cast<PieceType>(m.number());
    }
  }
  constexpr std::size_t kLongest = 4096;  // a text is cut in time that follows the longest piece
  if (piece.text.size() > kLongest)
    throw Damaged(
        fmt::format("piece {} has {} bytes, more than {}", id, piece.text.size(), kLongest));
  if (piece.text.empty()) throw Damaged(fmt::format("piece {} is empty", id));
  if (std::isnan(piece.score)) throw Damaged(fmt::format("the score of piece {} is NaN", id));
  return piece;
}

void read_trainer_spec(std::string_view bytes, SentencePieceFile& file) {
  for (Message m(bytes); m.next();) {
    switch (m.field()) {
      case 3:
        if (m.number() != 1 && m.number() != 2)
          throw Damaged(fmt::format(
              "model type {} is not supported; supported are: 1 (unigram), 2 (BPE)", m.number()));
        file.model = static_cast<PieceModel>(m.number());
        break;
      case 24:
        file.rules.space_behind = m.flag();
        break;
      case 35:
        file.bytes = m.flag();
        break;
      case 44:
        file.unknown_surface = m.bytes();
        break;
      case 46:
        file.bos = m.bytes();
        break;
      case 47:
        file.eos = m.bytes();
        break;
      default:
        break;
    }
  }
}

void read_normalizer_spec(std::string_view bytes, SentencePieceRules& rules) {
  for (Message m(bytes); m.next();) {
    if (m.field() == 2) rules.characters = m.bytes();
    if (m.field() == 3) rules.space_before = m.flag();
    if (m.field() == 4) rules.drops_spaces = m.flag();
    if (m.field() == 5) rules.marks_spaces = m.flag();
  }
}

/// Sets which piece is the unknown one.
void check(SentencePieceFile& file) {
  std::unordered_set<std::string_view> seen, bytes;
  std::size_t unknown = 0;
  for (const SentencePiece& piece : file.pieces) {
    if (!seen.insert(piece.text).second)
      throw Damaged(fmt::format("piece '{}' is there twice", piece.text));
    if (piece.type == PieceType::kUnknown) {
      file.unknown = &piece - file.pieces.data();
      ++unknown;
    }
    if (piece.type == PieceType::kByte) bytes.insert(piece.text);
  }
  if (unknown != 1)
    throw Damaged(fmt::format("there are {} unknown pieces, expected one", unknown));
  if (bytes.size() != (file.bytes ? 256 : 0))
    throw Damaged(fmt::format("there are {} pieces for bytes, expected {}", bytes.size(),
                              file.bytes ? 256 : 0));
  for (int b = 0; file.bytes && b < 256; ++b)
    if (const std::string name = byte_piece(static_cast<unsigned char>(b)); !bytes.contains(name))
      throw Damaged(fmt::format("there is no byte piece '{}'", name));
}

SentencePieceFile read(std::string_view bytes) {
  SentencePieceFile file;
  for (Message m(bytes); m.next();) {
    if (m.field() == 1) file.pieces.push_back(read_piece(m.bytes(), file.pieces.size()));
    if (m.field() == 2) read_trainer_spec(m.bytes(), file);
    if (m.field() == 3) read_normalizer_spec(m.bytes(), file.rules);
  }
  check(file);
  return file;
}

}  // namespace

std::string byte_piece(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

SentencePieceFile read_sentence_piece_file(const std::filesystem::path& path) {
  const MappedFile mapped(path);
  const auto bytes = mapped.bytes();
  try {
    SentencePieceFile file = read({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    file.path = path;
    return file;
  } catch (const Damaged& e) {
    throw FileError(
        fmt::format("{}: is no SentencePiece model ({}); LLaMA 3's files of this name are of "
                    "another kind: take the model's tokenizer.json",
                    path.string(), e.what()));
  }
}

}  // namespace episodic::text
