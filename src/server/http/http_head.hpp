// SPDX-License-Identifier: Apache-2.0
#pragma once
// The head of an HTTP request, read strictly: what two readers might take differently is refused.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/server/http_options.hpp"

namespace episodic::server {

/// A request that gets an error before anybody looks at what it asks for.
class HttpError : public std::runtime_error {
 public:
  HttpError(int status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

struct HttpHead {
  std::string method;
  std::string path;                                         ///< with its query, as it was sent
  int minor = 1;                                            ///< of HTTP/1.x
  std::vector<std::pair<std::string, std::string>> fields;  ///< names in lower case
  std::optional<std::uint64_t> length;                      ///< of the body
  bool chunked = false;
  std::string host;  ///< with its port; empty where HTTP/1.0 names none

  /// The first field of that name, null if there is none. \param name in lower case
  const std::string* find(std::string_view name) const;
  std::size_t count(std::string_view name) const;
  /// Whether a list of words holds this one. \param word in lower case
  bool lists(std::string_view name, std::string_view word) const;
  bool has_body() const { return chunked || (length && *length > 0); }
  /// What the client says of the connection afterwards.
  bool keeps_alive() const;
};

/// Where a head that arrives bit by bit ends.
class HeadScanner {
 public:
  explicit HeadScanner(const HeadLimits& limits = {}) : limits_(limits) {}

  /// \param bytes all that has arrived, what earlier calls saw included
  /// \return bytes of the head with its empty line; 0: more must come
  /// \throws HttpError as soon as the limits are passed, or it can be no head
  std::size_t scan(std::string_view bytes);

 private:
  HeadLimits limits_;
  std::size_t at_ = 0, line_ = 0, lines_ = 0;  // looked at; begin of the line, lines before it
};

/// \param bytes with the empty line at its end
/// \throws HttpError for what is no head of HTTP/1.0 or 1.1, or where the body's length is unclear:
///         not a plain number, given twice, or beside a transfer coding
HttpHead parse_head(std::string_view bytes);

/// A body in chunks, decoded as it arrives.
class ChunkReader {
 public:
  /// \param most bytes of the body \param body that it is added to
  ChunkReader(std::size_t most, std::string& body) : most_(most), body_(body) {}

  /// \return bytes of `bytes` that were used: all of them until the body is complete
  /// \throws HttpError for what is no chunk, and beyond `most`
  std::size_t read(std::string_view bytes);
  bool done() const { return state_ == State::done; }

 private:
  enum class State : std::uint8_t { size, data, data_end, trailer, done };
  void take_size();

  std::size_t most_;
  std::string& body_;
  State state_ = State::size;
  std::size_t left_ = 0;     // of the chunk
  std::size_t framing_ = 0;  // bytes that were no body
  std::string line_;
};

/// Spaces and tabs around it go.
std::string_view trimmed(std::string_view text);
std::string lower(std::string_view text);

}  // namespace episodic::server
