#include "select_buckets.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "accumulate.h"
#include "dispatch.h"

namespace sparsewire {
namespace {

// ---- scalar: the specification

// All NaN are equal.
template <class V>
[[gnu::always_inline]] inline Magnitude<V> rank_of(V value) {
  const Magnitude<V> m = magnitude(value);
  return m > infinity<V> ? static_cast<Magnitude<V>>(infinity<V> + 1) : m;
}

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
  struct Lowest {
    Magnitude<V> rank;
    std::size_t ties;  // how many values of exactly this rank belong to the k largest
  };

  Lowest kth_largest(const V* x, std::size_t n) {
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

// Calls on_bucket(begin, size, count), which returns how many entries it added to `count`.
template <class OnBucket>
[[gnu::always_inline]] inline std::size_t for_each_bucket(std::size_t n, std::size_t bucket, OnBucket on_bucket) {
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < n; begin += bucket)
    count += on_bucket(begin, std::min(bucket, n - begin), count);
  return count;
}

template <class Best, class I, class V>
[[gnu::always_inline]] inline std::size_t select_best(const V* x, std::size_t n, std::size_t k, std::size_t bucket,
                                                      Room<I, V> out) {
  Best best(k, std::min(bucket, n));
  return for_each_bucket(n, bucket, [&](std::size_t begin, std::size_t size, std::size_t count) {
    return best.take(x + begin, size, static_cast<I>(begin), out.indices + count, out.values + count);
  });
}

template <class Best, class I, class V>
[[gnu::always_inline]] inline std::size_t accumulate_select_best(V* residual, const V* gradient, std::size_t n,
                                                                 std::size_t k, std::size_t bucket, Room<I, V> out) {
  Best best(k, std::min(bucket, n));
  return for_each_bucket(n, bucket, [&](std::size_t begin, std::size_t size, std::size_t count) {
    accumulate(residual + begin, gradient + begin, size);
    I* const indices = out.indices + count;
    const std::size_t taken = best.take(residual + begin, size, static_cast<I>(begin), indices, out.values + count);
    for (std::size_t j = 0; j < taken; ++j) residual[indices[j]] = V{};
    return taken;
  });
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

template <class I, class V>
constexpr Version<decltype(select_buckets<I, V>)> versions[] = {{Isa::scalar, scalar::select_buckets<I, V>}};
template <class I, class V>
constexpr Version<decltype(accumulate_select_buckets<I, V>)> accumulate_versions[] = {
    {Isa::scalar, scalar::accumulate_select_buckets<I, V>}};

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

using std::size_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
template size_t select_buckets(const float*, size_t, size_t, size_t, Room<u32, float>);
template size_t select_buckets(const double*, size_t, size_t, size_t, Room<u32, double>);
template size_t select_buckets(const half*, size_t, size_t, size_t, Room<u32, half>);
template size_t select_buckets(const bfloat16*, size_t, size_t, size_t, Room<u32, bfloat16>);
template size_t select_buckets(const i32*, size_t, size_t, size_t, Room<u32, i32>);
template size_t select_buckets(const i64*, size_t, size_t, size_t, Room<u32, i64>);
template size_t select_buckets(const float*, size_t, size_t, size_t, Room<u64, float>);
template size_t select_buckets(const double*, size_t, size_t, size_t, Room<u64, double>);
template size_t select_buckets(const half*, size_t, size_t, size_t, Room<u64, half>);
template size_t select_buckets(const bfloat16*, size_t, size_t, size_t, Room<u64, bfloat16>);
template size_t select_buckets(const i32*, size_t, size_t, size_t, Room<u64, i32>);
template size_t select_buckets(const i64*, size_t, size_t, size_t, Room<u64, i64>);
template size_t accumulate_select_buckets(float*, const float*, size_t, size_t, size_t, Room<u32, float>);
template size_t accumulate_select_buckets(double*, const double*, size_t, size_t, size_t, Room<u32, double>);
template size_t accumulate_select_buckets(half*, const half*, size_t, size_t, size_t, Room<u32, half>);
template size_t accumulate_select_buckets(bfloat16*, const bfloat16*, size_t, size_t, size_t, Room<u32, bfloat16>);
template size_t accumulate_select_buckets(i32*, const i32*, size_t, size_t, size_t, Room<u32, i32>);
template size_t accumulate_select_buckets(i64*, const i64*, size_t, size_t, size_t, Room<u32, i64>);
template size_t accumulate_select_buckets(float*, const float*, size_t, size_t, size_t, Room<u64, float>);
template size_t accumulate_select_buckets(double*, const double*, size_t, size_t, size_t, Room<u64, double>);
template size_t accumulate_select_buckets(half*, const half*, size_t, size_t, size_t, Room<u64, half>);
template size_t accumulate_select_buckets(bfloat16*, const bfloat16*, size_t, size_t, size_t, Room<u64, bfloat16>);
template size_t accumulate_select_buckets(i32*, const i32*, size_t, size_t, size_t, Room<u64, i32>);
template size_t accumulate_select_buckets(i64*, const i64*, size_t, size_t, size_t, Room<u64, i64>);

}  // namespace sparsewire
