// SPDX-License-Identifier: Apache-2.0
#include "http/access.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic::server {
namespace {

/// The name in NAME:PORT, lower case, without brackets and a dot at the end. Nothing if it is odd.
std::optional<std::string> name_in(std::string_view host) {
  std::string_view name = host, port;
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    if (end == std::string_view::npos) return {};
    name = host.substr(1, end - 1);
    port = host.substr(end + 1);
  } else if (const std::size_t colon = host.find(':'); colon != std::string_view::npos) {
    name = host.substr(0, colon);
    port = host.substr(colon);
  }
  if (!port.empty() &&
      (port.front() != ':' || port.find_first_not_of("0123456789", 1) != std::string_view::npos))
    return {};
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.empty()) return {};
  return lower(name);
}

bool is_address(const std::string& name) {
  in6_addr unused{};
  return inet_pton(AF_INET, name.c_str(), &unused) == 1 ||
         inet_pton(AF_INET6, name.c_str(), &unused) == 1;
}

/// Equal, in a time that tells nothing of the key. \param key not empty
bool same_key(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ key[i % key.size()]);
  return difference == 0;
}

/// Whether a browser sent it.
bool of_browser(const HttpHead& head) { return head.find("origin") || head.find("sec-fetch-site"); }

}  // namespace

bool asks_health(const HttpHead& head) {
  return std::string_view(head.path).substr(0, head.path.find('?')) == "/health";
}

bool asks_status(const HttpHead& head) {
  std::string_view path = head.path;
  path = path.substr(0, path.find('?'));
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  return !head.has_body() && (path == "/health" || path == "/metrics");
}

Access::Access(AccessOptions options)
    : options_(std::move(options)),
      keys_(options_.api_keys),
      any_address_(options_.host.empty() || options_.host == "0.0.0.0" || options_.host == "::") {
  keys_.push_back(options_.api_key);
  std::erase(keys_, "");
  for (std::string& origin : options_.origins) {
    origin = lower(trimmed(origin));
    if (origin.ends_with('/')) origin.pop_back();
    if (origin == "*") {
      if (!locked())
        throw ConfigError(
            "allowed origins: '*': every web page could use the server; name the pages' origins, "
            "or set a key (EPISODIC_API_KEY)");
      continue;
    }
    const std::size_t scheme = origin.find("://");
    if (origin != "null" && (scheme == std::string::npos || scheme == 0 ||
                             origin.find_first_of("/ ,", scheme + 3) != std::string::npos ||
                             origin.size() == scheme + 3))
      throw ConfigError(fmt::format(
          "allowed origins: '{}' is no origin; give it as http://NAME:PORT", printable(origin)));
  }
}

bool Access::own_host(std::string_view host) const {
  const std::optional<std::string> name = name_in(host);
  if (!name) return false;
  if (*name == "localhost" || *name == "127.0.0.1" || *name == "::1" ||
      *name == lower(options_.host))
    return true;
  // an address cannot be made to lead elsewhere
  return any_address_ && is_address(*name);
}

bool Access::named_origin(std::string_view origin) const {
  const std::string wanted = lower(origin);
  return std::any_of(options_.origins.begin(), options_.origins.end(),
                     [&](const std::string& named) { return named == "*" || named == wanted; });
}

void Access::check_page(const HttpHead& head, bool local) const {
  const std::string* origin = head.find("origin");
  const std::string* site = head.find("sec-fetch-site");
  if (!locked()) {
    if (!local && !(head.minor == 0 && head.host.empty()) && !own_host(head.host))
      throw HttpError(403,
                      fmt::format("the name '{}' in Host is not this server's; ask it by localhost "
                                  "or 127.0.0.1, name another address for it, or set a key in "
                                  "EPISODIC_API_KEY",
                                  printable(head.host)));
    if (head.count("origin") > 1) throw HttpError(403, "Origin is given more than once");
    const std::string host = lower(head.host);
    const bool own =
        origin && (lower(*origin) == "http://" + host || lower(*origin) == "https://" + host);
    if (origin && !own && !named_origin(*origin))
      throw HttpError(403, fmt::format("a page of '{}' may not ask this server; it would have to "
                                       "be named as an allowed origin",
                                       printable(*origin)));
    if (!origin && site && head.method != "GET" && head.method != "HEAD" &&
        *site != "same-origin" && *site != "none")
      throw HttpError(403, "a page of another site may not ask this server");
  }
  // A browser asks first (OPTIONS) before it sends JSON to another origin, but sends plain text and
  // forms at once.
  if (!of_browser(head) || !head.has_body()) return;
  const std::string* type = head.find("content-type");
  const std::string_view kind =
      type ? trimmed(std::string_view(*type).substr(0, type->find(';'))) : std::string_view();
  if (head.count("content-type") > 1 || lower(kind) != "application/json")
    throw HttpError(415, "a page's request needs Content-Type: application/json");
}

/// All keys are looked at, so that the time does not tell which one it is.
bool Access::fits(std::string_view key) const {
  bool found = false;
  for (const std::string& known : keys_) found |= same_key(key, known);
  return found;
}

/// "Authorization: Bearer KEY" as OpenAI's clients send it, or "x-api-key: KEY" as Anthropic's.
void Access::check_key(const HttpHead& head) const {
  if (!locked() || head.method == "OPTIONS") return;
  for (const char* name : {"authorization", "x-api-key"})
    if (head.count(name) > 1) throw HttpError(401, fmt::format("{} is given more than once", name));
  if (const std::string* given = head.find("authorization")) {
    const std::size_t space = given->find(' ');
    if (space != std::string::npos && lower(given->substr(0, space)) == "bearer" &&
        fits(trimmed(std::string_view(*given).substr(space))))
      return;
  }
  if (const std::string* given = head.find("x-api-key"); given && fits(*given)) return;
  throw HttpError(401,
                  "the API key is missing or wrong: Authorization: Bearer KEY, or x-api-key: KEY");
}

void Access::check(const HttpHead& head, bool local) const {
  if (asks_health(head)) return;
  check_page(head, local);
  if (head.method == "GET" && head.path == "/") return;  // the page, which asks for the key
  check_key(head);
}

std::vector<std::pair<std::string, std::string>> Access::cors_headers(const HttpHead& head) const {
  if (options_.origins.empty()) return {};
  const std::string* origin = head.find("origin");
  if (!origin || head.count("origin") > 1 || !named_origin(*origin)) return {{"Vary", "Origin"}};
  return {{"Access-Control-Allow-Origin", *origin},
          {"Access-Control-Expose-Headers", "Retry-After"},
          {"Vary", "Origin"}};
}

std::vector<std::pair<std::string, std::string>> Access::preflight_headers(
    const HttpHead& head) const {
  std::vector<std::pair<std::string, std::string>> headers = cors_headers(head);
  headers.emplace_back("Allow", "GET, HEAD, POST, DELETE, OPTIONS");
  if (headers.front().first != "Access-Control-Allow-Origin") return headers;
  headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS");
  const std::string* wanted = head.find("access-control-request-headers");
  headers.emplace_back("Access-Control-Allow-Headers",
                       wanted && !wanted->empty()
                           ? *wanted
                           : "authorization, content-type, x-api-key, anthropic-version");
  headers.emplace_back("Access-Control-Max-Age", "600");
  if (head.find("access-control-request-private-network"))
    headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  return headers;
}

}  // namespace episodic::server
