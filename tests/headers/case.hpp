// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the cases of decisions.cpp are read from and printed with.
#include <cstdint>
#include <cstdio>
#include <istream>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/timeline/event_table.hpp"

namespace decisions {

using namespace episodic;
using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;

/// The inputs of a case by name.
class Case {
 public:
  explicit Case(std::istream& in) {
    std::string name;
    for (std::size_t n = 0; in >> name >> n;) {
      std::vector<double>& values = values_[name];
      values.resize(n);
      for (double& value : values) in >> value;
      if (!in) throw DataError("case: \"" + name + "\" has too few numbers");
    }
  }
  const std::vector<double>& all(const char* name) const {
    const auto it = values_.find(name);
    if (it == values_.end()) throw DataError("case: no \"" + std::string(name) + "\"");
    return it->second;
  }
  bool has(const char* name) const { return values_.count(name) > 0; }
  double number(const char* name) const { return all(name).at(0); }
  std::int64_t integer(const char* name) const { return static_cast<std::int64_t>(number(name)); }
  Ints integers(const char* name) const {
    Ints out;
    for (const double x : all(name)) out.push_back(static_cast<std::int64_t>(x));
    return out;
  }
  Floats floats(const char* name) const {
    Floats out;
    for (const double x : all(name)) out.push_back(static_cast<float>(x));
    return out;
  }

 private:
  std::map<std::string, std::vector<double>> values_;
};

template <class Values>
void print(const std::string& name, const Values& values) {
  std::printf("%s", name.c_str());
  for (const auto& x : values) {
    if constexpr (std::is_floating_point_v<std::decay_t<decltype(x)>>)
      std::printf(" %.9g", static_cast<double>(x));
    else
      std::printf(" %lld", static_cast<long long>(x));
  }
  std::printf("\n");
}

inline void print_events(const std::string& name, const EventTable& events) {
  Ints bounds;
  for (const TokenRange& e : events.all()) bounds.insert(bounds.end(), {e.start, e.end});
  print(name, bounds);
  print("pending_" + name, Ints{events.pending_start()});
}

/// Numbers that are the same everywhere: no library promises that of its distributions.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  float next() {  // about normal
    float sum = 0;
    for (int i = 0; i < 6; ++i) sum += uniform();
    return sum;
  }
  float uniform() {  // in [-0.5, 0.5), 16 bits
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 48) - 32768) / 65536.0f;
  }
  void fill(std::span<float> x) {
    for (float& value : x) value = next();
  }

 private:
  std::uint64_t state_;
};

}  // namespace decisions
