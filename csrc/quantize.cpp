#include "quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dispatch.h"
#include "sum_of_squares.h"
#include "values.h"

namespace sparsewire {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "codes are packed by shifting words of them");

// Values are done in blocks that stay in the cache: random words, then codes of a byte each, then packed bytes.
// `Words` makes the words with the instructions of one ISA; the other loops are inlined into a function with that
// target, for which they are then vectorised.
constexpr std::size_t block = 1024;
constexpr std::uint32_t one_half = 0x8000'0000;  // as a random word

// ---- norms

// Of a value that is not finite: zero.  Signed, because compilers do not vectorise the unsigned comparisons here.
[[gnu::always_inline]] inline std::int32_t finite_magnitude(float value) {
  const auto bits = static_cast<std::int32_t>(magnitude(value));
  return bits < static_cast<std::int32_t>(infinity<float>) ? bits : 0;
}

[[gnu::always_inline]] inline float max_norm(const float* values, std::size_t n) {
  std::int32_t largest = 0;
  for (std::size_t j = 0; j < n; ++j) largest = std::max(largest, finite_magnitude(values[j]));
  return bits_as<float>(largest);
}

// Not below the largest magnitude: that is so before rounding, and rounding keeps the order.
[[gnu::always_inline]] inline float two_norm(const float* values, std::size_t n) {
  SumOfSquares sum;
  sum.add(values, n, [](float value) { return bits_as<float>(finite_magnitude(value)); });
  return static_cast<float>(std::min<double>(std::sqrt(sum.total()), std::numeric_limits<float>::max()));
}

// ---- values to codes and back, a byte each

constexpr int spare_code(int bits) { return 1 << (bits - 1); }  // as a level: the number that has no opposite
constexpr int largest_level(int bits) { return spare_code(bits) - 1; }

// The level is at most s: no magnitude is above the scale, so q is at most s, and there its fraction is zero.
[[gnu::always_inline]] inline void encode(const float* values, const std::uint32_t* words, std::size_t n, float scale,
                                          int bits, std::uint8_t* codes) {
  const float s = static_cast<float>(largest_level(bits));
  const float divisor = scale == 0 ? 1 : scale;  // then all finite values are zero, but 0 / 0 is no number
  for (std::size_t j = 0; j < n; ++j) {
    const float q = bits_as<float>(finite_magnitude(values[j])) / divisor * s;
    const int lower = static_cast<int>(q);
    const float u = static_cast<float>(static_cast<int>(words[j] >> 8)) * 0x1p-24f;
    const int level = lower + (u < q - static_cast<float>(lower));
    const int with_sign = bits_as<std::int32_t>(values[j]) < 0 ? -level : level;
    const int code = magnitude(values[j]) < infinity<float> ? with_sign : spare_code(bits);
    codes[j] = static_cast<std::uint8_t>(code & ((1 << bits) - 1));
  }
}

[[gnu::always_inline]] inline void decode(const std::uint8_t* codes, std::size_t n, float scale, int bits, float* out) {
  const float s = static_cast<float>(largest_level(bits));
  const int spare = spare_code(bits);
  constexpr std::uint32_t quiet_nan = 0x7fc0'0000;
  for (std::size_t j = 0; j < n; ++j) {
    const int level = (codes[j] ^ spare) - spare;  // extends the sign
    const auto value = bits_as<std::uint32_t>(scale * (static_cast<float>(level) / s));
    out[j] = bits_as<float>(value | (codes[j] == spare ? quiet_nan : 0));  // a choice of floats would be a branch
  }
}

// ---- codes to packed bytes and back: what shares a byte comes as one word

template <int bits>
struct CodesOfByte {
  using type = typename UnsignedOf<8 / bits>::type;
};
template <>
struct CodesOfByte<8> {
  using type = std::uint8_t;
};

template <int bits>
[[gnu::always_inline]] inline void pack_each(const std::uint8_t* codes, std::size_t bytes, std::uint8_t* out) {
  using Word = typename CodesOfByte<bits>::type;
  for (std::size_t i = 0; i < bytes; ++i) {
    Word word;
    std::memcpy(&word, codes + i * sizeof word, sizeof word);
    std::uint32_t packed = 0;
    for (std::size_t c = 0; c < sizeof word; ++c) packed |= word >> c * (8 - bits);
    out[i] = static_cast<std::uint8_t>(packed);
  }
}

template <int bits>
[[gnu::always_inline]] inline void unpack_each(const std::uint8_t* packed, std::size_t bytes, std::uint8_t* codes) {
  using Word = typename CodesOfByte<bits>::type;
  constexpr auto code_in_each_byte = static_cast<Word>(0x0101'0101u * ((1u << bits) - 1));
  for (std::size_t i = 0; i < bytes; ++i) {
    std::uint32_t spread = 0;
    for (std::size_t c = 0; c < sizeof(Word); ++c) spread |= std::uint32_t{packed[i]} << c * (8 - bits);
    const auto word = static_cast<Word>(spread & code_in_each_byte);
    std::memcpy(codes + i * sizeof word, &word, sizeof word);
  }
}

[[gnu::always_inline]] inline void pack(const std::uint8_t* codes, std::size_t bytes, int bits, std::uint8_t* out) {
  if (bits == 2) pack_each<2>(codes, bytes, out);
  if (bits == 4) pack_each<4>(codes, bytes, out);
  if (bits == 8) pack_each<8>(codes, bytes, out);
}

[[gnu::always_inline]] inline void unpack(const std::uint8_t* packed, std::size_t bytes, int bits,
                                          std::uint8_t* codes) {
  if (bits == 2) unpack_each<2>(packed, bytes, codes);
  if (bits == 4) unpack_each<4>(packed, bytes, codes);
  if (bits == 8) unpack_each<8>(packed, bytes, codes);
}

// ---- blocks of values, and the pieces of buckets in them

std::size_t packed_bytes(std::size_t n, int bits) { return (n * bits + 7) / 8; }

// Calls on_piece(begin, end) for the parts of [begin, end) that each lie in one bucket.
template <class OnPiece>
[[gnu::always_inline]] inline void for_each_piece(std::size_t begin, std::size_t end, std::size_t bucket,
                                                  OnPiece on_piece) {
  while (begin < end) {
    const std::size_t piece_end = begin + std::min(end - begin, bucket - begin % bucket);
    on_piece(begin, piece_end);
    begin = piece_end;
  }
}

template <class Words, class Positions>
[[gnu::always_inline]] inline void quantize_blocks(const float* values, std::size_t n, Positions positions,
                                                   std::optional<std::uint32_t> key, Format format, Norm norm,
                                                   float* scales, std::uint8_t* packed) {
  const int bits = format.bits;
  const std::size_t bucket = format.bucket;
  std::uint32_t words[block];
  std::uint8_t codes[block];
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t count = std::min(block, n - begin);
    if (key) {
      Words::fill(words, positions + begin, count, *key);
    } else {
      std::fill(words, words + count, one_half);
    }
    for_each_piece(begin, begin + count, bucket, [&](std::size_t from, std::size_t to) {
      float& scale = scales[from / bucket];
      if (from % bucket == 0) {
        const std::size_t size = std::min(bucket, n - from);
        scale = norm == Norm::max ? max_norm(values + from, size) : two_norm(values + from, size);
      }
      encode(values + from, words + (from - begin), to - from, scale, bits, codes + (from - begin));
    });
    std::fill(codes + count, codes + block, std::uint8_t{0});
    pack(codes, packed_bytes(count, bits), bits, packed + packed_bytes(begin, bits));
  }
}

[[gnu::always_inline]] inline void dequantize_blocks(const float* scales, const std::uint8_t* packed, std::size_t n,
                                                     Format format, float* out) {
  const int bits = format.bits;
  const std::size_t bucket = format.bucket;
  std::uint8_t codes[block];
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t count = std::min(block, n - begin);
    unpack(packed + packed_bytes(begin, bits), packed_bytes(count, bits), bits, codes);
    for_each_piece(begin, begin + count, bucket, [&](std::size_t from, std::size_t to) {
      decode(codes + (from - begin), to - from, scales[from / bucket], bits, out + from);
    });
  }
}

namespace scalar {

template <class Positions>
void quantize(const float* values, std::size_t n, Positions positions, std::optional<std::uint32_t> key, Format format,
              Norm norm, float* scales, std::uint8_t* codes) {
  quantize_blocks<ScalarWords>(values, n, positions, key, format, norm, scales, codes);
}

void dequantize(const float* scales, const std::uint8_t* codes, std::size_t n, Format format, float* out) {
  dequantize_blocks(scales, codes, n, format, out);
}

}  // namespace scalar

#ifdef SPARSEWIRE_X86

namespace avx2 {

template <class Positions>
SPARSEWIRE_AVX2 void quantize(const float* values, std::size_t n, Positions positions, std::optional<std::uint32_t> key,
                              Format format, Norm norm, float* scales, std::uint8_t* codes) {
  quantize_blocks<Avx2Words>(values, n, positions, key, format, norm, scales, codes);
}

SPARSEWIRE_AVX2 void dequantize(const float* scales, const std::uint8_t* codes, std::size_t n, Format format,
                                float* out) {
  dequantize_blocks(scales, codes, n, format, out);
}

}  // namespace avx2

namespace avx512 {

template <class Positions>
SPARSEWIRE_AVX512 void quantize(const float* values, std::size_t n, Positions positions,
                                std::optional<std::uint32_t> key, Format format, Norm norm, float* scales,
                                std::uint8_t* codes) {
  quantize_blocks<Avx512Words>(values, n, positions, key, format, norm, scales, codes);
}

SPARSEWIRE_AVX512 void dequantize(const float* scales, const std::uint8_t* codes, std::size_t n, Format format,
                                  float* out) {
  dequantize_blocks(scales, codes, n, format, out);
}

}  // namespace avx512

template <class Positions>
constexpr Version<decltype(scalar::quantize<Positions>)> quantize_versions[] = {
    {Isa::scalar, scalar::quantize<Positions>},
    {Isa::avx2, avx2::quantize<Positions>},
    {Isa::avx512, avx512::quantize<Positions>}};
constexpr Version<decltype(scalar::dequantize)> dequantize_versions[] = {
    {Isa::scalar, scalar::dequantize}, {Isa::avx2, avx2::dequantize}, {Isa::avx512, avx512::dequantize}};

#else

template <class Positions>
constexpr Version<decltype(scalar::quantize<Positions>)> quantize_versions[] = {
    {Isa::scalar, scalar::quantize<Positions>}};
constexpr Version<decltype(scalar::dequantize)> dequantize_versions[] = {{Isa::scalar, scalar::dequantize}};

#endif

}  // namespace

template <class Positions>
void quantize(const float* values, std::size_t n, Positions positions, std::optional<std::uint32_t> key, Format format,
              Norm norm, float* scales, std::uint8_t* codes) {
  pick(quantize_versions<Positions>)(values, n, positions, key, format, norm, scales, codes);
}

void dequantize(const float* scales, const std::uint8_t* codes, std::size_t n, Format format, float* out) {
  pick(dequantize_versions)(scales, codes, n, format, out);
}

template void quantize(const float*, std::size_t, Consecutive, std::optional<std::uint32_t>, Format, Norm, float*,
                       std::uint8_t*);
template void quantize(const float*, std::size_t, const std::uint32_t*, std::optional<std::uint32_t>, Format, Norm,
                       float*, std::uint8_t*);
template void quantize(const float*, std::size_t, const std::uint64_t*, std::optional<std::uint32_t>, Format, Norm,
                       float*, std::uint8_t*);

}  // namespace sparsewire
