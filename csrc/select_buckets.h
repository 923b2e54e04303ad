// select_buckets.h: the largest values of every bucket.
#pragma once
#include <cstddef>

#include "select.h"
#include "values.h"

namespace sparsewire {

// Writes the entries (p, x[p]) of the k largest magnitudes of every `bucket` consecutive values, in order of p: among
// equals the lowest p first, and zeros never.  All NaN have one magnitude, infinity<V> + 1.  Returns how many.
//
//   x         n values, any alignment; the last bucket may be shorter; 1 <= k <= bucket
//   out       capacity min(n, k * number of buckets); overlaps no input
//   bits      values are copied; every ISA returns the same
template <class I, class V>
std::size_t select_buckets(const V* x, std::size_t n, std::size_t k, std::size_t bucket, Room<I, V> out);

// residual[p] += gradient[p], then as select_buckets() of the residual, which becomes 0 where an entry was taken.
// One pass over memory.
//
//   gradient  n values; is the residual, or overlaps neither it nor the output
//   bits      the sum is rounded once (half types: from float)
template <class I, class V>
std::size_t accumulate_select_buckets(V* residual, const V* gradient, std::size_t n, std::size_t k, std::size_t bucket,
                                      Room<I, V> out);

}  // namespace sparsewire
