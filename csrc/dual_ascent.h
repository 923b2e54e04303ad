// dual_ascent.h: one pass of dual coordinate ascent over rows of a sparse matrix.
#pragma once
#include <cstddef>
#include <cstdint>

#include "rows.h"

namespace sparsewire {

// Of a margin m and a target t: log(1 + exp(-t m)); max(0, 1 - t m); its square; (m - t)^2 / 2.
enum class DualLoss { logistic, hinge, squared_hinge, squared };

// By row: the share of the row in the weights and its squared norm.  By row and output: the target, which is +1 or -1
// unless the loss is squared.  By output: sigma, by which changes count in the weights.
struct DualRows {
  const double* shares;
  const double* squares;
  const double* targets;
  const double* sigma;
  double bias;  // the square of a constant that every row has as one more entry; 0: there are no intercepts
  std::size_t outputs;
};

// What a pass changes: a variable for each row and output, the weights by position and output, and the intercepts.
struct DualState {
  double* variables;
  double* weights;
  double* intercepts;
};

// For one chosen row after the other, and for each of its outputs: moves the row's variable a to the maximum of
//
//   -loss*(-a) - m (a - before) - q (a - before)^2 / 2     q = sigma share (square + bias)
//
// where m is the row's margin with the weights as they are, and adds sigma share (a - before) times the row to the
// weights.  A row of share 0 is left out.
//
//   positions  for every entry of the matrix, where its weights are; unlike those of row_products, which are only for
//              the entries of chosen rows
//   margins    room for one number per output
//   bits       margins are added in double in the order of entries; there is one version for every ISA
template <class V>
void dual_ascent(RowStarts chosen, const V* values, const std::uint32_t* positions, DualLoss loss, DualRows rows,
                 DualState state, double* margins);

}  // namespace sparsewire
