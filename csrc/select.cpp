#include "select.h"

#include <algorithm>

#include "accumulate.h"
#include "dispatch.h"
#include "instantiate.h"
#include "magnitude_mask.h"

namespace sparsewire {
namespace {

// Decides about one magnitude after the other.  Only those from `low` on can be taken: it is the threshold while ties
// are left and rises above it with the last one, so that a pass without ties makes a single comparison.
template <class V>
struct Choice {
  Magnitude<V> low, threshold;
  std::uint64_t ties;

  Choice(Magnitude<V> bits, std::uint64_t ties_left)
      : low(bits), threshold(bits > infinity<V> ? largest_magnitude<V> : bits), ties(ties_left) {
    if (ties == 0) low = threshold + 1;
  }

  bool takes(Magnitude<V> magnitude) {
    if (magnitude < low) return false;
    if (magnitude <= threshold && --ties == 0) low = threshold + 1;
    return true;
  }
};

// ---- scalar: the specification

namespace scalar {

template <class I, class V>
Progress select(const V* x, std::size_t n, Magnitude<V> threshold, I offset, Room<I, V> out, Progress progress) {
  Choice<V> choice(threshold, progress.ties);
  auto& [position, count, ties] = progress;
  for (; position < n; ++position) {
    if (magnitude(x[position]) < choice.low) continue;
    if (count == out.capacity) break;
    if (!choice.takes(magnitude(x[position]))) continue;
    out.indices[count] = offset + static_cast<I>(position);
    out.values[count++] = x[position];
  }
  ties = choice.ties;
  return progress;
}

template <class I, class V>
Progress accumulate_select(V* residual, const V* gradient, Velocity<V> velocity, std::size_t n, Magnitude<V> threshold,
                           Room<I, V> out, Progress progress) {
  Choice<V> choice(threshold, progress.ties);
  auto& [position, count, ties] = progress;
  for (; position < n; ++position) {
    V added = gradient[position];
    if (velocity.values) added = advanced(velocity.values[position], velocity.momentum, added);
    const V sum = narrow<V>(plus(widen(residual[position]), widen(added)));
    const bool is_candidate = magnitude(sum) >= choice.low;
    if (is_candidate && count == out.capacity) break;
    const bool is_taken = is_candidate && choice.takes(magnitude(sum));
    if (velocity.values) velocity.values[position] = added;
    residual[position] = is_taken ? V{} : sum;
    if (!is_taken) continue;
    out.indices[count] = static_cast<I>(position);
    out.values[count++] = sum;
  }
  ties = choice.ties;
  return progress;
}

}  // namespace scalar

#ifdef SPARSEWIRE_X86

// ---- blocks of 64 values: at 1 % density nearly every comparison is false, so 64 values are compared at once.  `Mask`
// has the instructions of an ISA; the code here is inlined into a function with that target, for which its loops are
// vectorised.  The scalar version processes a block in which ties or the capacity matter.

template <class Mask, class I, class V>
[[gnu::always_inline]] inline bool is_simple(std::uint64_t mask, const V* values, const Choice<V>& choice,
                                             Room<I, V> out, std::size_t count) {
  const auto above = static_cast<Magnitude<V>>(choice.threshold + 1);
  const bool has_no_ties = choice.ties == 0 || Mask::of(values, above, no_limit<V>) == mask;
  return has_no_ties && out.capacity - count >= mask_width;
}

// Takes the values that `mask` names, two at a time.  At 1 % density a branch on whether a block has one, or a second
// one, would be mispredicted often.  That costs more than to write up to two entries too many, which the next block
// overwrites; so there is a branch only for a third one.  Calls on_taken(j, is_vain) for each.  If is_vain, the entry
// is one too many, and j may be that of an entry which was taken.
template <class I, class V, class OnTaken>
[[gnu::always_inline]] inline void take(std::uint64_t mask, const V* values, I index, I* out_indices, V* out_values,
                                        OnTaken on_taken) {
  do {
    for (int lane = 0; lane < 2; ++lane, mask &= mask - 1) {
      const int j = __builtin_ctzll(mask | std::uint64_t{1} << 63);
      out_indices[lane] = index + static_cast<I>(j);
      out_values[lane] = values[j];
      on_taken(j, mask == 0);
    }
    out_indices += 2;
    out_values += 2;
  } while (mask != 0);
}

// The value, or zero.  It is masked, because compilers make a branch of ?: here.
template <class V>
[[gnu::always_inline]] inline V value_if(bool is_kept, V value) {
  using Bits = Magnitude<V>;
  return bits_as<V>(static_cast<Bits>(bits_as<Bits>(value) & -static_cast<Bits>(is_kept)));
}

template <class Mask, class I, class V>
[[gnu::always_inline]] inline Progress select_blocks(const V* x, std::size_t n, Magnitude<V> threshold, I offset,
                                                     Room<I, V> out, Progress progress) {
  Choice<V> choice(threshold, progress.ties);
  auto [position, count, ties] = progress;
  for (; n - position >= mask_width; position += mask_width) {
    const V* const block = x + position;
    const std::uint64_t mask = Mask::of(block, choice.low, no_limit<V>);
    if (is_simple<Mask>(mask, block, choice, out, count)) {
      take(mask, block, offset + static_cast<I>(position), out.indices + count, out.values + count, [](int, bool) {});
      count += __builtin_popcountll(mask);
    } else if (mask != 0) {
      const std::size_t end = position + mask_width;
      progress = scalar::select(x, end, threshold, offset, out, {position, count, choice.ties});
      if (progress.position < end) return progress;
      count = progress.count;
      choice = Choice<V>(threshold, progress.ties);
    }
  }
  return scalar::select(x, n, threshold, offset, out, {position, count, choice.ties});
}

// How many values lie before the next cache line.  A vector that reaches into two lines is two accesses.
template <class V>
[[gnu::always_inline]] inline std::size_t values_before_line(const V* values) {
  return -reinterpret_cast<std::uintptr_t>(values) % 64 / sizeof(V);
}

// Takes, of the values that `mask` names, those that the choice takes.  Returns how many.
template <class I, class V>
[[gnu::always_inline]] inline std::size_t take_chosen(std::uint64_t mask, V* block, I index, Choice<V>& choice,
                                                      I* out_indices, V* out_values) {
  std::size_t count = 0;
  for (; mask != 0; mask &= mask - 1) {
    const int j = __builtin_ctzll(mask);
    if (!choice.takes(magnitude(block[j]))) continue;
    out_indices[count] = index + static_cast<I>(j);
    out_values[count++] = block[j];
    block[j] = V{};
  }
  return count;
}

// While there is room for a whole block its entries fit, and the residual may be written at once.  With that, and with
// blocks that begin at a cache line, the pass takes as long as `residual += gradient` alone, because both wait for
// memory.  Passes with and without a velocity are functions of their own: with both in one, gcc 12 does not vectorise
// halves.
template <class Mask, bool has_velocity, class I, class V>
[[gnu::always_inline]] inline Progress accumulate_select_blocks(V* residual, const V* gradient,
                                                                Velocity<V> velocity, std::size_t n,
                                                                Magnitude<V> threshold, Room<I, V> out,
                                                                Progress progress) {
  const std::size_t before_line = values_before_line(residual + progress.position);
  const std::size_t first = progress.position + std::min(before_line, n - progress.position);
  progress = scalar::accumulate_select(residual, gradient, velocity, first, threshold, out, progress);
  if (progress.position < first) return progress;
  Choice<V> choice(threshold, progress.ties);
  auto [position, count, ties] = progress;
  for (; n - position >= mask_width && out.capacity - count >= mask_width; position += mask_width) {
    V* const block = residual + position;
    if constexpr (has_velocity) {
      advance(velocity.values + position, velocity.momentum, gradient + position, mask_width);
      accumulate(block, velocity.values + position, mask_width);
    } else {
      accumulate(block, gradient + position, mask_width);
    }
    const std::uint64_t mask = Mask::of(block, choice.low, no_limit<V>);
    if (choice.ties == 0) {
      take(mask, block, static_cast<I>(position), out.indices + count, out.values + count,
           [&](int j, bool is_vain) { block[j] = value_if(is_vain, block[j]); });
      count += __builtin_popcountll(mask);
    } else {
      count += take_chosen(mask, block, static_cast<I>(position), choice, out.indices + count, out.values + count);
    }
  }
  return scalar::accumulate_select(residual, gradient, velocity, n, threshold, out, {position, count, choice.ties});
}

// ---- avx2

namespace avx2 {

template <class I, class V>
SPARSEWIRE_AVX2 Progress select(const V* x, std::size_t n, Magnitude<V> threshold, I offset, Room<I, V> out,
                                Progress progress) {
  return select_blocks<Avx2Mask>(x, n, threshold, offset, out, progress);
}

template <bool has_velocity, class I, class V>
SPARSEWIRE_AVX2 Progress accumulate_select(V* residual, const V* gradient, Velocity<V> velocity, std::size_t n,
                                           Magnitude<V> threshold, Room<I, V> out, Progress progress) {
  return accumulate_select_blocks<Avx2Mask, has_velocity>(residual, gradient, velocity, n, threshold, out, progress);
}

}  // namespace avx2

// ---- avx512: half the instructions per mask, because comparisons give bits directly

namespace avx512 {

template <class I, class V>
SPARSEWIRE_AVX512 Progress select(const V* x, std::size_t n, Magnitude<V> threshold, I offset, Room<I, V> out,
                                Progress progress) {
  return select_blocks<Avx512Mask>(x, n, threshold, offset, out, progress);
}

template <bool has_velocity, class I, class V>
SPARSEWIRE_AVX512 Progress accumulate_select(V* residual, const V* gradient, Velocity<V> velocity, std::size_t n,
                                             Magnitude<V> threshold, Room<I, V> out, Progress progress) {
  return accumulate_select_blocks<Avx512Mask, has_velocity>(residual, gradient, velocity, n, threshold, out, progress);
}

}  // namespace avx512

template <class I, class V>
constexpr Version<decltype(select<I, V>)> select_versions[] = {
    {Isa::scalar, scalar::select<I, V>}, {Isa::avx2, avx2::select<I, V>}, {Isa::avx512, avx512::select<I, V>}};
template <bool has_velocity, class I, class V>
constexpr Version<decltype(accumulate_select<I, V>)> accumulate_select_versions[] = {
    {Isa::scalar, scalar::accumulate_select<I, V>},
    {Isa::avx2, avx2::accumulate_select<has_velocity, I, V>},
    {Isa::avx512, avx512::accumulate_select<has_velocity, I, V>}};

#else

template <class I, class V>
constexpr Version<decltype(select<I, V>)> select_versions[] = {{Isa::scalar, scalar::select<I, V>}};
template <bool has_velocity, class I, class V>
constexpr Version<decltype(accumulate_select<I, V>)> accumulate_select_versions[] = {
    {Isa::scalar, scalar::accumulate_select<I, V>}};

#endif

}  // namespace

template <class I, class V>
Progress select(const V* x, std::size_t n, Magnitude<V> threshold, I offset, Room<I, V> out, Progress progress) {
  return pick(select_versions<I, V>)(x, n, threshold, offset, out, progress);
}

template <class I, class V>
Progress accumulate_select(V* residual, const V* gradient, Velocity<V> velocity, std::size_t n, Magnitude<V> threshold,
                           Room<I, V> out, Progress progress) {
  const auto version = velocity.values ? pick(accumulate_select_versions<true, I, V>)
                                       : pick(accumulate_select_versions<false, I, V>);
  return version(residual, gradient, velocity, n, threshold, out, progress);
}

#define SPARSEWIRE_INSTANTIATE(I, V) \
  template Progress select(const V*, std::size_t, Magnitude<V>, I, Room<I, V>, Progress); \
  template Progress accumulate_select(V*, const V*, Velocity<V>, std::size_t, Magnitude<V>, Room<I, V>, Progress);
SPARSEWIRE_EACH_ENTRY_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
