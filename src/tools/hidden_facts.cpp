// SPDX-License-Identifier: Apache-2.0
#include "hidden_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string_view>

#include "common.hpp"
#include "draw.hpp"
#include "episodic/base/error.hpp"

namespace episodic::tools {
namespace {

constexpr std::array kNames = {"Alice", "Bob",   "Carol", "Emma", "Frank", "Grace",
                               "Henry", "Irene", "Jack",  "Kate", "Leo",   "Nora",
                               "Oscar", "Rosa",  "Sam",   "Tom",  "Vera",  "Walter",
                               "Anna",  "Boris", "Helen", "Ivan", "Olga",  "Natasha"};
constexpr std::array kThings = {
    "peasants", "carriages", "candles",  "muskets",  "doctors", "regiments", "hussars", "dragoons",
    "guests",   "gloves",    "generals", "visitors", "hounds",  "carts",     "pistols", "bridges"};
constexpr std::int64_t kMostFacts = kNames.size() + kThings.size();
constexpr std::size_t kLongestPiece = 400;  // bytes
constexpr std::int64_t kAnswerTokens = 14;  // at most
constexpr const char* kIntro = "Read the text below and remember the facts in it.\n\n";

bool ends_sentence(char c) { return c == '.' || c == '!' || c == '?'; }

/// All white space as single spaces.
std::string collapse(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == '\f' || c == '\v';
    if (!space)
      out += c;
    else if (!out.empty() && out.back() != ' ')
      out += ' ';
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> pieces;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t limit = std::min(text.size(), start + kLongestPiece);
    std::size_t end = 0;
    for (std::size_t i = start; i < limit && end == 0; ++i)
      if (ends_sentence(text[i]) && (i + 1 == text.size() || text[i + 1] == ' ')) end = i + 1;
    if (end == 0) {
      end = limit;
      if (limit < text.size()) {
        if (const std::size_t space = text.rfind(' ', limit);
            space != std::string::npos && space > start)
          end = space;
        else  // no space in 400 bytes: cut between characters
          while (end > start + 1 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
      }
    }
    pieces.push_back(text.substr(start, end - start));
    start = end < text.size() && text[end] == ' ' ? end + 1 : end;
  }
  return pieces;
}

/// The Debian program prints a verse a line, its reference first. Empty if it is not there.
std::string king_james() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen("bible -f Ge1:1-Rev22:21 </dev/null 2>/dev/null", "r"), ::pclose);
  if (!pipe) return {};
  std::string raw;
  std::array<char, 65536> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe.get()))
    raw.append(buffer.data(), n);
  std::string text;
  text.reserve(raw.size());
  for (std::size_t at = 0; at < raw.size();) {
    const std::size_t end = std::min(raw.find('\n', at), raw.size());
    const std::string_view line = std::string_view(raw).substr(at, end - at);
    const std::size_t space = line.find(' ');
    if (space != std::string_view::npos &&
        line.substr(0, space).find(':') != std::string_view::npos)
      text.append(line.substr(space + 1)).push_back('\n');
    at = end + 1;
  }
  return text;
}

std::string sentence_of(const Fact& f) {
  if (f.kind == "number") return fmt::format("The {} is {}.\n", f.name, f.value);
  return fmt::format("The {0} is {1}. Remember it. {1} is the {0}.\n", f.name, f.value);
}

}  // namespace

Book open_book(const std::filesystem::path& path) {
  Book book;
  std::string text;
  if (path.empty()) {
    book.title = "the King James Bible";
    text = king_james();
    if (text.empty())
      throw FileError(
          "bible: there is no book to read; install the Debian package bible-kjv "
          "(apt-get install bible-kjv) or name a text file with --text");
  } else {
    book.title = path == "-" ? "stdin" : path.filename().string();
    text = read_document(path, "utf-8");
  }
  book.pieces = split(collapse(text));
  if (book.pieces.empty())
    throw FileError(
        fmt::format("{}: there is no text in it; give a book with --text", path.string()));
  return book;
}

Book plain_book(std::int64_t sentences, std::uint64_t seed) {
  static constexpr std::array kWho = {"The old gardener",
                                      "A travelling tailor",
                                      "The schoolmaster",
                                      "My grandfather",
                                      "The postman",
                                      "A woman from the village",
                                      "The youngest of the brothers",
                                      "The captain",
                                      "A stranger in a grey coat",
                                      "The shopkeeper",
                                      "Our neighbour",
                                      "The clerk at the station",
                                      "The carpenter",
                                      "A student on his way home",
                                      "The keeper of the lighthouse",
                                      "The painter"};
  static constexpr std::array kDid = {
      "walked slowly along the river",     "mended the fence behind the orchard",
      "told a long story about the war",   "waited for the evening train",
      "carried two baskets of apples",     "looked for his glasses everywhere",
      "sang a song that nobody knew",      "read the newspaper from end to end",
      "painted the shutters green",        "complained about the price of bread",
      "slept through the whole afternoon", "wrote a letter to the council",
      "watched the clouds over the hills", "swept the leaves off the path",
      "played chess against himself",      "talked about the weather with everyone"};
  static constexpr std::array kWhen = {
      "before the rain began",           "while the bells were ringing",
      "as he had done for years",        "although it was already late",
      "on the first warm day of spring", "because there was nothing else to do",
      "until the lamps were lit",        "in spite of the cold wind",
      "without saying a word",           "when the market had closed",
      "long after the others had gone",  "and thought no more of it"};
  static constexpr std::array kThen = {"Nobody asked him why.",
                                       "It was a quiet evening.",
                                       "The dog barked twice and lay down.",
                                       "Then the wind turned to the west.",
                                       "There was soup for supper.",
                                       "The road was empty after that.",
                                       "So the week went by.",
                                       "Somebody laughed in the yard.",
                                       "The river was high that month.",
                                       "It did not matter very much."};
  Draw draw(seed);
  Book book;
  book.title = "plain English";
  while (static_cast<std::int64_t>(book.pieces.size()) < sentences) {
    if (draw.below(3) == 0)
      book.pieces.emplace_back(kThen[draw.below(kThen.size())]);
    else
      book.pieces.push_back(fmt::format("{} {} {}.", kWho[draw.below(kWho.size())],
                                        kDid[draw.below(kDid.size())],
                                        kWhen[draw.below(kWhen.size())]));
  }
  return book;
}

std::vector<Fact> draw_facts(std::int64_t n, std::uint64_t seed) {
  if (n < 1 || n > kMostFacts)
    throw ConfigError(fmt::format("--facts = {}, must be in [1, {}]", n, kMostFacts));
  Draw draw(seed);
  std::vector<std::string> names(kNames.begin(), kNames.end()),
      things(kThings.begin(), kThings.end());
  const auto take = [&](std::vector<std::string>& from) {
    const std::size_t i = draw.below(from.size());
    const std::string one = from[i];
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
    return one;
  };
  std::vector<Fact> facts;
  for (std::int64_t i = 0; i < n; ++i) {
    Fact f;
    const bool number = (i % 4 == 3 && !things.empty()) || names.empty();
    f.kind = number ? "number" : "pass key";
    f.name = number ? "number of " + take(things) : "pass key of " + take(names);
    f.value = draw.digits(number ? 6 : 5);
    f.depth = n > 1 ? 0.02 + 0.96 * static_cast<double>(i) / static_cast<double>(n - 1) : 0.5;
    facts.push_back(std::move(f));
  }
  return facts;
}

HiddenFacts hide_facts(const Book& book, const Tokenizer& tokenizer, std::int64_t n_tokens,
                       std::vector<Fact> facts, std::size_t first_piece) {
  HiddenFacts out;
  out.facts = std::move(facts);
  out.ids = tokenizer.encode(kIntro);
  std::vector<std::vector<std::int64_t>> said;
  auto fixed = static_cast<std::int64_t>(out.ids.size());
  for (const Fact& f : out.facts) {
    said.push_back(tokenizer.encode(f.said.empty() ? sentence_of(f) : f.said + "\n", false));
    fixed += static_cast<std::int64_t>(said.back().size());
  }
  if (fixed > n_tokens / 2)
    throw ConfigError(
        fmt::format("--tokens = {}: {} facts alone take {} tokens; read at least {} or hide "
                    "fewer with --facts",
                    n_tokens, out.facts.size(), fixed, 2 * fixed));

  std::vector<std::vector<std::int64_t>> pieces;
  std::size_t next = first_piece % book.pieces.size();
  std::string& end = out.end;
  const std::int64_t target = n_tokens + 2;  // the end of the last sentence is taken off again
  for (std::int64_t n = fixed; n < target;) {
    if (next == book.pieces.size()) next = 0, ++out.times_read;
    std::string piece = book.pieces[next++];
    std::vector<std::int64_t> ids = tokenizer.encode(piece + "\n", false);
    n += static_cast<std::int64_t>(ids.size());
    if (n >= target) {
      if (ends_sentence(piece.back())) end = piece.back(), piece.pop_back();
      ids = tokenizer.encode(piece, false);
    }
    pieces.push_back(std::move(ids));
  }
  std::size_t f = 0;
  const auto count = static_cast<double>(pieces.size());
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    // Before the piece, so that the text never ends with a fact.
    while (f < out.facts.size() &&
           (std::llround(out.facts[f].depth * count) <= static_cast<std::int64_t>(p) ||
            p + 1 == pieces.size())) {
      const auto start = static_cast<std::int64_t>(out.ids.size());
      out.ids.insert(out.ids.end(), said[f].begin(), said[f].end());
      out.facts[f].tokens = {start, static_cast<std::int64_t>(out.ids.size())};
      ++f;
    }
    out.ids.insert(out.ids.end(), pieces[p].begin(), pieces[p].end());
  }
  const auto total = static_cast<double>(out.ids.size());
  for (Fact& fact : out.facts) {
    fact.depth = static_cast<double>(fact.tokens.start) / total;
    if (!fact.said.empty()) continue;
    fact.question = fmt::format("{0}\n\n\nWhat is the {1}?\n\nThe {1} is", end, fact.name);
  }
  return out;
}

std::int64_t tokens_to_ask(const HiddenFacts& text, const Tokenizer& tokenizer) {
  std::size_t question = 0;
  for (const Fact& fact : text.facts)
    question = std::max(question, tokenizer.encode(fact.question, false).size());
  return static_cast<std::int64_t>(text.ids.size() + question) + kAnswerTokens;
}

Answer ask_for(const Fact& fact, Session& session, const Tokenizer& tokenizer,
               const std::function<void()>& at_first_token) {
  GenerateOptions options;
  options.max_new = kAnswerTokens;
  options.stop = {"\n"};
  bool first = true;
  options.on_token = [&](std::int64_t, std::string_view) {
    // Called before the token is fed back: the last step is still that of the question's end.
    if (first && at_first_token) at_first_token();
    first = false;
    return true;
  };
  const GenerateResult result = session.generate(tokenizer.encode(fact.question, false), options);
  if (first && at_first_token) at_first_token();  // it stopped without a word
  Answer answer;
  answer.text = result.text;
  constexpr const char* kDigits = "0123456789";
  if (const std::size_t at = result.text.find_first_of(kDigits); at != std::string::npos)
    answer.value = result.text.substr(at, result.text.find_first_not_of(kDigits, at) - at);
  answer.right = answer.value == fact.value;
  answer.seconds = result.prefill_seconds + result.decode_seconds;
  return answer;
}

}  // namespace episodic::tools
