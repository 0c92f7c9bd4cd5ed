// SPDX-License-Identifier: Apache-2.0
// libtorch beside the other libraries of the process: one that exports a variable of libtorch's
// name would share its storage.
#include "support/test.hpp"

#include <ATen/ATen.h>
#include <dlfcn.h>

// Looked up as it runs: a variable that the program itself names moves into the program, away from
// what lies beside it.
template <class T>
static T flag(const char* name) {
  const void* at = dlsym(RTLD_DEFAULT, name);
  REQUIRE(at != nullptr);
  return *static_cast<const T*>(at);
}

TEST_CASE("libtorch's flags are as it set them: no other library writes over them") {
  CHECK(flag<unsigned char>("FLAGS_caffe2_use_fatal_for_enforce") == 0);
  CHECK(flag<int>("FLAGS_minloglevel") >= 0);
  CHECK(flag<int>("FLAGS_minloglevel") <= 3);
}

TEST_CASE("a tensor that no machine has room for is an exception and not the end of the process") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EPISODIC_SKIP("sanitizers end the process where so much is asked for");
#else
  REQUIRE_THROWS_AS(at::empty({std::int64_t{1} << 60}, at::kByte), c10::Error);
#endif
}
