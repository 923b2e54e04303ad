#include "arrays.h"

namespace sparsewire::bindings {
namespace {

// Both live as long as the process.
PyObject* known_bfloat16 = nullptr;
PyObject* uint16 = nullptr;

nb::object dtype_of(nb::handle array) noexcept {
  static PyObject* const name = PyUnicode_InternFromString("dtype");
  nb::object dtype = nb::steal(PyObject_GetAttr(array.ptr(), name));
  if (!dtype.is_valid()) PyErr_Clear();
  return dtype;
}

}  // namespace

bool is_known_bfloat16(nb::handle array) noexcept {
  return known_bfloat16 != nullptr && dtype_of(array).ptr() == known_bfloat16;
}

bool learn_bfloat16(nb::handle array) noexcept {
  nb::object dtype = dtype_of(array);
  if (!dtype.is_valid()) return false;
  try {
    if (!dtype.attr("name").equal(nb::str("bfloat16"))) return false;
    if (uint16 == nullptr) uint16 = nb::module_::import_("numpy").attr("dtype")("uint16").release().ptr();
  } catch (const nb::python_error&) {
    return false;
  }
  known_bfloat16 = dtype.release().ptr();
  return true;
}

nb::object as_uint16(nb::handle array) noexcept {
  nb::object view = nb::steal(PyObject_CallMethod(array.ptr(), "view", "O", uint16));
  if (!view.is_valid()) PyErr_Clear();
  return view;
}

}  // namespace sparsewire::bindings
