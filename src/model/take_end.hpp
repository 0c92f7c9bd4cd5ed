// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace episodic {

/// Whether a name ends so; takes the end away.
inline bool take_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

}  // namespace episodic
