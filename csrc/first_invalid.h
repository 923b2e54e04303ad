// first_invalid.h: are these the indices of a run?
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparsewire {

// The position of the first index that is not greater than the one before it, or not in [first, last]; -1 if there is
// none.  At the speed of memory: received frames are checked with it.
template <class I>
std::int64_t first_invalid(const I* indices, std::size_t n, std::uint64_t first, std::uint64_t last);

}  // namespace sparsewire
