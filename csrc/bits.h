// bits.h: positions as bits of words, and back.  Bit b of an array of words is bit b % 64 of word b / 64.
//
// This is where index coding spends its time.  AVX2 makes each direction five times faster; AVX-512, with twice the
// lanes and an instruction that lists bits, was measured to be no faster still (Zen 4).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dispatch.h"

#ifdef SPARSEWIRE_X86
#include <immintrin.h>
#endif

namespace sparsewire {

constexpr std::size_t words_for(std::uint64_t bits) { return bits / 64 + (bits % 64 != 0); }

inline void set_bit(std::uint64_t* words, std::uint64_t bit) { words[bit / 64] |= std::uint64_t{1} << bit % 64; }

// Whether no bit behind the first `bits` bits of words_for(bits) words is set.
inline bool spare_bits_are_zero(const std::uint64_t* words, std::uint64_t bits) {
  return bits % 64 == 0 || words[bits / 64] >> bits % 64 == 0;
}

// ---- from words to positions.  Ones::list writes base + b for each bit b of the word that is set, in order, and may
// write anything behind them up to out[reach].

struct ScalarOnes {
  static constexpr std::size_t reach = 0;

  template <class I>
  static void list(std::uint64_t word, I base, I* out) {
    for (; word != 0; word &= word - 1) *out++ = base + static_cast<I>(__builtin_ctzll(word));
  }
};

#ifdef SPARSEWIRE_X86

struct OnesOfBytes {
  std::uint8_t positions[256][8] = {};

  constexpr OnesOfBytes() {
    for (int byte = 0; byte < 256; ++byte)
      for (int bit = 0, ones = 0; bit < 8; ++bit)
        if (byte >> bit & 1) positions[byte][ones++] = static_cast<std::uint8_t>(bit);
  }
};
inline constexpr OnesOfBytes ones_of_bytes;

struct Avx2Ones {
  static constexpr std::size_t reach = 64;

  SPARSEWIRE_AVX2 static void list(std::uint64_t word, std::uint32_t base, std::uint32_t* out) {
    for (int byte = 0; byte < 8; ++byte, word >>= 8, base += 8) {
      const auto* row = reinterpret_cast<const __m128i*>(ones_of_bytes.positions[word & 0xff]);
      const __m256i positions = _mm256_cvtepu8_epi32(_mm_loadl_epi64(row));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                          _mm256_add_epi32(positions, _mm256_set1_epi32(static_cast<int>(base))));
      out += __builtin_popcountll(word & 0xff);
    }
  }
};

#endif

// Room for so many indices, and nothing beyond.
template <class I>
struct Listing {
  I* out;
  std::size_t room;
  std::size_t count = 0;

  // Appends base + b for each bit b of the word.  False, and nothing is written, if they do not fit.
  template <class Ones>
  [[gnu::always_inline]] bool append(std::uint64_t word, I base) {
    const std::size_t ones = __builtin_popcountll(word), left = room - count;
    if (ones > left) return false;
    if (left >= Ones::reach)
      Ones::list(word, base, out + count);
    else
      ScalarOnes::list(word, base, out + count);
    count += ones;
    return true;
  }

  // The bits of all words, the first of which stands for `base`.  True if there are exactly as many as there is room.
  template <class Ones>
  [[gnu::always_inline]] bool fill(const std::uint64_t* words, std::size_t size, I base) {
    for (std::size_t w = 0; w < size; ++w, base += 64)
      if (!append<Ones>(words[w], base)) return false;
    return count == room;
  }
};

// ---- from positions to words

// A position for each index: the j-th has (r >> low) + j * step, where r = index - start.  They are increasing.
template <class I>
struct Positions {
  const I* indices;
  std::size_t count;
  I start;
  unsigned low;
  unsigned step;  // 0 or 1

  std::uint64_t upper(std::size_t j) const { return static_cast<std::uint64_t>(indices[j] - start) >> low; }
  std::uint64_t operator[](std::size_t j) const { return upper(j) + j * step; }
};

template <class I>
void set_bits(const Positions<I>& positions, std::size_t begin, std::uint64_t* words) {
  for (std::size_t j = begin; j < positions.count; ++j) set_bit(words, positions[j]);
}

#ifdef SPARSEWIRE_X86

// A word with bit positions[i] - positions[j] set for the eight i from j on; it must be below 64.  Made of two halves:
// a shift of a 32-bit lane by a number not in [0, 32) gives zero, so that each bit shows up in one of them.
SPARSEWIRE_AVX2 inline std::uint64_t eight_bits(const Positions<std::uint32_t>& positions, std::size_t j) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), one = _mm256_set1_epi32(1);
  const __m256i steps = _mm256_and_si256(lanes, _mm256_set1_epi32(-static_cast<int>(positions.step)));
  const __m256i start = _mm256_set1_epi32(static_cast<int>(positions.start));
  const __m256i first = _mm256_set1_epi32(static_cast<int>(positions.upper(j)));
  const __m256i indices = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions.indices + j));
  const __m256i upper =
      _mm256_srl_epi32(_mm256_sub_epi32(indices, start), _mm_cvtsi32_si128(static_cast<int>(positions.low)));
  const __m256i bits = _mm256_add_epi32(_mm256_sub_epi32(upper, first), steps);
  const __m256i low = _mm256_sllv_epi32(one, bits);
  const __m256i high = _mm256_sllv_epi32(one, _mm256_sub_epi32(bits, _mm256_set1_epi32(32)));
  const __m256i four = _mm256_or_si256(_mm256_unpacklo_epi32(low, high), _mm256_unpackhi_epi32(low, high));
  const __m128i two = _mm_or_si128(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_or_si128(two, _mm_unpackhi_epi64(two, two))));
}

// Sets the bits at all positions, none of which is beyond the words.  Sixteen at a time where these are close together,
// because the next group has to wait until this one's word is back in memory.
SPARSEWIRE_AVX2 inline void set_bits_in_groups(const Positions<std::uint32_t>& positions, std::uint64_t* words,
                                               std::size_t size) {
  constexpr std::size_t group = 16;
  std::size_t j = 0;
  for (; positions.count - j >= group; j += group) {
    const std::uint64_t first = positions[j];
    if (positions[j + group - 1] - first < 64) {
      const std::uint64_t word = eight_bits(positions, j) | eight_bits(positions, j + 8) << (positions[j + 8] - first);
      words[first / 64] |= word << first % 64;
      // The rest goes to the next word.  Behind the last one there is none, and no rest.
      words[std::min<std::size_t>(first / 64 + 1, size - 1)] |= word >> 1 >> (63 - first % 64);
    } else {
      for (std::size_t i = j; i < j + group; ++i) set_bit(words, positions[i]);
    }
  }
  set_bits(positions, j, words);
}

#endif

}  // namespace sparsewire
