#include "block_norms.h"

#include <algorithm>
#include <cmath>

#include "accumulate.h"
#include "dispatch.h"
#include "instantiate.h"
#include "sum_of_squares.h"

namespace sparsewire {
namespace {

// A block is processed in parts that stay in the first-level cache; on_part(begin, size) may write to a part first.
constexpr std::size_t part = 1024;
static_assert(part % SumOfSquares::lanes == 0);

template <class V, class OnPart>
[[gnu::always_inline]] inline void norms_of_parts(const V* x, std::size_t n, std::size_t block, double* norms,
                                                  OnPart on_part) {
  for (std::size_t begin = 0; begin < n;) {
    const std::size_t end = begin + std::min(block, n - begin);
    SumOfSquares sum;
    while (begin < end) {
      const std::size_t size = std::min(part, end - begin);
      on_part(begin, size);
      sum.add(x + begin, size, [](V value) { return widen(value); });
      begin += size;
    }
    *norms++ = std::sqrt(sum.total());
  }
}

template <class V>
[[gnu::always_inline]] inline void norms_of_sum(V* residual, const V* gradient, std::size_t n, std::size_t block,
                                                double* norms) {
  norms_of_parts(residual, n, block, norms, [&](std::size_t begin, std::size_t size) {
    accumulate(residual + begin, gradient + begin, size);
  });
}

// ---- scalar

namespace scalar {

template <class V>
void accumulate_block_norms(V* residual, const V* gradient, std::size_t n, std::size_t block, double* norms) {
  norms_of_sum(residual, gradient, n, block, norms);
}

}  // namespace scalar

#ifdef SPARSEWIRE_X86

// ---- avx2: the addition takes up to a third less time.  The squares gain nothing, because in each lane a sum waits
// for the sum before it.

namespace avx2 {

template <class V>
SPARSEWIRE_AVX2 void accumulate_block_norms(V* residual, const V* gradient, std::size_t n, std::size_t block,
                                            double* norms) {
  norms_of_sum(residual, gradient, n, block, norms);
}

}  // namespace avx2

template <class V>
constexpr Version<decltype(accumulate_block_norms<V>)> versions[] = {{Isa::scalar, scalar::accumulate_block_norms<V>},
                                                                     {Isa::avx2, avx2::accumulate_block_norms<V>}};

#else

template <class V>
constexpr Version<decltype(accumulate_block_norms<V>)> versions[] = {{Isa::scalar, scalar::accumulate_block_norms<V>}};

#endif

}  // namespace

template <class V>
void block_norms(const V* x, std::size_t n, std::size_t block, double* norms) {
  norms_of_parts(x, n, block, norms, [](std::size_t, std::size_t) {});
}

template <class V>
void accumulate_block_norms(V* residual, const V* gradient, std::size_t n, std::size_t block, double* norms) {
  pick(versions<V>)(residual, gradient, n, block, norms);
}

#define SPARSEWIRE_INSTANTIATE(V) \
  template void block_norms(const V*, std::size_t, std::size_t, double*); \
  template void accumulate_block_norms(V*, const V*, std::size_t, std::size_t, double*);
SPARSEWIRE_EACH_VALUE_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
