// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one way to include Catch2 here: 2.x and 3.x, and never before torch, whose CHECK macro would
// abort the process. A test that needs something absent calls EPISODIC_SKIP("what") and returns:
// ctest then reports it as skipped.
#if EPISODIC_TEST_TORCH
#include <ATen/core/Tensor.h>
#include <c10/util/Logging.h>
#endif
#undef CHECK
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
#include <cstdio>

#define EPISODIC_SKIP(what)                   \
  do {                                        \
    std::printf("EPISODIC_SKIP: %s\n", what); \
    SUCCEED("skipped: " what);                \
    return;                                   \
  } while (0)
