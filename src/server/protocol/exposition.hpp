// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prometheus's text form of measurements, version 0.0.4.

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "episodic/server/histogram.hpp"

namespace episodic::server {

/// Families of measurements, one after another. Each name is given once.
class Exposition {
 public:
  /// A family's measurements are told apart by the value of one label.
  using Labelled = std::initializer_list<std::pair<std::string_view, double>>;

  /// \param labels of every measurement, as name and value
  explicit Exposition(std::string_view label = {}, std::string_view value = {});

  /// \param name ends with _total
  void counter(std::string_view name, std::string_view help, double value);
  void counter(std::string_view name, std::string_view help, std::string_view label,
               Labelled values);
  void gauge(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, std::string_view label, Labelled values);
  void histogram(std::string_view name, std::string_view help, const Histogram& values);

  const std::string& text() const { return text_; }

 private:
  void head(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::string_view name, std::string_view label, std::string_view value, double number);
  void family(std::string_view name, std::string_view type, std::string_view help,
              std::string_view label, Labelled values);

  std::string common_;  // NAME="VALUE", or nothing
  std::string text_;
};

}  // namespace episodic::server
