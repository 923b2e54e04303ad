// scatter.h: entries into a dense range.
#pragma once
#include <cstddef>
#include <cstdint>

#include "values.h"

namespace sparsewire {

// dense[indices[j] - offset] += values[j] for the n entries.
//
//   indices   strictly increasing, each in [offset, offset + size of dense); the caller has checked it
//   dense     overlaps neither indices nor values
//   bits      one addition per entry; half types in float, rounded once
template <class I, class V>
void scatter_add(V* dense, const I* indices, const V* values, std::size_t n, I offset);

// dense[indices[j] - offset] = values[j], under the same conditions.
template <class I, class V>
void scatter(V* dense, const I* indices, const V* values, std::size_t n, I offset);

// As scatter(), and zeros everywhere else in `dense`, which has `size` values.
template <class I, class V>
void spread(V* dense, std::size_t size, const I* indices, const V* values, std::size_t n, I offset);

}  // namespace sparsewire
