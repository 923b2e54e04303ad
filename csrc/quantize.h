// quantize.h: float32 values as numbers of 2, 4 or 8 bits, rounded at random so that the mean is right (QSGD).
// Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, communication-efficient SGD via gradient quantization and encoding,
// section 3.1.  NeurIPS 2017.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "philox.h"

namespace sparsewire {

enum class Norm { max, two };

// bits is 2, 4 or 8, and a level a whole number from -s to s, where s = 2^(bits-1) - 1.  Every `bucket` consecutive
// values share a scale; the last bucket may be short.
struct Format {
  int bits;
  std::size_t bucket;
};

// The scale is the norm of the bucket's finite values: the largest magnitude, or the root of the sum of squares, at
// most the largest float.  A finite value x at position p has q = |x| / scale * s, which lies between two whole
// numbers; its level is the upper one if u < q - floor(q), else the lower one, with the sign of x.  u is
// philox(p, key) >> 8 in units of 2^-24; without a key it is one half, so that the nearest level is taken.  Where the
// scale is zero the level is zero.
//
//   values      any alignment, and any number; what is not finite counts in no norm, and has the code -2^(bits-1)
//   positions   of the values: Consecutive, or an array of uint32 or uint64
//   scales      one per bucket
//   codes       levels in two's complement, value j in the bits [j * bits, (j + 1) * bits) of the bytes, lowest bit
//               first; unused bits of the last byte are zero
//   bits        each operation is rounded to float32.  Squares are added in float64, value j of the bucket in lane
//               j % 8; then lane l + 4 is added to lane l, l + 2 to l, and 1 to 0
template <class Positions>
void quantize(const float* values, std::size_t n, Positions positions, std::optional<std::uint32_t> key, Format format,
              Norm norm, float* scales, std::uint8_t* codes);

// out[j] = scale * (level / s), where the quotient is rounded first; NaN for the code -2^(bits-1).  Any scales and
// codes will do.
void dequantize(const float* scales, const std::uint8_t* codes, std::size_t n, Format format, float* out);

}  // namespace sparsewire
