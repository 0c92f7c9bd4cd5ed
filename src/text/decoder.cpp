// SPDX-License-Identifier: Apache-2.0
#include "decoder.hpp"

#include <fmt/format.h>

#include <cctype>

#include "byte_level.hpp"
#include "normalizer.hpp"
#include "pattern.hpp"

namespace episodic::text {
namespace {

using Tokens = std::vector<std::string>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::size_t at = text.find(from);
  if (at == std::string::npos) return;
  std::string out;
  std::size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  text = out.append(text, done);
}

std::size_t occurrences(std::string_view text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; at += what.size())
    ++n;
  return n;
}

std::size_t bytes_of(const Tokens& tokens) {
  std::size_t n = 0;
  for (const std::string& t : tokens) n += t.size();
  return n;
}

/// In each token. \throws DataError before the texts grow beyond what they may
void replace_each(Tokens& tokens, const std::string& from, const std::string& to,
                  const Growth& growth) {
  std::size_t bytes = bytes_of(tokens);
  if (to.size() > from.size())
    for (const std::string& t : tokens)
      growth.check(bytes += occurrences(t, from) * (to.size() - from.size()));
  for (std::string& t : tokens) replace_all(t, from, to);
}

/// "<0x41>" -> "A".
void byte_fallback(std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return;
  const auto hex = [&](std::size_t i) {
    return std::isxdigit(static_cast<unsigned char>(token[i]));
  };
  if (hex(3) && hex(4)) token = static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16));
}

void fuse(Tokens& tokens) {
  std::string all;
  for (const std::string& t : tokens) all += t;
  tokens.assign(1, std::move(all));
}

void strip(std::string& token, const std::string& content, std::int64_t start, std::int64_t stop) {
  for (; start > 0 && token.starts_with(content); --start) token.erase(0, content.size());
  for (; stop > 0 && token.ends_with(content); --stop) token.resize(token.size() - content.size());
}

/// Pieces to text: those that begin with the mark go on with the word before. \param clean no
/// space before marks and contractions, token by token as Hugging Face has it
void join_pieces(Tokens& tokens, const std::string& mark, bool clean) {
  constexpr const char* kCleaned[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                         {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                         {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                         {" 've", "'ve"}, {" 're", "'re"}};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::string& t = tokens[i];
    if (i > 0) t = !mark.empty() && t.starts_with(mark) ? t.substr(mark.size()) : " " + t;
    if (clean)
      for (const auto& [from, to] : kCleaned) replace_all(t, from, to);
  }
}

constexpr std::int64_t kMaxStrip = 16;

}  // namespace

Decoder::Decoder(const JsonNode& node) : separator_(node.null() ? 1 : 0, ' ') { add(node, 0); }

void Decoder::add(const JsonNode& node, int depth) {
  if (node.null()) return;
  if (depth > kMaxNesting) node.fail("is nested too deep");
  if (steps_.size() >= kMostSteps)
    node.fail(fmt::format("is one of more than {} steps", kMostSteps));
  const JsonNode type = node.at("type");
  const std::string& name = type.str();
  const auto each = [&](auto f) {
    steps_.emplace_back([f](Tokens& tokens, const Growth&) {
      for (std::string& t : tokens) f(t);
    });
  };
  if (name == "Sequence") {
    const JsonNode list = node.at("decoders");
    for (std::size_t i = 0; i < list.size(); ++i) add(list.at(i), depth + 1);
  } else if (name == "ByteLevel") {
    each([](std::string& t) {
      if (auto bytes = byte_level_bytes(t)) t = std::move(*bytes);
    });
  } else if (name == "ByteFallback") {
    each(byte_fallback);
  } else if (name == "Fuse") {
    steps_.emplace_back([](Tokens& tokens, const Growth&) { fuse(tokens); });
  } else if (name == "Replace") {
    const JsonNode from = node.at("pattern").at("String");
    if (from.null() || from.str().empty())
      node.at("pattern").fail("only {\"String\": ...} is supported in a decoder");
    steps_.emplace_back(
        [from = from.str(), to = node.at("content").str()](Tokens& tokens, const Growth& growth) {
          replace_each(tokens, from, to, growth);
        });
  } else if (name == "Strip") {
    const std::string& content = node.at("content").str();
    if (content.empty()) node.at("content").fail("must not be empty");
    each([content, start = node.at("start").index(kMaxStrip),
          stop = node.at("stop").index(kMaxStrip)](std::string& t) {
      strip(t, content, start, stop);
    });
  } else if (name == "Metaspace") {
    const std::string& mark = node.at("replacement").str();
    if (mark.empty()) node.at("replacement").fail("must not be empty");
    const JsonNode scheme = node.at("prepend_scheme");
    const bool prefixed =
        scheme.null() ? node.at("add_prefix_space").boolean(true) : scheme.str() != "never";
    steps_.emplace_back([mark, prefixed](Tokens& tokens, const Growth&) {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        replace_all(tokens[i], mark, i == 0 && prefixed ? "" : " ");
    });
  } else if (name == "WordPiece") {
    const JsonNode prefix = node.at("prefix");
    steps_.emplace_back(
        [mark = prefix.null() ? "##" : prefix.str(), clean = node.at("cleanup").boolean(true)](
            Tokens& tokens, const Growth&) { join_pieces(tokens, mark, clean); });
  } else {
    type.fail(
        fmt::format("decoder '{}' is not supported (ByteLevel, ByteFallback, Fuse, Replace, "
                    "Strip, Metaspace, WordPiece and Sequence are)",
                    name));
  }
}

std::string Decoder::operator()(Tokens tokens) const {
  const Growth growth("decoder", bytes_of(tokens));
  for (const auto& step : steps_) step(tokens, growth);
  std::string out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += separator_;
    out += tokens[i];
  }
  return out;
}

}  // namespace episodic::text
