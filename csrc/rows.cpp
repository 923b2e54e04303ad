#include "rows.h"

#include <algorithm>

#include "dispatch.h"

namespace sparsewire {

// There is one version for every ISA, except where bits are counted: the time is spent waiting for memory.

namespace {

template <class Visit>
[[gnu::always_inline]] inline void for_each_row(RowStarts chosen, Visit visit) {
  for (std::size_t i = 0; i < chosen.count; ++i) {
    const std::int64_t row = chosen.rows[i];
    visit(i, chosen.starts[row], chosen.starts[row + 1]);
  }
}

// Chosen rows lie anywhere and are short, so the processor cannot predict where the next one is: it is prefetched.
constexpr std::size_t rows_ahead = 4;
template <class T>
[[gnu::always_inline]] inline void fetch_ahead(RowStarts chosen, std::size_t i, const T* entries) {
  if (i + rows_ahead >= chosen.count) return;
  const std::int64_t row = chosen.rows[i + rows_ahead];
  const T* const end = entries + chosen.starts[row + 1];
  for (const T* line = entries + chosen.starts[row]; line < end; line += 64 / sizeof(T)) __builtin_prefetch(line);
}

template <class I>
bool mark(RowStarts chosen, const I* indices, std::size_t width, std::uint64_t* marks) {
  bool are_below = true;
  for_each_row(chosen, [&](std::size_t i, std::int64_t first, std::int64_t last) {
    fetch_ahead(chosen, i, indices);
    for (std::int64_t e = first; e < last; ++e) {
      if (indices[e] < width)
        marks[indices[e] / 64] |= std::uint64_t{1} << indices[e] % 64;
      else
        are_below = false;
    }
  });
  return are_below;
}

// Writes which columns are marked, and how many marked columns come before each word.
template <class I>
std::size_t list_columns(const std::uint64_t* marks, std::size_t words, std::uint32_t* before, I* columns) {
  std::size_t count = 0;
  for (std::size_t w = 0; w < words; ++w) {
    before[w] = static_cast<std::uint32_t>(count);
    for (std::uint64_t left = marks[w]; left != 0; left &= left - 1)
      columns[count++] = static_cast<I>(64 * w + static_cast<std::size_t>(__builtin_ctzll(left)));
  }
  return count;
}

template <class I>
[[gnu::always_inline]] inline void look_up(RowStarts chosen, const I* indices, const std::uint64_t* marks,
                                           const std::uint32_t* before, std::uint32_t* positions) {
  for_each_row(chosen, [&](std::size_t, std::int64_t first, std::int64_t last) __attribute__((always_inline)) {
    for (std::int64_t e = first; e < last; ++e) {
      const std::uint64_t lower = marks[indices[e] / 64] & ((std::uint64_t{1} << indices[e] % 64) - 1);
      *positions++ = before[indices[e] / 64] + static_cast<std::uint32_t>(__builtin_popcountll(lower));
    }
  });
}

template <class I>
void look_up_scalar(RowStarts chosen, const I* indices, const std::uint64_t* marks, const std::uint32_t* before,
                    std::uint32_t* positions) {
  look_up(chosen, indices, marks, before, positions);
}

#ifdef SPARSEWIRE_X86
template <class I>
SPARSEWIRE_AVX2 void look_up_avx2(RowStarts chosen, const I* indices, const std::uint64_t* marks,
                                  const std::uint32_t* before, std::uint32_t* positions) {
  look_up(chosen, indices, marks, before, positions);
}
#endif

template <class I>
constexpr Version<void(RowStarts, const I*, const std::uint64_t*, const std::uint32_t*, std::uint32_t*)> versions[] = {
    {Isa::scalar, look_up_scalar<I>},
#ifdef SPARSEWIRE_X86
    {Isa::avx2, look_up_avx2<I>},
#endif
};

}  // namespace

bool all_below(const std::uint32_t* positions, std::size_t n, std::size_t limit) {
  bool found = false;
  // Without an early end, so that the loop is vectorised.
  for (std::size_t j = 0; j < n; ++j) found |= positions[j] >= limit;
  return !found;
}

template <class I>
std::size_t row_columns(RowStarts chosen, const I* indices, std::size_t width, std::uint64_t* marks,
                        std::uint32_t* before, I* columns, std::uint32_t* positions) {
  const std::size_t words = (width + 63) / 64;
  std::fill(marks, marks + words, std::uint64_t{0});
  if (!mark(chosen, indices, width, marks)) return beyond_the_width;
  const std::size_t count = list_columns(marks, words, before, columns);
  pick(versions<I>)(chosen, indices, marks, before, positions);
  return count;
}

template <class V>
void row_products(RowStarts chosen, const V* values, const std::uint32_t* positions, const double* __restrict weights,
                  std::size_t outputs, double* __restrict products) {
  std::fill(products, products + chosen.count * outputs, 0.0);
  for_each_row(chosen, [&](std::size_t i, std::int64_t first, std::int64_t last) {
    double* product = products + i * outputs;
    fetch_ahead(chosen, i, values);
    if (outputs == 1) {  // the sum stays in a register
      double sum = 0.0;
      for (std::int64_t e = first; e < last; ++e) sum += static_cast<double>(values[e]) * weights[*positions++];
      *product = sum;
      return;
    }
    for (std::int64_t e = first; e < last; ++e) {
      const double* weight = weights + *positions++ * outputs;
      for (std::size_t c = 0; c < outputs; ++c) product[c] += static_cast<double>(values[e]) * weight[c];
    }
  });
}

template <class V>
void row_sums(RowStarts chosen, const V* values, const std::uint32_t* positions, const double* __restrict factors,
              std::size_t outputs, double* __restrict sums) {
  for_each_row(chosen, [&](std::size_t i, std::int64_t first, std::int64_t last) {
    const double* factor = factors + i * outputs;
    for (std::int64_t e = first; e < last; ++e) {
      double* sum = sums + *positions++ * outputs;
      for (std::size_t c = 0; c < outputs; ++c) sum[c] += static_cast<double>(values[e]) * factor[c];
    }
  });
}

using u32 = std::uint32_t;
using u64 = std::uint64_t;
template std::size_t row_columns(RowStarts, const u32*, std::size_t, u64*, u32*, u32*, u32*);
template std::size_t row_columns(RowStarts, const u64*, std::size_t, u64*, u32*, u64*, u32*);
template void row_products(RowStarts, const float*, const u32*, const double*, std::size_t, double*);
template void row_products(RowStarts, const double*, const u32*, const double*, std::size_t, double*);
template void row_sums(RowStarts, const float*, const u32*, const double*, std::size_t, double*);
template void row_sums(RowStarts, const double*, const u32*, const double*, std::size_t, double*);

}  // namespace sparsewire
