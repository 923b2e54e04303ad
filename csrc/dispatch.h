// dispatch.h: which version of a kernel runs.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#define SPARSEWIRE_X86 1
// What each ISA may assume; detect() in dispatch.cpp asks the processor for the same list.  As attributes of
// functions, never as flags of a file: a flag would leak into inline functions that other files share.
#define SPARSEWIRE_AVX2 [[gnu::target("avx2,f16c,bmi,bmi2,lzcnt,popcnt")]]
#define SPARSEWIRE_AVX512 \
  [[gnu::target("avx2,f16c,bmi,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512vl")]]
#endif

namespace sparsewire {

enum class Isa { scalar, avx2, avx512 };  // each includes those before it

std::vector<std::string> available_isas();  // slowest first
std::string active_isa();                   // the best available one, until force()
bool force_isa(const std::string& name);    // false, and nothing changes, if it is not available
std::string last_isa();                     // of the version that the latest kernel call picked

// A row of a kernel's table of versions.  A kernel that gains nothing from an ISA has no row for it.
template <class Function>
struct Version {
  Isa isa;
  Function* function;
};

Isa pick_isa(const Isa* offered, std::size_t count);  // the best that is not above the active one

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
