// SPDX-License-Identifier: Apache-2.0
#include "http/http_head.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/strict_json.hpp"

namespace episodic::server {
namespace {

constexpr std::size_t kLongestFraming = 1 << 20;  // bytes of chunk sizes and trailers
constexpr std::size_t kFramingPerByte = 16;       // beyond that
constexpr std::size_t kLongestChunkLine = 4 << 10;

[[noreturn]] void bad(const std::string& what) { throw HttpError(400, what); }

bool is_token(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return is_token(c); });
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Digits alone: no sign, no space, no other base.
template <typename Number>
std::optional<Number> whole(std::string_view text, int base = 10) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

void parse_first_line(std::string_view line, HttpHead& head) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last)
    bad("the request's first line is not METHOD PATH HTTP/1.1");
  const std::string_view method = line.substr(0, first);
  const std::string_view version = line.substr(last + 1);
  std::string_view target = line.substr(first + 1, last - first - 1);
  if (!is_token(method)) bad("the request's method is no word");
  if (version.size() != 8 || !version.starts_with("HTTP/") || !is_digit(version[5]) ||
      version[6] != '.' || !is_digit(version[7]))
    bad("the request's first line does not end with HTTP/1.1");
  if (version[5] != '1' || version[7] > '1')
    throw HttpError(505, "HTTP/1.1 and HTTP/1.0 are spoken here");
  head.minor = version[7] - '0';
  if (std::any_of(target.begin(), target.end(), [](char c) { return c <= ' ' || c >= 0x7f; }))
    bad("the request's path holds spaces or characters that are not ASCII; write them as %XX");
  for (const std::string_view scheme : {"http://", "https://"})
    if (lower(target.substr(0, scheme.size())) == scheme) {  // as to a proxy
      target.remove_prefix(scheme.size());
      const std::size_t path = std::min(target.find('/'), target.size());
      head.host = target.substr(0, path);
      target.remove_prefix(path);
      if (target.empty()) target = "/";
      break;
    }
  if (!target.starts_with('/') && !(target == "*" && method == "OPTIONS"))
    bad("the request's path does not begin with /");
  head.method = method;
  head.path = target.substr(0, target.find('#'));
}

void parse_field(std::string_view line, HttpHead& head) {
  if (line.front() == ' ' || line.front() == '\t')
    bad("a header goes on in a second line, which HTTP/1.1 has no more");
  const std::size_t colon = line.find(':');
  const std::string_view name = line.substr(0, std::min(colon, line.size()));
  if (colon == std::string_view::npos || !is_token(name)) bad("a header line is not NAME: VALUE");
  const std::string_view value = trimmed(line.substr(colon + 1));
  for (const char c : value)
    if ((static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 0x7f)
      bad(fmt::format("the header {} holds a control character", printable(name, 40)));
  head.fields.emplace_back(lower(name), value);
}

void find_length(HttpHead& head) {
  const std::size_t lengths = head.count("content-length");
  const std::size_t codings = head.count("transfer-encoding");
  if (lengths > 1) bad("Content-Length is given more than once");
  if (lengths == 1 && codings > 0)
    bad("Content-Length and Transfer-Encoding are given both; send one of them");
  if (lengths == 1) {
    head.length = whole<std::uint64_t>(*head.find("content-length"));
    if (!head.length) bad("Content-Length is not a plain number of bytes");
  }
  if (codings == 0) return;
  if (head.minor == 0) bad("Transfer-Encoding is given, which HTTP/1.0 does not have");
  if (codings > 1 || lower(*head.find("transfer-encoding")) != "chunked")
    throw HttpError(501, "no Transfer-Encoding but chunked is understood");
  head.chunked = true;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

const std::string* HttpHead::find(std::string_view name) const {
  for (const auto& [key, value] : fields)
    if (key == name) return &value;
  return nullptr;
}

std::size_t HttpHead::count(std::string_view name) const {
  return static_cast<std::size_t>(std::count_if(
      fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; }));
}

bool HttpHead::lists(std::string_view name, std::string_view word) const {
  for (const auto& [key, value] : fields) {
    if (key != name) continue;
    std::string_view rest = value;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      if (lower(trimmed(rest.substr(0, comma))) == word) return true;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return false;
}

bool HttpHead::keeps_alive() const {
  if (lists("connection", "close")) return false;
  return minor == 1 || lists("connection", "keep-alive");
}

std::size_t HeadScanner::scan(std::string_view bytes) {
  if (!bytes.empty() && !is_token(bytes.front()))
    bad("this is no HTTP request (is it HTTPS? there is no TLS here)");
  for (; at_ < bytes.size(); ++at_) {
    if (at_ >= limits_.bytes)
      throw HttpError(431,
                      fmt::format("the request's head is longer than {} bytes", limits_.bytes));
    if (bytes[at_] != '\n') {
      if (lines_ == 0 && at_ >= limits_.first_line)
        throw HttpError(
            414, fmt::format("the request's path is longer than {} bytes", limits_.first_line));
      continue;
    }
    if (at_ == 0 || bytes[at_ - 1] != '\r') bad("a line of the request's head ends without CR LF");
    if (at_ == line_ + 1 && lines_ > 0) return ++at_;
    line_ = at_ + 1;
    if (++lines_ > limits_.lines)
      throw HttpError(431, fmt::format("the request has more than {} headers", limits_.lines));
  }
  return 0;
}

HttpHead parse_head(std::string_view bytes) {
  HttpHead head;
  bool first = true;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find("\r\n");
    if (end == std::string_view::npos) bad("a line of the request's head ends without CR LF");
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end + 2);
    if (first)
      parse_first_line(line, head);
    else if (line.empty())
      break;
    else
      parse_field(line, head);
    first = false;
  }
  if (head.count("host") > 1) bad("Host is given more than once");
  const std::string* host = head.find("host");
  if (!host && head.minor == 1) bad("HTTP/1.1 needs a Host header");
  if (host && head.host.empty()) head.host = *host;
  find_length(head);
  return head;
}

void ChunkReader::take_size() {
  // extensions mean nothing here
  const auto size = whole<std::uint64_t>(
      trimmed(std::string_view(line_).substr(0, std::min(line_.find(';'), line_.size()))), 16);
  if (!size) bad("a chunk of the body does not begin with its size");
  if (*size > most_ - body_.size())
    throw HttpError(413, fmt::format("the request is longer than {} bytes", most_));
  left_ = static_cast<std::size_t>(*size);
  state_ = left_ > 0 ? State::data : State::trailer;
}

std::size_t ChunkReader::read(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size() && state_ != State::done) {
    if (state_ == State::data) {
      const std::size_t n = std::min(left_, bytes.size() - at);
      body_.append(bytes.substr(at, n));
      at += n;
      left_ -= n;
      if (left_ == 0) state_ = State::data_end;
      continue;
    }
    const char c = bytes[at++];
    if (++framing_ > kLongestFraming + kFramingPerByte * body_.size())
      bad("the body's chunks are too many for what they hold");
    if (line_.size() > kLongestChunkLine) bad("a line between the body's chunks is too long");
    if (c != '\n') {
      line_.push_back(c);
      continue;
    }
    if (line_.empty() || line_.back() != '\r') bad("a chunk of the body ends without CR LF");
    line_.pop_back();
    if (state_ == State::size) {
      take_size();
    } else if (state_ == State::data_end) {
      if (!line_.empty()) bad("a chunk of the body is longer than it says");
      state_ = State::size;
    } else if (line_.empty()) {  // what trails is not looked at
      state_ = State::done;
    }
    line_.clear();
  }
  return at;
}

}  // namespace episodic::server
