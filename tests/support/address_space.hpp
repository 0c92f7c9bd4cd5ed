// SPDX-License-Identifier: Apache-2.0
#pragma once
// Allocations that fail: a limit of the process's address space. Not under sanitizers.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace episodic::testing {

// While it lives, the process may map `bytes` more.
class AddressSpace {
 public:
  explicit AddressSpace(std::int64_t bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit less = before_;
    less.rlim_cur =
        pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + static_cast<rlim_t>(bytes);
    ::setrlimit(RLIMIT_AS, &less);
  }
  ~AddressSpace() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

}  // namespace episodic::testing
