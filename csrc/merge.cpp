#include "merge.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "dispatch.h"
#include "instantiate.h"

namespace sparsewire {
namespace {

// One of two values, without a branch: compilers make a branch of ?:, and it would be mispredicted half of the time.
template <class V>
[[gnu::always_inline]] inline V either(bool first, V a, V b) {
  using Bits = Magnitude<V>;
  const Bits mask = static_cast<Bits>(-static_cast<Bits>(first));
  return bits_as<V>(static_cast<Bits>((bits_as<Bits>(a) & mask) | (bits_as<Bits>(b) & ~mask)));
}

// ---- operations: `start` is the value that the first one is combined with, and `absent` the value of a run that lacks
// the index.  Where the two differ, it matters how many runs have the index.

struct Add {
  static constexpr bool absent_is_neutral = true;
  template <class V>
  static constexpr Sum<V> start = neutral<V>;

  template <class S>
  [[gnu::always_inline]] static S combine(S a, S b) {
    return plus(a, b);
  }
  template <class S>
  [[gnu::always_inline]] static S finished(S value) {
    return value;
  }
};

template <bool largest>
struct Extreme {
  static constexpr bool absent_is_neutral = false;
  template <class V>
  static constexpr Sum<V> start = std::is_integral_v<V>
      ? (largest ? std::numeric_limits<Sum<V>>::min() : std::numeric_limits<Sum<V>>::max())
      : (largest ? -1 : 1) * std::numeric_limits<Sum<V>>::infinity();

  template <class S>
  [[gnu::always_inline]] static S combine(S a, S b) {
    const bool takes_a = (largest ? a > b : a < b) | (a != a);  // b if it is NaN: nothing compares with it
    return either(takes_a, a, b);
  }
  template <class S>
  [[gnu::always_inline]] static S finished(S value) {
    return value + S(0);  // makes 0.0 of -0.0
  }
};

// ---- two runs: step through both.  No branch depends on which run comes next: if one of them lacks an index, -0.0 or
// 0 takes the place of its value.

template <class Op, class V>
[[gnu::always_inline]] inline Sum<V> value_or_absent(bool has, V value) {
  using Bits = Magnitude<V>;
  constexpr bool is_zero = std::is_integral_v<V> || !Op::absent_is_neutral;
  constexpr Bits absent = is_zero ? 0 : static_cast<Bits>(~largest_magnitude<V>);
  return widen(either(has, value, bits_as<V>(absent)));
}

template <class Op, class I, class V>
struct Pair {
  Run<I, V> a, b;
  I* out_indices;
  V* out_values;

  // A part of the merge: entries [i, end_i) of a with [j, end_j) of b, written from `count` on.
  struct Part {
    std::size_t i, end_i, j, end_j, count;

    // A step takes at most one entry of each run, so for so many steps the ends need not be compared.
    std::size_t safe_steps() const { return std::min(end_i - i, end_j - j); }
  };

  [[gnu::always_inline]] void step(Part& part) const {
    const I index_a = a.indices[part.i], index_b = b.indices[part.j];
    const bool has_a = index_a <= index_b, has_b = index_b <= index_a;
    const Sum<V> value_a = value_or_absent<Op>(has_a, a.values[part.i]);
    const Sum<V> value_b = value_or_absent<Op>(has_b, b.values[part.j]);
    out_indices[part.count] = std::min(index_a, index_b);
    out_values[part.count] = narrow<V>(Op::finished(Op::combine(value_a, value_b)));
    part.i += has_a;
    part.j += has_b;
    part.count += 1;
  }

  void finish(Part& part) const {
    while (part.safe_steps() != 0) step(part);
    finish_alone(a, part.i, part.end_i, part);
    finish_alone(b, part.j, part.end_j, part);
  }

  // The entries [begin, end) of one run, where the other has no more.
  void finish_alone(const Run<I, V>& from, std::size_t begin, std::size_t end, Part& part) const {
    copy(from, begin, end, part.count);
    if constexpr (!Op::absent_is_neutral) {
      for (std::size_t k = part.count; k != part.count + end - begin; ++k)
        out_values[k] = narrow<V>(Op::finished(Op::combine(widen(out_values[k]), Sum<V>(0))));
    }
    part.count += end - begin;
  }

  void copy(const Run<I, V>& from, std::size_t begin, std::size_t end, std::size_t to) const {
    std::copy(from.indices + begin, from.indices + end, out_indices + to);
    std::copy(from.values + begin, from.values + end, out_values + to);
  }
};

// Each step waits for the comparison of the one before.  Two halves merged alternately fill that time.  The upper half
// is written where it begins if the halves share no index, and is then moved down.
template <class Op, class I, class V>
std::size_t merge_two(const Run<I, V>& a, const Run<I, V>& b, I* out_indices, V* out_values) {
  const Pair<Op, I, V> pair{a, b, out_indices, out_values};
  const std::size_t i = a.size / 2;
  const std::size_t j = i == 0 ? 0 : std::lower_bound(b.indices, b.indices + b.size, a.indices[i]) - b.indices;
  typename Pair<Op, I, V>::Part lower{0, i, 0, j, 0}, upper{i, a.size, j, b.size, i + j};
  while (std::size_t steps = std::min(lower.safe_steps(), upper.safe_steps())) {
    for (; steps != 0; --steps) {
      pair.step(lower);
      pair.step(upper);
    }
  }
  pair.finish(lower);
  pair.finish(upper);
  if (lower.count < i + j) pair.copy({out_indices, out_values, 0}, i + j, upper.count, lower.count);
  return lower.count + (upper.count - (i + j));
}

// ---- more runs: window after window of 4096 indices, each run in turn adds its entries of the window to a dense row
// of sums (or maxima) and marks them in a bitmap, from which the window's entries are then read in order.  4096 is
// 64 x 64, so that the summary of the bitmap is one register; sums and bitmap stay in the first-level cache.  Windows
// without entries are skipped: the next window begins at the smallest remaining index.  All of it is inlined into a
// function for each ISA.  It uses no AVX2 instructions, but those that count and find bits, which come with AVX2.

// Writes the places of the bits, in order, and returns their number.  It always writes four at a time: a loop with as
// many steps as bits would be mispredicted for every word.
[[gnu::always_inline]] inline std::size_t list_bits(std::uint64_t bits, std::size_t base, std::uint16_t* places) {
  const std::size_t count = static_cast<std::size_t>(__builtin_popcountll(bits));
  for (std::size_t written = 0; written < count; written += 4) {
    for (std::size_t k = written; k < written + 4; ++k, bits &= bits - 1)
      places[k] = static_cast<std::uint16_t>(base + __builtin_ctzll(bits | std::uint64_t{1} << 63));
  }
  return count;
}

template <class Op, class I, class V>
class Windows {
 public:
  Windows() { std::fill(sums_, sums_ + width, Op::template start<V>); }

  [[gnu::always_inline]] inline std::size_t merge(std::vector<Run<I, V>>& runs, I* out_indices, V* out_values) {
    const std::size_t all = runs.size();
    std::size_t count = 0;
    while (drop_finished(runs)) {
      const I start = smallest_index(runs) & ~I{width - 1};
      std::uint64_t touched_words = 0;
      for (Run<I, V>& run : runs) touched_words |= add(run, start);
      count = emit(touched_words, start, all, out_indices, out_values, count);
    }
    return count;
  }

 private:
  static constexpr std::size_t width = 4096;

  static bool drop_finished(std::vector<Run<I, V>>& runs) {
    const auto is_finished = [](const Run<I, V>& run) { return run.size == 0; };
    runs.erase(std::remove_if(runs.begin(), runs.end(), is_finished), runs.end());
    return !runs.empty();
  }

  static I smallest_index(const std::vector<Run<I, V>>& runs) {
    I smallest = std::numeric_limits<I>::max();
    for (const Run<I, V>& run : runs) smallest = std::min(smallest, run.indices[0]);
    return smallest;
  }

  // Adds the run's entries of the window that begins at `start`, and moves the run past them.
  [[gnu::always_inline]] inline std::uint64_t add(Run<I, V>& run, I start) {
    std::uint64_t touched_words = 0;
    std::size_t j = 0;
    for (; j < run.size && run.indices[j] - start < width; ++j) {
      const std::size_t place = run.indices[j] - start;
      sums_[place] = Op::combine(sums_[place], widen(run.values[j]));
      if constexpr (!Op::absent_is_neutral) ++runs_with_[place];
      touched_[place / 64] |= std::uint64_t{1} << place % 64;
      touched_words |= std::uint64_t{1} << place / 64;
    }
    run.indices += j;
    run.values += j;
    run.size -= j;
    return touched_words;
  }

  // Writes the touched places as entries and leaves the window clean for its next use.
  [[gnu::always_inline]] inline std::size_t emit(std::uint64_t touched_words, I start, std::size_t all,
                                                 I* out_indices, V* out_values, std::size_t count) {
    std::size_t found = 0;
    for (; touched_words != 0; touched_words &= touched_words - 1) {
      const int word = __builtin_ctzll(touched_words);
      found += list_bits(touched_[word], 64 * word, places_ + found);
      touched_[word] = 0;
    }
    for (std::size_t k = 0; k < found; ++k) {
      const std::size_t place = places_[k];
      out_indices[count + k] = start + static_cast<I>(place);
      if constexpr (!Op::absent_is_neutral) {
        if (runs_with_[place] < all) sums_[place] = Op::combine(sums_[place], Sum<V>(0));
        runs_with_[place] = 0;
      }
      out_values[count + k] = narrow<V>(Op::finished(sums_[place]));
      sums_[place] = Op::template start<V>;
    }
    return count + found;
  }

  Sum<V> sums_[width];
  std::uint64_t touched_[width / 64] = {};
  std::uint32_t runs_with_[Op::absent_is_neutral ? 1 : width] = {};
  std::uint16_t places_[width + 3];  // the touched ones, and room for what list_bits writes behind them
};

namespace scalar {

template <class Op, class I, class V>
std::size_t merge_windows(std::vector<Run<I, V>>& runs, I* out_indices, V* out_values) {
  return std::make_unique<Windows<Op, I, V>>()->merge(runs, out_indices, out_values);
}

}  // namespace scalar

#ifdef SPARSEWIRE_X86

namespace avx2 {

template <class Op, class I, class V>
SPARSEWIRE_AVX2 std::size_t merge_windows(std::vector<Run<I, V>>& runs, I* out_indices, V* out_values) {
  return std::make_unique<Windows<Op, I, V>>()->merge(runs, out_indices, out_values);
}

}  // namespace avx2

template <class Op, class I, class V>
constexpr Version<decltype(scalar::merge_windows<Op, I, V>)> windows_versions[] = {
    {Isa::scalar, scalar::merge_windows<Op, I, V>}, {Isa::avx2, avx2::merge_windows<Op, I, V>}};

#else

template <class Op, class I, class V>
constexpr Version<decltype(scalar::merge_windows<Op, I, V>)> windows_versions[] = {
    {Isa::scalar, scalar::merge_windows<Op, I, V>}};

#endif

template <class Op, class I, class V>
std::size_t merge_with(std::vector<Run<I, V>>& runs, I* out_indices, V* out_values) {
  if (runs.size() == 2) return merge_two<Op>(runs[0], runs[1], out_indices, out_values);
  return pick(windows_versions<Op, I, V>)(runs, out_indices, out_values);
}

}  // namespace

template <class I, class V>
std::size_t merge(Operation operation, std::vector<Run<I, V>> runs, I* out_indices, V* out_values) {
  if (operation == Operation::max) return merge_with<Extreme<true>>(runs, out_indices, out_values);
  if (operation == Operation::min) return merge_with<Extreme<false>>(runs, out_indices, out_values);
  return merge_with<Add>(runs, out_indices, out_values);
}

#define SPARSEWIRE_INSTANTIATE(I, V) \
  template std::size_t merge(Operation, std::vector<Run<I, V>>, I*, V*);
SPARSEWIRE_EACH_ENTRY_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
