#include "dispatch.h"

#include <atomic>

#ifdef SPARSEWIRE_X86
#include <cpuid.h>
#endif

namespace sparsewire {
namespace {

bool always() { return true; }

#ifdef SPARSEWIRE_X86
// Not every compiler's __builtin_cpu_supports knows this name.
bool has_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("popcnt") && has_f16c();
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

// The one table; its order is that of enum Isa.
struct Row {
  const char* name;
  bool (*is_available)();
};
constexpr Row table[] = {{"scalar", always}, {"avx2", has_avx2}, {"avx512", has_avx512}};
constexpr int rows = sizeof table / sizeof table[0];

int detect() {
  int best = 0;
  for (int isa = 0; isa < rows; ++isa)
    if (table[isa].is_available()) best = isa;
  return best;
}

std::atomic<int> active{detect()};
std::atomic<int> last{0};

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Row& row : table)
    if (row.is_available()) names.emplace_back(row.name);
  return names;
}

std::string active_isa() { return table[active].name; }

bool force_isa(const std::string& name) {
  for (int isa = 0; isa < rows; ++isa) {
    if (name == table[isa].name && table[isa].is_available()) {
      active = isa;
      return true;
    }
  }
  return false;
}

std::string last_isa() { return table[last].name; }

Isa pick_isa(const Isa* offered, std::size_t count) {
  const int ceiling = active.load(std::memory_order_relaxed);
  int picked = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const int isa = static_cast<int>(offered[i]);
    if (picked < isa && isa <= ceiling) picked = isa;
  }
  last.store(picked, std::memory_order_relaxed);
  return static_cast<Isa>(picked);
}

}  // namespace sparsewire
