// SPDX-License-Identifier: Apache-2.0
#pragma once
// Requests of Anthropic's Messages API.

#include <string_view>

#include "episodic/server/service.hpp"

namespace episodic::server {

/// A chat: `system` is its first message, and turns of one role in a row are one.
/// \param body JSON from outside \param defaults as parse_request
/// \param counts of a request that asks how many tokens it has: needs no max_tokens
/// \throws RequestError naming the field: absent, of the wrong type or range, or one that would
///         change the answer in a way that is not built
Request parse_messages_request(std::string_view body, const GenerateOptions& defaults,
                               bool counts = false);

}  // namespace episodic::server
