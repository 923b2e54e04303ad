#include "narrow.h"

#include "dispatch.h"

#ifdef SPARSEWIRE_X86
#include <immintrin.h>
#endif

namespace sparsewire {
namespace {

// ---- scalar: the conversions of values.h, one by one.  They are vectorised for
// the target of the function into which they are inlined.

template <class V>
[[gnu::always_inline]] inline void narrow_each(const float* values, std::size_t n, V* out) {
  for (std::size_t j = 0; j < n; ++j) out[j] = narrow<V>(values[j]);
}

template <class V>
[[gnu::always_inline]] inline void widen_each(const V* values, std::size_t n, float* out) {
  for (std::size_t j = 0; j < n; ++j) out[j] = widen(values[j]);
}

namespace scalar {

template <class V>
void narrow(const float* values, std::size_t n, V* out) {
  narrow_each(values, n, out);
}

template <class V>
void widen(const V* values, std::size_t n, float* out) {
  widen_each(values, n, out);
}

}  // namespace scalar

#ifdef SPARSEWIRE_X86

// ---- avx2: F16C converts eight halves with one instruction

namespace avx2 {

template <class V>
SPARSEWIRE_AVX2 void narrow(const float* values, std::size_t n, V* out) {
  std::size_t done = 0;
  if constexpr (std::is_same_v<V, half>) {
    for (; n - done >= 8; done += 8) {
      const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(values + done), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + done), halves);
    }
  }
  narrow_each(values + done, n - done, out + done);
}

template <class V>
SPARSEWIRE_AVX2 void widen(const V* values, std::size_t n, float* out) {
  std::size_t done = 0;
  if constexpr (std::is_same_v<V, half>) {
    for (; n - done >= 8; done += 8) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + done));
      _mm256_storeu_ps(out + done, _mm256_cvtph_ps(halves));
    }
  }
  widen_each(values + done, n - done, out + done);
}

}  // namespace avx2

template <class V>
constexpr Version<decltype(scalar::narrow<V>)> narrow_versions[] = {
    {Isa::scalar, scalar::narrow<V>}, {Isa::avx2, avx2::narrow<V>}};
template <class V>
constexpr Version<decltype(scalar::widen<V>)> widen_versions[] = {
    {Isa::scalar, scalar::widen<V>}, {Isa::avx2, avx2::widen<V>}};

#else

template <class V>
constexpr Version<decltype(scalar::narrow<V>)> narrow_versions[] = {{Isa::scalar, scalar::narrow<V>}};
template <class V>
constexpr Version<decltype(scalar::widen<V>)> widen_versions[] = {{Isa::scalar, scalar::widen<V>}};

#endif

}  // namespace

template <class V>
void narrow(const float* values, std::size_t n, V* out) {
  pick(narrow_versions<V>)(values, n, out);
}

template <class V>
void widen(const V* values, std::size_t n, float* out) {
  pick(widen_versions<V>)(values, n, out);
}

template void narrow(const float*, std::size_t, half*);
template void narrow(const float*, std::size_t, bfloat16*);
template void widen(const half*, std::size_t, float*);
template void widen(const bfloat16*, std::size_t, float*);

}  // namespace sparsewire
