// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cases by default and all of them: what loops over many settings runs a spread of them, and with
// EPISODIC_ALL_CASES=1 in the environment (`scripts/test --all`) every one. Which ones a run by
// default has depends on the lists alone.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace episodic_test {

/// Whether every case is asked for.
inline bool all_cases() {
  const char* const value = std::getenv("EPISODIC_ALL_CASES");
  return value != nullptr && std::string_view(value) == "1";
}

/// A count of cases, rounds or bytes that is shorter by default.
template <class T>
T all_or(T all, T by_default) {
  return all_cases() ? all : by_default;
}

/// As many of them as `by_default` says, at even distances, the first and the last among them (of
/// one alone the first). In their order. \pre by_default > 0
template <class T>
std::vector<T> sampled(std::vector<T> all, std::size_t by_default, bool every = all_cases()) {
  if (every || all.size() <= by_default) return all;
  std::vector<T> some;
  const std::size_t gaps = std::max<std::size_t>(by_default - 1, 1);
  for (std::size_t i = 0; i < by_default; ++i)
    some.push_back(std::move(all[i * (all.size() - 1) / gaps]));
  return some;
}

/// By default one of them, another for each `number`; otherwise all. \pre there is one
template <class T>
std::vector<T> in_turn(std::vector<T> all, std::size_t number, bool every = all_cases()) {
  if (every) return all;
  return {all[number % all.size()]};
}

/// As sampled, of the numbers from `first` to before `end`.
template <class T>
std::vector<T> sampled_range(T first, T end, std::size_t by_default, bool every = all_cases()) {
  std::vector<T> all;
  for (T i = first; i < end; ++i) all.push_back(i);
  return sampled(std::move(all), by_default, every);
}

/// Each value of every list at least once, as many cases as the longest list has; with `every`,
/// each value beside all values of the others. \pre no list is empty
template <class... T>
std::vector<std::tuple<T...>> combined(bool every, const std::vector<T>&... lists) {
  std::vector<std::tuple<T...>> cases;
  const std::size_t most = every ? (lists.size() * ...) : std::max({lists.size()...});
  for (std::size_t i = 0; i < most; ++i) {
    std::size_t rest = i;
    const auto next = [&](const auto& list) {
      const std::size_t at = rest % list.size();
      if (every) rest /= list.size();
      return list[at];
    };
    cases.push_back(std::tuple<T...>{next(lists)...});  // in the order of the lists
  }
  return cases;
}
template <class... T>
std::vector<std::tuple<T...>> combined(const std::vector<T>&... lists) {
  return combined(all_cases(), lists...);
}

}  // namespace episodic_test
