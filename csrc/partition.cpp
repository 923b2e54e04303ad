#include "partition.h"

namespace sparsewire {

// Who is large is anybody's guess, so there is no branch for it: every entry is written to both, and the next one
// overwrites it where it does not belong.
template <class I, class V>
std::size_t partition(Run<I, V> run, Magnitude<V> threshold, std::uint64_t ties, I* large_indices, V* large_values,
                      I* rest_indices, V* rest_values) {
  std::size_t count = 0;
  for (std::size_t j = 0; j < run.size; ++j) {
    const I index = run.indices[j];
    const V value = run.values[j];
    const Magnitude<V> rank = rank_of(value);
    const bool is_tie = rank == threshold && ties != 0;
    ties -= is_tie;
    large_indices[count] = index;
    large_values[count] = value;
    rest_indices[j - count] = index;
    rest_values[j - count] = value;
    count += rank > threshold || is_tie;
  }
  return count;
}

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
#define SPARSEWIRE_PARTITION(I, V) \
  template std::size_t partition(Run<I, V>, Magnitude<V>, std::uint64_t, I*, V*, I*, V*);
SPARSEWIRE_PARTITION(u32, float)
SPARSEWIRE_PARTITION(u32, double)
SPARSEWIRE_PARTITION(u32, half)
SPARSEWIRE_PARTITION(u32, bfloat16)
SPARSEWIRE_PARTITION(u32, i32)
SPARSEWIRE_PARTITION(u32, i64)
SPARSEWIRE_PARTITION(u64, float)
SPARSEWIRE_PARTITION(u64, double)
SPARSEWIRE_PARTITION(u64, half)
SPARSEWIRE_PARTITION(u64, bfloat16)
SPARSEWIRE_PARTITION(u64, i32)
SPARSEWIRE_PARTITION(u64, i64)
#undef SPARSEWIRE_PARTITION

}  // namespace sparsewire
