// validation.cpp: whether data is what it should be.
#include "../checksum.h"
#include "../first_invalid.h"
#include "arrays.h"

namespace sparsewire::bindings {
namespace {

std::int64_t first_invalid(In indices, std::uint64_t first, std::uint64_t last) {
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = decltype(index);
    return sw::first_invalid(indices.as<I>(), indices.size(), first, last);
  });
}

std::uint64_t checksum(In data, std::uint64_t seed) {
  nb::gil_scoped_release released;
  return sw::checksum(data.as<std::uint8_t>(), data.nbytes(), seed);
}

}  // namespace

void bind_validation(nb::module_& m) {
  m.def("first_invalid", &first_invalid);
  m.def("checksum", &checksum);
}

}  // namespace sparsewire::bindings
