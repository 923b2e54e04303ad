#include "add_blocks.h"

#include <algorithm>

#include "accumulate.h"
#include "dispatch.h"

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

// ---- avx2: the same loop takes up to a third less time; F16C converts eight halves by one instruction, which takes a
// half to three quarters less

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

using i64 = std::int64_t;
template void add_blocks(float*, std::size_t, const i64*, std::size_t, const float*, std::size_t);
template void add_blocks(double*, std::size_t, const i64*, std::size_t, const double*, std::size_t);
template void add_blocks(float*, std::size_t, const i64*, std::size_t, const half*, std::size_t);
template void add_blocks(float*, std::size_t, const i64*, std::size_t, const bfloat16*, std::size_t);
template void add_blocks(std::int32_t*, std::size_t, const i64*, std::size_t, const std::int32_t*, std::size_t);
template void add_blocks(i64*, std::size_t, const i64*, std::size_t, const i64*, std::size_t);

}  // namespace sparsewire
