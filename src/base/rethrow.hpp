// SPDX-License-Identifier: Apache-2.0
#pragma once
// More to say about an error on its way up.

#include <cstddef>
#include <exception>
#include <span>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/base/io.hpp"

namespace episodic {

/// Throws the error that is being handled once more, of its own type, its message followed by
/// `more`. What is no Error goes on as it is.
[[noreturn]] inline void rethrow_with(const std::string& more) {
  try {
    throw;
  } catch (const io::DiskFullError& e) {
    throw io::DiskFullError(e.what() + more);
  } catch (const FileError& e) {
    throw FileError(e.what() + more);
  } catch (const ConfigError& e) {
    throw ConfigError(e.what() + more);
  } catch (const DataError& e) {
    throw DataError(e.what() + more);
  } catch (const BudgetError& e) {
    throw BudgetError(e.what() + more);
  } catch (const DeviceError& e) {
    throw DeviceError(e.what() + more);
  } catch (const NotBuiltError& e) {
    throw NotBuiltError(e.what() + more);
  } catch (const Error& e) {
    throw Error(e.what() + more);
  }
}

/// Throws what the first sequence of a batch failed with, an Error with its place in the batch.
/// \param failures of each sequence; null: it has not failed
inline void rethrow_first_of_batch(std::span<const std::exception_ptr> failures) {
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (!failures[i]) continue;
    try {
      std::rethrow_exception(failures[i]);
    } catch (const Error&) {
      rethrow_with(" (sequence " + std::to_string(i) + " of the batch)");
    }
  }
}

}  // namespace episodic
