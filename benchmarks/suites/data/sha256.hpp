// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SHA-256, in hex, as `sha256sum` prints it.

#include <openssl/evp.h>

#include <memory>
#include <string>
#include <string_view>

namespace episodic::suites {

class Sha256 {
 public:
  Sha256();
  void add(std::string_view bytes);
  /// Of all that was added; nothing can be after it.
  std::string hex();

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

std::string sha256_of(std::string_view bytes);

}  // namespace episodic::suites
