// module.cpp: the extension module _compiled: a function for each function of kernels/reference, under the same name
// and with the same arguments.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../dispatch.h"
#include "arrays.h"

namespace sparsewire::bindings {

// One for each family, in the file of its name.
void bind_blocks(nb::module_&);
void bind_entries(nb::module_&);
void bind_index_codes(nb::module_&);
void bind_libsvm(nb::module_&);
void bind_quantization(nb::module_&);
void bind_rows(nb::module_&);
void bind_selection(nb::module_&);
void bind_validation(nb::module_&);

}  // namespace sparsewire::bindings

NB_MODULE(_compiled, m) {
  using namespace sparsewire::bindings;
  bind_blocks(m);
  bind_entries(m);
  bind_index_codes(m);
  bind_libsvm(m);
  bind_quantization(m);
  bind_rows(m);
  bind_selection(m);
  bind_validation(m);
  m.def("available_isas", &sw::available_isas);
  m.def("isas_with", &sw::isas_with);
  m.def("active_isa", &sw::active_isa);
  m.def("last_isa", &sw::last_isa);
  m.def("force_isa", &sw::force_isa);
}
