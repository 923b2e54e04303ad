// rows.h: chosen rows of a sparse matrix, against vectors that hold only the columns which these rows have.
//
// Row r of the matrix is the entries [starts[r], starts[r + 1]) of its indices and values.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparsewire {

// Where the chosen rows lie; a row may be chosen more than once.
struct RowStarts {
  const std::int64_t* starts;
  const std::int64_t* rows;
  std::size_t count;
};

// Whether all of them are.
bool all_below(const std::uint32_t* positions, std::size_t n, std::size_t limit);

constexpr std::size_t beyond_the_width = ~std::size_t{0};

// Writes the distinct columns of the rows, increasing, and for every entry of the rows, one row after the other, the
// position of its column among them.  Returns how many columns there are, or that an index is not below `width`.
//
//   marks      a word for every 64 columns of the width, rounded up, and `before` as many numbers; what is in them
//              does not matter
//   columns    room for as many as the rows have entries
//   positions  room for as many as the rows have entries, which are fewer than 2^32
template <class I>
std::size_t row_columns(RowStarts chosen, const I* indices, std::size_t width, std::uint64_t* marks,
                        std::uint32_t* before, I* columns, std::uint32_t* positions);

// products[i, c] = the sum over the entries of row i of value times weights[position, c], added in order, in double.
template <class V>
void row_products(RowStarts chosen, const V* values, const std::uint32_t* positions, const double* weights,
                  std::size_t outputs, double* products);

// sums[position, c] = the sum over the entries at that position of value times factors[i, c], i being the entry's
// row; added in order, in double, to what is there.
template <class V>
void row_sums(RowStarts chosen, const V* values, const std::uint32_t* positions, const double* factors,
              std::size_t outputs, double* sums);

}  // namespace sparsewire
