#include "split_at.h"

#include <algorithm>

namespace sparsewire {

template <class I>
void split_at(const I* indices, std::size_t n, const std::uint64_t* cuts, std::size_t cut_count,
              std::int64_t* positions) {
  const auto position_of = [&](std::uint64_t cut) { return std::lower_bound(indices, indices + n, cut) - indices; };
  std::transform(cuts, cuts + cut_count, positions, position_of);
}

template void split_at(const std::uint32_t*, std::size_t, const std::uint64_t*, std::size_t, std::int64_t*);
template void split_at(const std::uint64_t*, std::size_t, const std::uint64_t*, std::size_t, std::int64_t*);

}  // namespace sparsewire
