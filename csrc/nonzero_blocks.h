// nonzero_blocks.h: which blocks of values are not all zero.
#pragma once
#include <cstddef>
#include <cstdint>

#include "values.h"

namespace sparsewire {

// The numbers of the blocks x[b * block], ..., x[b * block + block - 1] that have a value other than zero, increasing;
// returns how many.  -0.0 is zero; denormals, infinities and NaN are not.  Reads a block up to its first other value.
//
//   x        n values, any alignment; the last block may be shorter; block >= 1
//   numbers  room for one per block, and nothing beyond; does not overlap x
template <class V>
std::size_t nonzero_blocks(const V* x, std::size_t n, std::size_t block, std::int64_t* numbers);

}  // namespace sparsewire
