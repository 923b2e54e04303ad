#include "without.h"

#include <algorithm>
#include <cstdint>

#include "instantiate.h"

namespace sparsewire {
namespace {

// How far a pass over a part of the run has come, and over the part of the others in the same range.
struct Walk {
  std::size_t position, end;      // in the run
  std::size_t other, others_end;  // in the others
  std::size_t count;              // where the next entry is written

  bool goes_on() const { return position < end && other < others_end; }
};

// A branch on which of the two is smaller would be mispredicted often, so there is none: every entry is written, and
// the next one overwrites it unless it is kept.
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

// A step waits for the one before it, and the processor can do more in that time.  So steps in the two halves of the
// run alternate.  The entries that the second half keeps are then moved behind those of the first half.
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

#define SPARSEWIRE_INSTANTIATE(I, V) \
  template std::size_t without(Run<I, V>, const I*, std::size_t, I*, V*);
SPARSEWIRE_EACH_ENTRY_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
