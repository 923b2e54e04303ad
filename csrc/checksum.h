// checksum.h: a 64-bit number by which damaged bytes are noticed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparsewire {

// CRC-64/NVME of the bytes; `seed` is the CRC of the bytes before them, 0 if there are none.
//
// The polynomial is primitive.  So it finds every error of one or two bits in less than 2^64 bits, and every burst of up
// to 64 bits; it misses one of 2^64 others.  It finds accidental damage.  It does not protect from an adversary.
//
//   data   any alignment
//   bits   the same number on every machine
std::uint64_t checksum(const std::uint8_t* data, std::size_t size, std::uint64_t seed);

}  // namespace sparsewire
