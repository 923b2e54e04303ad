#include "partition.h"

#include "instantiate.h"

namespace sparsewire {

// A branch on which entries are large would be mispredicted often, so there is none: every entry is written to both
// outputs, and the next one overwrites it where it does not belong.
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

#define SPARSEWIRE_INSTANTIATE(I, V) \
  template std::size_t partition(Run<I, V>, Magnitude<V>, std::uint64_t, I*, V*, I*, V*);
SPARSEWIRE_EACH_ENTRY_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
