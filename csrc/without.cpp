#include "without.h"

#include <algorithm>
#include <cstdint>

namespace sparsewire {

// Which run goes on is anybody's guess, so there is no branch for it: every entry is written, and the next one
// overwrites it unless it counts.
template <class I, class V>
std::size_t without(Run<I, V> run, const I* others, std::size_t m, I* out_indices, V* out_values) {
  std::size_t j = 0, o = 0, count = 0;
  while (j < run.size && o < m) {
    const I index = run.indices[j], other = others[o];
    out_indices[count] = index;
    out_values[count] = run.values[j];
    count += index < other;
    j += index <= other;
    o += other <= index;
  }
  std::copy(run.indices + j, run.indices + run.size, out_indices + count);
  std::copy(run.values + j, run.values + run.size, out_values + count);
  return count + (run.size - j);
}

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
template std::size_t without(Run<u32, float>, const u32*, std::size_t, u32*, float*);
template std::size_t without(Run<u32, double>, const u32*, std::size_t, u32*, double*);
template std::size_t without(Run<u32, half>, const u32*, std::size_t, u32*, half*);
template std::size_t without(Run<u32, bfloat16>, const u32*, std::size_t, u32*, bfloat16*);
template std::size_t without(Run<u32, i32>, const u32*, std::size_t, u32*, i32*);
template std::size_t without(Run<u32, i64>, const u32*, std::size_t, u32*, i64*);
template std::size_t without(Run<u64, float>, const u64*, std::size_t, u64*, float*);
template std::size_t without(Run<u64, double>, const u64*, std::size_t, u64*, double*);
template std::size_t without(Run<u64, half>, const u64*, std::size_t, u64*, half*);
template std::size_t without(Run<u64, bfloat16>, const u64*, std::size_t, u64*, bfloat16*);
template std::size_t without(Run<u64, i32>, const u64*, std::size_t, u64*, i32*);
template std::size_t without(Run<u64, i64>, const u64*, std::size_t, u64*, i64*);

}  // namespace sparsewire
