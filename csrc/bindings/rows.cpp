// rows.cpp: rows of a sparse matrix.
#include <nanobind/stl/string.h>

#include <string>

#include "../dual_ascent.h"
#include "../rows.h"
#include "arrays.h"

namespace sparsewire::bindings {
namespace {

using Numbers = InOf<std::int64_t>;
using Positions = InOf<std::uint32_t>;

// How many entries the chosen rows have, all within a matrix of n entries.
std::size_t require_entries(const Numbers& starts, const Numbers& rows, std::size_t n) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t row = rows.data()[i];
    require(0 <= row && static_cast<std::uint64_t>(row) + 1 < starts.size(), "number of a row out of range");
    const std::int64_t first = starts.data()[row], last = starts.data()[row + 1];
    require(0 <= first && first <= last && static_cast<std::uint64_t>(last) <= n, "a row begins or ends nowhere");
    found += static_cast<std::size_t>(last - first);
  }
  return found;
}

// The chosen rows of a matrix with n entries.  The chosen rows have `entries` entries in all.
sw::RowStarts require_rows(const Numbers& starts, const Numbers& rows, std::size_t n, std::size_t entries) {
  require(require_entries(starts, rows, n) == entries, "the rows have another number of entries");
  return {starts.data(), rows.data(), rows.size()};
}

std::size_t row_columns(Numbers starts, In indices, Numbers rows, std::size_t width,
                        OutOf<std::uint64_t> marks, OutOf<std::uint32_t> before, Out columns,
                        OutOf<std::uint32_t> positions) {
  require_same_dtype(indices.dtype(), columns.dtype());
  const sw::RowStarts chosen = require_rows(starts, rows, indices.size(), positions.size());
  require(columns.size() >= positions.size(), "row_columns: output is too small");
  const std::size_t words = blocks_in(width, 64);
  require(marks.size() >= words && before.size() >= words, "row_columns: too few marks");
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = decltype(index);
    const std::size_t count = sw::row_columns(chosen, indices.as<I>(), width, marks.data(), before.data(),
                                              columns.as<I>(), positions.data());
    require(count != sw::beyond_the_width, "row_columns: a column beyond the width");
    return count;
  });
}

void row_products(Numbers starts, In values, Numbers rows, Positions positions, InOf<double> weights,
                  std::size_t outputs, OutOf<double> products) {
  const sw::RowStarts chosen = require_rows(starts, rows, values.size(), positions.size());
  require(outputs >= 1 && products.size() == rows.size() * outputs, "row_products: a product per row and output");
  with_matrix_type(values.dtype(), [&](auto value) {
    using V = decltype(value);
    require(sw::all_below(positions.data(), positions.size(), weights.size() / outputs),
            "row_products: too few weights");
    sw::row_products(chosen, values.as<V>(), positions.data(), weights.data(), outputs, products.data());
  });
}

void row_sums(Numbers starts, In values, Numbers rows, Positions positions, InOf<double> factors, std::size_t outputs,
              OutOf<double> sums) {
  const sw::RowStarts chosen = require_rows(starts, rows, values.size(), positions.size());
  require(outputs >= 1 && factors.size() == rows.size() * outputs, "row_sums: a factor per row and output");
  with_matrix_type(values.dtype(), [&](auto value) {
    using V = decltype(value);
    require(sw::all_below(positions.data(), positions.size(), sums.size() / outputs), "row_sums: too few sums");
    sw::row_sums(chosen, values.as<V>(), positions.data(), factors.data(), outputs, sums.data());
  });
}

sw::DualLoss dual_loss(const std::string& name) {
  if (name == "logistic") return sw::DualLoss::logistic;
  if (name == "hinge") return sw::DualLoss::hinge;
  if (name == "squared_hinge") return sw::DualLoss::squared_hinge;
  require(name == "squared", "dual_ascent: unknown loss");
  return sw::DualLoss::squared;
}

void dual_ascent(Numbers starts, In values, Numbers rows, Positions positions, const std::string& loss,
                 InOf<double> shares, InOf<double> squares, InOf<double> targets, InOf<double> sigma, double bias,
                 OutOf<double> variables, OutOf<double> weights, OutOf<double> intercepts, OutOf<double> margins) {
  require_entries(starts, rows, values.size());
  const sw::RowStarts chosen{starts.data(), rows.data(), rows.size()};
  const std::size_t count = starts.size() == 0 ? 0 : starts.size() - 1, outputs = sigma.size();
  require(positions.size() == values.size(), "dual_ascent: a position per entry");
  require(shares.size() == count && squares.size() == count, "dual_ascent: a share and a square per row");
  require(targets.size() == count * outputs && variables.size() == count * outputs,
          "dual_ascent: a target and a variable per row and output");
  require(outputs >= 1 && intercepts.size() == outputs && margins.size() >= outputs,
          "dual_ascent: an intercept per output");
  const sw::DualLoss kind = dual_loss(loss);
  const sw::DualRows of_rows{shares.data(), squares.data(), targets.data(), sigma.data(), bias, outputs};
  const sw::DualState state{variables.data(), weights.data(), intercepts.data()};
  with_matrix_type(values.dtype(), [&](auto value) {
    using V = decltype(value);
    require(sw::all_below(positions.data(), positions.size(), weights.size() / outputs),
            "dual_ascent: too few weights");
    sw::dual_ascent(chosen, values.as<V>(), positions.data(), kind, of_rows, state, margins.data());
  });
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def("dual_ascent", &dual_ascent);
  m.def("row_columns", &row_columns);
  m.def("row_products", &row_products);
  m.def("row_sums", &row_sums);
}

}  // namespace sparsewire::bindings
