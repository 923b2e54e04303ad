#include "threshold_for_k.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "instantiate.h"
#include "magnitude_mask.h"

namespace sparsewire {
namespace {

// The search so far: the answer is the `rank`-th largest of the `count` values whose magnitude is in [low, high].
template <class V>
struct Range {
  Magnitude<V> low = 0, high = largest_magnitude<V>;
  std::size_t count, rank;

  Range(std::size_t n, std::size_t k) : count(n), rank(k) {}
};

// 2^12 counters of 8 bytes stay in the first-level cache.  For float32 a bucket is 1/16 octave: about 0.5 % of the
// values of a normal distribution around its top 1 %.
constexpr int digit_bits = 12;

// Counts of magnitudes by the first 12 bits in which the range still differs.  Buckets are counted from a floor
// upwards that rises as soon as `rank` magnitudes above it were seen: what lies below can no longer be the answer.
// So all but a few per cent of the values take a single comparison.
template <class V>
class Histogram {
 public:
  explicit Histogram(const Range<V>& range) : range_(range), floor_(std::max<Magnitude<V>>(range.low, 1)) {
    const std::uint64_t width = range.high - range.low;
    while (width >> shift_ >> digit_bits != 0) ++shift_;
  }

  // Zeros are never counted, as they are what there is most of; refine() knows how many were left out.
  Magnitude<V> floor() const { return floor_; }
  Magnitude<V> high() const { return range_.high; }

  [[gnu::always_inline]] void add(Magnitude<V> magnitude) { ++counts_[(magnitude - range_.low) >> shift_]; }

  void raise_floor() {
    const auto [bucket, above] = bucket_of_rank();
    if (above + counts_[bucket] >= range_.rank) floor_ = std::max(floor_, start_of(bucket));
  }

  Range<V> refine() const {
    const auto [bucket, above] = bucket_of_rank();
    Range<V> finer = range_;
    finer.rank -= above;
    finer.count = counts_[bucket];
    if (finer.count < finer.rank) {  // fewer non-zeros than asked for: the answer is zero
      finer.rank -= finer.count;
      finer.low = finer.high = 0;
    } else {
      finer.low = std::max<Magnitude<V>>(start_of(bucket), 1);
      finer.high = std::min<Magnitude<V>>(range_.high, start_of(bucket) + ((Magnitude<V>{1} << shift_) - 1));
    }
    return finer;
  }

 private:
  struct Bucket {
    std::size_t number, above;  // above: values in higher buckets
  };

  // The bucket in which the rank-th largest lies; bucket 0 if not so many were counted.
  Bucket bucket_of_rank() const {
    Bucket bucket{counts_.size() - 1, 0};
    while (bucket.number > 0 && bucket.above + counts_[bucket.number] < range_.rank)
      bucket.above += counts_[bucket.number--];
    return bucket;
  }

  Magnitude<V> start_of(std::size_t bucket) const {
    return range_.low + static_cast<Magnitude<V>>(static_cast<std::uint64_t>(bucket) << shift_);
  }

  Range<V> range_;
  Magnitude<V> floor_;
  int shift_ = 0;
  std::array<std::uint64_t, 1 << digit_bits> counts_{};
};

// How many more values are counted before the floor is looked for again: a quarter of those so far.
std::size_t next_look(std::size_t position) { return position + std::max<std::size_t>(4096, position / 4); }

// ---- scalar

namespace scalar {

template <class V>
void count(const V* x, std::size_t begin, std::size_t end, Histogram<V>& histogram) {
  for (std::size_t p = begin; p < end; ++p) {
    const Magnitude<V> m = magnitude(x[p]);
    if (histogram.floor() <= m && m <= histogram.high()) histogram.add(m);
  }
}

template <class V>
void collect(const V* x, std::size_t begin, std::size_t end, const Range<V>& range,
             std::vector<Magnitude<V>>& magnitudes) {
  for (std::size_t p = begin; p < end; ++p) {
    const Magnitude<V> m = magnitude(x[p]);
    if (range.low <= m && m <= range.high) magnitudes.push_back(m);
  }
}

}  // namespace scalar

#ifdef SPARSEWIRE_X86

// ---- avx2: 64 values are compared with the range at once, and nearly always none of them is in it

namespace avx2 {

template <class V>
SPARSEWIRE_AVX2 void count(const V* x, std::size_t begin, std::size_t end, Histogram<V>& histogram) {
  for (; end - begin >= mask_width; begin += mask_width) {
    std::uint64_t mask = Avx2Mask::of(x + begin, histogram.floor(), histogram.high());
    for (; mask != 0; mask &= mask - 1) histogram.add(magnitude(x[begin + __builtin_ctzll(mask)]));
  }
  scalar::count(x, begin, end, histogram);
}

template <class V>
SPARSEWIRE_AVX2 void collect(const V* x, std::size_t begin, std::size_t end, const Range<V>& range,
                             std::vector<Magnitude<V>>& magnitudes) {
  for (; end - begin >= mask_width; begin += mask_width) {
    std::uint64_t mask = Avx2Mask::of(x + begin, range.low, range.high);
    for (; mask != 0; mask &= mask - 1) magnitudes.push_back(magnitude(x[begin + __builtin_ctzll(mask)]));
  }
  scalar::collect(x, begin, end, range, magnitudes);
}

}  // namespace avx2

// ---- avx512: the same with half the instructions per mask

namespace avx512 {

template <class V>
SPARSEWIRE_AVX512 void count(const V* x, std::size_t begin, std::size_t end, Histogram<V>& histogram) {
  for (; end - begin >= mask_width; begin += mask_width) {
    std::uint64_t mask = Avx512Mask::of(x + begin, histogram.floor(), histogram.high());
    for (; mask != 0; mask &= mask - 1) histogram.add(magnitude(x[begin + __builtin_ctzll(mask)]));
  }
  scalar::count(x, begin, end, histogram);
}

template <class V>
SPARSEWIRE_AVX512 void collect(const V* x, std::size_t begin, std::size_t end, const Range<V>& range,
                               std::vector<Magnitude<V>>& magnitudes) {
  for (; end - begin >= mask_width; begin += mask_width) {
    std::uint64_t mask = Avx512Mask::of(x + begin, range.low, range.high);
    for (; mask != 0; mask &= mask - 1) magnitudes.push_back(magnitude(x[begin + __builtin_ctzll(mask)]));
  }
  scalar::collect(x, begin, end, range, magnitudes);
}

}  // namespace avx512

template <class V>
constexpr Version<decltype(scalar::count<V>)> count_versions[] = {
    {Isa::scalar, scalar::count<V>}, {Isa::avx2, avx2::count<V>}, {Isa::avx512, avx512::count<V>}};
template <class V>
constexpr Version<decltype(scalar::collect<V>)> collect_versions[] = {
    {Isa::scalar, scalar::collect<V>}, {Isa::avx2, avx2::collect<V>}, {Isa::avx512, avx512::collect<V>}};

#else

template <class V>
constexpr Version<decltype(scalar::count<V>)> count_versions[] = {{Isa::scalar, scalar::count<V>}};
template <class V>
constexpr Version<decltype(scalar::collect<V>)> collect_versions[] = {{Isa::scalar, scalar::collect<V>}};

#endif

// The range to begin with.  Few values often come from a selection and lie close together: of buckets from zero to
// infinity they would all be in one, and the first pass would find nothing.
template <class V>
Range<V> first_range(const V* x, std::size_t n, std::size_t k) {
  constexpr std::size_t few = 1 << 20;
  Range<V> range(n, k);
  if (n > few) return range;
  std::swap(range.low, range.high);
  for (std::size_t p = 0; p < n; ++p) {
    range.low = std::min(range.low, magnitude(x[p]));
    range.high = std::max(range.high, magnitude(x[p]));
  }
  return range;
}

// One pass over the values that makes the range about a thousand times finer.
template <class V>
Range<V> refined(const V* x, std::size_t n, const Range<V>& range) {
  const auto count = pick(count_versions<V>);
  Histogram<V> histogram(range);
  for (std::size_t begin = 0; begin < n;) {
    const std::size_t end = std::min(n, next_look(begin));
    count(x, begin, end, histogram);
    histogram.raise_floor();
    begin = end;
  }
  return histogram.refine();
}

// Few enough values are left to sort them out directly.
template <class V>
Threshold last_step(const V* x, std::size_t n, const Range<V>& range) {
  std::vector<Magnitude<V>> magnitudes;
  magnitudes.reserve(range.count);
  pick(collect_versions<V>)(x, 0, n, range, magnitudes);
  const auto kth = magnitudes.begin() + static_cast<std::ptrdiff_t>(range.rank - 1);
  std::nth_element(magnitudes.begin(), kth, magnitudes.end(), std::greater<>());
  const auto larger = std::count_if(magnitudes.begin(), kth, [&](auto m) { return m > *kth; });
  return {*kth, range.rank - static_cast<std::size_t>(larger)};
}

}  // namespace

template <class V>
Threshold threshold_for_k(const V* x, std::size_t n, std::size_t k) {
  const std::size_t few = std::max<std::size_t>(4096, n / 64);
  Range<V> range = first_range(x, n, k);
  while (range.count > few && range.low < range.high) range = refined(x, n, range);
  const Threshold found = range.low < range.high ? last_step(x, n, range) : Threshold{range.low, range.rank};
  // Nothing is larger than a NaN, and all NaN are equal.
  return found.magnitude > infinity<V> ? Threshold{std::uint64_t{infinity<V>} + 1, k} : found;
}

#define SPARSEWIRE_INSTANTIATE(V) \
  template Threshold threshold_for_k(const V*, std::size_t, std::size_t);
SPARSEWIRE_EACH_VALUE_TYPE(SPARSEWIRE_INSTANTIATE)

}  // namespace sparsewire
