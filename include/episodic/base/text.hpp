// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Messages put together from text and numbers with the standard library alone, for the rooms that
/// need nothing else.

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace episodic {

/// The parts one after the other: text as it is, integers in decimal, floating-point numbers with
/// up to six digits ("0.5", "1e-30", "nan").
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  [[maybe_unused]] const auto add = [&text](const auto& part) {
    using Part = std::decay_t<decltype(part)>;
    if constexpr (std::is_floating_point_v<Part>) {
      char digits[32];
      std::snprintf(digits, sizeof digits, "%g", static_cast<double>(part));
      text += digits;
    } else if constexpr (std::is_integral_v<Part>) {
      text += std::to_string(part);
    } else {
      text += std::string_view(part);
    }
  };
  (add(parts), ...);
  return text;
}

}  // namespace episodic
