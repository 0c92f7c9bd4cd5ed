// SPDX-License-Identifier: Apache-2.0
// How OpenMP's threads wait, chosen before OpenMP is there to be asked.

#include "spinning.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>

extern char** environ;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EPISODIC_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define EPISODIC_SANITIZED 1
#endif
#endif

namespace episodic::tools {
namespace {

constexpr std::size_t kMostVariables = 4096;

// `has` and `start_again` may run before any library has been initialised.

bool has(char* const* variables, const char* name) {
  for (; *variables != nullptr; ++variables) {
    std::size_t i = 0;
    while (name[i] != '\0' && (*variables)[i] == name[i]) ++i;
    if (name[i] == '\0' && (*variables)[i] == '=') return true;
  }
  return false;
}

/// The program from its beginning with variables that say how to wait, unless all are said.
void start_again(char** argv, char** variables) {
  static char spins[] = "GOMP_SPINCOUNT=20000";  // some tens of microseconds
  static char alone[] = "OPENBLAS_NUM_THREADS=1";
  char* all[kMostVariables];  // no memory can be asked for yet
  std::size_t n = 0;
  for (; variables[n] != nullptr; ++n) {
    if (n + 3 >= kMostVariables) return;
    all[n] = variables[n];
  }
  const std::size_t given = n;
  if (!has(variables, "OMP_WAIT_POLICY") && !has(variables, "GOMP_SPINCOUNT")) all[n++] = spins;
  // Workers of OpenBLAS, which FAISS brings along, ask for 128 MiB each until they get them. Under
  // a limit of address space that may be never, and the end of the program waits for them.
  struct rlimit space;
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY &&
      !has(variables, "OPENBLAS_NUM_THREADS"))
    all[n++] = alone;
  if (n == given) return;
  all[n] = nullptr;
  ::execve("/proc/self/exe", argv, all);  // returns only if it fails; then it is as it was
}

#if defined(__GLIBC__) && !defined(EPISODIC_SANITIZED)
// Libtorch takes 0.4 s to register its operators. Starting again before that, it does so once.
void before_libraries(int, char** argv, char** variables) { start_again(argv, variables); }
__attribute__((section(".preinit_array"),
               used)) void (*const kBeforeLibraries)(int, char**, char**) = before_libraries;
#endif

}  // namespace

void limit_spinning(char** argv) { start_again(argv, environ); }

}  // namespace episodic::tools
