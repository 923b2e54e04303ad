// select_buckets.h: the largest values of every bucket.
#pragma once
#include <cstddef>

#include "select.h"
#include "values.h"

namespace sparsewire {

// Of every `bucket` consecutive values the k of largest magnitude, the lowest index first among equals, zeros never: their
// entries (p, x[p]) in order of p.  All NaN have one magnitude, which is above infinity.  Returns how many there are.
//
//   x         n values, any alignment; the last bucket may be shorter; 1 <= k <= bucket
//   out       capacity min(n, k * number of buckets); overlaps no input
//   bits      values are copied; every ISA returns the same
template <class I, class V>
std::size_t select_buckets(const V* x, std::size_t n, std::size_t k, std::size_t bucket, Room<I, V> out);

// residual[p] += gradient[p], then as select_buckets() of the residual, which becomes 0 where an entry was taken.  One
// pass.
//
//   gradient  n values; is the residual, or overlaps neither it nor the output
//   bits      the sum is rounded once (half types: from float)
template <class I, class V>
std::size_t accumulate_select_buckets(V* residual, const V* gradient, std::size_t n, std::size_t k, std::size_t bucket,
                                      Room<I, V> out);

}  // namespace sparsewire
