#include "first_invalid.h"

#include <algorithm>
#include <limits>

#include "dispatch.h"

namespace sparsewire {
namespace {

// So long that the end of a block costs nothing, and so short that it is in the cache when it is read again.
constexpr std::size_t block = 1024;

template <class I>
[[gnu::always_inline]] inline bool is_invalid(const I* index, I low, I high) {
  return (index[0] <= index[-1]) | (index[0] < low) | (index[0] > high);
}

// The first block in which something is wrong, or n.  indices[-1] is readable.  There is no branch on the data, so
// that the compiler vectorises the loop for the target of the function into which this is inlined.
template <class I>
[[gnu::always_inline]] inline std::size_t first_bad_block(const I* indices, std::size_t n, I low, I high) {
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t size = std::min(block, n - begin);
    I bad = 0;
    for (std::size_t j = 0; j < size; ++j) bad |= is_invalid(indices + begin + j, low, high);
    if (bad) return begin;
  }
  return n;
}

namespace scalar {

template <class I>
std::size_t search(const I* indices, std::size_t n, I low, I high) {
  return first_bad_block(indices, n, low, high);
}

}  // namespace scalar

#ifdef SPARSEWIRE_X86

// ---- avx2, avx512: the same loop with wider registers, and with the unsigned comparisons that SSE2 lacks

namespace avx2 {

template <class I>
SPARSEWIRE_AVX2 std::size_t search(const I* indices, std::size_t n, I low, I high) {
  return first_bad_block(indices, n, low, high);
}

}  // namespace avx2

namespace avx512 {

template <class I>
SPARSEWIRE_AVX512 std::size_t search(const I* indices, std::size_t n, I low, I high) {
  return first_bad_block(indices, n, low, high);
}

}  // namespace avx512

template <class I>
constexpr Version<decltype(scalar::search<I>)> versions[] = {
    {Isa::scalar, scalar::search<I>}, {Isa::avx2, avx2::search<I>}, {Isa::avx512, avx512::search<I>}};

#else

template <class I>
constexpr Version<decltype(scalar::search<I>)> versions[] = {{Isa::scalar, scalar::search<I>}};

#endif

}  // namespace

template <class I>
std::int64_t first_invalid(const I* indices, std::size_t n, std::uint64_t first, std::uint64_t last) {
  constexpr std::uint64_t largest = std::numeric_limits<I>::max();
  if (n == 0) return -1;
  if (indices[0] < first || indices[0] > last) return 0;
  // One index is in the range, so its first number fits I; and no index is above the largest of I.
  const I low = static_cast<I>(first), high = static_cast<I>(std::min(last, largest));
  std::size_t j = 1 + pick(versions<I>)(indices + 1, n - 1, low, high);
  while (j < n && !is_invalid(indices + j, low, high)) ++j;
  return j < n ? static_cast<std::int64_t>(j) : -1;
}

template std::int64_t first_invalid(const std::uint32_t*, std::size_t, std::uint64_t, std::uint64_t);
template std::int64_t first_invalid(const std::uint64_t*, std::size_t, std::uint64_t, std::uint64_t);

}  // namespace sparsewire
