// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Plots as SVG without scripts or outside resources.

#include <optional>
#include <string>
#include <vector>

namespace episodic::suites {

/// A score in percent with the ends of its interval.
struct Bar {
  double value = 0, low = 0, high = 0;
};

/// Bars in groups: one group a row, one colour a series. Absent bars are left out.
std::string bar_chart(const std::string& title, const std::vector<std::string>& groups,
                      const std::vector<std::string>& series,
                      const std::vector<std::vector<std::optional<Bar>>>& bars);

/// The map that needle tests are known by: lengths from left to right, depth downwards, red for 0
/// and green for 100 percent; absent cells are white.
std::string heat_map(const std::string& title, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows,
                     const std::vector<std::vector<std::optional<double>>>& cells);

}  // namespace episodic::suites
