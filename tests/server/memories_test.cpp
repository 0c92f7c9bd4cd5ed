// SPDX-License-Identifier: Apache-2.0
// Memories by name: made, read into, answered behind, kept, edited, over HTTP.
#include "support/test.hpp"

#include "episodic/base/error.hpp"
#include "serving.hpp"

using namespace serving;

TEST_CASE("memories: names") { REQUIRE(true); }
