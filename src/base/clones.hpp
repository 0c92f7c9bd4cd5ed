// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plain loops that the compiler vectorises: on x86 it makes one copy of such a function per
// instruction set, and the loader takes the best one that the machine has. Not under
// ThreadSanitizer: the loader chooses before its runtime is there, and the process ends.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define EPISODIC_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define EPISODIC_CLONES
#endif
