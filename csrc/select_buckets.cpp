#include "select_buckets.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "accumulate.h"
#include "dispatch.h"
#include "instantiate.h"
#include "magnitude_mask.h"

namespace sparsewire {
namespace {

// ---- scalar: the specification

// The smallest of the k largest ranks.
template <class V>
struct Lowest {
  Magnitude<V> rank;
  std::size_t ties;  // how many values of exactly this rank belong to the k largest
};

// Takes the best of one bucket after the other.
template <class I, class V>
class Exact {
 public:
  Exact(std::size_t k, std::size_t bucket) : k_(k) { ranks_.reserve(bucket); }

  // Of the n values x, the first of which has this index.  Returns how many entries were written.
  std::size_t take(const V* x, std::size_t n, I index, I* out_indices, V* out_values) {
    const auto [lowest, ties] = kth_largest(x, n);
    std::size_t count = 0, ties_left = ties;
    for (std::size_t j = 0; j < n; ++j) {
      const Magnitude<V> rank = rank_of(x[j]);
      if (rank < lowest || rank == 0 || (rank == lowest && ties_left == 0)) continue;
      ties_left -= rank == lowest;
      out_indices[count] = index + static_cast<I>(j);
      out_values[count++] = x[j];
    }
    return count;
  }

 private:
  Lowest<V> kth_largest(const V* x, std::size_t n) {
    ranks_.resize(n);
    std::transform(x, x + n, ranks_.begin(), rank_of<V>);
    const std::size_t k = std::min(k_, n);
    const auto kth = ranks_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(ranks_.begin(), kth, ranks_.end(), std::greater<>());
    const auto larger = std::count_if(ranks_.begin(), kth, [&](auto rank) { return rank > *kth; });
    return {*kth, k - static_cast<std::size_t>(larger)};
  }

  std::size_t k_;
  std::vector<Magnitude<V>> ranks_;
};

template <class Best, class I, class V>
[[gnu::always_inline]] inline std::size_t select_best(const V* x, std::size_t n, std::size_t k, std::size_t bucket,
                                                      Room<I, V> out) {
  Best best(k, bucket);
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < n; begin += bucket) {
    const std::size_t size = std::min(bucket, n - begin);
    count += best.take(x + begin, size, static_cast<I>(begin), out.indices + count, out.values + count);
  }
  return count;
}

template <class Best, class I, class V>
[[gnu::always_inline]] inline std::size_t accumulate_select_best(V* residual, const V* gradient, std::size_t n,
                                                                 std::size_t k, std::size_t bucket, Room<I, V> out) {
  Best best(k, bucket);
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < n; begin += bucket) {
    const std::size_t size = std::min(bucket, n - begin);
    accumulate(residual + begin, gradient + begin, size);
    I* const indices = out.indices + count;
    const std::size_t taken = best.take(residual + begin, size, static_cast<I>(begin), indices, out.values + count);
    for (std::size_t j = 0; j < taken; ++j) residual[indices[j]] = V{};
    count += taken;
  }
  return count;
}

namespace scalar {

template <class I, class V>
std::size_t select_buckets(const V* x, std::size_t n, std::size_t k, std::size_t bucket, Room<I, V> out) {
  return select_best<Exact<I, V>>(x, n, k, bucket, out);
}

template <class I, class V>
std::size_t accumulate_select_buckets(V* residual, const V* gradient, std::size_t n, std::size_t k, std::size_t bucket,
                                      Room<I, V> out) {
  return accumulate_select_best<Exact<I, V>>(residual, gradient, n, k, bucket, out);
}

}  // namespace scalar

#ifdef SPARSEWIRE_X86

// ---- a bound is found first.  The values are divided into groups.  The k largest values are all at least the k-th
// largest of the maxima of the groups, and of 512 values only about a dozen are.  `Mask` has the instructions of an
// ISA; the code here is inlined into a function with that target, for which its loops are vectorised.

constexpr std::size_t most_groups = 64, fewest_groups = 32;
constexpr std::size_t most_candidates = 64;
constexpr std::size_t few = 32;  // ranks that are compared at once; loops of 16 are unrolled instead of vectorised

// The k-th largest of `count` ranks, which are followed by zeros up to a multiple of `few`.  Each is compared with
// each: for a few dozen that takes less time than the mispredicted branches of a sort.
template <class V>
[[gnu::always_inline]] inline Magnitude<V> kth_of_few(const Magnitude<V>* ranks, std::size_t count, std::size_t k) {
  Magnitude<V> kth = no_limit<V>;
  for (std::size_t begin = 0; begin < count; begin += few) {
    Magnitude<V> larger[few] = {};  // how many ranks are larger
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t j = 0; j < few; ++j) larger[j] += ranks[i] > ranks[begin + j];
    for (std::size_t j = 0; j < few; ++j)
      kth = std::min(kth, larger[j] < static_cast<Magnitude<V>>(k) ? ranks[begin + j] : no_limit<V>);
  }
  return kth;
}

// Values of a bucket, in order.
template <class V>
struct Candidates {
  std::size_t count = 0;
  std::size_t positions[most_candidates + mask_width];
  Magnitude<V> ranks[most_candidates + mask_width];

  // Those from x[begin] on that `mask` names.  Two at a time, as take() of select.cpp, and for the same reason.
  [[gnu::always_inline]] void add_masked(std::uint64_t mask, std::size_t begin, const V* x) {
    const std::size_t end = count + static_cast<std::size_t>(__builtin_popcountll(mask));
    do {
      for (int lane = 0; lane < 2; ++lane, mask &= mask - 1) {
        const std::size_t position = begin + static_cast<std::size_t>(__builtin_ctzll(mask | std::uint64_t{1} << 63));
        add(position, x[position]);
      }
    } while (mask != 0);
    count = end;
  }

  [[gnu::always_inline]] void add(std::size_t position, V value) {
    positions[count] = position;
    ranks[count++] = rank_of(value);
  }
};

template <class Mask, class I, class V>
class Bounded {
 public:
  // The fewer groups, the sooner their maxima are compared; but with k of as many groups most values reach the bound.
  Bounded(std::size_t k, std::size_t bucket) : k_(k), exact_(k, bucket) {
    while (groups_ > fewest_groups && groups_ >= 4 * k) groups_ /= 2;
  }

  [[gnu::always_inline]] std::size_t take(const V* x, std::size_t n, I index, I* out_indices, V* out_values) {
    Candidates<V> candidates;
    if (2 * k_ > groups_ || !find(x, n, candidates)) return exact_.take(x, n, index, out_indices, out_values);
    std::fill_n(candidates.ranks + candidates.count, few, Magnitude<V>{0});
    const Magnitude<V> lowest = candidates.count > k_ ? kth_of_few<V>(candidates.ranks, candidates.count, k_) : 0;
    const std::size_t k = std::min(k_, candidates.count);
    std::size_t ties = k, count = 0;
    for (std::size_t c = 0; c < candidates.count; ++c) ties -= candidates.ranks[c] > lowest;
    // Each is written before it is known whether it counts.  If not, the next one overwrites it: the k-th is to come.
    for (std::size_t c = 0; count < k; ++c) {
      const std::size_t position = candidates.positions[c];
      out_indices[count] = index + static_cast<I>(position);
      out_values[count] = x[position];
      const bool is_tie = candidates.ranks[c] == lowest && ties > 0;
      ties -= is_tie;
      count += is_tie | (candidates.ranks[c] > lowest);
    }
    return count;
  }

 private:
  // False if there are too many.
  [[gnu::always_inline]] bool find(const V* x, std::size_t n, Candidates<V>& candidates) const {
    const Magnitude<V> low = std::max<Magnitude<V>>(bound(x, n), 1);
    std::size_t begin = 0;
    for (; n - begin >= mask_width && candidates.count <= most_candidates; begin += mask_width)
      candidates.add_masked(Mask::of(x + begin, low, no_limit<V>), begin, x);
    if (candidates.count > most_candidates) return false;
    for (; begin < n; ++begin)
      if (magnitude(x[begin]) >= low) candidates.add(begin, x[begin]);
    return candidates.count <= most_candidates;
  }

  // What at least k values reach, value j being in group j % groups_; zero if fewer than k groups have other values.
  [[gnu::always_inline]] Magnitude<V> bound(const V* x, std::size_t n) const {
    Magnitude<V> maxima[most_groups] = {};
    std::size_t j = 0;
    for (; n - j >= most_groups; j += most_groups)
      for (std::size_t g = 0; g < most_groups; ++g) maxima[g] = std::max(maxima[g], magnitude(x[j + g]));
    for (std::size_t g = 0; j < n; ++j, ++g) maxima[g] = std::max(maxima[g], magnitude(x[j]));
    for (std::size_t half = most_groups / 2; half >= groups_; half /= 2)
      for (std::size_t g = 0; g < half; ++g) maxima[g] = std::max(maxima[g], maxima[g + half]);
    return rank_of_magnitude<V>(kth_of_few<V>(maxima, groups_, k_));
  }

  std::size_t k_, groups_ = most_groups;
  Exact<I, V> exact_;
};

// ---- avx2: a tenth of the time

namespace avx2 {

template <class I, class V>
SPARSEWIRE_AVX2 std::size_t select_buckets(const V* x, std::size_t n, std::size_t k, std::size_t bucket,
                                           Room<I, V> out) {
  return select_best<Bounded<Avx2Mask, I, V>>(x, n, k, bucket, out);
}

template <class I, class V>
SPARSEWIRE_AVX2 std::size_t accumulate_select_buckets(V* residual, const V* gradient, std::size_t n, std::size_t k,
                                                      std::size_t bucket, Room<I, V> out) {
  return accumulate_select_best<Bounded<Avx2Mask, I, V>>(residual, gradient, n, k, bucket, out);
}

}  // namespace avx2

// ---- avx512: up to a fifth less again, for values of 64 bits

namespace avx512 {

template <class I, class V>
SPARSEWIRE_AVX512 std::size_t select_buckets(const V* x, std::size_t n, std::size_t k, std::size_t bucket,
                                             Room<I, V> out) {
  return select_best<Bounded<Avx512Mask, I, V>>(x, n, k, bucket, out);
}

template <class I, class V>
SPARSEWIRE_AVX512 std::size_t accumulate_select_buckets(V* residual, const V* gradient, std::size_t n, std::size_t k,
                                                        std::size_t bucket, Room<I, V> out) {
  return accumulate_select_best<Bounded<Avx512Mask, I, V>>(residual, gradient, n, k, bucket, out);
}

}  // namespace avx512

template <class I, class V>
constexpr Version<decltype(select_buckets<I, V>)> versions[] = {{Isa::scalar, scalar::select_buckets<I, V>},
                                                                {Isa::avx2, avx2::select_buckets<I, V>},
                                                                {Isa::avx512, avx512::select_buckets<I, V>}};
template <class I, class V>
constexpr Version<decltype(accumulate_select_buckets<I, V>)> accumulate_versions[] = {
    {Isa::scalar, scalar::accumulate_select_buckets<I, V>},
    {Isa::avx2, avx2::accumulate_select_buckets<I, V>},
    {Isa::avx512, avx512::accumulate_select_buckets<I, V>}};

#else

template <class I, class V>
constexpr Version<decltype(select_buckets<I, V>)> versions[] = {{Isa::scalar, scalar::select_buckets<I, V>}};
template <class I, class V>
constexpr Version<decltype(accumulate_select_buckets<I, V>)> accumulate_versions[] = {
    {Isa::scalar, scalar::accumulate_select_buckets<I, V>}};

#endif

}  // namespace

template <class I, class V>
std::size_t select_buckets(const V* x, std::size_t n, std::size_t k, std::size_t bucket, Room<I, V> out) {
  return pick(versions<I, V>)(x, n, k, bucket, out);
}

template <class I, class V>
std::size_t accumulate_select_buckets(V* residual, const V* gradient, std::size_t n, std::size_t k, std::size_t bucket,
                                      Room<I, V> out) {
  return pick(accumulate_versions<I, V>)(residual, gradient, n, k, bucket, out);
}

#define SPARSEWIRE_INSTANTIATE(I, V) \
  template std::size_t select_buckets(const V*, std::size_t, std::size_t, std::size_t, Room<I, V>); \
  template std::size_t accumulate_select_buckets(V*, const V*, std::size_t, std::size_t, std::size_t, Room<I, V>);
SPARSEWIRE_EACH_ENTRY_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
