// magnitude_mask.h: which of 64 values have a magnitude in [low, high], as a bit mask.
//
// The only thing in selection that compilers do not vectorise by themselves.  Bit j stands for values[j]; any
// alignment; low <= high.  Both versions return the same mask: one subtraction turns the two comparisons into one,
// as low <= m <= high if and only if m - low <= high - low in unsigned arithmetic.
#pragma once
#include "dispatch.h"
#include "values.h"

#ifdef SPARSEWIRE_X86
#include <immintrin.h>

namespace sparsewire {

constexpr std::size_t mask_width = 64;

// As `high`, it lets every magnitude from `low` on pass.
template <class V>
constexpr Magnitude<V> no_limit = static_cast<Magnitude<V>>(~Magnitude<V>{0});

namespace avx2 {

template <class V>
SPARSEWIRE_AVX2 inline __m256i magnitude(__m256i v) {
  if constexpr (!std::is_integral_v<V>) {
    if constexpr (sizeof(V) == 2) return _mm256_and_si256(v, _mm256_set1_epi16(0x7fff));
    if constexpr (sizeof(V) == 4) return _mm256_and_si256(v, _mm256_set1_epi32(0x7fff'ffff));
    if constexpr (sizeof(V) == 8) return _mm256_and_si256(v, _mm256_set1_epi64x(0x7fff'ffff'ffff'ffff));
  } else if constexpr (sizeof(V) == 4) {
    return _mm256_abs_epi32(v);
  } else {
    const __m256i sign = _mm256_cmpgt_epi64(_mm256_setzero_si256(), v);
    return _mm256_sub_epi64(_mm256_xor_si256(v, sign), sign);
  }
}

template <class V>
SPARSEWIRE_AVX2 inline __m256i load_magnitude(const V* values) {
  return avx2::magnitude<V>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values)));
}

template <class V, std::enable_if_t<sizeof(V) == 2, int> = 0>
SPARSEWIRE_AVX2 inline std::uint64_t magnitude_mask(const V* values, std::uint16_t low, std::uint16_t high) {
  const __m256i start = _mm256_set1_epi16(static_cast<short>(low));
  const __m256i span = _mm256_set1_epi16(static_cast<short>(high - low));
  std::uint64_t mask = 0;
  for (int j = 0; j < 64; j += 32) {
    const __m256i a = _mm256_sub_epi16(load_magnitude(values + j), start);
    const __m256i b = _mm256_sub_epi16(load_magnitude(values + j + 16), start);
    const __m256i in_a = _mm256_cmpeq_epi16(_mm256_min_epu16(a, span), a);
    const __m256i in_b = _mm256_cmpeq_epi16(_mm256_min_epu16(b, span), b);
    // Packing works within 128-bit lanes: the permutation restores the order.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(in_a, in_b), 0b11011000);
    mask |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(packed))) << j;
  }
  return mask;
}

template <class V, std::enable_if_t<sizeof(V) == 4, int> = 0>
SPARSEWIRE_AVX2 inline std::uint64_t magnitude_mask(const V* values, std::uint32_t low, std::uint32_t high) {
  const __m256i start = _mm256_set1_epi32(static_cast<int>(low));
  const __m256i span = _mm256_set1_epi32(static_cast<int>(high - low));
  std::uint64_t mask = 0;
  for (int j = 0; j < 64; j += 8) {
    const __m256i m = _mm256_sub_epi32(load_magnitude(values + j), start);
    const __m256i in = _mm256_cmpeq_epi32(_mm256_min_epu32(m, span), m);
    mask |= static_cast<std::uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(in))) << j;
  }
  return mask;
}

template <class V, std::enable_if_t<sizeof(V) == 8, int> = 0>
SPARSEWIRE_AVX2 inline std::uint64_t magnitude_mask(const V* values, std::uint64_t low, std::uint64_t high) {
  // AVX2 compares 64-bit numbers as signed only: flipping the top bit maps the unsigned order onto that.
  const __m256i top = _mm256_set1_epi64x(INT64_MIN);
  const __m256i start = _mm256_set1_epi64x(static_cast<long long>(low));
  const __m256i span = _mm256_xor_si256(_mm256_set1_epi64x(static_cast<long long>(high - low)), top);
  std::uint64_t outside = 0;
  for (int j = 0; j < 64; j += 4) {
    const __m256i m = _mm256_xor_si256(_mm256_sub_epi64(load_magnitude(values + j), start), top);
    const __m256i out = _mm256_cmpgt_epi64(m, span);
    outside |= static_cast<std::uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(out))) << j;
  }
  return ~outside;
}

}  // namespace avx2

struct Avx2Mask {
  template <class V>
  SPARSEWIRE_AVX2 static std::uint64_t of(const V* values, Magnitude<V> low, Magnitude<V> high) {
    return avx2::magnitude_mask(values, low, high);
  }
};

namespace avx512 {

template <class V>
SPARSEWIRE_AVX512 inline __m512i load_magnitude(const V* values) {
  const __m512i v = _mm512_loadu_si512(values);
  if constexpr (!std::is_integral_v<V>) {
    if constexpr (sizeof(V) == 2) return _mm512_and_si512(v, _mm512_set1_epi16(0x7fff));
    if constexpr (sizeof(V) == 4) return _mm512_and_si512(v, _mm512_set1_epi32(0x7fff'ffff));
    if constexpr (sizeof(V) == 8) return _mm512_and_si512(v, _mm512_set1_epi64(0x7fff'ffff'ffff'ffff));
  } else {
    // The zero-masked forms, because GCC 12 warns about its own header for the plain ones.
    return sizeof(V) == 4 ? _mm512_maskz_abs_epi32(0xffff, v) : _mm512_maskz_abs_epi64(0xff, v);
  }
}

template <class V, std::enable_if_t<sizeof(V) == 2, int> = 0>
SPARSEWIRE_AVX512 inline std::uint64_t magnitude_mask(const V* values, std::uint16_t low, std::uint16_t high) {
  const __m512i start = _mm512_set1_epi16(static_cast<short>(low));
  const __m512i span = _mm512_set1_epi16(static_cast<short>(high - low));
  const std::uint64_t a = _mm512_cmple_epu16_mask(_mm512_sub_epi16(load_magnitude(values), start), span);
  const std::uint64_t b = _mm512_cmple_epu16_mask(_mm512_sub_epi16(load_magnitude(values + 32), start), span);
  return a | b << 32;
}

template <class V, std::enable_if_t<sizeof(V) == 4, int> = 0>
SPARSEWIRE_AVX512 inline std::uint64_t magnitude_mask(const V* values, std::uint32_t low, std::uint32_t high) {
  const __m512i start = _mm512_set1_epi32(static_cast<int>(low));
  const __m512i span = _mm512_set1_epi32(static_cast<int>(high - low));
  std::uint64_t mask = 0;
  for (int j = 0; j < 64; j += 16) {
    const __m512i m = _mm512_sub_epi32(load_magnitude(values + j), start);
    mask |= static_cast<std::uint64_t>(_mm512_cmple_epu32_mask(m, span)) << j;
  }
  return mask;
}

template <class V, std::enable_if_t<sizeof(V) == 8, int> = 0>
SPARSEWIRE_AVX512 inline std::uint64_t magnitude_mask(const V* values, std::uint64_t low, std::uint64_t high) {
  const __m512i start = _mm512_set1_epi64(static_cast<long long>(low));
  const __m512i span = _mm512_set1_epi64(static_cast<long long>(high - low));
  std::uint64_t mask = 0;
  for (int j = 0; j < 64; j += 8) {
    const __m512i m = _mm512_sub_epi64(load_magnitude(values + j), start);
    mask |= static_cast<std::uint64_t>(_mm512_cmple_epu64_mask(m, span)) << j;
  }
  return mask;
}

}  // namespace avx512

struct Avx512Mask {
  template <class V>
  SPARSEWIRE_AVX512 static std::uint64_t of(const V* values, Magnitude<V> low, Magnitude<V> high) {
    return avx512::magnitude_mask(values, low, high);
  }
};
}  // namespace sparsewire
#endif
