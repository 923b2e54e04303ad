// accumulate.h: residual += gradient, for a part that the same pass then reads again from the cache.
#pragma once
#include <cstddef>

#include "values.h"

namespace sparsewire {

// To be inlined into a function with an instruction set, for which it is then vectorised.
//
//   gradient  n values; is the residual, or does not overlap it
//   bits      each sum is rounded once (half types: from float)
template <class V>
[[gnu::always_inline]] inline void accumulate(V* residual, const V* gradient, std::size_t n) {
#pragma GCC ivdep  // of two values at different places none depends on the other
  for (std::size_t j = 0; j < n; ++j) residual[j] = narrow<V>(plus(widen(residual[j]), widen(gradient[j])));
}

}  // namespace sparsewire
