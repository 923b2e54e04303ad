// libsvm.cpp: LIBSVM's text format.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "../libsvm.h"
#include "arrays.h"

namespace sparsewire::bindings {
namespace {

using Parsed = std::tuple<std::size_t, std::size_t, std::size_t, std::int64_t, std::int64_t, bool, int, std::size_t,
                          std::size_t>;  // as in LibsvmParsed

template <class I>
Parsed parse_typed(const InOf<std::uint8_t>& text, sw::LinesWanted wanted, const OutOf<double>& labels,
                   const OutOf<std::int64_t>& counts, const Out& indices, const Out& values) {
  wanted.highest = std::min(wanted.highest, static_cast<std::uint64_t>(std::numeric_limits<I>::max()));
  sw::LibsvmParsed parsed;
  with_matrix_type(values.dtype(), [&](auto value) {
    using V = decltype(value);
    const sw::LibsvmRoom<I, V> room{labels.data(), counts.data(), indices.as<I>(), values.as<V>()};
    parsed = sw::parse_libsvm(reinterpret_cast<const char*>(text.data()), text.size(), wanted, room);
  });
  return {parsed.rows, parsed.entries, parsed.lines, parsed.smallest, parsed.largest, parsed.has_query,
          static_cast<int>(parsed.expected), parsed.line, parsed.word};
}

Parsed parse_libsvm(InOf<std::uint8_t> text, std::size_t first, std::size_t every, std::uint64_t lowest,
                    std::uint64_t highest, OutOf<double> labels, OutOf<std::int64_t> counts, Out indices, Out values) {
  const std::size_t n = text.size();
  require(n == 0 || text.data()[n - 1] == '\n', "parse_libsvm: the last line does not end");
  require(every >= 1, "parse_libsvm: lines are at least one apart");
  require(labels.size() >= n / 2 && counts.size() >= n / 2, "parse_libsvm: output is too small for the rows");
  require(indices.size() >= n / 4 && values.size() >= n / 4, "parse_libsvm: output is too small for the entries");
  const sw::LinesWanted wanted{first, every, lowest, highest};
  if (indices.dtype() == nb::dtype<std::int32_t>())
    return parse_typed<std::int32_t>(text, wanted, labels, counts, indices, values);
  if (indices.dtype() == nb::dtype<std::int64_t>())
    return parse_typed<std::int64_t>(text, wanted, labels, counts, indices, values);
  throw nb::type_error("parse_libsvm: indices must be int32 or int64");
}

}  // namespace

void bind_libsvm(nb::module_& m) { m.def("parse_libsvm", &parse_libsvm); }

}  // namespace sparsewire::bindings
