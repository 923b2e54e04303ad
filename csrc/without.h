// without.h: the entries of a run whose indices another run lacks.
#pragma once
#include <cstddef>

#include "merge.h"

namespace sparsewire {

// Writes the entries of the run whose index is not among `others`, in order.  Returns how many.
//
//   others   m of them, strictly increasing
//   out      room for run.size entries and nothing beyond; overlaps no input
//   bits     values are copied
template <class I, class V>
std::size_t without(Run<I, V> run, const I* others, std::size_t m, I* out_indices, V* out_values);

}  // namespace sparsewire
