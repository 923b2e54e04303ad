// bindings.cpp: Python to kernels.  What would make a kernel touch foreign memory is checked here; what makes a good
// message is checked in kernels/__init__.py, for all versions alike.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "add_blocks.h"
#include "bitmap.h"
#include "block_norms.h"
#include "checksum.h"
#include "copy_blocks.h"
#include "dispatch.h"
#include "elias_fano.h"
#include "first_invalid.h"
#include "histogram.h"
#include "libsvm.h"
#include "merge.h"
#include "narrow.h"
#include "nonzero_blocks.h"
#include "partition.h"
#include "quantize.h"
#include "rows.h"
#include "scatter.h"
#include "select.h"
#include "select_buckets.h"
#include "split_at.h"
#include "threshold_for_k.h"
#include "without.h"

namespace nb = nanobind;
using namespace nb::literals;
namespace sw = sparsewire;

namespace {

using In = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool ok, const char* message) {
  if (!ok) throw nb::value_error(message);
}

template <class T>
struct Type {
  using type = T;
};

constexpr nb::dlpack::dtype float16{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};

// Calls visit(Type<I>()) with the index type of the array.
template <class Visit>
auto with_index_type(nb::dlpack::dtype dtype, Visit visit) {
  if (dtype == nb::dtype<std::uint32_t>()) return visit(Type<std::uint32_t>());
  if (dtype == nb::dtype<std::uint64_t>()) return visit(Type<std::uint64_t>());
  throw nb::type_error("indices must be uint32 or uint64");
}

// Calls visit(Type<V>()) with the value type of the array.  No exchange protocol knows bfloat16: it comes as uint16.
template <class Visit>
auto with_value_type(nb::dlpack::dtype dtype, Visit visit) {
  if (dtype == nb::dtype<float>()) return visit(Type<float>());
  if (dtype == nb::dtype<double>()) return visit(Type<double>());
  if (dtype == float16) return visit(Type<sw::half>());
  if (dtype == nb::dtype<std::uint16_t>()) return visit(Type<sw::bfloat16>());
  if (dtype == nb::dtype<std::int32_t>()) return visit(Type<std::int32_t>());
  if (dtype == nb::dtype<std::int64_t>()) return visit(Type<std::int64_t>());
  throw nb::type_error("values must be float32, float64, float16, uint16 (standing for bfloat16), int32 or int64");
}

template <class Visit>
auto with_types(nb::dlpack::dtype index_dtype, nb::dlpack::dtype value_dtype, Visit visit) {
  return with_index_type(index_dtype, [&](auto index) {
    return with_value_type(value_dtype, [&](auto value) { return visit(index, value); });
  });
}

template <class T>
const T* data(const In& array) {
  return static_cast<const T*>(array.data());
}

template <class T>
T* data(const Out& array) {
  return static_cast<T*>(array.data());
}

void require_same_dtype(nb::dlpack::dtype a, nb::dlpack::dtype b) {
  if (a != b) throw nb::type_error("values of different dtypes");
}

using Step = std::tuple<std::size_t, std::size_t, std::uint64_t>;  // position, count, ties: as in Progress

// Not called select, which POSIX has.
Step select_entries(In x, std::uint64_t threshold, std::uint64_t offset, Out indices, Out values, Step step) {
  const auto [position, count, ties] = step;
  require_same_dtype(x.dtype(), values.dtype());
  require(position <= x.size() && count <= indices.size(), "select: position or count is out of range");
  require(indices.size() == values.size(), "select: room for indices and values differs");
  return with_types(indices.dtype(), x.dtype(), [&, p = position, c = count, t = ties](auto index, auto value) -> Step {
    using I = typename decltype(index)::type;
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    const sw::Progress progress =
        sw::select(data<V>(x), x.size(), static_cast<sw::Magnitude<V>>(threshold), static_cast<I>(offset),
                   sw::Room<I, V>{data<I>(indices), data<V>(values), indices.size()}, {p, c, t});
    return {progress.position, progress.count, progress.ties};
  });
}

Step accumulate_select(Out residual, In gradient, std::uint64_t threshold, Out indices, Out values, Step step,
                       std::optional<Out> velocity, double momentum) {
  const auto [position, count, ties] = step;
  require_same_dtype(residual.dtype(), gradient.dtype());
  require_same_dtype(residual.dtype(), values.dtype());
  require(residual.size() == gradient.size(), "accumulate_select: residual and gradient differ in length");
  require(position <= residual.size() && count <= indices.size(),
          "accumulate_select: position or count is out of range");
  require(indices.size() == values.size(), "accumulate_select: room for indices and values differs");
  if (velocity) {
    require_same_dtype(residual.dtype(), velocity->dtype());
    require(residual.size() == velocity->size(), "accumulate_select: residual and velocity differ in length");
  }
  const auto visit = [&, p = position, c = count, t = ties](auto index, auto value) -> Step {
    using I = typename decltype(index)::type;
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    const sw::Velocity<V> moving{velocity ? data<V>(*velocity) : nullptr, static_cast<sw::Sum<V>>(momentum)};
    const sw::Progress progress = sw::accumulate_select(
        data<V>(residual), data<V>(gradient), moving, residual.size(), static_cast<sw::Magnitude<V>>(threshold),
        sw::Room<I, V>{data<I>(indices), data<V>(values), indices.size()}, {p, c, t});
    return {progress.position, progress.count, progress.ties};
  };
  return with_types(indices.dtype(), residual.dtype(), visit);
}

std::tuple<std::uint64_t, std::uint64_t> threshold_for_k(In x, std::size_t k) {
  require(1 <= k && k <= x.size(), "threshold_for_k: k is out of range");
  return with_value_type(x.dtype(), [&](auto value) -> std::tuple<std::uint64_t, std::uint64_t> {
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    const sw::Threshold found = sw::threshold_for_k(data<V>(x), x.size(), k);
    return {found.magnitude, found.ties};
  });
}

void require_buckets(std::size_t n, std::size_t k, std::size_t bucket, const Out& indices, const Out& values) {
  require(1 <= k && k <= bucket, "select_buckets: k is out of range");
  const std::size_t buckets = n / bucket + (n % bucket != 0);
  require(indices.size() == values.size() && (indices.size() >= n || indices.size() / k >= buckets),
          "select_buckets: output is too small");
}

std::size_t select_buckets(In x, std::size_t k, std::size_t bucket, Out indices, Out values) {
  require_same_dtype(x.dtype(), values.dtype());
  require_buckets(x.size(), k, bucket, indices, values);
  return with_types(indices.dtype(), x.dtype(), [&](auto index, auto value) {
    using I = typename decltype(index)::type;
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    return sw::select_buckets(data<V>(x), x.size(), k, bucket,
                              sw::Room<I, V>{data<I>(indices), data<V>(values), indices.size()});
  });
}

std::size_t accumulate_select_buckets(Out residual, In gradient, std::size_t k, std::size_t bucket, Out indices,
                                      Out values) {
  require_same_dtype(residual.dtype(), gradient.dtype());
  require_same_dtype(residual.dtype(), values.dtype());
  require(residual.size() == gradient.size(), "accumulate_select_buckets: residual and gradient differ in length");
  require_buckets(residual.size(), k, bucket, indices, values);
  return with_types(indices.dtype(), residual.dtype(), [&](auto index, auto value) {
    using I = typename decltype(index)::type;
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    return sw::accumulate_select_buckets(data<V>(residual), data<V>(gradient), residual.size(), k, bucket,
                                         sw::Room<I, V>{data<I>(indices), data<V>(values), indices.size()});
  });
}

using OutDoubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InNumbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutNumbers = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The last one may be shorter.
std::size_t blocks_in(std::size_t n, std::size_t block) { return n / block + (n % block != 0); }

void require_blocks(std::size_t n, std::size_t block, const OutDoubles& norms) {
  require(block >= 1, "block_norms: a block holds at least one value");
  require(norms.size() == blocks_in(n, block), "block_norms: one norm per block");
}

void block_norms(In x, std::size_t block, OutDoubles norms) {
  require_blocks(x.size(), block, norms);
  with_value_type(x.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    sw::block_norms(data<V>(x), x.size(), block, norms.data());
  });
}

void accumulate_block_norms(Out residual, In gradient, std::size_t block, OutDoubles norms) {
  require_same_dtype(residual.dtype(), gradient.dtype());
  require(residual.size() == gradient.size(), "accumulate_block_norms: residual and gradient differ in length");
  require_blocks(residual.size(), block, norms);
  with_value_type(residual.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    sw::accumulate_block_norms(data<V>(residual), data<V>(gradient), residual.size(), block, norms.data());
  });
}

std::size_t nonzero_blocks(In x, std::size_t block, OutNumbers numbers) {
  require(block >= 1, "nonzero_blocks: a block holds at least one value");
  require(numbers.size() >= blocks_in(x.size(), block), "nonzero_blocks: output is too small");
  return with_value_type(x.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    return sw::nonzero_blocks(data<V>(x), x.size(), block, numbers.data());
  });
}

// Each is the number of one of the blocks of n values, and `moved` values are a block for each of them.
void require_numbers(const InNumbers& numbers, std::size_t n, std::size_t moved, std::size_t block) {
  require(block >= 1, "a block holds at least one value");
  require(moved % block == 0 && moved / block == numbers.size(), "there is not one block per number");
  const std::uint64_t existing = blocks_in(n, block);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    require(static_cast<std::uint64_t>(numbers.data()[i]) < existing, "number of a block out of range");
}

void add_blocks(Out total, InNumbers rows, In values, std::size_t block) {
  require_numbers(rows, total.size(), values.size(), block);
  with_value_type(values.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    if (total.dtype() != nb::dtype<sw::Sum<V>>()) throw nb::type_error("add_blocks: the total has another dtype");
    nb::gil_scoped_release released;
    sw::add_blocks(data<sw::Sum<V>>(total), total.size(), rows.data(), rows.size(), data<V>(values), block);
  });
}

void gather_blocks(In x, InNumbers numbers, std::size_t block, Out out) {
  require_same_dtype(x.dtype(), out.dtype());
  require_numbers(numbers, x.size(), out.size(), block);
  nb::gil_scoped_release released;
  sw::gather_blocks(data<std::byte>(x), x.nbytes(), numbers.data(), numbers.size(), block * x.itemsize(),
                    data<std::byte>(out));
}

void scatter_blocks(Out x, InNumbers numbers, std::size_t block, In values) {
  require_same_dtype(x.dtype(), values.dtype());
  require_numbers(numbers, x.size(), values.size(), block);
  nb::gil_scoped_release released;
  sw::scatter_blocks(data<std::byte>(x), x.nbytes(), numbers.data(), numbers.size(), block * x.itemsize(),
                     data<std::byte>(values));
}

void histogram(In x, nb::ndarray<std::int64_t, nb::shape<sw::classes>, nb::c_contig, nb::device::cpu> counts) {
  with_value_type(x.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    sw::histogram(data<V>(x), x.size(), counts.data());
  });
}

sw::Operation operation_named(const std::string& name) {
  if (name == "sum") return sw::Operation::sum;
  if (name == "max") return sw::Operation::max;
  if (name == "min") return sw::Operation::min;
  throw nb::value_error("merge: the operation is sum, max or min");
}

std::size_t merge(const std::string& name, std::vector<In> indices, std::vector<In> values, Out out_indices,
                  Out out_values) {
  const sw::Operation operation = operation_named(name);
  require(indices.size() == values.size(), "merge: as many arrays of values as of indices");
  std::size_t total = 0;
  for (std::size_t r = 0; r < indices.size(); ++r) {
    if (indices[r].dtype() != out_indices.dtype()) throw nb::type_error("merge: indices of different dtypes");
    require_same_dtype(values[r].dtype(), out_values.dtype());
    require(indices[r].size() == values[r].size(), "merge: indices and values differ in length");
    total += indices[r].size();
  }
  require(out_indices.size() >= total && out_values.size() >= total, "merge: output is too small");
  return with_types(out_indices.dtype(), out_values.dtype(), [&](auto index, auto value) {
    using I = typename decltype(index)::type;
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    std::vector<sw::Run<I, V>> runs;
    for (std::size_t r = 0; r < indices.size(); ++r)
      runs.push_back({data<I>(indices[r]), data<V>(values[r]), indices[r].size()});
    return sw::merge(operation, std::move(runs), data<I>(out_indices), data<V>(out_values));
  });
}

std::size_t without(In indices, In values, In others, Out out_indices, Out out_values) {
  if (indices.dtype() != others.dtype() || indices.dtype() != out_indices.dtype())
    throw nb::type_error("without: indices of different dtypes");
  require_same_dtype(values.dtype(), out_values.dtype());
  const std::size_t n = indices.size();
  require(values.size() == n, "without: indices and values differ in length");
  require(out_indices.size() >= n && out_values.size() >= n, "without: output is too small");
  return with_types(indices.dtype(), values.dtype(), [&](auto index, auto value) {
    using I = typename decltype(index)::type;
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    return sw::without(sw::Run<I, V>{data<I>(indices), data<V>(values), n}, data<I>(others), others.size(),
                       data<I>(out_indices), data<V>(out_values));
  });
}

std::size_t partition(In indices, In values, std::uint64_t threshold, std::uint64_t ties, Out large_indices,
                      Out large_values, Out rest_indices, Out rest_values) {
  const std::size_t n = indices.size();
  require(values.size() == n, "partition: indices and values differ in length");
  for (const Out& out : {large_indices, rest_indices}) {
    if (indices.dtype() != out.dtype()) throw nb::type_error("partition: indices of different dtypes");
    require(out.size() >= n, "partition: output is too small");
  }
  for (const Out& out : {large_values, rest_values}) {
    require_same_dtype(values.dtype(), out.dtype());
    require(out.size() >= n, "partition: output is too small");
  }
  return with_types(indices.dtype(), values.dtype(), [&](auto index, auto value) {
    using I = typename decltype(index)::type;
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    return sw::partition(sw::Run<I, V>{data<I>(indices), data<V>(values), n}, static_cast<sw::Magnitude<V>>(threshold),
                         ties, data<I>(large_indices), data<V>(large_values), data<I>(rest_indices),
                         data<V>(rest_values));
  });
}

// Calls kernel(dense, indices, values, n, offset) with typed pointers; there may be no entries.
template <class Kernel>
void scatter_with(Kernel kernel, const Out& dense, const In& indices, const In& values, std::uint64_t offset) {
  require_same_dtype(dense.dtype(), values.dtype());
  require(indices.size() == values.size(), "scatter: indices and values differ in length");
  with_types(indices.dtype(), values.dtype(), [&](auto index, auto value) {
    using I = typename decltype(index)::type;
    using V = typename decltype(value)::type;
    const std::size_t n = indices.size();
    const std::uint64_t first = n ? data<I>(indices)[0] : offset, last = n ? data<I>(indices)[n - 1] : offset;
    require(offset <= first && first <= last && (n == 0 || last - offset < dense.size()),
            "scatter: index out of range");
    nb::gil_scoped_release released;
    kernel(data<V>(dense), data<I>(indices), data<V>(values), n, static_cast<I>(offset));
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

void split_at(In indices, nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> cuts,
              nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> positions) {
  require(positions.size() >= cuts.size(), "split_at: output is too small");
  with_index_type(indices.dtype(), [&](auto index) {
    using I = typename decltype(index)::type;
    nb::gil_scoped_release released;
    sw::split_at(data<I>(indices), indices.size(), cuts.data(), cuts.size(), positions.data());
  });
}

std::int64_t first_invalid(In indices, std::uint64_t first, std::uint64_t last) {
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = typename decltype(index)::type;
    nb::gil_scoped_release released;
    return sw::first_invalid(data<I>(indices), indices.size(), first, last);
  });
}

std::uint64_t checksum(nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> bytes,
                       std::uint64_t seed) {
  nb::gil_scoped_release released;
  return sw::checksum(bytes.data(), bytes.size(), seed);
}

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Calls visit(Type<V>()) with half or bfloat16.
template <class Visit>
void with_half_type(nb::dlpack::dtype dtype, Visit visit) {
  if (dtype == float16) return visit(Type<sw::half>());
  if (dtype == nb::dtype<std::uint16_t>()) return visit(Type<sw::bfloat16>());
  throw nb::type_error("narrow values must be float16 or uint16 (standing for bfloat16)");
}

void narrow(Floats values, Out out) {
  require(values.size() == out.size(), "narrow: values and output differ in length");
  with_half_type(out.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    sw::narrow(values.data(), values.size(), data<V>(out));
  });
}

void widen(In values, OutFloats out) {
  require(values.size() == out.size(), "widen: values and output differ in length");
  with_half_type(values.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    sw::widen(data<V>(values), values.size(), out.data());
  });
}

void require_format(sw::Format format, std::size_t count, std::size_t scales, std::size_t codes) {
  const auto [bits, bucket] = format;
  require(bits == 2 || bits == 4 || bits == 8, "quantized values have 2, 4 or 8 bits");
  require(bucket >= 1, "a bucket holds at least one value");
  require(scales == count / bucket + (count % bucket != 0), "one scale per bucket");
  const std::size_t per_byte = 8 / bits;
  require(codes == count / per_byte + (count % per_byte != 0), "quantized values do not fill the bytes");
}

sw::Norm norm_named(const std::string& name) {
  if (name == "max") return sw::Norm::max;
  if (name == "2") return sw::Norm::two;
  throw nb::value_error("quantize: the norm is max or 2");
}

void quantize(Floats values, std::variant<std::uint64_t, In> positions, std::optional<std::uint32_t> key, int bits,
              std::size_t bucket, const std::string& name, OutFloats scales, OutBytes codes) {
  const sw::Norm norm = norm_named(name);
  const sw::Format format{bits, bucket};
  const std::size_t n = values.size();
  require_format(format, n, scales.size(), codes.size());
  const auto quantize_at = [&](auto typed_positions) {
    nb::gil_scoped_release released;
    sw::quantize(values.data(), n, typed_positions, key, format, norm, scales.data(), codes.data());
  };
  if (const auto* first = std::get_if<std::uint64_t>(&positions)) return quantize_at(sw::Consecutive{*first});
  const In& array = std::get<In>(positions);
  require(array.size() == n, "quantize: positions and values differ in length");
  with_index_type(array.dtype(), [&](auto index) { quantize_at(data<typename decltype(index)::type>(array)); });
}

void dequantize(Floats scales, Bytes codes, int bits, std::size_t bucket, OutFloats out) {
  const sw::Format format{bits, bucket};
  require_format(format, out.size(), scales.size(), codes.size());
  nb::gil_scoped_release released;
  sw::dequantize(scales.data(), codes.data(), out.size(), format, out.data());
}

// ---- index coding: an encoder is given words of the right number, a decoder says false if it is not right.

using InWords = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutWords = nb::ndarray<std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Calls visit(indices, n, start) with typed arguments; the first and the last index are in [start, start + span).
template <class Visit>
void with_support(const In& indices, std::uint64_t start, std::uint64_t span, Visit visit) {
  with_index_type(indices.dtype(), [&](auto index) {
    using I = typename decltype(index)::type;
    const std::size_t n = indices.size();
    if (n > 0) {
      const std::uint64_t first = data<I>(indices)[0], last = data<I>(indices)[n - 1];
      require(start <= first && first <= last && last - start < span && n - 1 <= last - first,
              "encode: index out of range");
    }
    nb::gil_scoped_release released;
    visit(data<I>(indices), n, static_cast<I>(start));
  });
}

void encode_elias_fano(In indices, std::uint64_t start, std::uint64_t span, OutWords words) {
  with_support(indices, start, span, [&](auto* first, std::size_t n, auto begin) {
    require(words.size() == sw::EliasFano(n, span).words(), "encode_elias_fano: wrong number of words");
    sw::encode_elias_fano(first, n, begin, span, words.data());
  });
}

void encode_bitmap(In indices, std::uint64_t start, std::uint64_t span, OutWords words) {
  with_support(indices, start, span, [&](auto* first, std::size_t n, auto begin) {
    require(words.size() == sw::bitmap_words(span), "encode_bitmap: wrong number of words");
    sw::encode_bitmap(first, n, begin, span, words.data());
  });
}

bool encode_tiles(In indices, std::uint64_t start, std::uint64_t span, OutWords words) {
  bool is_done = false;
  with_support(indices, start, span, [&](auto* first, std::size_t n, auto begin) {
    const std::size_t before = sw::directory_words(span);
    require(words.size() >= before, "encode_tiles: no room for the directory");
    is_done = sw::encode_tiles(first, n, begin, span, words.data(), words.size() - before);
  });
  return is_done;
}

std::size_t count_tiles(In indices, std::uint64_t start) {
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = typename decltype(index)::type;
    nb::gil_scoped_release released;
    return sw::count_tiles(data<I>(indices), indices.size(), static_cast<I>(start));
  });
}

bool decode_elias_fano(InWords words, std::uint64_t start, std::uint64_t span, Out indices) {
  const std::size_t n = indices.size();
  if (n > span || words.size() != sw::EliasFano(n, span).words()) return false;
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = typename decltype(index)::type;
    nb::gil_scoped_release released;
    return sw::decode_elias_fano(words.data(), n, static_cast<I>(start), span, data<I>(indices));
  });
}

bool decode_bitmap(InWords words, std::uint64_t start, std::uint64_t span, Out indices) {
  if (words.size() != sw::bitmap_words(span)) return false;
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = typename decltype(index)::type;
    nb::gil_scoped_release released;
    return sw::decode_bitmap(words.data(), indices.size(), static_cast<I>(start), span, data<I>(indices));
  });
}

bool decode_tiles(InWords words, std::uint64_t start, std::uint64_t span, Out indices) {
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = typename decltype(index)::type;
    nb::gil_scoped_release released;
    return sw::decode_tiles(words.data(), words.size(), indices.size(), static_cast<I>(start), span, data<I>(indices));
  });
}

using InDoubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InPositions = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutPositions = nb::ndarray<std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The chosen rows, which have so many entries in all, of a matrix with n entries.
sw::RowStarts require_rows(const InNumbers& starts, const InNumbers& rows, std::size_t n, std::size_t entries) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t row = rows.data()[i];
    require(0 <= row && static_cast<std::uint64_t>(row) + 1 < starts.size(), "number of a row out of range");
    const std::int64_t first = starts.data()[row], last = starts.data()[row + 1];
    require(0 <= first && first <= last && static_cast<std::uint64_t>(last) <= n, "a row begins or ends nowhere");
    found += static_cast<std::size_t>(last - first);
  }
  require(found == entries, "the rows have another number of entries");
  return {starts.data(), rows.data(), rows.size()};
}

std::size_t row_columns(InNumbers starts, In indices, InNumbers rows, std::size_t width,
                        nb::ndarray<std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> marks,
                        OutPositions before, Out columns, OutPositions positions) {
  if (indices.dtype() != columns.dtype()) throw nb::type_error("row_columns: indices of different dtypes");
  const sw::RowStarts chosen = require_rows(starts, rows, indices.size(), positions.size());
  require(columns.size() >= positions.size(), "row_columns: output is too small");
  const std::size_t words = width / 64 + (width % 64 != 0);
  require(marks.size() >= words && before.size() >= words, "row_columns: too few marks");
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = typename decltype(index)::type;
    nb::gil_scoped_release released;
    const std::size_t count = sw::row_columns(chosen, data<I>(indices), width, marks.data(), before.data(),
                                              data<I>(columns), positions.data());
    require(count != sw::beyond_the_width, "row_columns: a column beyond the width");
    return count;
  });
}

// Calls visit(Type<V>()) with one of the types that a matrix may have.
template <class Visit>
void with_matrix_type(nb::dlpack::dtype dtype, Visit visit) {
  if (dtype == nb::dtype<float>()) return visit(Type<float>());
  if (dtype == nb::dtype<double>()) return visit(Type<double>());
  throw nb::type_error("the values of a matrix must be float32 or float64");
}

void row_products(InNumbers starts, In values, InNumbers rows, InPositions positions, InDoubles weights,
                  std::size_t outputs, OutDoubles products) {
  const sw::RowStarts chosen = require_rows(starts, rows, values.size(), positions.size());
  require(outputs >= 1 && products.size() == rows.size() * outputs, "row_products: a product per row and output");
  with_matrix_type(values.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    require(sw::all_below(positions.data(), positions.size(), weights.size() / outputs), "row_products: too few weights");
    sw::row_products(chosen, data<V>(values), positions.data(), weights.data(), outputs, products.data());
  });
}

void row_sums(InNumbers starts, In values, InNumbers rows, InPositions positions, InDoubles factors,
              std::size_t outputs, OutDoubles sums) {
  const sw::RowStarts chosen = require_rows(starts, rows, values.size(), positions.size());
  require(outputs >= 1 && factors.size() == rows.size() * outputs, "row_sums: a factor per row and output");
  with_matrix_type(values.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    nb::gil_scoped_release released;
    require(sw::all_below(positions.data(), positions.size(), sums.size() / outputs), "row_sums: too few sums");
    sw::row_sums(chosen, data<V>(values), positions.data(), factors.data(), outputs, sums.data());
  });
}

// ---- LIBSVM's text format

using Parsed = std::tuple<std::size_t, std::size_t, std::size_t, std::int64_t, std::int64_t, bool, int, std::size_t,
                          std::size_t>;  // as in LibsvmParsed

template <class I>
Parsed parse_typed(const Bytes& text, sw::LinesWanted wanted, const OutDoubles& labels, const OutNumbers& counts,
                   const Out& indices, const Out& values) {
  wanted.highest = std::min(wanted.highest, static_cast<std::uint64_t>(std::numeric_limits<I>::max()));
  sw::LibsvmParsed parsed;
  with_matrix_type(values.dtype(), [&](auto value) {
    using V = typename decltype(value)::type;
    const sw::LibsvmRoom<I, V> room{labels.data(), counts.data(), data<I>(indices), data<V>(values)};
    nb::gil_scoped_release released;
    parsed = sw::parse_libsvm(reinterpret_cast<const char*>(text.data()), text.size(), wanted, room);
  });
  return {parsed.rows, parsed.entries, parsed.lines, parsed.smallest, parsed.largest, parsed.has_query,
          static_cast<int>(parsed.expected), parsed.line, parsed.word};
}

Parsed parse_libsvm(Bytes text, std::size_t first, std::size_t every, std::uint64_t lowest, std::uint64_t highest,
                    OutDoubles labels, OutNumbers counts, Out indices, Out values) {
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

NB_MODULE(_compiled, m) {
  m.def("select", &select_entries, "x"_a.noconvert(), "threshold"_a, "offset"_a, "indices"_a.noconvert(),
        "values"_a.noconvert(), "step"_a);
  m.def("accumulate_select", &accumulate_select, "residual"_a.noconvert(), "gradient"_a.noconvert(), "threshold"_a,
        "indices"_a.noconvert(), "values"_a.noconvert(), "step"_a, "velocity"_a.noconvert().none(), "momentum"_a);
  m.def("threshold_for_k", &threshold_for_k, "x"_a.noconvert(), "k"_a);
  m.def("select_buckets", &select_buckets, "x"_a.noconvert(), "k"_a, "bucket"_a, "indices"_a.noconvert(),
        "values"_a.noconvert());
  m.def("accumulate_select_buckets", &accumulate_select_buckets, "residual"_a.noconvert(), "gradient"_a.noconvert(),
        "k"_a, "bucket"_a, "indices"_a.noconvert(), "values"_a.noconvert());
  m.def("block_norms", &block_norms, "x"_a.noconvert(), "block"_a, "norms"_a.noconvert());
  m.def("accumulate_block_norms", &accumulate_block_norms, "residual"_a.noconvert(), "gradient"_a.noconvert(),
        "block"_a, "norms"_a.noconvert());
  m.def("nonzero_blocks", &nonzero_blocks, "x"_a.noconvert(), "block"_a, "numbers"_a.noconvert());
  m.def("add_blocks", &add_blocks, "total"_a.noconvert(), "rows"_a.noconvert(), "values"_a.noconvert(), "block"_a);
  m.def("gather_blocks", &gather_blocks, "x"_a.noconvert(), "numbers"_a.noconvert(), "block"_a, "out"_a.noconvert());
  m.def("scatter_blocks", &scatter_blocks, "x"_a.noconvert(), "numbers"_a.noconvert(), "block"_a,
        "values"_a.noconvert());
  m.def("histogram", &histogram, "x"_a.noconvert(), "counts"_a.noconvert());
  m.def("partition", &partition, "indices"_a.noconvert(), "values"_a.noconvert(), "threshold"_a, "ties"_a,
        "large_indices"_a.noconvert(), "large_values"_a.noconvert(), "rest_indices"_a.noconvert(),
        "rest_values"_a.noconvert());
  m.def("without", &without, "indices"_a.noconvert(), "values"_a.noconvert(), "others"_a.noconvert(),
        "out_indices"_a.noconvert(), "out_values"_a.noconvert());
  m.def("merge", &merge, "operation"_a, "indices"_a.noconvert(), "values"_a.noconvert(),
        "out_indices"_a.noconvert(), "out_values"_a.noconvert());
  m.def("scatter_add", &scatter_add, "dense"_a.noconvert(), "indices"_a.noconvert(), "values"_a.noconvert(),
        "offset"_a);
  m.def("scatter", &scatter, "dense"_a.noconvert(), "indices"_a.noconvert(), "values"_a.noconvert(), "offset"_a);
  m.def("spread", &spread, "dense"_a.noconvert(), "indices"_a.noconvert(), "values"_a.noconvert(), "offset"_a);
  m.def("split_at", &split_at, "indices"_a.noconvert(), "cuts"_a.noconvert(), "positions"_a.noconvert());
  m.def("first_invalid", &first_invalid, "indices"_a.noconvert(), "first"_a, "last"_a);
  m.def("checksum", &checksum, "data"_a.noconvert(), "seed"_a);
  m.def("narrow", &narrow, "values"_a.noconvert(), "out"_a.noconvert());
  m.def("widen", &widen, "values"_a.noconvert(), "out"_a.noconvert());
  m.def("quantize", &quantize, "values"_a.noconvert(), "positions"_a.noconvert(), "key"_a.none(), "bits"_a, "bucket"_a,
        "norm"_a, "scales"_a.noconvert(), "codes"_a.noconvert());
  m.def("dequantize", &dequantize, "scales"_a.noconvert(), "codes"_a.noconvert(), "bits"_a, "bucket"_a,
        "out"_a.noconvert());
  m.def("encode_elias_fano", &encode_elias_fano, "indices"_a.noconvert(), "start"_a, "span"_a, "words"_a.noconvert());
  m.def("decode_elias_fano", &decode_elias_fano, "words"_a.noconvert(), "start"_a, "span"_a, "indices"_a.noconvert());
  m.def("encode_bitmap", &encode_bitmap, "indices"_a.noconvert(), "start"_a, "span"_a, "words"_a.noconvert());
  m.def("decode_bitmap", &decode_bitmap, "words"_a.noconvert(), "start"_a, "span"_a, "indices"_a.noconvert());
  m.def("encode_tiles", &encode_tiles, "indices"_a.noconvert(), "start"_a, "span"_a, "words"_a.noconvert());
  m.def("decode_tiles", &decode_tiles, "words"_a.noconvert(), "start"_a, "span"_a, "indices"_a.noconvert());
  m.def("count_tiles", &count_tiles, "indices"_a.noconvert(), "start"_a);
  m.def("row_columns", &row_columns, "starts"_a.noconvert(), "indices"_a.noconvert(), "rows"_a.noconvert(), "width"_a,
        "marks"_a.noconvert(), "before"_a.noconvert(), "columns"_a.noconvert(), "positions"_a.noconvert());
  m.def("row_products", &row_products, "starts"_a.noconvert(), "values"_a.noconvert(), "rows"_a.noconvert(),
        "positions"_a.noconvert(), "weights"_a.noconvert(), "outputs"_a, "products"_a.noconvert());
  m.def("row_sums", &row_sums, "starts"_a.noconvert(), "values"_a.noconvert(), "rows"_a.noconvert(),
        "positions"_a.noconvert(), "factors"_a.noconvert(), "outputs"_a, "sums"_a.noconvert());
  m.def("parse_libsvm", &parse_libsvm, "text"_a.noconvert(), "first"_a, "every"_a, "lowest"_a, "highest"_a,
        "labels"_a.noconvert(), "counts"_a.noconvert(), "indices"_a.noconvert(), "values"_a.noconvert());
  m.def("available_isas", &sw::available_isas);
  m.def("active_isa", &sw::active_isa);
  m.def("last_isa", &sw::last_isa);
  m.def("force_isa", &sw::force_isa, "name"_a);
}
