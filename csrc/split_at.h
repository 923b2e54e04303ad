// split_at.h: where index ranges begin in a run.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparsewire {

// positions[c] = the number of indices below cuts[c].
//
//   indices     n of them, increasing
//   cuts        any order, any 64-bit number, also such as the index type cannot hold
//   positions   room for cut_count numbers and nothing beyond
template <class I>
void split_at(const I* indices, std::size_t n, const std::uint64_t* cuts, std::size_t cut_count,
              std::int64_t* positions);

}  // namespace sparsewire
