// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace episodic::tools {

/// Starts the program anew with a short GOMP_SPINCOUNT, unless the caller chose how threads wait:
/// on cores that others use too, threads that spin for milliseconds at the end of every loop cost
/// ten times what they gain, and threads that never spin lose a sixth on idle cores. OpenMP reads
/// the variable when it is loaded, so it is too late to set it here. Under a limit of address space
/// OpenBLAS is told to make no workers, which would wait for memory for ever. With glibc this has
/// happened before `main`, and before the libraries were initialised, in every program that calls
/// it.
void limit_spinning(char** argv);

}  // namespace episodic::tools
