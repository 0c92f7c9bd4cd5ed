// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The one exception family of the library. The library never prints, aborts or exits: every
/// failure is an `episodic::Error` whose message names the file or parameter at fault and what to
/// do about it.

#include <stdexcept>
#include <string>

namespace episodic {

/// Base of everything the library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A parameter or configuration value is out of its range, unknown, or contradicts another one.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A file is missing, truncated, damaged or of an unsupported kind. The message starts with its
/// path.
class FileError : public Error {
 public:
  using Error::Error;
};

/// Data of the wrong shape, dtype or value (tokens out of vocabulary, NaN logits, ...).
class DataError : public Error {
 public:
  using Error::Error;
};

/// A byte budget cannot hold what is asked of it. Nothing was changed.
class BudgetError : public Error {
 public:
  using Error::Error;
};

/// A CUDA device is missing, too old, or refused a call.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// The feature or device exists by name but is not in this build.
class NotBuiltError : public Error {
 public:
  using Error::Error;
};

}  // namespace episodic
