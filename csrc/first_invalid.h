// first_invalid.h: whether indices are those of a run.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparsewire {

// The position of the first index that is not greater than the one before it, or not in [first, last]; -1 if there is
// none.  It must be as fast as memory, because received frames are checked with it.
template <class I>
std::int64_t first_invalid(const I* indices, std::size_t n, std::uint64_t first, std::uint64_t last);

}  // namespace sparsewire
