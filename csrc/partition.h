// partition.h: the entries of a run whose magnitude is above a threshold, and the others.
#pragma once
#include <cstddef>
#include <cstdint>

#include "merge.h"
#include "values.h"

namespace sparsewire {

// Writes the entries with magnitude > threshold, and the first `ties` with magnitude == threshold, to `large`, and the
// others to `rest`; both keep the order.  Returns how many are large.
//
//   large, rest   room for run.size entries each and nothing beyond; overlap no input, nor each other
//   bits          values are copied
template <class I, class V>
std::size_t partition(Run<I, V> run, Magnitude<V> threshold, std::uint64_t ties, I* large_indices, V* large_values,
                      I* rest_indices, V* rest_values);

}  // namespace sparsewire
