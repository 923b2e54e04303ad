// histogram.h: how many values are in each class of magnitude.
#pragma once
#include <cstddef>
#include <cstdint>

#include "values.h"

namespace sparsewire {

// 16 classes to a factor of two: the exponent and the first 4 bits of the mantissa of the magnitude as a float.
constexpr std::size_t classes = 4096;

// counts[c] = how many values are in class c.  A NaN is in the last one.
//
//   x        n values, any alignment; those that no float holds are rounded to the nearest one, or to infinity
//   counts   `classes` numbers; overlaps no input
//   memory   four tables of counts, 128 KiB
//   bits     exact: every ISA returns the same
template <class V>
void histogram(const V* x, std::size_t n, std::int64_t* counts);

}  // namespace sparsewire
