// instantiate.h: the types for which kernels are compiled.  Calls a macro once for each of them.
#pragma once
#include <cstdint>

#include "values.h"

#define SPARSEWIRE_EACH_VALUE_TYPE(macro) \
  macro(float) macro(double) macro(half) macro(bfloat16) macro(std::int32_t) macro(std::int64_t)

#define SPARSEWIRE_EACH_VALUE_TYPE_WITH(macro, I) \
  macro(I, float) macro(I, double) macro(I, half) macro(I, bfloat16) macro(I, std::int32_t) macro(I, std::int64_t)

#define SPARSEWIRE_EACH_ENTRY_TYPE(macro) \
  SPARSEWIRE_EACH_VALUE_TYPE_WITH(macro, std::uint32_t) SPARSEWIRE_EACH_VALUE_TYPE_WITH(macro, std::uint64_t)
