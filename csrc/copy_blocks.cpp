#include "copy_blocks.h"

#include <algorithm>
#include <cstring>

namespace sparsewire {

// One version for every ISA: memcpy() chooses its own.

void gather_blocks(const std::byte* x, std::size_t n, const std::int64_t* numbers, std::size_t count, std::size_t block,
                   std::byte* out) {
  for (std::size_t i = 0; i < count; ++i, out += block) {
    const std::size_t begin = static_cast<std::size_t>(numbers[i]) * block;
    const std::size_t size = std::min(block, n - begin);
    std::memcpy(out, x + begin, size);
    if (size < block) std::memset(out + size, 0, block - size);
  }
}

void scatter_blocks(std::byte* x, std::size_t n, const std::int64_t* numbers, std::size_t count, std::size_t block,
                    const std::byte* data) {
  for (std::size_t i = 0; i < count; ++i, data += block) {
    const std::size_t begin = static_cast<std::size_t>(numbers[i]) * block;
    std::memcpy(x + begin, data, std::min(block, n - begin));
  }
}

}  // namespace sparsewire
