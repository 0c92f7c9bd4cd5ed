// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client of `episodic serve`, for programs of the command line.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "episodic/base/error.hpp"

namespace episodic::tools {

/// What a server refused, or that it could not be asked.
class ServerError : public Error {
 public:
  /// \param status of HTTP; 0: there was no answer
  ServerError(const std::string& message, int status) : Error(message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

/// Asks one server, each time on a new connection: one that was started again meanwhile is found.
class ServerClient {
 public:
  using Json = nlohmann::ordered_json;

  /// \param address "http://HOST:PORT", with "/v1" behind it or not, or "unix:PATH" \param key
  /// empty: none
  /// \throws ConfigError for another address; NotBuiltError in a build without an HTTP library
  ServerClient(std::string address, std::string key);

  /// As it was given.
  const std::string& address() const { return address_; }

  /// \param path without "/v1"
  /// \throws ServerError, whose message says what to do
  Json get(const std::string& path) const;
  Json post(const std::string& path, const Json& body) const;

  /// Hands over the data of server-sent events as they come, on this thread.
  /// \param event \return false: the rest is not wanted \param stop is asked 20 times a second
  /// \return false where the events ended for one of the two \throws ServerError also where the
  /// connection ends before the server says that it is done, and what `event` throws
  bool stream(const std::string& path, const Json& body,
              const std::function<bool(const std::string&)>& event,
              const std::function<bool()>& stop) const;

 private:
  struct Exchange;
  void exchange(const char* method, const std::string& path, const std::string& body,
                Exchange& exchange) const;
  Json whole(const char* method, const std::string& path, const std::string& body) const;
  [[noreturn]] void refuse(int status, const std::string& body) const;

  std::string address_, key_;
  std::string host_;  // name, or path of the socket
  int port_ = 0;      // 0: it is a socket
};

/// A part of a path: what is no letter, digit, '.', '_' or '-' as %XX.
std::string path_part(const std::string& text);

}  // namespace episodic::tools
