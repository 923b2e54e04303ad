// block_norms.h: the Euclidean norms of blocks of values.
#pragma once
#include <cstddef>

#include "values.h"

namespace sparsewire {

// norms[b] = the square root of the sum of squares of x[b * block], ..., x[b * block + block - 1].
//
//   x        n values, any alignment; the last block may be shorter; block >= 1
//   norms    one number per block, and nothing beyond; overlaps no input
//   bits     squares are made and added in double, in eight lanes (sum_of_squares.h); every ISA returns the same.
//            Nothing is scaled: what is too large for a square of a double is infinite, what is too small is zero
template <class V>
void block_norms(const V* x, std::size_t n, std::size_t block, double* norms);

// residual[p] += gradient[p], then as block_norms() of the residual.  One pass.
//
//   gradient  n values; is the residual, or overlaps neither it nor the norms
//   bits      the sum is rounded once (half types: from float)
template <class V>
void accumulate_block_norms(V* residual, const V* gradient, std::size_t n, std::size_t block, double* norms);

}  // namespace sparsewire
