#include "without.h"

#include <algorithm>
#include <cstdint>

namespace sparsewire {
namespace {

// A walk along a part of the run, and the part of the others in the same range.
struct Walk {
  std::size_t position, end;      // in the run
  std::size_t other, others_end;  // in the others
  std::size_t count;              // where the next entry is written

  bool goes_on() const { return position < end && other < others_end; }
};

// Which of the two goes on is anybody's guess, so there is no branch for it: every entry is written, and the next one
// overwrites it unless it counts.
template <class I, class V>
[[gnu::always_inline]] inline void step(Walk& walk, Run<I, V> run, const I* others, I* out_indices, V* out_values) {
  const I mine = run.indices[walk.position], theirs = others[walk.other];
  out_indices[walk.count] = mine;
  out_values[walk.count] = run.values[walk.position];
  walk.count += mine < theirs;
  walk.position += mine <= theirs;
  walk.other += theirs <= mine;
}

template <class I, class V>
void finish(Walk& walk, Run<I, V> run, const I* others, I* out_indices, V* out_values) {
  while (walk.goes_on()) step(walk, run, others, out_indices, out_values);
  std::copy(run.indices + walk.position, run.indices + walk.end, out_indices + walk.count);
  std::copy(run.values + walk.position, run.values + walk.end, out_values + walk.count);
  walk.count += walk.end - walk.position;
}

}  // namespace

// A step has to wait for the one before, and a processor can do more meanwhile: so the two halves of the run are walked
// along in turns.  What the second half keeps is then moved behind what the first one does.
template <class I, class V>
std::size_t without(Run<I, V> run, const I* others, std::size_t m, I* out_indices, V* out_values) {
  const std::size_t half = run.size / 2;
  const std::size_t middle = half ? std::lower_bound(others, others + m, run.indices[half]) - others : 0;
  Walk first{0, half, 0, middle, 0}, second{half, run.size, middle, m, half};
  while (first.goes_on() && second.goes_on()) {
    step(first, run, others, out_indices, out_values);
    step(second, run, others, out_indices, out_values);
  }
  finish(first, run, others, out_indices, out_values);
  finish(second, run, others, out_indices, out_values);
  std::move(out_values + half, out_values + second.count, out_values + first.count);
  std::move(out_indices + half, out_indices + second.count, out_indices + first.count);
  return first.count + second.count - half;
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
