// merge_sum.h: sum of sparse vectors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "values.h"

namespace sparsewire {

// Entries (indices[j], values[j]) with strictly increasing indices.
template <class I, class V>
struct Run {
  const I* indices;
  const V* values;
  std::size_t size;
};

// Writes one entry for each index that occurs in any run, in order; its value is the sum over the runs that have it.
// Returns the number of entries, at most the sum of the runs' sizes.
//
//   out    room for the sum of the sizes and nothing beyond; overlaps no run
//   bits   values of an index are added in the order of the runs; half types in float, rounded once at the end.  A sum
//          that is zero keeps its entry, and a single value keeps its sign of zero
template <class I, class V>
std::size_t merge_sum(std::vector<Run<I, V>> runs, I* out_indices, V* out_values);

}  // namespace sparsewire
