// SPDX-License-Identifier: Apache-2.0
#include "protocol/exposition.hpp"

#include <fmt/format.h>

#include <cmath>

namespace episodic::server {
namespace {

/// NAME="VALUE" with what the form wants escaped.
std::string label_text(std::string_view name, std::string_view value) {
  std::string text(name);
  text += "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text + '"';
}

/// As short as it reads back the same. Whole numbers without an exponent, for people.
std::string number_text(double number) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (number == std::floor(number) && std::abs(number) < kExact)
    return fmt::format("{}", static_cast<std::int64_t>(number));
  return fmt::format("{}", number);
}

}  // namespace

Exposition::Exposition(std::string_view label, std::string_view value)
    : common_(label.empty() ? std::string() : label_text(label, value)) {}

void Exposition::head(std::string_view name, std::string_view type, std::string_view help) {
  text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void Exposition::sample(std::string_view name, std::string_view label, std::string_view value,
                        double number) {
  std::string labels = common_;
  if (!label.empty()) labels += (labels.empty() ? "" : ",") + label_text(label, value);
  text_ += name;
  if (!labels.empty()) text_ += '{' + labels + '}';
  text_ += ' ' + number_text(number) + '\n';
}

void Exposition::family(std::string_view name, std::string_view type, std::string_view help,
                        std::string_view label, Labelled values) {
  head(name, type, help);
  for (const auto& [value, number] : values) sample(name, label, value, number);
}

void Exposition::counter(std::string_view name, std::string_view help, double value) {
  family(name, "counter", help, {}, {{{}, value}});
}

void Exposition::counter(std::string_view name, std::string_view help, std::string_view label,
                         Labelled values) {
  family(name, "counter", help, label, values);
}

void Exposition::gauge(std::string_view name, std::string_view help, double value) {
  family(name, "gauge", help, {}, {{{}, value}});
}

void Exposition::gauge(std::string_view name, std::string_view help, std::string_view label,
                       Labelled values) {
  family(name, "gauge", help, label, values);
}

void Exposition::histogram(std::string_view name, std::string_view help, const Histogram& values) {
  head(name, "histogram", help);
  const std::string bucket = std::string(name) + "_bucket";
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < values.bounds().size(); ++i) {
    below += values.counts()[i];
    sample(bucket, "le", number_text(values.bounds()[i]), static_cast<double>(below));
  }
  sample(bucket, "le", "+Inf", static_cast<double>(values.count()));
  sample(std::string(name) + "_sum", {}, {}, values.sum());
  sample(std::string(name) + "_count", {}, {}, static_cast<double>(values.count()));
}

}  // namespace episodic::server
