// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The one exception family of the library. The library never prints, aborts or exits: every
/// failure is an `episodic::Error` whose message names the file or parameter at fault and what to
/// do about it.

#include <stdexcept>
#include <string>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// What kind of failure an Error is, as a number: one for each class below. Numbers never change
/// and are never given again, so that they may cross to other languages and into logs.
enum class ErrorCode : int {
  failed = 1,     ///< Error itself: a call at the wrong time, or a failure of no other kind
  config = 2,     ///< ConfigError
  file = 3,       ///< FileError
  disk_full = 4,  ///< io::DiskFullError
  data = 5,       ///< DataError
  budget = 6,     ///< BudgetError
  device = 7,     ///< DeviceError
  not_built = 8,  ///< NotBuiltError
};

/// A code with the word for it.
struct ErrorKind {
  ErrorCode code;
  const char* name;
};

/// All codes.
inline constexpr ErrorKind kErrorKinds[] = {
    {ErrorCode::failed, "failed"}, {ErrorCode::config, "config"},
    {ErrorCode::file, "file"},     {ErrorCode::disk_full, "disk_full"},
    {ErrorCode::data, "data"},     {ErrorCode::budget, "budget"},
    {ErrorCode::device, "device"}, {ErrorCode::not_built, "not_built"},
};

/// The word for a code; "?" for a number that is none.
constexpr const char* name_of(ErrorCode code) {
  for (const ErrorKind& kind : kErrorKinds) {
    if (kind.code == code) return kind.name;
  }
  return "?";
}

/// Base of everything the library throws on purpose. `what()` is one line for people, `code()` the
/// kind of failure for programs.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : Error(ErrorCode::failed, what) {}
  ErrorCode code() const noexcept { return code_; }

 protected:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}

 private:
  ErrorCode code_;
};

/// A parameter or configuration value is out of its range, unknown, or contradicts another one.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& what) : Error(ErrorCode::config, what) {}
};

/// A file is missing, truncated, damaged or of an unsupported kind. The message starts with its
/// path.
class FileError : public Error {
 public:
  explicit FileError(const std::string& what) : FileError(ErrorCode::file, what) {}

 protected:
  FileError(ErrorCode code, const std::string& what) : Error(code, what) {}
};

/// Another one is writing to this memory. The remedy is to wait.
class LockedError : public FileError {
 public:
  explicit LockedError(const std::string& what) : FileError(what) {}
};

/// Data of the wrong shape, dtype or value (tokens out of vocabulary, NaN logits, ...).
class DataError : public Error {
 public:
  explicit DataError(const std::string& what) : Error(ErrorCode::data, what) {}
};

/// A byte budget cannot hold what is asked of it. Nothing was changed.
class BudgetError : public Error {
 public:
  explicit BudgetError(const std::string& what) : Error(ErrorCode::budget, what) {}
};

/// A CUDA device is missing, too old, or refused a call.
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& what) : Error(ErrorCode::device, what) {}
};

/// The feature or device exists by name but is not in this build.
class NotBuiltError : public Error {
 public:
  explicit NotBuiltError(const std::string& what) : Error(ErrorCode::not_built, what) {}
};

}  // namespace EPISODIC_NAMESPACE
