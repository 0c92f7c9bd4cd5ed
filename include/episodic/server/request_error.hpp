// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `RequestError`: a request that cannot be answered, with what its client is told.

#include <stdexcept>
#include <string>

namespace episodic::server {

/// What a client did wrong, or what is in its way.
class RequestError : public std::runtime_error {
 public:
  /// \param parameter the field at fault, or nothing; cut and cleaned, as it comes from outside
  /// \param status of HTTP: 400, 404, 409, 429, 503
  /// \param code OpenAI's word for it, which some clients look at
  RequestError(const std::string& message, const std::string& parameter, int status = 400,
               std::string code = "");

  const std::string& parameter() const { return parameter_; }
  const std::string& code() const { return code_; }
  int status() const { return status_; }

 private:
  std::string parameter_, code_;
  int status_;
};

}  // namespace episodic::server
