// SPDX-License-Identifier: Apache-2.0
#pragma once
// Settings under which a text of a few hundred tokens has many events outside its window.
#include "episodic/base/config.hpp"

inline episodic::MemoryConfig small_memory() {
  episodic::MemoryConfig c;
  c.n_init = 4;
  c.n_local = 32;
  c.n_mem = 32;
  c.chunk = 32;
  c.min_block = 4;
  c.max_block = 16;
  c.gamma = 0.5;
  return c;
}
