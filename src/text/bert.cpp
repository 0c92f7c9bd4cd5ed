// SPDX-License-Identifier: Apache-2.0
#include "bert.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"
#include "normalizer.hpp"
#include "utf8.hpp"

namespace episodic::text {
namespace {

/// Unicode's White_Space.
bool is_space(std::uint32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

utf8proc_category_t category(std::uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

/// Categories C*, but for the white space among them that parts words.
bool is_control(std::uint32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
      return true;
    default:
      return false;
  }
}

bool is_punctuation(std::uint32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  switch (category(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

/// The ideographs' blocks, as BERT's own program lists them.
bool is_chinese(std::uint32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

/// Calls f(bytes, code point) for each character; of a byte that is part of none the code point is
/// kNone.
constexpr std::uint32_t kNone = 0xffffffff;
template <class F>
void for_each_character(std::string_view text, F&& f) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = utf8_length(text, at);
    f(text.substr(at, std::max<std::size_t>(1, n)), n > 0 ? utf8_code_point(text, at, n) : kNone);
    at += std::max<std::size_t>(1, n);
  }
}

std::string cleaned(std::string_view text) {
  std::string out;
  for_each_character(text, [&](std::string_view bytes, std::uint32_t c) {
    if (c == kNone || c == 0xfffd || is_control(c)) return;
    is_space(c) ? out.push_back(' ') : void(out += bytes);
  });
  return out;
}

std::string with_spaced_chinese(std::string_view text) {
  std::string out;
  for_each_character(text, [&](std::string_view bytes, std::uint32_t c) {
    is_chinese(c) ? out.append(" ").append(bytes).append(" ") : out.append(bytes);
  });
  return out;
}

std::string without_accents(const std::string& text) {
  std::string out;
  for_each_character(normal_form(text, UTF8PROC_DECOMPOSE),
                     [&](std::string_view bytes, std::uint32_t c) {
                       if (c == kNone || category(c) != UTF8PROC_CATEGORY_MN) out += bytes;
                     });
  return out;
}

std::string lowered(std::string_view text) {
  std::string out;
  for_each_character(text, [&](std::string_view bytes, std::uint32_t c) {
    if (c == kNone)
      out += bytes;
    else if (c == 0x130)  // the one capital whose small letter is two characters: i and a dot above
      out += "i\xcc\x87";
    else
      out +=
          utf8_of(static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  });
  return out;
}

}  // namespace

BertNormalizer::BertNormalizer(const JsonNode& node)
    : clean_(node.at("clean_text").boolean(true)),
      spaced_chinese_(node.at("handle_chinese_chars").boolean(true)),
      strip_accents_(false),
      lower_(node.at("lowercase").boolean(true)) {
  strip_accents_ = node.at("strip_accents").boolean(lower_);
}

std::string BertNormalizer::operator()(const std::string& text) const {
  std::string out = clean_ ? cleaned(text) : text;
  if (spaced_chinese_) out = with_spaced_chinese(out);
  if (strip_accents_) out = without_accents(out);
  return lower_ ? lowered(out) : out;
}

void BertWordStage::apply(const Piece& piece, Arena&, const PieceSink& sink) const {
  std::size_t begin = 0, at = 0;  // of the word so far, and of the character
  const auto hand_on = [&](std::size_t end) {
    if (end > begin) sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    begin = end;
  };
  for_each_character(piece.text, [&](std::string_view bytes, std::uint32_t c) {
    const std::size_t end = at + bytes.size();
    if (c != kNone && is_space(c)) {
      hand_on(at);
      begin = end;
    } else if (c != kNone && is_punctuation(c)) {
      hand_on(at);
      hand_on(end);
    }
    at = end;
  });
  hand_on(at);
}

nlohmann::json bert_tokenizer_json(const std::filesystem::path& vocab_file) {
  using nlohmann::json;
  const MappedFile file(vocab_file);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  json vocab = json::object(), added = json::array();
  std::size_t id = 0;
  for (std::size_t at = 0; at < text.size(); ++id) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string entry(text.substr(at, end - at));
    if (entry.ends_with('\r')) entry.pop_back();
    if (!vocab.emplace(entry, id).second)
      throw FileError(fmt::format("{}: line {}: the entry stands there twice; fetch the file again",
                                  vocab_file.string(), id + 1));
    at = end + 1;
  }
  for (const char* special : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
    if (vocab.contains(special))
      added.push_back({{"id", vocab[special]}, {"content", special}, {"special", true}});
  for (const char* special : {"[UNK]", "[CLS]", "[SEP]"})
    if (!vocab.contains(special))
      throw FileError(fmt::format("{}: has no entry {}; it is no vocabulary of BERT",
                                  vocab_file.string(), special));
  json normalizer{{"type", "BertNormalizer"}};
  const std::filesystem::path config_file = vocab_file.parent_path() / "tokenizer_config.json";
  if (std::filesystem::exists(config_file)) {
    const json config = parse_json_file(config_file);
    const std::pair<const char*, const char*> keys[] = {
        {"lowercase", "do_lower_case"},
        {"handle_chinese_chars", "tokenize_chinese_chars"},
        {"strip_accents", "strip_accents"}};
    for (const auto& [ours, theirs] : keys)
      normalizer[ours] = JsonNode(config_file, config).at(theirs).json();
  }
  const auto special = [&](const char* name) {
    return json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
  };
  const json text_slot{{"Sequence", {{"id", "A"}}}};
  const auto ids = [&](const char* name) { return json{{"ids", json::array({vocab[name]})}}; };
  return {{"added_tokens", added},
          {"normalizer", normalizer},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", json::array({special("[CLS]"), text_slot, special("[SEP]")})},
            {"special_tokens", {{"[CLS]", ids("[CLS]")}, {"[SEP]", ids("[SEP]")}}}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}}},
          {"model", {{"type", "WordPiece"}, {"vocab", vocab}}}};
}

}  // namespace episodic::text
