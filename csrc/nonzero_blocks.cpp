#include "nonzero_blocks.h"

#include <algorithm>

#include "instantiate.h"

namespace sparsewire {
namespace {

// There is no branch between the values of a part, so that the compiler vectorises it.  A part is four cache lines:
// with fewer, the branches take longer than the memory; with more, a block is read further than necessary.
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

// One version for every ISA, because the scalar one is as fast as memory: with AVX2, 64 MiB of zeros took the same
// time, and only data in the cache took a fifth less.
template <class V>
std::size_t nonzero_blocks(const V* x, std::size_t n, std::size_t block, std::int64_t* numbers) {
  std::size_t count = 0;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < n; ++number) {
    const std::size_t size = std::min(block, n - begin);
    numbers[count] = number;  // without a branch; there is room for a number of each block so far
    count += is_nonzero_block(x + begin, size);
    begin += size;
  }
  return count;
}

#define SPARSEWIRE_INSTANTIATE(V) \
  template std::size_t nonzero_blocks(const V*, std::size_t, std::size_t, std::int64_t*);
SPARSEWIRE_EACH_VALUE_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
