// SPDX-License-Identifier: Apache-2.0
#pragma once
// Read before every source of test_portable_attention: what is named here cannot be used there.
#pragma GCC poison fmt omp_get_max_threads omp_in_parallel torch faiss
