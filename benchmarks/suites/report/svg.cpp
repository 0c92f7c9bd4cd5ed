// SPDX-License-Identifier: Apache-2.0
#include "report/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace episodic::suites {
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

/// From red over yellow to green.
std::string colour_of(double percent) {
  const double t = std::clamp(percent / 100, 0.0, 1.0);
  const int red = static_cast<int>(std::lround(t < 0.5 ? 225 : 225 - 170 * (2 * t - 1)));
  const int green =
      static_cast<int>(std::lround(t < 0.5 ? 80 + 130 * 2 * t : 210 - 30 * (2 * t - 1)));
  return fmt::format("rgb({},{},90)", red, green);
}

}  // namespace

std::string bar_chart(const std::string& title, const std::vector<std::string>& groups,
                      const std::vector<std::string>& series,
                      const std::vector<std::vector<std::optional<Bar>>>& bars) {
  constexpr double kBar = 18, kGap = 24, kLeft = 56, kTop = 44, kHeight = 220;
  const double group = kBar * static_cast<double>(series.size()) + kGap;
  const double width = std::max(kLeft + group * static_cast<double>(groups.size()) + 20, 420.0);
  const double base = kTop + kHeight;
  std::string body;
  for (int percent = 0; percent <= 100; percent += 25) {
    const double y = base - kHeight * percent / 100;
    body += fmt::format(
        "<line x1=\"{}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" "
        "stroke=\"#dddddd\"/>\n",
        kLeft, width - 12, y, y);
    body += label(kLeft - 6, y + 4, std::to_string(percent), "end");
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const double left = kLeft + kGap / 2 + group * static_cast<double>(g);
    for (std::size_t s = 0; s < series.size(); ++s) {
      if (!bars[g][s]) continue;
      const Bar& bar = *bars[g][s];
      const double x = left + kBar * static_cast<double>(s), h = kHeight * bar.value / 100;
      const double middle = x + kBar / 2;
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" "
          "fill=\"{}\"/>\n",
          x + 1, base - h, kBar - 2, h, kColours[s % std::size(kColours)]);
      body += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" "
          "stroke=\"black\"/>\n",
          middle, base - kHeight * bar.low / 100, base - kHeight * bar.high / 100);
    }
    // alternating heights, so that long names do not run into each other
    body += label(left + (group - kGap) / 2, base + 16 + (g % 2 == 1 ? 14 : 0), groups[g], "middle",
                  11);
  }
  for (std::size_t s = 0; s < series.size(); ++s) {
    const double y = base + 52 + 16 * static_cast<double>(s);
    body += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                        kLeft, y - 9, kColours[s % std::size(kColours)]);
    body += label(kLeft + 16, y, series[s]);
  }
  return page(width, base + 60 + 16 * static_cast<double>(series.size()), title, body);
}

std::string heat_map(const std::string& title, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows,
                     const std::vector<std::vector<std::optional<double>>>& cells) {
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
          x, y, kWidth, kHeight, colour_of(*cells[r][c]));
      body +=
          label(x + kWidth / 2, y + kHeight / 2 + 4, fmt::format("{:.0f}", *cells[r][c]), "middle");
    }
  }
  for (std::size_t c = 0; c < columns.size(); ++c)
    body +=
        label(kLeft + kWidth * (static_cast<double>(c) + 0.5), bottom + 18, columns[c], "middle");
  body += label(kLeft, bottom + 38, "tokens of the context");
  body += label(12, kTop - 6, "depth");
  return page(std::max(right + 20, 420.0), bottom + 50, title, body);
}

}  // namespace episodic::suites
