#include "nonzero_blocks.h"

#include <algorithm>

namespace sparsewire {
namespace {

// Looked at without a branch between its values, so that the compiler vectorises it.  Four cache lines: with fewer, the
// branches take longer than memory does; with more, a block is read further than it need be.
template <class V>
constexpr std::size_t part = 256 / sizeof(V);

template <class V>
[[gnu::always_inline]] inline bool has_nonzero(const V* x, std::size_t n) {
  Magnitude<V> bits = 0;
  for (std::size_t j = 0; j < n; ++j) bits |= bits_as<Magnitude<V>>(x[j]);
  return (bits & largest_magnitude<V>) != 0;
}

template <class V>
bool is_nonzero_block(const V* x, std::size_t size) {
  for (; size >= part<V>; size -= part<V>, x += part<V>)
    if (has_nonzero(x, part<V>)) return true;
  return has_nonzero(x, size);
}

}  // namespace

// One version for every ISA, because the baseline keeps up with memory: with AVX2, 64 MiB of zeros took as long, and
// only what was in the cache a fifth less.
template <class V>
std::size_t nonzero_blocks(const V* x, std::size_t n, std::size_t block, std::int64_t* numbers) {
  std::size_t count = 0;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < n; ++number) {
    const std::size_t size = std::min(block, n - begin);
    numbers[count] = number;  // without a branch; there is room, as no more were found than blocks were seen
    count += is_nonzero_block(x + begin, size);
    begin += size;
  }
  return count;
}

template std::size_t nonzero_blocks(const float*, std::size_t, std::size_t, std::int64_t*);
template std::size_t nonzero_blocks(const double*, std::size_t, std::size_t, std::int64_t*);
template std::size_t nonzero_blocks(const half*, std::size_t, std::size_t, std::int64_t*);
template std::size_t nonzero_blocks(const bfloat16*, std::size_t, std::size_t, std::int64_t*);
template std::size_t nonzero_blocks(const std::int32_t*, std::size_t, std::size_t, std::int64_t*);
template std::size_t nonzero_blocks(const std::int64_t*, std::size_t, std::size_t, std::int64_t*);

}  // namespace sparsewire
