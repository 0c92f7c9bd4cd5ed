// SPDX-License-Identifier: Apache-2.0
#include "http/router.hpp"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/server/request_error.hpp"
#include "http/gate.hpp"
#include "protocol/answer_form.hpp"

namespace episodic::server {
namespace {

/// %XX in a path. Anything else stays as it is.
std::string decoded(std::string_view path) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const bool two = path[i] == '%' && i + 2 < path.size();
    const int high = two ? digit(path[i + 1]) : -1, low = two ? digit(path[i + 2]) : -1;
    out.push_back(high < 0 || low < 0 ? path[i] : static_cast<char>(high * 16 + low));
    if (high >= 0 && low >= 0) i += 2;
  }
  return out;
}

std::vector<std::string_view> split(std::string_view path) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 1; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    parts.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// The open parts of a route that a path fits; nothing if it does not. Parts are decoded one by
/// one: an encoded slash is no slash.
std::optional<std::vector<std::string>> fitted(std::string_view route, std::string_view path) {
  const auto wanted = split(route), given = split(path);
  if (wanted.size() != given.size()) return std::nullopt;
  std::vector<std::string> open;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::string part = decoded(given[i]);
    if (wanted[i] == "{}")
      open.push_back(std::move(part));
    else if (part != wanted[i])
      return std::nullopt;
  }
  return open;
}

}  // namespace

std::string Target::value(std::string_view name, std::string_view otherwise) const {
  const std::string_view all(query);
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('&', at), all.size());
    const std::string_view one = all.substr(at, end - at);
    const std::size_t equal = one.find('=');
    if (equal != one.npos && decoded(one.substr(0, equal)) == name)
      return decoded(one.substr(equal + 1));
    at = end + 1;
  }
  return std::string(otherwise);
}

std::int64_t Target::count(std::string_view name, std::int64_t otherwise) const {
  const std::string text = value(name);
  if (text.empty()) return otherwise;
  std::int64_t n = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 0)
    throw RequestError(fmt::format("'{}' must be a whole number of at least 0", name),
                       std::string(name));
  return n;
}

void Router::add(const char* method, const char* path, Handler handler) {
  routes_.push_back({method, path, std::move(handler)});
}

void Router::answer(Exchange& exchange, httplib::Response& response) const {
  const std::string& method = exchange.head.method;
  std::string_view path = exchange.head.path;
  const std::size_t question = path.find('?');
  Target target;
  if (question != path.npos) target.query = path.substr(question + 1);
  path = path.substr(0, question);
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  std::vector<std::string> allowed;
  for (const Route& route : routes_) {
    auto parts = fitted(route.path, path);
    if (!parts) continue;
    if (method == route.method || (method == "HEAD" && route.method == "GET")) {
      target.parts = std::move(*parts);
      return route.handler(exchange, target, response);
    }
    allowed.push_back(route.method);
    if (route.method == "GET") allowed.push_back("HEAD");
  }
  const auto refuse = [&](int status, const std::string& message) {
    response.status = status;
    response.set_content(error_body_at(exchange.head.path, status, message), "application/json");
  };
  if (allowed.empty()) {
    std::string all;
    for (const Route& route : routes_)
      all += fmt::format("{}{} /v1{}", all.empty() ? "" : ", ", route.method, route.path);
    return refuse(404, fmt::format("no {} {}; there are {}", printable(method, 20),
                                   printable(exchange.head.path), all));
  }
  allowed.push_back("OPTIONS");
  response.set_header("Allow", fmt::format("{}", fmt::join(allowed, ", ")));
  refuse(405, fmt::format("{} {} is not answered; use {}", printable(method, 20),
                          printable(exchange.head.path), allowed.front()));
}

}  // namespace episodic::server
