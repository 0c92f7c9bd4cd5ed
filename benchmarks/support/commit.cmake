# cmake -D SOURCE=folder -D OUT=file -P commit.cmake: writes OUT where the commit is another.
find_package(Git QUIET)
set(commit "")
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --dirty --abbrev=12
    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
// Written by benchmarks/support/commit.cmake.
#include "support/commit.hpp"

#include <cstdlib>

namespace episodic::bench {

std::string commit_name() {
  const char* named = std::getenv("EPISODIC_COMMIT");
  return named && *named ? named : "@commit@";
}

}  // namespace episodic::bench
]])
