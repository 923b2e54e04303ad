// dispatch.h: which version of a kernel runs.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

// What each ISA may assume.  The functions are compiled for these lists, and dispatch.cpp asks the processor for the
// same lists.  They are attributes of functions, never flags of a file: a flag would also compile the inline functions
// that other files share for this ISA.
#define SPARSEWIRE_AVX2_FEATURES "avx2,f16c,bmi,bmi2,lzcnt,pclmul,popcnt"
#define SPARSEWIRE_AVX512_FEATURES SPARSEWIRE_AVX2_FEATURES ",avx512f,avx512bw,avx512dq,avx512vl"

#if defined(__x86_64__) && defined(__GNUC__)
#define SPARSEWIRE_X86 1
#define SPARSEWIRE_AVX2 [[gnu::target(SPARSEWIRE_AVX2_FEATURES)]]
#define SPARSEWIRE_AVX512 [[gnu::target(SPARSEWIRE_AVX512_FEATURES)]]
// Not every processor of this ISA has these products: who uses them asks for them.
#define SPARSEWIRE_AVX512_PRODUCTS [[gnu::target(SPARSEWIRE_AVX512_FEATURES ",vpclmulqdq")]]
#endif

namespace sparsewire {

enum class Isa { scalar, avx2, avx512 };  // each includes those before it

// Names of ISAs, the slowest first: those that this processor runs, and those that a processor with these features
// would run.
std::vector<std::string> available_isas();
std::vector<std::string> isas_with(const std::vector<std::string>& features);

std::string active_isa();                 // the best available one, until force_isa()
bool force_isa(const std::string& name);  // false, and nothing changes, if it is not available
std::string last_isa();                   // of the version that the latest kernel call picked

// A row of a kernel's table of versions.  A kernel that gains nothing from an ISA has no row for it.
template <class Function>
struct Version {
  Isa isa;
  Function* function;
};

Isa pick_isa(const Isa* offered, std::size_t count);  // the best one that is not above the active one

template <class Function, std::size_t count>
Function* pick(const Version<Function> (&versions)[count]) {
  Isa offered[count];
  for (std::size_t i = 0; i < count; ++i) offered[i] = versions[i].isa;
  const Isa picked = pick_isa(offered, count);
  for (const auto& version : versions)
    if (version.isa == picked) return version.function;
  return versions[0].function;
}

}  // namespace sparsewire
