#include "checksum.h"

#include <array>
#include <cstring>

#include "dispatch.h"

#ifdef SPARSEWIRE_X86
#include <immintrin.h>
#endif

namespace sparsewire {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as they lie in memory");

// The bytes are the coefficients of a polynomial over GF(2), and the CRC is its remainder.  The first bit of the data
// has the highest power: bit i of a word stands for x^(63 - i).
constexpr std::uint64_t polynomial = 0x9a6c'9329'ac4b'c9b5;

constexpr std::uint64_t times_x(std::uint64_t word) { return word >> 1 ^ (word & 1 ? polynomial : 0); }

// ---- scalar: eight bytes at a time, by eight tables

using Tables = std::array<std::array<std::uint64_t, 256>, 8>;

// tables[t][b]: the remainder of byte b with t bytes behind it.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint64_t byte = 0; byte < 256; ++byte) {
    std::uint64_t word = byte;
    for (int bit = 0; bit < 8; ++bit) word = times_x(word);
    tables[0][byte] = word;
  }
  for (std::size_t t = 1; t < 8; ++t)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint64_t word = tables[t - 1][byte];
      tables[t][byte] = word >> 8 ^ tables[0][word & 255];
    }
  return tables;
}

constexpr Tables tables = make_tables();

std::uint64_t word_at(const std::uint8_t* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

std::uint64_t after_word(std::uint64_t word) {
  std::uint64_t remainder = 0;
  for (int t = 0; t < 8; ++t) remainder ^= tables[7 - t][word >> 8 * t & 255];
  return remainder;
}

namespace scalar {
std::uint64_t remainder(const std::uint8_t* data, std::size_t size, std::uint64_t before) {
  for (; size >= 8; data += 8, size -= 8) before = after_word(before ^ word_at(data));
  for (; size > 0; ++data, --size) before = before >> 8 ^ tables[0][(before ^ *data) & 255];
  return before;
}
}  // namespace scalar

#ifdef SPARSEWIRE_X86

// ---- avx2: 128 bytes at a time, by products without carries
//
// A register of 128 bits is a polynomial too: its low word times x^64, plus its high word.  A product of two words is
// their product times x, because it has 127 bits.  To put `distance` bits behind a register is to multiply its words by
// x^(distance + 64) and x^distance, whose remainders have 64 bits, so the result is again 128 bits.

constexpr std::uint64_t power_of_x(int exponent) {
  std::uint64_t word = std::uint64_t{1} << 63;
  for (; exponent > 0; --exponent) word = times_x(word);
  return word;
}

template <int distance>
constexpr std::uint64_t low_factor = power_of_x(distance + 64 - 1);
template <int distance>
constexpr std::uint64_t high_factor = power_of_x(distance - 1);

namespace avx2 {

template <int distance>
SPARSEWIRE_AVX2 inline __m128i folded(__m128i register_, __m128i next) {
  const __m128i factors = _mm_set_epi64x(static_cast<long long>(high_factor<distance>),
                                         static_cast<long long>(low_factor<distance>));
  const __m128i low = _mm_clmulepi64_si128(register_, factors, 0x00);
  const __m128i high = _mm_clmulepi64_si128(register_, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

SPARSEWIRE_AVX2 inline __m128i loaded(const std::uint8_t* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

SPARSEWIRE_AVX2 std::uint64_t remainder(const std::uint8_t* data, std::size_t size, std::uint64_t before) {
  constexpr std::size_t lanes = 8, row = lanes * sizeof(__m128i);
  if (size < 2 * sizeof(__m128i)) return scalar::remainder(data, size, before);
  __m128i total = _mm_xor_si128(loaded(data), _mm_set_epi64x(0, static_cast<long long>(before)));
  if (size >= 2 * row) {
    // Each lane has every eighth register, and waits for no other one.
    __m128i lane[lanes];
    lane[0] = total;
    for (std::size_t i = 1; i < lanes; ++i) lane[i] = loaded(data + 16 * i);
    for (data += row, size -= row; size >= row; data += row, size -= row)
      for (std::size_t i = 0; i < lanes; ++i) lane[i] = folded<8 * row>(lane[i], loaded(data + 16 * i));
    total = lane[0];
    for (std::size_t i = 1; i < lanes; ++i) total = folded<128>(total, lane[i]);
  } else {
    data += 16;
    size -= 16;
  }
  for (; size >= 16; data += 16, size -= 16) total = folded<128>(total, loaded(data));
  std::uint8_t last[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(last), total);
  return scalar::remainder(data, size, scalar::remainder(last, sizeof last, 0));
}

}  // namespace avx2

// ---- avx512: 256 bytes at a time, by four products in one instruction, where the processor has it

namespace avx512 {

SPARSEWIRE_AVX512_PRODUCTS inline __m512i loaded(const std::uint8_t* data) { return _mm512_loadu_si512(data); }

template <int distance>
SPARSEWIRE_AVX512_PRODUCTS inline __m512i folded(__m512i registers, __m512i next) {
  constexpr auto even = static_cast<long long>(low_factor<distance>), odd = static_cast<long long>(high_factor<distance>);
  const __m512i factors = _mm512_set_epi64(odd, even, odd, even, odd, even, odd, even);
  const __m512i low = _mm512_clmulepi64_epi128(registers, factors, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(registers, factors, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // the sum of all three
}

SPARSEWIRE_AVX512_PRODUCTS std::uint64_t wide(const std::uint8_t* data, std::size_t size, std::uint64_t before) {
  constexpr std::size_t lanes = 4, row = lanes * sizeof(__m512i);
  if (size < 2 * row) return avx2::remainder(data, size, before);
  __m512i lane[lanes];
  for (std::size_t i = 0; i < lanes; ++i) lane[i] = loaded(data + 64 * i);
  lane[0] = _mm512_xor_si512(lane[0], _mm512_maskz_set1_epi64(1, static_cast<long long>(before)));
  for (data += row, size -= row; size >= row; data += row, size -= row)
    for (std::size_t i = 0; i < lanes; ++i) lane[i] = folded<8 * row>(lane[i], loaded(data + 64 * i));
  __m512i total = lane[0];
  for (std::size_t i = 1; i < lanes; ++i) total = folded<512>(total, lane[i]);
  std::uint8_t last[64];
  _mm512_storeu_si512(last, total);
  return avx2::remainder(data, size, avx2::remainder(last, sizeof last, 0));
}

std::uint64_t remainder(const std::uint8_t* data, std::size_t size, std::uint64_t before) {
  static const bool has_wide = __builtin_cpu_supports("vpclmulqdq");
  return (has_wide ? wide : avx2::remainder)(data, size, before);
}

}  // namespace avx512

constexpr Version<decltype(scalar::remainder)> versions[] = {
    {Isa::scalar, scalar::remainder}, {Isa::avx2, avx2::remainder}, {Isa::avx512, avx512::remainder}};

#else

constexpr Version<decltype(scalar::remainder)> versions[] = {{Isa::scalar, scalar::remainder}};

#endif

}  // namespace

// Inverted before and after, so that zeros at the beginning count.
std::uint64_t checksum(const std::uint8_t* data, std::size_t size, std::uint64_t seed) {
  return ~pick(versions)(data, size, ~seed);
}

}  // namespace sparsewire
