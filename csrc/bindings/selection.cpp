// selection.cpp: the entries of largest magnitude.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "../histogram.h"
#include "../merge.h"
#include "../partition.h"
#include "../select.h"
#include "../select_buckets.h"
#include "../threshold_for_k.h"
#include "arrays.h"

namespace sparsewire::bindings {
namespace {

template <class I, class V>
sw::Room<I, V> room(const Out& indices, const Out& values) {
  return {indices.as<I>(), values.as<V>(), indices.size()};
}

using Step = std::tuple<std::size_t, std::size_t, std::uint64_t>;  // position, count, ties: as in Progress

Step step_of(sw::Progress progress) { return {progress.position, progress.count, progress.ties}; }

template <class Array>
sw::Progress checked_progress(const Step& step, const Array& x, const Out& indices, const Out& values) {
  const auto [position, count, ties] = step;
  require_same_dtype(x.dtype(), values.dtype());
  require(position <= x.size() && count <= indices.size(), "select: position or count is out of range");
  require(indices.size() == values.size(), "select: room for indices and values differs");
  return {position, count, ties};
}

// Not called select, which POSIX has.
Step select_entries(In x, std::uint64_t threshold, std::uint64_t offset, Out indices, Out values, Step step) {
  const sw::Progress begin = checked_progress(step, x, indices, values);
  return with_types(indices.dtype(), x.dtype(), [&](auto index, auto value) {
    using I = decltype(index);
    using V = decltype(value);
    return step_of(sw::select(x.as<V>(), x.size(), static_cast<sw::Magnitude<V>>(threshold), static_cast<I>(offset),
                              room<I, V>(indices, values), begin));
  });
}

Step accumulate_select(Out residual, In gradient, std::uint64_t threshold, Out indices, Out values, Step step,
                       std::optional<Out> velocity, double momentum) {
  require_accumulation(residual, gradient);
  const sw::Progress begin = checked_progress(step, residual, indices, values);
  if (velocity) {
    require_same_dtype(residual.dtype(), velocity->dtype());
    require(residual.size() == velocity->size(), "accumulate_select: residual and velocity differ in length");
  }
  return with_types(indices.dtype(), residual.dtype(), [&](auto index, auto value) {
    using I = decltype(index);
    using V = decltype(value);
    const sw::Velocity<V> moving{velocity ? velocity->as<V>() : nullptr, static_cast<sw::Sum<V>>(momentum)};
    return step_of(sw::accumulate_select(residual.as<V>(), gradient.as<V>(), moving, residual.size(),
                                         static_cast<sw::Magnitude<V>>(threshold), room<I, V>(indices, values), begin));
  });
}

std::tuple<std::uint64_t, std::uint64_t> threshold_for_k(In x, std::size_t k) {
  require(1 <= k && k <= x.size(), "threshold_for_k: k is out of range");
  return with_value_type(x.dtype(), [&](auto value) -> std::tuple<std::uint64_t, std::uint64_t> {
    using V = decltype(value);
    const sw::Threshold found = sw::threshold_for_k(x.as<V>(), x.size(), k);
    return {found.magnitude, found.ties};
  });
}

void require_buckets(std::size_t n, std::size_t k, std::size_t bucket, const Out& indices, const Out& values) {
  require(1 <= k && k <= bucket, "select_buckets: k is out of range");
  require(indices.size() == values.size() && (indices.size() >= n || indices.size() / k >= blocks_in(n, bucket)),
          "select_buckets: output is too small");
}

std::size_t select_buckets(In x, std::size_t k, std::size_t bucket, Out indices, Out values) {
  require_same_dtype(x.dtype(), values.dtype());
  require_buckets(x.size(), k, bucket, indices, values);
  return with_types(indices.dtype(), x.dtype(), [&](auto index, auto value) {
    using I = decltype(index);
    using V = decltype(value);
    return sw::select_buckets(x.as<V>(), x.size(), k, bucket, room<I, V>(indices, values));
  });
}

std::size_t accumulate_select_buckets(Out residual, In gradient, std::size_t k, std::size_t bucket, Out indices,
                                      Out values) {
  require_accumulation(residual, gradient);
  require_same_dtype(residual.dtype(), values.dtype());
  require_buckets(residual.size(), k, bucket, indices, values);
  return with_types(indices.dtype(), residual.dtype(), [&](auto index, auto value) {
    using I = decltype(index);
    using V = decltype(value);
    return sw::accumulate_select_buckets(residual.as<V>(), gradient.as<V>(), residual.size(), k, bucket,
                                         room<I, V>(indices, values));
  });
}

void histogram(In x, OutOf<std::int64_t> counts) {
  if (counts.size() != sw::classes) throw nb::type_error("histogram: there must be a count for each class");
  with_value_type(x.dtype(), [&](auto value) {
    using V = decltype(value);
    sw::histogram(x.as<V>(), x.size(), counts.data());
  });
}

std::size_t partition(In indices, In values, std::uint64_t threshold, std::uint64_t ties, Out large_indices,
                      Out large_values, Out rest_indices, Out rest_values) {
  const std::size_t n = indices.size();
  require(values.size() == n, "partition: indices and values differ in length");
  for (const Out& out : {large_indices, rest_indices}) {
    require_same_dtype(indices.dtype(), out.dtype());
    require(out.size() >= n, "partition: output is too small");
  }
  for (const Out& out : {large_values, rest_values}) {
    require_same_dtype(values.dtype(), out.dtype());
    require(out.size() >= n, "partition: output is too small");
  }
  return with_types(indices.dtype(), values.dtype(), [&](auto index, auto value) {
    using I = decltype(index);
    using V = decltype(value);
    return sw::partition(sw::Run<I, V>{indices.as<I>(), values.as<V>(), n}, static_cast<sw::Magnitude<V>>(threshold),
                         ties, large_indices.as<I>(), large_values.as<V>(), rest_indices.as<I>(),
                         rest_values.as<V>());
  });
}

}  // namespace

void bind_selection(nb::module_& m) {
  m.def("select", &select_entries);
  m.def("accumulate_select", &accumulate_select);
  m.def("threshold_for_k", &threshold_for_k);
  m.def("select_buckets", &select_buckets);
  m.def("accumulate_select_buckets", &accumulate_select_buckets);
  m.def("histogram", &histogram);
  m.def("partition", &partition);
}

}  // namespace sparsewire::bindings
