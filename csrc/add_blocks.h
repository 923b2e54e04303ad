// add_blocks.h: blocks of values added into chosen blocks of an array.
#pragma once
#include <cstddef>
#include <cstdint>

#include "values.h"

namespace sparsewire {

// total[rows[i] * block + j] += data[i * block + j] for each of the `count` rows and every j of a block.
//
//   total   n values; the last block may be shorter, and what data has beyond it is not added
//   rows    strictly increasing, each a number of a block of the total; the caller has checked it
//   data    count blocks, all of full length, any alignment; overlaps neither rows nor total
//   bits    one addition per value; half types are added to floats, which hold them all
template <class V>
void add_blocks(Sum<V>* total, std::size_t n, const std::int64_t* rows, std::size_t count, const V* data,
                std::size_t block);

}  // namespace sparsewire
