// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which handler answers a path.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace httplib {
struct Response;
}

namespace episodic::server {

struct Exchange;

/// What a request's path says: the parts that its route leaves open, and its query.
struct Target {
  std::vector<std::string> parts;
  std::string query;

  /// A value of the query; `otherwise` where it is not there.
  std::string value(std::string_view name, std::string_view otherwise = "") const;
  /// \throws RequestError for what is no whole number >= 0
  std::int64_t count(std::string_view name, std::int64_t otherwise) const;
};

class Router {
 public:
  using Handler = std::function<void(Exchange&, const Target&, httplib::Response&)>;

  /// \param path without /v1, such as "/memories/{}/read": each {} is one part, whatever it holds
  void add(const char* method, const char* path, Handler handler);

  /// Answers a request; all paths may begin with /v1 and end with a slash. A path that is not
  /// there gets 404, a method that is not there 405 with those that are.
  void answer(Exchange& exchange, httplib::Response& response) const;

 private:
  struct Route {
    std::string method, path;
    Handler handler;
  };
  std::vector<Route> routes_;
};

}  // namespace episodic::server
