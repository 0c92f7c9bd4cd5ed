// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "meeting.hpp"

int main() {
  const Outcome a = of_headers(), b = of_library();
  std::printf("%s and %s: %lld and %lld events\n", a.name.c_str(), b.name.c_str(),
              static_cast<long long>(a.events), static_cast<long long>(b.events));
  if (a.name == b.name) return 1;  // one type for both: their code could be mixed
  if (a.events < 4 || a.events != b.events || a.last.size() != b.last.size()) return 2;
  for (std::size_t i = 0; i < a.last.size(); ++i)
    if (!(a.last[i] - b.last[i] < 1e-4f && b.last[i] - a.last[i] < 1e-4f)) return 3;
}
