// quantization.cpp: values in fewer bits.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <optional>
#include <string>
#include <variant>

#include "../narrow.h"
#include "../quantize.h"
#include "arrays.h"

namespace sparsewire::bindings {
namespace {

template <class Visit>
void with_half_type(nb::dlpack::dtype dtype, Visit visit) {
  nb::gil_scoped_release released;
  if (dtype == float16) return visit(half());
  if (dtype == nb::dtype<std::uint16_t>()) return visit(bfloat16());
  throw nb::type_error("narrow values must be float16 or bfloat16");
}

void narrow(InOf<float> values, Out out) {
  require(values.size() == out.size(), "narrow: values and output differ in length");
  with_half_type(out.dtype(), [&](auto value) {
    using V = decltype(value);
    sw::narrow(values.data(), values.size(), out.as<V>());
  });
}

void widen(In values, OutOf<float> out) {
  require(values.size() == out.size(), "widen: values and output differ in length");
  with_half_type(values.dtype(), [&](auto value) {
    using V = decltype(value);
    sw::widen(values.as<V>(), values.size(), out.data());
  });
}

void require_format(sw::Format format, std::size_t count, std::size_t scales, std::size_t codes) {
  const auto [bits, bucket] = format;
  require(bits == 2 || bits == 4 || bits == 8, "quantized values have 2, 4 or 8 bits");
  require(bucket >= 1, "a bucket holds at least one value");
  require(scales == blocks_in(count, bucket), "one scale per bucket");
  require(codes == blocks_in(count, 8 / bits), "quantized values do not fill the bytes");
}

sw::Norm norm_named(const std::string& name) {
  if (name == "max") return sw::Norm::max;
  if (name == "2") return sw::Norm::two;
  throw nb::value_error("quantize: the norm is max or 2");
}

void quantize(InOf<float> values, std::variant<In, std::uint64_t> positions, std::optional<std::uint32_t> key, int bits,
              std::size_t bucket, const std::string& name, OutOf<float> scales, OutOf<std::uint8_t> codes) {
  const sw::Norm norm = norm_named(name);
  const sw::Format format{bits, bucket};
  const std::size_t n = values.size();
  require_format(format, n, scales.size(), codes.size());
  const auto quantize_at = [&](auto typed_positions) {
    sw::quantize(values.data(), n, typed_positions, key, format, norm, scales.data(), codes.data());
  };
  if (const In* array = std::get_if<In>(&positions)) {
    require(array->size() == n, "quantize: positions and values differ in length");
    return with_index_type(array->dtype(), [&](auto index) { quantize_at(array->as<decltype(index)>()); });
  }
  nb::gil_scoped_release released;
  quantize_at(sw::Consecutive{std::get<std::uint64_t>(positions)});
}

void dequantize(InOf<float> scales, InOf<std::uint8_t> codes, int bits, std::size_t bucket, OutOf<float> out) {
  const sw::Format format{bits, bucket};
  require_format(format, out.size(), scales.size(), codes.size());
  nb::gil_scoped_release released;
  sw::dequantize(scales.data(), codes.data(), out.size(), format, out.data());
}

}  // namespace

void bind_quantization(nb::module_& m) {
  m.def("narrow", &narrow);
  m.def("widen", &widen);
  m.def("quantize", &quantize);
  m.def("dequantize", &dequantize);
}

}  // namespace sparsewire::bindings
