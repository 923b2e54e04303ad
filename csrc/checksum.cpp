#include "checksum.h"

#include <cstring>

#include "dispatch.h"

namespace sparsewire {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as they lie in memory");

constexpr std::size_t lanes = 8, row = lanes * sizeof(std::uint64_t);

struct Sums {
  std::uint64_t a[lanes], b[lanes];
};

// A vector type of the compiler, so that the sums stay in the registers of the target for which this is inlined.  There
// are two halves of 32 bytes: as one type of 64 bytes, or as loops over arrays, GCC 12 keeps them in memory under AVX2,
// which is four times slower.
using HalfRow [[gnu::vector_size(row / 2)]] = std::uint64_t;

struct State {
  HalfRow a0 = {}, a1 = {}, b0 = {}, b1 = {};

  [[gnu::always_inline]] void add(const std::uint8_t* bytes) {
    HalfRow words0, words1;
    std::memcpy(&words0, bytes, sizeof words0);
    std::memcpy(&words1, bytes + sizeof words0, sizeof words1);
    a0 += words0;
    a1 += words1;
    b0 += a0;
    b1 += a1;
  }
};

[[gnu::always_inline]] inline Sums sums_of(const std::uint8_t* data, std::size_t size) {
  State state;
  std::size_t begin = 0;
  for (; size - begin >= row; begin += row) state.add(data + begin);
  if (begin < size) {
    std::uint8_t padded[row] = {};
    std::memcpy(padded, data + begin, size - begin);
    state.add(padded);
  }
  Sums sums;
  std::memcpy(sums.a, &state.a0, row / 2);
  std::memcpy(sums.a + lanes / 2, &state.a1, row / 2);
  std::memcpy(sums.b, &state.b0, row / 2);
  std::memcpy(sums.b + lanes / 2, &state.b1, row / 2);
  return sums;
}

namespace scalar {
Sums sums(const std::uint8_t* data, std::size_t size) { return sums_of(data, size); }
}  // namespace scalar

#ifdef SPARSEWIRE_X86

// ---- avx2, avx512: the same loop in wider registers

namespace avx2 {
SPARSEWIRE_AVX2 Sums sums(const std::uint8_t* data, std::size_t size) { return sums_of(data, size); }
}  // namespace avx2

namespace avx512 {
SPARSEWIRE_AVX512 Sums sums(const std::uint8_t* data, std::size_t size) { return sums_of(data, size); }
}  // namespace avx512

constexpr Version<decltype(scalar::sums)> versions[] = {
    {Isa::scalar, scalar::sums}, {Isa::avx2, avx2::sums}, {Isa::avx512, avx512::sums}};

#else

constexpr Version<decltype(scalar::sums)> versions[] = {{Isa::scalar, scalar::sums}};

#endif

// The odd constant is 2^64 / golden ratio; the shift lets high bits reach the low ones.
std::uint64_t folded(std::uint64_t number, const std::uint64_t (&sums)[lanes]) {
  for (const std::uint64_t sum : sums) {
    number = (number ^ sum) * 0x9e37'79b9'7f4a'7c15;
    number ^= number >> 32;
  }
  return number;
}

}  // namespace

std::uint64_t checksum(const std::uint8_t* data, std::size_t size, std::uint64_t seed) {
  const Sums sums = pick(versions)(data, size);
  return folded(folded(seed ^ size, sums.a), sums.b);
}

}  // namespace sparsewire
