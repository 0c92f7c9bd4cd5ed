// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Plots as SVG without scripts or outside resources.

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace episodic::tools {

/// What a scale shows, with a line at every step. Ends where a step does.
struct Axis {
  double low = 0, high = 100, step = 25;

  /// The smallest axis with steps of 1, 2 or 5 times a power of ten, four to ten of them, that
  /// holds all of these and zero.
  static Axis around(double lowest, double highest);
};

/// A value with the ends of its interval.
struct Bar {
  double value = 0, low = 0, high = 0;
};

/// Bars in groups: one group a row, one colour a series. Absent bars are left out. Bars begin at
/// zero. \param axis by default percent
std::string bar_chart(const std::string& title, const std::vector<std::string>& groups,
                      const std::vector<std::string>& series,
                      const std::vector<std::vector<std::optional<Bar>>>& bars,
                      const Axis& axis = {});

/// A table of coloured cells: red for `worst`, green for `best`; absent cells are white.
struct HeatScale {
  double worst = 0, best = 100;
  std::string columns = "tokens of the context", rows = "depth";  ///< what they are
  int decimals = 0;
};

/// By default the map that needle tests are known by: lengths from left to right, depth downwards,
/// in percent.
std::string heat_map(const std::string& title, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows,
                     const std::vector<std::vector<std::optional<double>>>& cells,
                     const HeatScale& scale = {});

/// Points joined in their order.
struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

/// One colour a line. \param x_axis what runs to the right
std::string line_chart(const std::string& title, const std::string& x_axis,
                       const std::vector<Line>& lines);

}  // namespace episodic::tools
