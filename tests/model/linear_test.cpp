// SPDX-License-Identifier: Apache-2.0
#include "model/linear.hpp"

#include <cstring>
#include <random>
#include <vector>

#include "episodic/base/dtype.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace linear_test {

/// A weight of a type that can be made from numbers.
struct Weight {
  Weight(std::mt19937& random, TensorType type, std::int64_t out, std::int64_t in) {
    std::normal_distribution<float> normal;
    linear = {type, nullptr, nullptr, out, in};
    bytes.resize(static_cast<std::size_t>(out * linear.row_bytes()));
    std::vector<float> row(static_cast<std::size_t>(in));
    for (std::int64_t o = 0; o < out; ++o) {
      for (float& x : row) x = normal(random);
      REQUIRE(cpu::quantize_row(type, row.data(), in, bytes.data() + o * linear.row_bytes()));
    }
    bias.resize(static_cast<std::size_t>(out));
    for (float& x : bias) x = normal(random);
    linear.weight = bytes.data();
    if (random() % 2) linear.bias = bias.data();
  }
  std::vector<std::byte> bytes;
  std::vector<float> bias;
  Linear linear;
};

TEST_CASE("linear: a row's bits are those of that row alone, in either class and either cut") {
  std::mt19937 random(31);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::int64_t n) {
    std::vector<float> v(static_cast<std::size_t>(n));
    for (float& x : v) x = normal(random);
    return v;
  };
  for (const TensorType type :
       {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q8_0, TensorType::q4_0})
    for (const RowClass rows : {RowClass::few, RowClass::many})
      for (const std::int64_t n : {2, 4, 5, 13, 64, 130}) {
        const std::int64_t in = 32 * (1 + static_cast<std::int64_t>(random() % 40));
        const Weight a(random, type, 1 + static_cast<std::int64_t>(random() % 400), in);
        const Weight b(random, type, 1 + static_cast<std::int64_t>(random() % 90), in);
        INFO(name_of(type) << ", " << n << " rows, " << a.linear.out << " and " << b.linear.out
                           << " outputs of " << in << ", class " << static_cast<int>(rows));
        const bool add = random() % 2;
        const std::vector<float> x = draw(n * in), before = draw(n * a.linear.out);
        std::vector<float> y = before, other(static_cast<std::size_t>(n * b.linear.out));
        const Product together[] = {{&a.linear, x.data(), y.data(), add},
                                    {&b.linear, x.data(), other.data()}};
        multiply(n, together, Cut::blocks, rows);
        bool same = true;
        for (std::int64_t i = 0; i < n; ++i) {
          std::vector<float> alone(before.begin() + i * a.linear.out,
                                   before.begin() + (i + 1) * a.linear.out);
          const Product one{&a.linear, x.data() + i * in, alone.data(), add};
          multiply(1, {&one, 1}, Cut::whole, rows);
          same = same && std::memcmp(alone.data(), y.data() + i * a.linear.out,
                                     alone.size() * sizeof(float)) == 0;
        }
        REQUIRE(same);
      }
}

}  // namespace linear_test
