#include "bitmap.h"

#include "bits.h"
#include "dispatch.h"

namespace sparsewire {
namespace {

// The words of the tiles that the directory names follow it.
template <class Ones, class I>
[[gnu::always_inline]] inline bool list_tiles(const std::uint64_t* directory, std::size_t size, I start,
                                              Listing<I> listing) {
  const std::uint64_t* tile = directory + size;
  for (std::size_t w = 0; w < size; ++w) {
    for (std::uint64_t bits = directory[w]; bits != 0; bits &= bits - 1, ++tile) {
      const I base = start + static_cast<I>(64 * (64 * w + __builtin_ctzll(bits)));
      if (*tile == 0 || !listing.template append<Ones>(*tile, base)) return false;
    }
  }
  return listing.count == listing.room;
}

// How often an index lies in another tile than the one before it.  There is no branch on the data, so that the compiler
// vectorises the loop for the target of the function into which this is inlined.
template <class I>
[[gnu::always_inline]] inline std::size_t count_changes(const I* indices, std::size_t count, I start) {
  std::size_t changes = 0;
  for (std::size_t j = 1; j < count; ++j) changes += (indices[j] - start) / 64 != (indices[j - 1] - start) / 64;
  return changes;
}

namespace scalar {

template <class I>
void encode(const Positions<I>& positions, std::uint64_t* words, std::size_t) {
  set_bits(positions, 0, words);
}

template <class I>
bool decode(const std::uint64_t* words, std::size_t size, I start, Listing<I> listing) {
  return listing.template fill<ScalarOnes>(words, size, start);
}

template <class I>
bool decode_tiles(const std::uint64_t* directory, std::size_t size, I start, Listing<I> listing) {
  return list_tiles<ScalarOnes>(directory, size, start, listing);
}

template <class I>
std::size_t changes(const I* indices, std::size_t count, I start) {
  return count_changes(indices, count, start);
}

}  // namespace scalar

template <class I>
constexpr Version<decltype(scalar::encode<I>)> encode_versions[] = {{Isa::scalar, scalar::encode<I>}};
template <class I>
constexpr Version<decltype(scalar::decode<I>)> decode_versions[] = {{Isa::scalar, scalar::decode<I>}};
template <class I>
constexpr Version<decltype(scalar::decode_tiles<I>)> decode_tiles_versions[] = {
    {Isa::scalar, scalar::decode_tiles<I>}};
template <class I>
constexpr Version<decltype(scalar::changes<I>)> changes_versions[] = {{Isa::scalar, scalar::changes<I>}};

#ifdef SPARSEWIRE_X86

// ---- avx2, for 32-bit indices

namespace avx2 {

using u32 = std::uint32_t;

SPARSEWIRE_AVX2 void encode(const Positions<u32>& positions, std::uint64_t* words, std::size_t size) {
  set_bits_in_groups(positions, words, size);
}

SPARSEWIRE_AVX2 bool decode(const std::uint64_t* words, std::size_t size, u32 start, Listing<u32> listing) {
  return listing.fill<Avx2Ones>(words, size, start);
}

SPARSEWIRE_AVX2 bool decode_tiles(const std::uint64_t* directory, std::size_t size, u32 start, Listing<u32> listing) {
  return list_tiles<Avx2Ones>(directory, size, start, listing);
}

SPARSEWIRE_AVX2 std::size_t changes(const u32* indices, std::size_t count, u32 start) {
  return count_changes(indices, count, start);
}

}  // namespace avx2

template <>
constexpr Version<decltype(avx2::encode)> encode_versions<std::uint32_t>[] = {
    {Isa::scalar, scalar::encode<std::uint32_t>}, {Isa::avx2, avx2::encode}};
template <>
constexpr Version<decltype(avx2::decode)> decode_versions<std::uint32_t>[] = {
    {Isa::scalar, scalar::decode<std::uint32_t>}, {Isa::avx2, avx2::decode}};
template <>
constexpr Version<decltype(avx2::decode_tiles)> decode_tiles_versions<std::uint32_t>[] = {
    {Isa::scalar, scalar::decode_tiles<std::uint32_t>}, {Isa::avx2, avx2::decode_tiles}};
template <>
constexpr Version<decltype(avx2::changes)> changes_versions<std::uint32_t>[] = {
    {Isa::scalar, scalar::changes<std::uint32_t>}, {Isa::avx2, avx2::changes}};

#endif

std::size_t ones_in(const std::uint64_t* words, std::size_t size) {
  std::size_t ones = 0;
  for (std::size_t w = 0; w < size; ++w) ones += __builtin_popcountll(words[w]);
  return ones;
}

}  // namespace

std::size_t bitmap_words(std::uint64_t span) { return words_for(span); }

template <class I>
void encode_bitmap(const I* indices, std::size_t count, I start, std::uint64_t span, std::uint64_t* words) {
  std::fill_n(words, words_for(span), 0);
  pick(encode_versions<I>)({indices, count, start, 0, 0}, words, words_for(span));
}

template <class I>
bool decode_bitmap(const std::uint64_t* words, std::size_t count, I start, std::uint64_t span, I* indices) {
  return spare_bits_are_zero(words, span) && pick(decode_versions<I>)(words, words_for(span), start, {indices, count});
}

std::size_t directory_words(std::uint64_t span) { return words_for(words_for(span)); }

template <class I>
std::size_t count_tiles(const I* indices, std::size_t count, I start) {
  return count == 0 ? 0 : 1 + pick(changes_versions<I>)(indices, count, start);
}

// One version for every ISA: most of the time is lost where the processor mispredicts the end of a tile.
template <class I>
bool encode_tiles(const I* indices, std::size_t count, I start, std::uint64_t span, std::uint64_t* words,
                  std::size_t tiles) {
  std::uint64_t* const directory = words;
  words += directory_words(span);
  std::fill(directory, words, 0);
  std::size_t written = 0;
  for (std::size_t j = 0; j < count; ++written) {
    const I tile = static_cast<I>(indices[j] - start) / 64;
    std::uint64_t word = 0;
    for (I r; j < count && (r = indices[j] - start) / 64 == tile; ++j) word |= std::uint64_t{1} << r % 64;
    if (written == tiles) return false;
    set_bit(directory, tile);
    words[written] = word;
  }
  return written == tiles;
}

template <class I>
bool decode_tiles(const std::uint64_t* words, std::size_t size, std::size_t count, I start, std::uint64_t span,
                  I* indices) {
  const std::size_t tiles = words_for(span), before = directory_words(span);
  if (size < before || !spare_bits_are_zero(words, tiles)) return false;
  if (size - before != ones_in(words, before)) return false;
  // If the last tile is listed, its word is the last one.
  const bool has_last = tiles > 0 && words[(tiles - 1) / 64] >> (tiles - 1) % 64 != 0;
  if (has_last && span % 64 != 0 && words[size - 1] >> span % 64 != 0) return false;
  return pick(decode_tiles_versions<I>)(words, before, start, {indices, count});
}

using u32 = std::uint32_t;
using u64 = std::uint64_t;
template void encode_bitmap(const u32*, std::size_t, u32, u64, u64*);
template void encode_bitmap(const u64*, std::size_t, u64, u64, u64*);
template bool decode_bitmap(const u64*, std::size_t, u32, u64, u32*);
template bool decode_bitmap(const u64*, std::size_t, u64, u64, u64*);
template std::size_t count_tiles(const u32*, std::size_t, u32);
template std::size_t count_tiles(const u64*, std::size_t, u64);
template bool encode_tiles(const u32*, std::size_t, u32, u64, u64*, std::size_t);
template bool encode_tiles(const u64*, std::size_t, u64, u64, u64*, std::size_t);
template bool decode_tiles(const u64*, std::size_t, std::size_t, u32, u64, u32*);
template bool decode_tiles(const u64*, std::size_t, std::size_t, u64, u64, u64*);

}  // namespace sparsewire
