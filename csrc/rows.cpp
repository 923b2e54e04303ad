#include "rows.h"

#include <algorithm>

#include "dispatch.h"

namespace sparsewire {

// One version for every ISA, but where bits are counted: the time goes into waiting for marks, weights and sums.

namespace {

// 64 columns side by side, so that one cache line tells both whether a column occurs and how many do before it.
struct Mark {
  std::uint64_t occurring;
  std::uint64_t before;
};
static_assert(sizeof(Mark) == 2 * sizeof(std::uint64_t));

template <class Visit>
[[gnu::always_inline]] inline void for_each_row(RowStarts chosen, Visit visit) {
  for (std::size_t i = 0; i < chosen.count; ++i) {
    const std::int64_t row = chosen.rows[i];
    visit(i, chosen.starts[row], chosen.starts[row + 1]);
  }
}

// No early end: so it is compared many at a time.
template <class I>
bool none_from(const I* numbers, std::size_t n, std::size_t limit) {
  bool found = false;
  for (std::size_t j = 0; j < n; ++j) found |= numbers[j] >= limit;
  return !found;
}

template <class I>
[[gnu::always_inline]] inline void look_up(RowStarts chosen, const I* indices, const Mark* marks,
                                           std::uint32_t* positions) {
  for_each_row(chosen, [&](std::size_t, std::int64_t first, std::int64_t last) __attribute__((always_inline)) {
    for (std::int64_t e = first; e < last; ++e) {
      const Mark mark = marks[indices[e] / 64];
      const std::uint64_t lower = mark.occurring & ((std::uint64_t{1} << indices[e] % 64) - 1);
      *positions++ = static_cast<std::uint32_t>(mark.before + static_cast<std::uint64_t>(__builtin_popcountll(lower)));
    }
  });
}

template <class I>
void look_up_scalar(RowStarts chosen, const I* indices, const Mark* marks, std::uint32_t* positions) {
  look_up(chosen, indices, marks, positions);
}

#ifdef SPARSEWIRE_X86
template <class I>
SPARSEWIRE_AVX2 void look_up_avx2(RowStarts chosen, const I* indices, const Mark* marks, std::uint32_t* positions) {
  look_up(chosen, indices, marks, positions);
}
#endif

template <class I>
constexpr Version<void(RowStarts, const I*, const Mark*, std::uint32_t*)> versions[] = {
    {Isa::scalar, look_up_scalar<I>},
#ifdef SPARSEWIRE_X86
    {Isa::avx2, look_up_avx2<I>},
#endif
};

template <class I>
std::size_t list_columns(Mark* marks, std::size_t words, I* columns) {
  std::size_t count = 0;
  for (std::size_t w = 0; w < words; ++w) {
    marks[w].before = count;
    for (std::uint64_t left = marks[w].occurring; left != 0; left &= left - 1)
      columns[count++] = static_cast<I>(64 * w + static_cast<std::size_t>(__builtin_ctzll(left)));
  }
  return count;
}

}  // namespace

bool all_below(const std::uint32_t* positions, std::size_t n, std::size_t limit) {
  return none_from(positions, n, limit);
}

template <class I>
bool all_below(RowStarts chosen, const I* indices, std::size_t limit) {
  bool below = true;
  for_each_row(chosen, [&](std::size_t, std::int64_t first, std::int64_t last) {
    below &= none_from(indices + first, static_cast<std::size_t>(last - first), limit);
  });
  return below;
}

template <class I>
std::size_t row_columns(RowStarts chosen, const I* indices, std::size_t width, std::uint64_t* marks_room, I* columns,
                        std::uint32_t* positions) {
  Mark* marks = reinterpret_cast<Mark*>(marks_room);
  const std::size_t words = (width + 63) / 64;
  std::fill(marks, marks + words, Mark{});
  for_each_row(chosen, [&](std::size_t, std::int64_t first, std::int64_t last) {
    for (std::int64_t e = first; e < last; ++e) marks[indices[e] / 64].occurring |= std::uint64_t{1} << indices[e] % 64;
  });
  const std::size_t count = list_columns(marks, words, columns);
  pick(versions<I>)(chosen, indices, marks, positions);
  return count;
}

template <class V>
void row_products(RowStarts chosen, const V* values, const std::uint32_t* positions, const double* weights,
                  std::size_t outputs, double* products) {
  std::fill(products, products + chosen.count * outputs, 0.0);
  for_each_row(chosen, [&](std::size_t i, std::int64_t first, std::int64_t last) {
    double* product = products + i * outputs;
    for (std::int64_t e = first; e < last; ++e, ++positions) {
      const double* weight = weights + *positions * outputs;
      for (std::size_t c = 0; c < outputs; ++c) product[c] += static_cast<double>(values[e]) * weight[c];
    }
  });
}

template <class V>
void row_sums(RowStarts chosen, const V* values, const std::uint32_t* positions, const double* factors,
              std::size_t outputs, double* sums) {
  for_each_row(chosen, [&](std::size_t i, std::int64_t first, std::int64_t last) {
    const double* factor = factors + i * outputs;
    for (std::int64_t e = first; e < last; ++e, ++positions) {
      double* sum = sums + *positions * outputs;
      for (std::size_t c = 0; c < outputs; ++c) sum[c] += static_cast<double>(values[e]) * factor[c];
    }
  });
}

using u32 = std::uint32_t;
using u64 = std::uint64_t;
template bool all_below(RowStarts, const u32*, std::size_t);
template bool all_below(RowStarts, const u64*, std::size_t);
template std::size_t row_columns(RowStarts, const u32*, std::size_t, u64*, u32*, u32*);
template std::size_t row_columns(RowStarts, const u64*, std::size_t, u64*, u64*, u32*);
template void row_products(RowStarts, const float*, const u32*, const double*, std::size_t, double*);
template void row_products(RowStarts, const double*, const u32*, const double*, std::size_t, double*);
template void row_sums(RowStarts, const float*, const u32*, const double*, std::size_t, double*);
template void row_sums(RowStarts, const double*, const u32*, const double*, std::size_t, double*);

}  // namespace sparsewire
