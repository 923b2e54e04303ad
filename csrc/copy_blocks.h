// copy_blocks.h: chosen blocks of an array, one after the other, and back.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparsewire {

// out[i * block + j] = x[numbers[i] * block + j] for each of the `count` numbers and every j of a block.  In bytes, as
// it is the same for all values.
//
//   x        n bytes; the last block may be shorter: zeros follow it in `out`
//   numbers  in any order, each one of a block of x; the caller has checked it
//   out      count blocks, all of full length; overlaps neither numbers nor x
void gather_blocks(const std::byte* x, std::size_t n, const std::int64_t* numbers, std::size_t count, std::size_t block,
                   std::byte* out);

// x[numbers[i] * block + j] = data[i * block + j], under the same conditions; what data has beyond a shorter last block
// is not stored.  Of a block that is named twice, the last data stays.
void scatter_blocks(std::byte* x, std::size_t n, const std::int64_t* numbers, std::size_t count, std::size_t block,
                    const std::byte* data);

}  // namespace sparsewire
