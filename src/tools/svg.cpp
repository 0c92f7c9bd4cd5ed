// SPDX-License-Identifier: Apache-2.0
#include "svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace episodic::tools {
namespace {

constexpr const char* kColours[] = {"#4477aa", "#ee6677", "#228833", "#ccbb44",
                                    "#66ccee", "#aa3377", "#bbbbbb", "#000000"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out.push_back(c);
  }
  return out;
}

std::string label(double x, double y, const std::string& text, const char* anchor = "start",
                  int size = 12) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
      anchor, size, escaped(text));
}

std::string page(double width, double height, const std::string& title, const std::string& body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n{2}{3}</svg>\n",
      width, height, label(16, 24, title, "start", 15), body);
}

/// From red at 0 over yellow to green at 1.
std::string colour_of(double share) {
  const double t = std::clamp(share, 0.0, 1.0);
  const int red = static_cast<int>(std::lround(t < 0.5 ? 225 : 225 - 170 * (2 * t - 1)));
  const int green =
      static_cast<int>(std::lround(t < 0.5 ? 80 + 130 * 2 * t : 210 - 30 * (2 * t - 1)));
  return fmt::format("rgb({},{},90)", red, green);
}

/// The horizontal lines of an axis, with their numbers.
std::string grid(const Axis& axis, double left, double right, double top, double height) {
  std::string body;
  const auto steps = std::lround((axis.high - axis.low) / axis.step);
  for (long i = 0; i <= steps; ++i) {
    const double value = axis.low + axis.step * static_cast<double>(i);
    const double y = top + height * (axis.high - value) / (axis.high - axis.low);
    const bool zero = std::abs(value) < axis.step / 2;
    body +=
        fmt::format("<line x1=\"{}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
                    left, right, y, y, zero && axis.low < 0 ? "#888888" : "#dddddd");
    body += label(left - 6, y + 4, fmt::format("{:g}", zero ? 0.0 : value), "end");
  }
  return body;
}

/// Coloured squares with the names of the series, one below the other.
std::string legend(double left, double top, const std::vector<std::string>& series) {
  std::string body;
  for (std::size_t s = 0; s < series.size(); ++s) {
    const double y = top + 16 * static_cast<double>(s);
    body += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                        left, y - 9, kColours[s % std::size(kColours)]);
    body += label(left + 16, y, series[s]);
  }
  return body;
}

}  // namespace

Axis Axis::around(double lowest, double highest) {
  const double low = std::min(0.0, lowest), high = std::max(0.0, highest);
  const double range = high > low ? high - low : 1.0;
  double step = std::pow(10, std::floor(std::log10(range / 4)));
  if (range / step > 10) step *= range / step > 20 ? 5 : 2;
  return {step * std::floor(low / step), step * std::max(std::ceil(high / step), 1.0), step};
}

std::string bar_chart(const std::string& title, const std::vector<std::string>& groups,
                      const std::vector<std::string>& series,
                      const std::vector<std::vector<std::optional<Bar>>>& bars, const Axis& axis) {
  constexpr double kBar = 18, kGap = 24, kLeft = 56, kTop = 44, kHeight = 220;
  const double group = kBar * static_cast<double>(series.size()) + kGap;
  const double width = std::max(kLeft + group * static_cast<double>(groups.size()) + 20, 420.0);
  const double base = kTop + kHeight;
  const auto y_of = [&](double value) {
    return kTop + kHeight * (axis.high - value) / (axis.high - axis.low);
  };
  std::string body = grid(axis, kLeft, width - 12, kTop, kHeight);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const double left = kLeft + kGap / 2 + group * static_cast<double>(g);
    for (std::size_t s = 0; s < series.size(); ++s) {
      if (!bars[g][s]) continue;
      const Bar& bar = *bars[g][s];
      const double x = left + kBar * static_cast<double>(s), middle = x + kBar / 2;
      const double top = y_of(std::max(bar.value, 0.0)), h = y_of(std::min(bar.value, 0.0)) - top;
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" "
          "fill=\"{}\"/>\n",
          x + 1, top, kBar - 2, h, kColours[s % std::size(kColours)]);
      body += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" "
          "stroke=\"black\"/>\n",
          middle, y_of(bar.low), y_of(bar.high));
    }
    // alternating heights, so that long names do not run into each other
    body += label(left + (group - kGap) / 2, base + 16 + (g % 2 == 1 ? 14 : 0), groups[g], "middle",
                  11);
  }
  body += legend(kLeft, base + 52, series);
  return page(width, base + 60 + 16 * static_cast<double>(series.size()), title, body);
}

std::string heat_map(const std::string& title, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows,
                     const std::vector<std::vector<std::optional<double>>>& cells,
                     const HeatScale& scale) {
  constexpr double kWidth = 56, kHeight = 30, kLeft = 84, kTop = 46;
  const double right = kLeft + kWidth * static_cast<double>(columns.size());
  const double bottom = kTop + kHeight * static_cast<double>(rows.size());
  std::string body;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double y = kTop + kHeight * static_cast<double>(r);
    body += label(kLeft - 8, y + kHeight / 2 + 4, rows[r], "end");
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (!cells[r][c]) continue;
      const double x = kLeft + kWidth * static_cast<double>(c);
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\" "
          "stroke=\"white\"/>\n",
          x, y, kWidth, kHeight,
          colour_of((*cells[r][c] - scale.worst) / (scale.best - scale.worst)));
      body += label(x + kWidth / 2, y + kHeight / 2 + 4,
                    fmt::format("{:.{}f}", *cells[r][c], scale.decimals), "middle");
    }
  }
  for (std::size_t c = 0; c < columns.size(); ++c)
    body +=
        label(kLeft + kWidth * (static_cast<double>(c) + 0.5), bottom + 18, columns[c], "middle");
  body += label(kLeft, bottom + 38, scale.columns);
  body += label(12, kTop - 6, scale.rows);
  return page(std::max(right + 20, 420.0), bottom + 50, title, body);
}

std::string line_chart(const std::string& title, const std::string& x_axis,
                       const std::vector<Line>& lines) {
  constexpr double kLeft = 64, kTop = 44, kWidth = 640, kHeight = 240;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double x_low = kInfinity, x_high = -kInfinity, y_low = kInfinity, y_high = -kInfinity;
  for (const Line& line : lines)
    for (const auto& [x, y] : line.points) {
      x_low = std::min(x_low, x), x_high = std::max(x_high, x);
      y_low = std::min(y_low, y), y_high = std::max(y_high, y);
    }
  if (!(x_high >= x_low)) x_low = y_low = 0, x_high = y_high = 1;  // no points at all
  if (x_high == x_low) x_high = x_low + 1;
  const Axis axis = Axis::around(y_low, y_high);
  std::string body = grid(axis, kLeft, kLeft + kWidth, kTop, kHeight);
  constexpr int kMarks = 8;
  for (int i = 0; i <= kMarks; ++i)
    body += label(kLeft + kWidth * i / kMarks, kTop + kHeight + 18,
                  fmt::format("{:.4g}", x_low + (x_high - x_low) * i / kMarks), "middle", 11);
  body += label(kLeft, kTop + kHeight + 36, x_axis);
  std::vector<std::string> names;
  for (std::size_t s = 0; s < lines.size(); ++s) {
    names.push_back(lines[s].name);
    std::string points;
    for (const auto& [x, y] : lines[s].points)
      points += fmt::format("{:.1f},{:.1f} ", kLeft + kWidth * (x - x_low) / (x_high - x_low),
                            kTop + kHeight * (axis.high - y) / (axis.high - axis.low));
    body +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
                    points, kColours[s % std::size(kColours)]);
  }
  body += legend(kLeft, kTop + kHeight + 58, names);
  return page(kLeft + kWidth + 24, kTop + kHeight + 66 + 16 * static_cast<double>(lines.size()),
              title, body);
}

}  // namespace episodic::tools
