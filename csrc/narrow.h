// narrow.h: float32 to and from the half types.
#pragma once
#include <cstddef>

#include "values.h"

namespace sparsewire {

// out[j] = values[j], rounded to nearest, ties to even; what is too large becomes infinity, and NaN stays NaN.
// V is half or bfloat16.
//
//   values, out   n each, any alignment; they do not overlap
//   bits          the same from every ISA, the payload of a NaN apart
template <class V>
void narrow(const float* values, std::size_t n, V* out);

// out[j] = values[j], exactly, under the same conditions.
template <class V>
void widen(const V* values, std::size_t n, float* out);

}  // namespace sparsewire
