#include "dispatch.h"

#include <algorithm>
#include <atomic>
#include <sstream>

#ifdef SPARSEWIRE_X86
#include <cpuid.h>
#endif

namespace sparsewire {
namespace {

// Those of the lists in dispatch.h that this processor has.
std::vector<std::string> present_features() {
  std::vector<std::string> present;
#ifdef SPARSEWIRE_X86
  const auto add = [&](bool is_present, const char* name) {
    if (is_present) present.emplace_back(name);
  };
  // These also ask whether the operating system keeps the wide registers.
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("bmi"), "bmi");
  add(__builtin_cpu_supports("bmi2"), "bmi2");
  add(__builtin_cpu_supports("pclmul"), "pclmul");
  add(__builtin_cpu_supports("popcnt"), "popcnt");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512dq"), "avx512dq");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  // Not every compiler's __builtin_cpu_supports knows these names.  A processor without lzcnt does not stop at the
  // instruction: it executes another one, with another result.
  constexpr unsigned f16c = 1u << 29, lzcnt = 1u << 5;
  unsigned eax, ebx, ecx, edx;
  add(__get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & f16c) != 0, "f16c");
  add(__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) && (ecx & lzcnt) != 0, "lzcnt");
#endif
  return present;
}

// The one table; its order is that of enum Isa.
struct Row {
  const char* name;
  const char* features;
};
constexpr Row table[] = {{"scalar", ""}, {"avx2", SPARSEWIRE_AVX2_FEATURES}, {"avx512", SPARSEWIRE_AVX512_FEATURES}};
constexpr int rows = sizeof table / sizeof table[0];

bool has_all(const std::vector<std::string>& present, const char* features) {
  std::istringstream names(features);
  for (std::string name; std::getline(names, name, ',');)
    if (std::find(present.begin(), present.end(), name) == present.end()) return false;
  return true;
}

const std::vector<std::string>& available() {
  static const std::vector<std::string> names = isas_with(present_features());
  return names;
}

bool is_available(const std::string& name) {
  return std::find(available().begin(), available().end(), name) != available().end();
}

int detect() {
  int best = 0;
  for (int isa = 0; isa < rows; ++isa)
    if (is_available(table[isa].name)) best = isa;
  return best;
}

std::atomic<int> active{detect()};
std::atomic<int> last{0};

}  // namespace

std::vector<std::string> isas_with(const std::vector<std::string>& features) {
  std::vector<std::string> names;
  for (const Row& row : table)
    if (has_all(features, row.features)) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> available_isas() { return available(); }

std::string active_isa() { return table[active].name; }

bool force_isa(const std::string& name) {
  for (int isa = 0; isa < rows; ++isa) {
    if (name == table[isa].name && is_available(name)) {
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
