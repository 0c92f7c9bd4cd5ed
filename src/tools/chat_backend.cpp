// SPDX-License-Identifier: Apache-2.0
#include "chat_backend.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_range(std::string_view text) {
  const std::size_t colon = text.find(':');
  return colon != std::string_view::npos && all_digits(text.substr(0, colon)) &&
         all_digits(text.substr(colon + 1));
}

}  // namespace

ChatBackend::StopRequest::StopRequest() {
  stop_requested = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  ::sigaction(SIGINT, &action, &before_);
}

ChatBackend::StopRequest::~StopRequest() { ::sigaction(SIGINT, &before_, nullptr); }

bool ChatBackend::StopRequest::made() const { return stop_requested != 0; }

ChatBackend::Forgotten ChatBackend::parse_forgotten(const std::string& what) {
  if (is_range(what)) return {Forgotten::Kind::tokens, parse_range(what, "/forget"), what};
  if (all_digits(what)) return {Forgotten::Kind::event, {}, what};
  const bool quoted = what.size() >= 2 && what.front() == '"' && what.back() == '"';
  std::string text = quoted ? what.substr(1, what.size() - 2) : what;
  if (text.find_first_not_of(" \t") == std::string::npos)
    throw ConfigError("/forget: the text is empty");
  return {Forgotten::Kind::text, {}, std::move(text)};
}

std::string ChatBackend::add_file(const std::filesystem::path& path) {
  if (path == "-") throw ConfigError("/read: stdin is the conversation itself; name a file");
  std::string text = read_document(path, "utf-8");
  text_ += text;
  if (!text_.ends_with('\n')) text_ += '\n';
  text_ += '\n';
  return fmt::format("{}: {} before your next message", path.string(),
                     bytes_text(static_cast<std::int64_t>(text.size())));
}

std::string ChatBackend::waiting_text() const {
  if (text_.empty()) return {};
  return fmt::format("\n{} of text wait for your next message",
                     bytes_text(static_cast<std::int64_t>(text_.size())));
}

void ChatBackend::note(const std::string& line) const {
  if (!flags_.common.quiet) fmt::print(stderr, "episodic: {}\n", line);
}

void ChatBackend::refuse(const std::string& line) {
  fmt::print(stderr, "episodic: {}\n", line);
  refused_.push_back(line);
}

}  // namespace episodic::tools
