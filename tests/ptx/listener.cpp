// SPDX-License-Identifier: Apache-2.0
// Each test case finds a device that is sound, whatever the one before it did.
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // Catch2 2.x shows listeners only so
#include <cuda_runtime_api.h>

#include "device.hpp"
#include "support/test.hpp"

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using Base = Catch::EventListenerBase;
#else
using Base = Catch::TestEventListenerBase;
#endif

class SoundDevice : public Base {
 public:
  using Base::Base;
  void testCaseStarting(const Catch::TestCaseInfo&) override {
    static_cast<void>(ptx::take_faults());
    static_cast<void>(cudaGetLastError());
  }
};

CATCH_REGISTER_LISTENER(SoundDevice)

}  // namespace
