// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How the library speaks to its host program: it calls back, it never prints.

#include <cstdint>
#include <functional>
#include <string_view>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

enum class LogLevel : std::uint8_t { debug, info, warning };

/// Receives one line without a newline. May be called from the thread that called the library only.
using LogCallback = std::function<void(LogLevel, std::string_view)>;

/// Progress of long work in tokens: (done, total). Return false to cancel.
using ProgressCallback = std::function<bool(std::int64_t done, std::int64_t total)>;

}  // namespace EPISODIC_NAMESPACE
