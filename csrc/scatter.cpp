#include "scatter.h"

#include <algorithm>

namespace sparsewire {

// One version for every ISA: the time goes into waiting for the cache lines of `dense`.

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

// Zeros a part that fits the first-level cache, then its entries while it is there: every line comes and goes once.
template <class I, class V>
void spread(V* dense, std::size_t size, const I* indices, const V* values, std::size_t n, I offset) {
  constexpr std::size_t part = (std::size_t{16} << 10) / sizeof(V);
  for (std::size_t start = 0, j = 0; start < size; start += part) {
    const std::size_t stop = std::min(start + part, size);
    std::fill(dense + start, dense + stop, V{});
    for (; j < n && indices[j] - offset < stop; ++j) dense[indices[j] - offset] = values[j];
  }
}

using u32 = std::uint32_t;
using u64 = std::uint64_t;
template void scatter_add(float*, const u32*, const float*, std::size_t, u32);
template void scatter_add(double*, const u32*, const double*, std::size_t, u32);
template void scatter_add(half*, const u32*, const half*, std::size_t, u32);
template void scatter_add(bfloat16*, const u32*, const bfloat16*, std::size_t, u32);
template void scatter_add(std::int32_t*, const u32*, const std::int32_t*, std::size_t, u32);
template void scatter_add(std::int64_t*, const u32*, const std::int64_t*, std::size_t, u32);
template void scatter_add(float*, const u64*, const float*, std::size_t, u64);
template void scatter_add(double*, const u64*, const double*, std::size_t, u64);
template void scatter_add(half*, const u64*, const half*, std::size_t, u64);
template void scatter_add(bfloat16*, const u64*, const bfloat16*, std::size_t, u64);
template void scatter_add(std::int32_t*, const u64*, const std::int32_t*, std::size_t, u64);
template void scatter_add(std::int64_t*, const u64*, const std::int64_t*, std::size_t, u64);
template void scatter(float*, const u32*, const float*, std::size_t, u32);
template void scatter(double*, const u32*, const double*, std::size_t, u32);
template void scatter(half*, const u32*, const half*, std::size_t, u32);
template void scatter(bfloat16*, const u32*, const bfloat16*, std::size_t, u32);
template void scatter(std::int32_t*, const u32*, const std::int32_t*, std::size_t, u32);
template void scatter(std::int64_t*, const u32*, const std::int64_t*, std::size_t, u32);
template void scatter(float*, const u64*, const float*, std::size_t, u64);
template void scatter(double*, const u64*, const double*, std::size_t, u64);
template void scatter(half*, const u64*, const half*, std::size_t, u64);
template void scatter(bfloat16*, const u64*, const bfloat16*, std::size_t, u64);
template void scatter(std::int32_t*, const u64*, const std::int32_t*, std::size_t, u64);
template void scatter(std::int64_t*, const u64*, const std::int64_t*, std::size_t, u64);
template void spread(float*, std::size_t, const u32*, const float*, std::size_t, u32);
template void spread(double*, std::size_t, const u32*, const double*, std::size_t, u32);
template void spread(half*, std::size_t, const u32*, const half*, std::size_t, u32);
template void spread(bfloat16*, std::size_t, const u32*, const bfloat16*, std::size_t, u32);
template void spread(std::int32_t*, std::size_t, const u32*, const std::int32_t*, std::size_t, u32);
template void spread(std::int64_t*, std::size_t, const u32*, const std::int64_t*, std::size_t, u32);
template void spread(float*, std::size_t, const u64*, const float*, std::size_t, u64);
template void spread(double*, std::size_t, const u64*, const double*, std::size_t, u64);
template void spread(half*, std::size_t, const u64*, const half*, std::size_t, u64);
template void spread(bfloat16*, std::size_t, const u64*, const bfloat16*, std::size_t, u64);
template void spread(std::int32_t*, std::size_t, const u64*, const std::int32_t*, std::size_t, u64);
template void spread(std::int64_t*, std::size_t, const u64*, const std::int64_t*, std::size_t, u64);

}  // namespace sparsewire
