// merge.h: sum, maximum or minimum of sparse vectors.
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

enum class Operation { sum, max, min };

// Writes one entry for each index that occurs in any run, in order; its value is the sum over the runs that have it, or
// the maximum or minimum over all runs, of which those that lack it count as zero.
// Returns the number of entries, at most the sum of the runs' sizes.
//
//   out    room for the sum of the sizes and nothing beyond; overlaps no run
//   bits   values of an index are added in the order of the runs; half types in float, rounded once at the end.  A sum
//          that is zero keeps its entry, and a single value keeps its sign of zero.  In maxima and minima a NaN wins
//          over numbers, and zero is 0.0, never -0.0
template <class I, class V>
std::size_t merge(Operation operation, std::vector<Run<I, V>> runs, I* out_indices, V* out_values);

}  // namespace sparsewire
