// elias_fano.h: strictly increasing indices in 2 + log2(span / count) bits each, or less.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparsewire {

// The code of `count` indices in [start, start + span): with r = index - start, the `low` lower bits of every r one
// after the other, then, from the next word on, bit (r >> low) + j set for the j-th index.
struct EliasFano {
  unsigned low;             // floor(log2(span / count))
  std::size_t lower_words;  // count * low bits
  std::uint64_t upper_bits;
  std::size_t upper_words;

  EliasFano(std::size_t count, std::uint64_t span);  // count <= span
  std::size_t words() const { return lower_words + upper_words; }
};

// Writes EliasFano(count, span).words() words; unused bits are zero.
//
//   indices   strictly increasing, each in [start, start + span); the caller has checked it
template <class I>
void encode_elias_fano(const I* indices, std::size_t count, I start, std::uint64_t span, std::uint64_t* words);

// Writes the indices that the words code.  False, with anything in `indices`, unless these are exactly `count`,
// strictly increasing and in [start, start + span).
//
//   words     EliasFano(count, span).words() of them, with any bits
//   indices   room for `count` and nothing beyond
//   span      with start at most 2^32, or 2^63 for 64-bit indices
template <class I>
bool decode_elias_fano(const std::uint64_t* words, std::size_t count, I start, std::uint64_t span, I* indices);

}  // namespace sparsewire
