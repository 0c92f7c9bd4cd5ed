// SPDX-License-Identifier: Apache-2.0
// Numbers within bounds, digit by digit.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "json_parts.hpp"

namespace episodic::grammar {
namespace {

const CharacterRanges kDigit{{'0', '9'}};
constexpr std::size_t kMostDigits = 15;                    // that a double tells apart
constexpr std::int64_t kWide = 999'999'999'999'999;        // where there is no bound
constexpr std::int64_t kWidest = 999'999'999'999'999'999;  // of a bound
constexpr std::string_view kOpenEnd = "1000000000";        // of numbers with a fraction
constexpr std::size_t kOpenFraction = 6;

/// A number without its sign: 12.5 is "12" and "5".
struct Decimal {
  std::string whole = "0", fraction;
  bool negative = false;

  bool zero() const { return whole == "0" && fraction.empty(); }
};

/// \throws Unsupported for more digits than are told apart
Decimal decimal_of(const OrderedJson& number) {
  std::string text = number.dump();
  Decimal d;
  if (text[0] == '-') {
    d.negative = true;
    text.erase(0, 1);
  }
  int exponent = 0;
  if (const std::size_t e = text.find('e'); e != std::string::npos) {
    const char* digits = text.data() + e + 1;
    if (*digits == '+') ++digits;
    std::from_chars(digits, text.data() + text.size(), exponent);
    text.resize(e);
  }
  const std::size_t point = text.find('.');
  std::string whole = text.substr(0, point);
  std::string fraction = point == std::string::npos ? "" : text.substr(point + 1);
  if (std::abs(exponent) > 2 * static_cast<int>(kMostDigits))
    throw Unsupported("is too large or too small a number for a bound");
  for (; exponent > 0; --exponent) {
    whole += fraction.empty() ? '0' : fraction[0];
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  while (fraction.ends_with('0')) fraction.pop_back();
  if (whole.size() + fraction.size() > kMostDigits)
    throw Unsupported("has more digits than a bound may have, 15");
  d.whole = whole.empty() ? "0" : whole;
  d.fraction = std::move(fraction);
  if (d.zero()) d.negative = false;
  return d;
}

std::int64_t as_integer(double x) {
  return static_cast<std::int64_t>(
      std::clamp(x, -static_cast<double>(kWidest), static_cast<double>(kWidest)));
}

/// The least integer that is at least the bound, or more than it.
std::int64_t least_of(const OrderedJson& bound, bool above) {
  if (bound.is_number_unsigned()) {
    const auto value = bound.get<std::uint64_t>();
    if (value >= static_cast<std::uint64_t>(kWidest))
      throw Unsupported("is too large for the least integer; at most 18 digits are written");
    return static_cast<std::int64_t>(value) + (above ? 1 : 0);
  }
  if (bound.is_number_integer())
    return std::max(bound.get<std::int64_t>(), -kWidest) + (above ? 1 : 0);
  const double x = bound.get<double>();
  if (x >= static_cast<double>(kWidest))
    throw Unsupported("is too large for the least integer; at most 18 digits are written");
  return as_integer(above ? std::floor(x) + 1 : std::ceil(x));
}

std::int64_t most_of(const OrderedJson& bound, bool below) {
  if (bound.is_number_unsigned())
    return static_cast<std::int64_t>(
               std::min(bound.get<std::uint64_t>(), static_cast<std::uint64_t>(kWidest))) -
           (below ? 1 : 0);
  if (bound.is_number_integer() && bound.get<std::int64_t>() <= -kWidest)
    throw Unsupported("is too small for the largest integer; at most 18 digits are written");
  if (bound.is_number_integer()) return bound.get<std::int64_t>() - (below ? 1 : 0);
  const double x = bound.get<double>();
  if (x <= -static_cast<double>(kWidest))
    throw Unsupported("is too small for the largest integer; at most 18 digits are written");
  return as_integer(below ? std::ceil(x) - 1 : std::floor(x));
}

/// Digits of one length.
class SameLength {
 public:
  explicit SameLength(Builder& builder) : b(builder) {}

  Part range(std::string_view least, std::string_view most) {
    std::size_t same = 0;
    while (same < least.size() && least[same] == most[same]) ++same;
    if (same == least.size()) return b.literal(least);
    const std::string_view low = least.substr(same), high = most.substr(same);
    std::vector<Part> parts{b.sequence({b.literal(low.substr(0, 1)), at_least(low.substr(1))}),
                            b.sequence({b.literal(high.substr(0, 1)), at_most(high.substr(1))})};
    if (low[0] + 1 < high[0])
      parts.push_back(b.sequence({between(low[0] + 1, high[0] - 1), free(low.size() - 1)}));
    return b.sequence({b.literal(least.substr(0, same)), b.choice(std::move(parts))});
  }

 private:
  Part free(std::size_t count) {
    const auto n = static_cast<std::uint32_t>(count);
    return b.repeat(b.characters(kDigit), n, n);
  }
  Part between(int first, int last) {
    return b.characters({{static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last)}});
  }
  Part at_least(std::string_view least) {
    std::vector<Part> parts{b.literal(least)};
    for (std::size_t i = 0; i < least.size(); ++i)
      if (least[i] < '9')
        parts.push_back(b.sequence({b.literal(least.substr(0, i)), between(least[i] + 1, '9'),
                                    free(least.size() - i - 1)}));
    return b.choice(std::move(parts));
  }
  Part at_most(std::string_view most) {
    std::vector<Part> parts{b.literal(most)};
    for (std::size_t i = 0; i < most.size(); ++i)
      if (most[i] > '0')
        parts.push_back(b.sequence(
            {b.literal(most.substr(0, i)), between('0', most[i] - 1), free(most.size() - i - 1)}));
    return b.choice(std::move(parts));
  }

  Builder& b;
};

/// An end of a range of numbers that are not negative.
struct End {
  Decimal at;
  bool open = false;  ///< not itself
};

/// Digits behind the point, up to `most` of them.
class Fractions {
 public:
  Fractions(Builder& builder, const End* low, const End* high, std::size_t most)
      : b(builder), low_(low), high_(high), most_(most) {}

  /// The point and what follows it, or nothing where that is in the range.
  Part part() {
    std::vector<Part> parts{b.sequence({b.literal("."), from(0, low_, high_, false)})};
    if (may_end(0, low_, high_)) parts.push_back(b.nothing());
    return b.choice(std::move(parts));
  }

 private:
  static bool zeros(const End& end, std::size_t from) {
    return end.at.fraction.find_first_not_of('0', std::min(from, end.at.fraction.size())) ==
           std::string::npos;
  }
  static char digit(const End& end, std::size_t i) {
    return i < end.at.fraction.size() ? end.at.fraction[i] : '0';
  }
  /// \param low, high ends whose digits were written so far; null: the number is within them
  static bool may_end(std::size_t i, const End* low, const End* high) {
    if (low && !(zeros(*low, i) && !low->open)) return false;
    return !high || !zeros(*high, i) || !high->open;
  }

  Part from(std::size_t i, const End* low, const End* high, bool or_nothing) {
    if (low && zeros(*low, i) && !low->open) low = nullptr;
    if (!low && !high)
      return b.repeat(b.characters(kDigit), or_nothing ? 0 : 1,
                      static_cast<std::uint32_t>(most_ - i));
    std::vector<Part> parts;
    if (or_nothing && may_end(i, low, high)) parts.push_back(b.nothing());
    if (i < most_) {
      const char first = low ? digit(*low, i) : '0', last = high ? digit(*high, i) : '9';
      const auto next = [&](char c) {
        const End* still_low = low && c == first ? low : nullptr;
        const End* still_high = high && c == last ? high : nullptr;
        parts.push_back(
            b.sequence({b.literal(std::string(1, c)), from(i + 1, still_low, still_high, true)}));
      };
      const char inner = static_cast<char>(first + 1);
      if (first <= last) next(first);
      if (first < last) next(last);
      if (inner < last)
        parts.push_back(b.sequence(
            {b.characters(
                 {{static_cast<std::uint32_t>(inner), static_cast<std::uint32_t>(last - 1)}}),
             b.repeat(b.characters(kDigit), 0, static_cast<std::uint32_t>(most_ - i - 1))}));
    }
    if (parts.empty()) return b.characters({});
    return b.choice(std::move(parts));
  }

  Builder& b;
  const End *low_, *high_;
  std::size_t most_;
};

/// Numbers in [low, high] without a sign.
Part unsigned_numbers(Builder& b, JsonParts& json, const End& low, const End& high) {
  const std::size_t whole = high.at.whole.size();
  const std::size_t asked = std::max(low.at.fraction.size(), high.at.fraction.size());
  if (whole + asked > kMostDigits)
    throw Unsupported("bounds that need more than 15 digits between them are not supported");
  const std::size_t most = std::max(asked, std::min(kOpenFraction, kMostDigits - whole));
  const std::uint64_t first = std::stoull(low.at.whole), last = std::stoull(high.at.whole);
  if (first > last) return b.characters({});
  if (first == last)
    return b.sequence({b.literal(low.at.whole), Fractions(b, &low, &high, most).part()});
  std::vector<Part> parts{
      b.sequence({b.literal(low.at.whole), Fractions(b, &low, nullptr, most).part()}),
      b.sequence({b.literal(high.at.whole), Fractions(b, nullptr, &high, most).part()})};
  if (first + 1 < last)
    parts.push_back(b.sequence(
        {json.digits(first + 1, last - 1), Fractions(b, nullptr, nullptr, most).part()}));
  return b.choice(std::move(parts));
}

}  // namespace

Part JsonParts::digits(std::uint64_t least, std::uint64_t most) {
  std::vector<Part> parts;
  SameLength same(b);
  std::uint64_t power = 10;  // the first number that is longer
  for (std::uint64_t from = least;; power *= 10) {
    if (from >= power) continue;
    const std::uint64_t to = std::min(most, power - 1);
    parts.push_back(same.range(std::to_string(from), std::to_string(to)));
    if (to == most) break;
    from = power;
  }
  return b.choice(std::move(parts));
}

Part JsonParts::integer(const NumberBounds& bounds) {
  std::int64_t least = -kWide, most = kWide;
  if (bounds.minimum || bounds.above) {
    least = -kWidest;
    if (bounds.minimum) least = std::max(least, least_of(*bounds.minimum, false));
    if (bounds.above) least = std::max(least, least_of(*bounds.above, true));
    if (least > most) most = kWidest;
  }
  if (bounds.maximum || bounds.below) {
    most = kWidest;
    if (bounds.maximum) most = std::min(most, most_of(*bounds.maximum, false));
    if (bounds.below) most = std::min(most, most_of(*bounds.below, true));
    if (most < least && !bounds.minimum && !bounds.above) least = -kWidest;
  }
  if (least > most) throw Unsupported("no integer is within its bounds");
  std::vector<Part> parts;
  if (least < 0)
    parts.push_back(b.sequence(
        {b.literal("-"), digits(static_cast<std::uint64_t>(std::max<std::int64_t>(1, -most)),
                                static_cast<std::uint64_t>(-least))}));
  if (most >= 0)
    parts.push_back(digits(static_cast<std::uint64_t>(std::max<std::int64_t>(0, least)),
                           static_cast<std::uint64_t>(most)));
  return b.choice(std::move(parts));
}

Part JsonParts::number(const NumberBounds& bounds) {
  // the stricter of the inclusive and the exclusive bound
  const auto end = [](const OrderedJson* closed, const OrderedJson* open, bool low) {
    std::optional<End> out;
    const bool both = closed && open;
    const bool use_open = open && (!both || (low ? open->get<double>() >= closed->get<double>()
                                                 : open->get<double>() <= closed->get<double>()));
    if (closed || open) out = End{decimal_of(use_open ? *open : *closed), use_open};
    return out;
  };
  const std::optional<End> low = end(bounds.minimum, bounds.above, true);
  const std::optional<End> high = end(bounds.maximum, bounds.below, false);
  const auto far = [](const std::optional<End>& other) {
    Decimal d;
    d.whole = kOpenEnd;
    if (other && other->at.whole.size() >= kOpenEnd.size())
      d.whole =
          "1" + std::string(std::min<std::size_t>(other->at.whole.size(), kMostDigits - 1), '0');
    return End{d, true};
  };
  const End zero{{}, false}, above_zero{{}, true};
  std::vector<Part> parts;
  const bool low_is_negative = !low || low->at.negative;
  const bool high_is_negative = high && (high->at.negative || (high->at.zero() && high->open));
  if (low_is_negative) {  // sizes of negative numbers: the ends change places
    const End nearest = !high || !high->at.negative ? above_zero : *high;
    parts.push_back(
        b.sequence({b.literal("-"), unsigned_numbers(b, *this, nearest, low ? *low : far(high))}));
  }
  if (!high_is_negative)
    parts.push_back(
        unsigned_numbers(b, *this, low_is_negative ? zero : *low, high ? *high : far(low)));
  if (parts.empty()) throw Unsupported("no number is within its bounds");
  return b.choice(std::move(parts));
}

}  // namespace episodic::grammar
