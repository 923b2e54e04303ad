#include "scatter.h"

#include <algorithm>

#include "instantiate.h"

namespace sparsewire {

// One version for every ISA: the time is spent waiting for the cache lines of `dense`.

template <class I, class V>
void scatter_add(V* dense, const I* indices, const V* values, std::size_t n, I offset) {
  for (std::size_t j = 0; j < n; ++j) {
    V& place = dense[indices[j] - offset];
    place = narrow<V>(plus(widen(place), widen(values[j])));
  }
}

template <class I, class V>
void scatter(V* dense, const I* indices, const V* values, std::size_t n, I offset) {
  for (std::size_t j = 0; j < n; ++j) dense[indices[j] - offset] = values[j];
}

// Zeros are written to a part that fits the first-level cache, then its entries: every cache line is loaded once.
template <class I, class V>
void spread(V* dense, std::size_t size, const I* indices, const V* values, std::size_t n, I offset) {
  constexpr std::size_t part = (std::size_t{16} << 10) / sizeof(V);
  for (std::size_t start = 0, j = 0; start < size; start += part) {
    const std::size_t stop = std::min(start + part, size);
    std::fill(dense + start, dense + stop, V{});
    for (; j < n && indices[j] - offset < stop; ++j) dense[indices[j] - offset] = values[j];
  }
}

#define SPARSEWIRE_INSTANTIATE(I, V) \
  template void scatter_add(V*, const I*, const V*, std::size_t, I); \
  template void scatter(V*, const I*, const V*, std::size_t, I); \
  template void spread(V*, std::size_t, const I*, const V*, std::size_t, I);
SPARSEWIRE_EACH_ENTRY_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
