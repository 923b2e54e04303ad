// blocks.cpp: blocks of consecutive values.
#include "../add_blocks.h"
#include "../block_norms.h"
#include "../copy_blocks.h"
#include "../nonzero_blocks.h"
#include "arrays.h"

namespace sparsewire::bindings {
namespace {

void require_blocks(std::size_t n, std::size_t block, const OutOf<double>& norms) {
  require(block >= 1, "block_norms: a block holds at least one value");
  require(norms.size() == blocks_in(n, block), "block_norms: one norm per block");
}

void block_norms(In x, std::size_t block, OutOf<double> norms) {
  require_blocks(x.size(), block, norms);
  with_value_type(x.dtype(), [&](auto value) {
    using V = decltype(value);
    sw::block_norms(x.as<V>(), x.size(), block, norms.data());
  });
}

void accumulate_block_norms(Out residual, In gradient, std::size_t block, OutOf<double> norms) {
  require_accumulation(residual, gradient);
  require_blocks(residual.size(), block, norms);
  with_value_type(residual.dtype(), [&](auto value) {
    using V = decltype(value);
    sw::accumulate_block_norms(residual.as<V>(), gradient.as<V>(), residual.size(), block, norms.data());
  });
}

std::size_t nonzero_blocks(In x, std::size_t block, OutOf<std::int64_t> numbers) {
  require(block >= 1, "nonzero_blocks: a block holds at least one value");
  require(numbers.size() >= blocks_in(x.size(), block), "nonzero_blocks: output is too small");
  return with_value_type(x.dtype(), [&](auto value) {
    using V = decltype(value);
    return sw::nonzero_blocks(x.as<V>(), x.size(), block, numbers.data());
  });
}

// Each number is that of one of the blocks of n values, and there are `moved` values: a block for each number.
void require_numbers(const InOf<std::int64_t>& numbers, std::size_t n, std::size_t moved, std::size_t block) {
  require(block >= 1, "a block holds at least one value");
  require(moved % block == 0 && moved / block == numbers.size(), "there is not one block per number");
  const std::uint64_t existing = blocks_in(n, block);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    require(static_cast<std::uint64_t>(numbers.data()[i]) < existing, "number of a block out of range");
}

void add_blocks(Out total, InOf<std::int64_t> rows, In values, std::size_t block) {
  require_numbers(rows, total.size(), values.size(), block);
  with_value_type(values.dtype(), [&](auto value) {
    using V = decltype(value);
    if (total.dtype() != nb::dtype<sw::Sum<V>>()) throw nb::type_error("add_blocks: the total has another dtype");
    sw::add_blocks(total.as<sw::Sum<V>>(), total.size(), rows.data(), rows.size(), values.as<V>(), block);
  });
}

void gather_blocks(In x, InOf<std::int64_t> numbers, std::size_t block, Out out) {
  require_same_dtype(x.dtype(), out.dtype());
  require_numbers(numbers, x.size(), out.size(), block);
  nb::gil_scoped_release released;
  sw::gather_blocks(x.as<std::byte>(), x.nbytes(), numbers.data(), numbers.size(), block * x.itemsize(),
                    out.as<std::byte>());
}

void scatter_blocks(Out x, InOf<std::int64_t> numbers, std::size_t block, In values) {
  require_same_dtype(x.dtype(), values.dtype());
  require_numbers(numbers, x.size(), values.size(), block);
  nb::gil_scoped_release released;
  sw::scatter_blocks(x.as<std::byte>(), x.nbytes(), numbers.data(), numbers.size(), block * x.itemsize(),
                     values.as<std::byte>());
}

}  // namespace

void bind_blocks(nb::module_& m) {
  m.def("block_norms", &block_norms);
  m.def("accumulate_block_norms", &accumulate_block_norms);
  m.def("nonzero_blocks", &nonzero_blocks);
  m.def("add_blocks", &add_blocks);
  m.def("gather_blocks", &gather_blocks);
  m.def("scatter_blocks", &scatter_blocks);
}

}  // namespace sparsewire::bindings
