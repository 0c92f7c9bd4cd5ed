// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON of requests and answers, whose fields keep their order.

#include <nlohmann/json.hpp>
#include <string>

namespace episodic::server {

using Json = nlohmann::ordered_json;

/// Bytes that are not UTF-8 (a token may end within a character) are replaced.
inline std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace episodic::server
