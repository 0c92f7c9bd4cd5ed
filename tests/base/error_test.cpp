// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/error.hpp"

#include <set>
#include <string>

#include "episodic/base/io.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

/// The code that a caller reads who catches the base of all errors.
template <class E>
ErrorCode code_when_caught() {
  try {
    throw E("what and remedy");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "what and remedy");
    return error.code();
  }
}

}  // namespace

TEST_CASE("every class of error has its code, whoever catches it") {
  CHECK(code_when_caught<Error>() == ErrorCode::failed);
  CHECK(code_when_caught<ConfigError>() == ErrorCode::config);
  CHECK(code_when_caught<FileError>() == ErrorCode::file);
  CHECK(code_when_caught<io::DiskFullError>() == ErrorCode::disk_full);
  CHECK(code_when_caught<DataError>() == ErrorCode::data);
  CHECK(code_when_caught<BudgetError>() == ErrorCode::budget);
  CHECK(code_when_caught<DeviceError>() == ErrorCode::device);
  CHECK(code_when_caught<NotBuiltError>() == ErrorCode::not_built);
}

TEST_CASE("codes are numbers that never change, each with a word of its own") {
  std::set<std::string> names;
  int expected = 0;
  for (const ErrorKind& kind : kErrorKinds) {
    CHECK(static_cast<int>(kind.code) == ++expected);  // a new one goes to the end
    CHECK(names.insert(kind.name).second);
    CHECK(std::string(name_of(kind.code)) == kind.name);
  }
  CHECK(expected == 8);
  CHECK(std::string(name_of(static_cast<ErrorCode>(0))) == "?");
}
