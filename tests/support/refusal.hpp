// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a call is refused with.
#include <string>

#include "episodic/base/error.hpp"

/// The message of the E that f throws, "no error" if it throws none.
template <class E = episodic::Error, class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "no error";
}

inline bool mentions(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}
