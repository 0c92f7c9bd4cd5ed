// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Messages put together from text and numbers with the standard library alone, for the rooms that
/// need nothing else.

#include <charconv>
#include <string>
#include <string_view>
#include <type_traits>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

namespace text_detail {

/// The fewest digits that give the number again, in any locale.
template <class Float>
std::string shortest(Float x) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, x).ptr};
}

}  // namespace text_detail

/// The parts one after the other: text as it is, integers in decimal, floating-point numbers with
/// as few digits as say which it is ("0.5", "1e-30", "nan").
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  [[maybe_unused]] const auto add = [&text](const auto& part) {
    using Part = std::decay_t<decltype(part)>;
    if constexpr (std::is_floating_point_v<Part>) {
      text += text_detail::shortest(part);
    } else if constexpr (std::is_integral_v<Part>) {
      text += std::to_string(part);
    } else {
      text += std::string_view(part);
    }
  };
  (add(parts), ...);
  return text;
}

}  // namespace EPISODIC_NAMESPACE
