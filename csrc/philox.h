// philox.h: a random word for each position, whatever was drawn before.
//
// Philox2x32-10 scrambles a 64-bit counter under a 32-bit key, by ten rounds of one multiplication.  As nothing depends
// on an earlier draw, words are made in any order, and many at once.
// Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3.  SC'11.
#pragma once
#include <cstddef>
#include <cstdint>

#include "dispatch.h"

#ifdef SPARSEWIRE_X86
#include <immintrin.h>
#endif

namespace sparsewire {

constexpr int philox_rounds = 10;
constexpr std::uint32_t philox_multiplier = 0xd256'd193;
constexpr std::uint32_t philox_key_step = 0x9e37'79b9;  // 2^32 / golden ratio

// The first of the two output words.
[[gnu::always_inline]] inline std::uint32_t philox(std::uint64_t counter, std::uint32_t key) {
  auto low = static_cast<std::uint32_t>(counter), high = static_cast<std::uint32_t>(counter >> 32);
  for (int round = 0; round < philox_rounds; ++round, key += philox_key_step) {
    const std::uint64_t product = std::uint64_t{philox_multiplier} * low;
    low = static_cast<std::uint32_t>(product >> 32) ^ key ^ high;
    high = static_cast<std::uint32_t>(product);
  }
  return low;
}

// The counters of a dense range, where an array of positions would hold first, first + 1, ...
struct Consecutive {
  std::uint64_t first;

  std::uint64_t operator[](std::size_t j) const { return first + j; }
  Consecutive operator+(std::size_t j) const { return {first + j}; }
};

// Writes words[j] = philox(positions[j], key) for n positions: Consecutive, or an array of uint32 or uint64.
struct ScalarWords {
  template <class Positions>
  static void fill(std::uint32_t* words, Positions positions, std::size_t n, std::uint32_t key) {
    for (std::size_t j = 0; j < n; ++j) words[j] = philox(positions[j], key);
  }
};

#ifdef SPARSEWIRE_X86

// A counter per 64-bit lane.  Only the lower half of a lane matters, to the multiplication and to the result: so no
// half has to be masked out of a product, and a round is four instructions.  Each waits for the one before; four
// vectors in turns fill that time, and take a third less of it.

constexpr int in_turns = 4;

namespace avx2 {

SPARSEWIRE_AVX2 inline __m256i counters(const std::uint32_t* positions) {
  return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(positions)));
}
SPARSEWIRE_AVX2 inline __m256i counters(const std::uint64_t* positions) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions));
}
SPARSEWIRE_AVX2 inline __m256i counters(Consecutive positions) {
  const __m256i first = _mm256_set1_epi64x(static_cast<long long>(positions.first));
  return _mm256_add_epi64(first, _mm256_setr_epi64x(0, 1, 2, 3));
}

// In: counters.  Out: words, in the lower halves.
SPARSEWIRE_AVX2 inline void philox(__m256i (&low)[in_turns], std::uint32_t key) {
  const __m256i multiplier = _mm256_set1_epi64x(philox_multiplier);
  __m256i high[in_turns];
  for (int v = 0; v < in_turns; ++v) high[v] = _mm256_srli_epi64(low[v], 32);
  for (int round = 0; round < philox_rounds; ++round, key += philox_key_step) {
    for (int v = 0; v < in_turns; ++v) {
      const __m256i product = _mm256_mul_epu32(low[v], multiplier);
      const __m256i keyed = _mm256_xor_si256(high[v], _mm256_set1_epi64x(key));
      low[v] = _mm256_xor_si256(_mm256_srli_epi64(product, 32), keyed);
      high[v] = product;
    }
  }
}

// The lower halves of the lanes of a, then of b.
SPARSEWIRE_AVX2 inline __m256i lower_halves(__m256i a, __m256i b) {
  const __m256 mixed = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0b10001000);
  // The shuffle works within 128 bits: the permutation restores the order.
  return _mm256_permute4x64_epi64(_mm256_castps_si256(mixed), 0b11011000);
}

}  // namespace avx2

struct Avx2Words {
  template <class Positions>
  SPARSEWIRE_AVX2 static void fill(std::uint32_t* words, Positions positions, std::size_t n, std::uint32_t key) {
    std::size_t j = 0;
    for (; n - j >= 4 * in_turns; j += 4 * in_turns) {
      __m256i lanes[in_turns];
      for (int v = 0; v < in_turns; ++v) lanes[v] = avx2::counters(positions + (j + 4 * v));
      avx2::philox(lanes, key);
      for (int v = 0; v < in_turns; v += 2)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + j + 4 * v), avx2::lower_halves(lanes[v], lanes[v + 1]));
    }
    ScalarWords::fill(words + j, positions + j, n - j, key);
  }
};

// The zero-masked forms, because GCC 12 warns about its own header for the plain ones.
namespace avx512 {

SPARSEWIRE_AVX512 inline __m512i counters(const std::uint32_t* positions) {
  return _mm512_maskz_cvtepu32_epi64(0xff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions)));
}
SPARSEWIRE_AVX512 inline __m512i counters(const std::uint64_t* positions) { return _mm512_loadu_si512(positions); }
SPARSEWIRE_AVX512 inline __m512i counters(Consecutive positions) {
  const __m512i first = _mm512_set1_epi64(static_cast<long long>(positions.first));
  return _mm512_add_epi64(first, _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
}

SPARSEWIRE_AVX512 inline void philox(__m512i (&low)[in_turns], std::uint32_t key) {
  constexpr int xor_of_three = 0x96;
  const __m512i multiplier = _mm512_set1_epi64(philox_multiplier);
  __m512i high[in_turns];
  for (int v = 0; v < in_turns; ++v) high[v] = _mm512_maskz_srli_epi64(0xff, low[v], 32);
  for (int round = 0; round < philox_rounds; ++round, key += philox_key_step) {
    for (int v = 0; v < in_turns; ++v) {
      const __m512i product = _mm512_maskz_mul_epu32(0xff, low[v], multiplier);
      const __m512i upper = _mm512_maskz_srli_epi64(0xff, product, 32);
      low[v] = _mm512_ternarylogic_epi64(upper, _mm512_set1_epi64(key), high[v], xor_of_three);
      high[v] = product;
    }
  }
}

}  // namespace avx512

struct Avx512Words {
  template <class Positions>
  SPARSEWIRE_AVX512 static void fill(std::uint32_t* words, Positions positions, std::size_t n, std::uint32_t key) {
    std::size_t j = 0;
    for (; n - j >= 8 * in_turns; j += 8 * in_turns) {
      __m512i lanes[in_turns];
      for (int v = 0; v < in_turns; ++v) lanes[v] = avx512::counters(positions + (j + 8 * v));
      avx512::philox(lanes, key);
      for (int v = 0; v < in_turns; ++v)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + j + 8 * v), _mm512_maskz_cvtepi64_epi32(0xff, lanes[v]));
    }
    ScalarWords::fill(words + j, positions + j, n - j, key);
  }
};

#endif

}  // namespace sparsewire
