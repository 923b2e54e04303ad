// accumulate.h: residual += gradient, for a part that the same pass then reads again from the cache; and with momentum,
// the velocity that is added instead.
#pragma once
#include <cstddef>

#include "values.h"

namespace sparsewire {

// To be inlined into a function with an instruction set, for which it is then vectorised.
//
//   gradient  n values; is the residual, or does not overlap it; may be of a half type where the residual is of floats
//   bits      each sum is rounded once (half types: from float)
template <class V, class Gradient>
[[gnu::always_inline]] inline void accumulate(V* residual, const Gradient* gradient, std::size_t n) {
#pragma GCC ivdep  // of two values at different places none depends on the other
  for (std::size_t j = 0; j < n; ++j) residual[j] = narrow<V>(plus(widen(residual[j]), widen(gradient[j])));
}

// momentum * velocity + gradient, for float and half types.
//
//   bits      product and sum are each rounded to V, on every ISA: they are never fused (CMakeLists.txt)
template <class V>
[[gnu::always_inline]] inline V advanced(V velocity, Sum<V> momentum, V gradient) {
  const V kept = narrow<V>(momentum * widen(velocity));
  return narrow<V>(plus(widen(kept), widen(gradient)));
}

// velocity = momentum * velocity + gradient.  To be inlined as accumulate().
//
//   gradient  n values that do not overlap the velocity
template <class V>
[[gnu::always_inline]] inline void advance(V* velocity, Sum<V> momentum, const V* gradient, std::size_t n) {
#pragma GCC ivdep  // as above
  for (std::size_t j = 0; j < n; ++j) velocity[j] = advanced(velocity[j], momentum, gradient[j]);
}

}  // namespace sparsewire
