// SPDX-License-Identifier: Apache-2.0
#pragma once
// Read before a source that is to use the header-only core: what is named here cannot be used
// there.
#pragma GCC poison fmt nlohmann omp_get_max_threads omp_in_parallel torch ATen
