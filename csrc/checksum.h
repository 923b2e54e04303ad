// checksum.h: a 64-bit number by which damaged bytes are noticed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparsewire {

// Fletcher sums over little-endian 64-bit words, word i in lane i % 8: per word a += w, b += a, modulo 2^64.  The end
// is padded with zeros to a multiple of 64 bytes; the eight a, then the eight b are folded into seed ^ size.
// It finds accidental damage.  It does not protect from an adversary.
//
//   data   any alignment
//   bits   the same number on every machine
std::uint64_t checksum(const std::uint8_t* data, std::size_t size, std::uint64_t seed);

}  // namespace sparsewire
