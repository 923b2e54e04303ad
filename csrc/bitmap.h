// bitmap.h: strictly increasing indices as one bit per position, with or without the words that are zero.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparsewire {

// Indices are strictly increasing, each in [start, start + span), and coded as r = index - start.  When encoding, the
// caller has checked that.  When decoding, words may have any bits; the answer is false, with anything in `indices`,
// unless they code exactly `count` indices of that kind.  start + span is at most 2^32, or 2^63 for 64-bit indices.

// Bit r of the words.
std::size_t bitmap_words(std::uint64_t span);

template <class I>
void encode_bitmap(const I* indices, std::size_t count, I start, std::uint64_t span, std::uint64_t* words);
template <class I>
bool decode_bitmap(const std::uint64_t* words, std::size_t count, I start, std::uint64_t span, I* indices);

// A tile is 64 positions: one word of the bitmap.  Words that are zero are left out: a directory, which is a bitmap of
// the tiles that remain, comes before them.
std::size_t directory_words(std::uint64_t span);

template <class I>
std::size_t count_tiles(const I* indices, std::size_t count, I start);  // those that are not empty

// Writes directory_words(span) + tiles words.  False if the number of tiles is not what count_tiles says.
template <class I>
bool encode_tiles(const I* indices, std::size_t count, I start, std::uint64_t span, std::uint64_t* words,
                  std::size_t tiles);
// Any number of words is accepted, and only the right one is decoded.
template <class I>
bool decode_tiles(const std::uint64_t* words, std::size_t size, std::size_t count, I start, std::uint64_t span,
                  I* indices);

}  // namespace sparsewire
