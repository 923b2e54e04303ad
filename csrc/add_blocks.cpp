#include "add_blocks.h"

#include <algorithm>

#include "accumulate.h"
#include "dispatch.h"
#include "instantiate.h"

#ifdef SPARSEWIRE_X86
#include <immintrin.h>
#endif

namespace sparsewire {
namespace {

// ---- scalar

namespace scalar {

template <class V>
void add(Sum<V>* total, const V* data, std::size_t n) {
  accumulate(total, data, n);
}

}  // namespace scalar

#ifdef SPARSEWIRE_X86

// ---- avx2: the same loop takes up to a third less time.  F16C converts eight halves with one instruction, and takes
// half to three quarters less time.

namespace avx2 {

template <class V>
SPARSEWIRE_AVX2 void add(Sum<V>* total, const V* data, std::size_t n) {
  std::size_t done = 0;
  if constexpr (std::is_same_v<V, half>) {
    for (; n - done >= 8; done += 8) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + done));
      _mm256_storeu_ps(total + done, _mm256_add_ps(_mm256_loadu_ps(total + done), _mm256_cvtph_ps(halves)));
    }
  }
  accumulate(total + done, data + done, n - done);
}

}  // namespace avx2

template <class V>
constexpr Version<decltype(scalar::add<V>)> versions[] = {{Isa::scalar, scalar::add<V>}, {Isa::avx2, avx2::add<V>}};

#else

template <class V>
constexpr Version<decltype(scalar::add<V>)> versions[] = {{Isa::scalar, scalar::add<V>}};

#endif

}  // namespace

template <class V>
void add_blocks(Sum<V>* total, std::size_t n, const std::int64_t* rows, std::size_t count, const V* data,
                std::size_t block) {
  const auto add = pick(versions<V>);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = static_cast<std::size_t>(rows[i]) * block;
    add(total + begin, data + i * block, std::min(block, n - begin));
  }
}

#define SPARSEWIRE_INSTANTIATE(V) \
  template void add_blocks(Sum<V>*, std::size_t, const std::int64_t*, std::size_t, const V*, std::size_t);
SPARSEWIRE_EACH_VALUE_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
