#include "dual_ascent.h"

#include <algorithm>
#include <cmath>

namespace sparsewire {

// There is one version for every ISA: the time is spent waiting for memory.

namespace {

// Below the limit 1 / (1 + exp(-u)) is nearly the smallest number, and exp(-u) overflows soon.
double sigmoid(double u) { return u > -709.0 ? 1.0 / (1.0 + std::exp(-u)) : 0.0; }

// The maximum of entropy(a) - z a - q (a - before)^2 / 2.  With u = log(a / (1 - a)) it is where
// u + z + q (a - before) = 0, which grows with u.  Newton's method, kept between bounds of u, finds it.
double logistic_step(double before, double z, double q) {
  constexpr int most_steps = 50;
  constexpr double accurate = 1e-9;  // the error after such a step is far smaller
  double low = -z - q * (1.0 - before), high = -z + q * before;
  double u = before > 0.0 && before < 1.0 ? std::log(before / (1.0 - before)) : -z;
  u = std::min(std::max(u, low), high);
  double a = sigmoid(u);
  for (int step = 0; step < most_steps; ++step) {
    const double excess = u + z + q * (a - before);
    (excess > 0.0 ? high : low) = u;
    double next = u - excess / (1.0 + q * a * (1.0 - a));
    if (!(next > low && next < high)) next = 0.5 * (low + high);
    const double move = std::fabs(next - u);
    u = next;
    a = sigmoid(u);
    if (move <= accurate) break;
  }
  return a;
}

// z is the margin times the target.  Where q is 0 the row is empty, and the best variable is an end of its range.
double hinge_step(double before, double z, double q) {
  if (z == 1.0) return before;
  return std::min(std::max(before + (1.0 - z) / q, 0.0), 1.0);
}

double squared_hinge_step(double before, double z, double q) {
  return std::max((1.0 - z + q * before) / (0.5 + q), 0.0);
}

// The variable of a row after its step.  For classes it has the sign of the target.
double stepped(DualLoss loss, double before, double target, double margin, double q) {
  const double z = target * margin, size = target * before;
  switch (loss) {
    case DualLoss::logistic:
      return target * logistic_step(size, z, q);
    case DualLoss::hinge:
      return target * hinge_step(size, z, q);
    case DualLoss::squared_hinge:
      return target * squared_hinge_step(size, z, q);
    default:
      return before + (target - margin - before) / (1.0 + q);
  }
}

// Rows are visited in random order, and their weights lie anywhere: both are fetched before they are needed.
template <class V>
void fetch_entries(RowStarts chosen, std::size_t i, const V* values, const std::uint32_t* positions) {
  if (i >= chosen.count) return;
  const std::int64_t first = chosen.starts[chosen.rows[i]], last = chosen.starts[chosen.rows[i] + 1];
  for (std::int64_t e = first; e < last; e += 64 / static_cast<std::int64_t>(sizeof(V)))
    __builtin_prefetch(values + e);
  for (std::int64_t e = first; e < last; e += 16) __builtin_prefetch(positions + e);
}

void fetch_weights(RowStarts chosen, std::size_t i, const std::uint32_t* positions, const double* weights,
                   std::size_t outputs) {
  if (i >= chosen.count) return;
  const std::int64_t row = chosen.rows[i];
  for (std::int64_t e = chosen.starts[row]; e < chosen.starts[row + 1]; ++e)
    __builtin_prefetch(weights + positions[e] * outputs);
}

// A row's entries: [first, last).
template <class V>
struct Entries {
  const V* values;
  const std::uint32_t* positions;
  std::int64_t first, last;
};

template <class V>
void add_products(Entries<V> row, const double* weights, std::size_t outputs, double* margins) {
  if (outputs == 1) {  // the sum stays in a register
    double sum = *margins;
    for (std::int64_t e = row.first; e < row.last; ++e)
      sum += static_cast<double>(row.values[e]) * weights[row.positions[e]];
    *margins = sum;
    return;
  }
  for (std::int64_t e = row.first; e < row.last; ++e) {
    const double* weight = weights + row.positions[e] * outputs;
    for (std::size_t c = 0; c < outputs; ++c) margins[c] += static_cast<double>(row.values[e]) * weight[c];
  }
}

template <class V>
void add_row(Entries<V> row, const double* factors, std::size_t outputs, double* weights) {
  if (outputs == 1) {
    const double factor = *factors;
    for (std::int64_t e = row.first; e < row.last; ++e)
      weights[row.positions[e]] += static_cast<double>(row.values[e]) * factor;
    return;
  }
  for (std::int64_t e = row.first; e < row.last; ++e) {
    double* weight = weights + row.positions[e] * outputs;
    for (std::size_t c = 0; c < outputs; ++c) weight[c] += static_cast<double>(row.values[e]) * factors[c];
  }
}

}  // namespace

template <class V>
void dual_ascent(RowStarts chosen, const V* values, const std::uint32_t* positions, DualLoss loss, DualRows rows,
                 DualState state, double* __restrict margins) {
  const std::size_t outputs = rows.outputs;
  for (std::size_t i = 0; i < chosen.count; ++i) {
    fetch_entries(chosen, i + 2, values, positions);
    fetch_weights(chosen, i + 1, positions, state.weights, outputs);
    const auto number = static_cast<std::size_t>(chosen.rows[i]);
    const double share = rows.shares[number], square = rows.squares[number] + rows.bias;
    if (share == 0.0) continue;
    const Entries<V> row{values, positions, chosen.starts[number], chosen.starts[number + 1]};
    std::copy(state.intercepts, state.intercepts + outputs, margins);
    add_products(row, state.weights, outputs, margins);
    double* const variables = state.variables + number * outputs;
    double* const factors = margins;  // each margin is read before its factor is written
    bool has_moved = false;
    for (std::size_t c = 0; c < outputs; ++c) {
      const double step = rows.sigma[c] * share, before = variables[c];
      variables[c] = stepped(loss, before, rows.targets[number * outputs + c], margins[c], step * square);
      factors[c] = step * (variables[c] - before);
      state.intercepts[c] += rows.bias * factors[c];
      has_moved |= factors[c] != 0.0;
    }
    if (has_moved) add_row(row, factors, outputs, state.weights);
  }
}

template void dual_ascent(RowStarts, const float*, const std::uint32_t*, DualLoss, DualRows, DualState, double*);
template void dual_ascent(RowStarts, const double*, const std::uint32_t*, DualLoss, DualRows, DualState, double*);

}  // namespace sparsewire
