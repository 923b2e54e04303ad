// select.h: the entries of a dense range whose magnitude is above a threshold.
#pragma once
#include <cstddef>
#include <cstdint>

#include "values.h"

namespace sparsewire {

// Where a pass over the values stands.  A call continues from it and moves it on.
struct Progress {
  std::size_t position;  // values before it are done
  std::size_t count;     // entries written so far
  std::uint64_t ties;    // values of magnitude == threshold that may still be taken
};

// Room for `capacity` entries, and nothing beyond.
template <class I, class V>
struct Room {
  I* indices;
  V* values;
  std::size_t capacity;
};

// Writes the entries (offset + p, x[p]) with magnitude(x[p]) > threshold, and the first `ties` with magnitude ==
// threshold, in order of p.  All NaN have one magnitude, infinity<V> + 1.
//
//   x         n values, any alignment
//   out       overlaps no input
//   returns   position == n if done; otherwise count == out.capacity, and the value at position is the first that did
//             not fit: give the entries more room and call again
//   bits      values are copied; every ISA returns the same
template <class I, class V>
Progress select(const V* x, std::size_t n, Magnitude<V> threshold, I offset, Room<I, V> out,
                Progress progress);

// The velocity of momentum correction, as long as the residual; without values there is none.
template <class V>
struct Velocity {
  V* values;
  Sum<V> momentum;
};

// residual[p] += gradient[p], then as select() of the residual, which becomes 0 where an entry was taken.  One pass.
// With a velocity, velocity[p] = momentum * velocity[p] + gradient[p] is what is added.  It stays where an entry was
// taken: only the caller knows which entries are sent in the end.
//
//   gradient  n values; is the residual, or overlaps neither it nor the output
//   velocity  n values that overlap nothing else, or none; none of integers
//   bits      each product and each sum is rounded once (half types: from float); values at and after the returned
//             position are untouched
template <class I, class V>
Progress accumulate_select(V* residual, const V* gradient, Velocity<V> velocity, std::size_t n, Magnitude<V> threshold,
                           Room<I, V> out, Progress progress);

}  // namespace sparsewire
