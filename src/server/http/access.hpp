// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who may ask a server: the key, and what a web page in a browser of this machine may do.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/server/http_options.hpp"
#include "http/http_head.hpp"

namespace episodic::server {

/// What anybody may ask: it says nothing but that there is a server, and whether it is ready.
bool asks_health(const HttpHead& head);
/// What watches a server asks, which is answered whatever runs: /health and /metrics.
bool asks_status(const HttpHead& head);

/// Without a key any program of this machine may ask, and a browser is one of them. Two checks keep
/// web pages out. A page whose name was made to lead here (DNS rebinding) still says its own name
/// in Host. A page of another origin says so in Origin.
class Access {
 public:
  /// \throws ConfigError for an origin that is none, and for "*" without a key
  explicit Access(AccessOptions options);

  /// \param local it came over a socket of the file system, where Host says nothing
  /// \throws HttpError 401 for the key, 403 for Host and Origin, 415 for a page's body that a
  ///         browser sends without asking first
  void check(const HttpHead& head, bool local = false) const;

  /// What the answer to a page of a named origin needs, so that the page can read it.
  std::vector<std::pair<std::string, std::string>> cors_headers(const HttpHead& head) const;
  /// The answer to OPTIONS, with which a browser asks before it sends.
  std::vector<std::pair<std::string, std::string>> preflight_headers(const HttpHead& head) const;

 private:
  bool own_host(std::string_view host) const;
  bool named_origin(std::string_view origin) const;
  bool locked() const { return !keys_.empty(); }
  bool fits(std::string_view key) const;
  void check_page(const HttpHead& head, bool local) const;
  void check_key(const HttpHead& head) const;

  AccessOptions options_;
  std::vector<std::string> keys_;
  bool any_address_;  // listens at all of them
};

}  // namespace episodic::server
