// arrays.h: numpy arrays as arguments of kernels.
//
// A binding checks everything that could make a kernel touch memory outside its arrays.  The messages that users see
// come from src/sparsewire/kernels, whose checks are the same for all versions of a kernel.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "../values.h"

namespace sparsewire::bindings {

namespace nb = nanobind;
namespace sw = sparsewire;

// A one-dimensional contiguous array.  It is never converted, so a kernel never works on a copy.
template <class... Constraints>
struct Array : nb::ndarray<Constraints..., nb::ndim<1>, nb::c_contig, nb::device::cpu> {
  using Base = nb::ndarray<Constraints..., nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using Base::Base;
  Array(Base array) : Base(std::move(array)) {}
};

// Of any element type; `with_types` finds out which.
struct In : Array<nb::ro> {
  using Array::Array;
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data());
  }
};

struct Out : Array<> {
  using Array::Array;
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
};

template <class T>
using InOf = Array<const T>;
template <class T>
using OutOf = Array<T>;

// No protocol for the exchange of arrays knows the type bfloat16 of ml_dtypes.  Such an array is taken as an array of
// uint16 over the same memory, and no kernel has another use for uint16.  The type is recognised by its name when the
// first such array is refused, and from then on by its address, which costs nearly nothing.
bool is_known_bfloat16(nb::handle array) noexcept;
bool learn_bfloat16(nb::handle array) noexcept;  // false if the array has another type
nb::object as_uint16(nb::handle array) noexcept;

inline void require(bool ok, const char* message) {
  if (!ok) throw nb::value_error(message);
}

inline void require_same_dtype(nb::dlpack::dtype a, nb::dlpack::dtype b) {
  if (a != b) throw nb::type_error("arrays of different dtypes");
}

// The gradient can be added to the residual.
inline void require_accumulation(const Out& residual, const In& gradient) {
  require_same_dtype(residual.dtype(), gradient.dtype());
  require(residual.size() == gradient.size(), "residual and gradient differ in length");
}

constexpr nb::dlpack::dtype float16{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};

// These call visit(I()), visit(V()) or visit(I(), V()) with the index type I or the value type V, while other Python
// threads may run: visit must not touch Python objects.
template <class Visit>
auto with_index_type(nb::dlpack::dtype dtype, Visit visit) {
  nb::gil_scoped_release released;
  if (dtype == nb::dtype<std::uint32_t>()) return visit(std::uint32_t());
  if (dtype == nb::dtype<std::uint64_t>()) return visit(std::uint64_t());
  throw nb::type_error("indices must be uint32 or uint64");
}

template <class Visit>
auto find_value_type(nb::dlpack::dtype dtype, Visit visit) {
  if (dtype == nb::dtype<float>()) return visit(float());
  if (dtype == nb::dtype<double>()) return visit(double());
  if (dtype == float16) return visit(half());
  if (dtype == nb::dtype<std::uint16_t>()) return visit(bfloat16());
  if (dtype == nb::dtype<std::int32_t>()) return visit(std::int32_t());
  if (dtype == nb::dtype<std::int64_t>()) return visit(std::int64_t());
  throw nb::type_error("values must be float32, float64, float16, bfloat16, int32 or int64");
}

template <class Visit>
auto with_value_type(nb::dlpack::dtype dtype, Visit visit) {
  nb::gil_scoped_release released;
  return find_value_type(dtype, visit);
}

template <class Visit>
auto with_types(nb::dlpack::dtype index_dtype, nb::dlpack::dtype value_dtype, Visit visit) {
  return with_index_type(index_dtype, [&](auto index) {
    return find_value_type(value_dtype, [&](auto value) { return visit(index, value); });
  });
}

// The values of a matrix are float or double.
template <class Visit>
auto with_matrix_type(nb::dlpack::dtype dtype, Visit visit) {
  nb::gil_scoped_release released;
  if (dtype == nb::dtype<float>()) return visit(float());
  if (dtype == nb::dtype<double>()) return visit(double());
  throw nb::type_error("the values of a matrix must be float32 or float64");
}

// How many blocks n values have.  The last one may be shorter.
inline std::size_t blocks_in(std::size_t n, std::size_t block) { return n / block + (n % block != 0); }

}  // namespace sparsewire::bindings

namespace nanobind::detail {

template <class T>
struct array_caster {
  NB_TYPE_CASTER(T, const_name("numpy.ndarray"))
  bool from_python(handle source, uint8_t, cleanup_list* cleanup) noexcept {
    using namespace sparsewire::bindings;
    if (is_known_bfloat16(source)) return load(as_uint16(source), cleanup);
    return load(source, cleanup) || (learn_bfloat16(source) && load(as_uint16(source), cleanup));
  }

 private:
  bool load(handle source, cleanup_list* cleanup) noexcept {
    make_caster<typename T::Base> caster;
    if (!source.is_valid() || !caster.from_python(source, 0, cleanup)) return false;
    value = T(std::move(caster.value));
    return true;
  }
};

template <class... Constraints>
struct type_caster<sparsewire::bindings::Array<Constraints...>>
    : array_caster<sparsewire::bindings::Array<Constraints...>> {};
template <>
struct type_caster<sparsewire::bindings::In> : array_caster<sparsewire::bindings::In> {};
template <>
struct type_caster<sparsewire::bindings::Out> : array_caster<sparsewire::bindings::Out> {};

}  // namespace nanobind::detail
