// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page at `/`: one file without foreign resources.

#include <string_view>

namespace episodic::server {

/// HTML, UTF-8.
std::string_view page();

}  // namespace episodic::server
