// sum_of_squares.h: a sum of squares that has the same bits on every machine.
#pragma once
#include <cstddef>

namespace sparsewire {

// In double and in eight lanes, the j-th value in lane j % 8, so that every vector width adds in the same order.
class SumOfSquares {
 public:
  static constexpr std::size_t lanes = 8;

  // Adds number(values[j])^2 for the n values.  A call continues the one before if that one's n is a multiple of 8.
  template <class V, class Number>
  [[gnu::always_inline]] inline void add(const V* values, std::size_t n, Number number) {
    const auto square = [&](const V& value) {
      const auto x = static_cast<double>(number(value));
      return x * x;
    };
    std::size_t j = 0;
    for (; n - j >= lanes; j += lanes)
      for (std::size_t lane = 0; lane < lanes; ++lane) sums_[lane] += square(values[j + lane]);
    for (std::size_t lane = 0; j < n; ++j, ++lane) sums_[lane] += square(values[j]);
  }

  // The upper half of the lanes is added to the lower until one is left.
  [[gnu::always_inline]] inline double total() const {
    double sums[lanes];
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] = sums_[lane];
    for (std::size_t half = lanes / 2; half != 0; half /= 2)
      for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
  }

 private:
  double sums_[lanes] = {};
};

}  // namespace sparsewire
