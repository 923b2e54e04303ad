// threshold_for_k.h: the k-th largest magnitude.
#pragma once
#include <cstddef>
#include <cstdint>

#include "values.h"

namespace sparsewire {

struct Threshold {
  std::uint64_t magnitude;  // as Magnitude<V>; all NaN are infinity<V> + 1
  std::uint64_t ties;       // how many values of exactly this magnitude belong to the k largest
};

// With the result, select() takes exactly k of the values.
//
//   x        n values, any alignment, 1 <= k <= n
//   memory   at most max(4096, n / 64) magnitudes, and a histogram of 32 KiB
//   bits     exact: every ISA returns the same
template <class V>
Threshold threshold_for_k(const V* x, std::size_t n, std::size_t k);

}  // namespace sparsewire
