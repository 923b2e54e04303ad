// entries.cpp: runs of entries: sums of them, parts of them, and dense arrays of them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "../merge.h"
#include "../scatter.h"
#include "../split_at.h"
#include "../without.h"
#include "arrays.h"

namespace sparsewire::bindings {
namespace {

sw::Operation operation_named(const std::string& name) {
  if (name == "sum") return sw::Operation::sum;
  if (name == "max") return sw::Operation::max;
  if (name == "min") return sw::Operation::min;
  throw nb::value_error("merge: the operation is sum, max or min");
}

std::size_t merge(const std::string& name, std::vector<std::tuple<In, In>> entries, Out out_indices, Out out_values) {
  const sw::Operation operation = operation_named(name);
  std::size_t total = 0;
  for (const auto& [indices, values] : entries) {
    require_same_dtype(indices.dtype(), out_indices.dtype());
    require_same_dtype(values.dtype(), out_values.dtype());
    require(indices.size() == values.size(), "merge: indices and values differ in length");
    total += indices.size();
  }
  require(out_indices.size() >= total && out_values.size() >= total, "merge: output is too small");
  return with_types(out_indices.dtype(), out_values.dtype(), [&](auto index, auto value) {
    using I = decltype(index);
    using V = decltype(value);
    std::vector<sw::Run<I, V>> runs;
    for (const std::tuple<In, In>& run : entries) {
      const In &indices = std::get<0>(run), &values = std::get<1>(run);
      runs.push_back({indices.as<I>(), values.as<V>(), indices.size()});
    }
    return sw::merge(operation, std::move(runs), out_indices.as<I>(), out_values.as<V>());
  });
}

std::size_t without(In indices, In values, In others, Out out_indices, Out out_values) {
  require_same_dtype(indices.dtype(), others.dtype());
  require_same_dtype(indices.dtype(), out_indices.dtype());
  require_same_dtype(values.dtype(), out_values.dtype());
  const std::size_t n = indices.size();
  require(values.size() == n, "without: indices and values differ in length");
  require(out_indices.size() >= n && out_values.size() >= n, "without: output is too small");
  return with_types(indices.dtype(), values.dtype(), [&](auto index, auto value) {
    using I = decltype(index);
    using V = decltype(value);
    return sw::without(sw::Run<I, V>{indices.as<I>(), values.as<V>(), n}, others.as<I>(), others.size(),
                       out_indices.as<I>(), out_values.as<V>());
  });
}

// Calls kernel(dense, indices, values, n, offset) with typed pointers; there may be no entries.
template <class Kernel>
void scatter_with(Kernel kernel, const Out& dense, const In& indices, const In& values, std::uint64_t offset) {
  require_same_dtype(dense.dtype(), values.dtype());
  require(indices.size() == values.size(), "scatter: indices and values differ in length");
  with_types(indices.dtype(), values.dtype(), [&](auto index, auto value) {
    using I = decltype(index);
    using V = decltype(value);
    const std::size_t n = indices.size();
    const std::uint64_t first = n ? indices.as<I>()[0] : offset, last = n ? indices.as<I>()[n - 1] : offset;
    require(offset <= first && first <= last && (n == 0 || last - offset < dense.size()),
            "scatter: index out of range");
    kernel(dense.as<V>(), indices.as<I>(), values.as<V>(), n, static_cast<I>(offset));
  });
}

void scatter_add(Out dense, In indices, In values, std::uint64_t offset) {
  scatter_with([](auto... arguments) { sw::scatter_add(arguments...); }, dense, indices, values, offset);
}

void scatter(Out dense, In indices, In values, std::uint64_t offset) {
  scatter_with([](auto... arguments) { sw::scatter(arguments...); }, dense, indices, values, offset);
}

void spread(Out dense, In indices, In values, std::uint64_t offset) {
  const std::size_t size = dense.size();
  scatter_with([=](auto* begin, auto... entries) { sw::spread(begin, size, entries...); }, dense, indices, values,
               offset);
}

void split_at(In indices, InOf<std::uint64_t> cuts, OutOf<std::int64_t> positions) {
  require(positions.size() >= cuts.size(), "split_at: output is too small");
  with_index_type(indices.dtype(), [&](auto index) {
    using I = decltype(index);
    sw::split_at(indices.as<I>(), indices.size(), cuts.data(), cuts.size(), positions.data());
  });
}

}  // namespace

void bind_entries(nb::module_& m) {
  m.def("merge", &merge);
  m.def("without", &without);
  m.def("scatter_add", &scatter_add);
  m.def("scatter", &scatter);
  m.def("spread", &spread);
  m.def("split_at", &split_at);
}

}  // namespace sparsewire::bindings
