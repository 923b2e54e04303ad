#include "elias_fano.h"

#include "bits.h"
#include "dispatch.h"

namespace sparsewire {
namespace {

constexpr std::uint64_t ones(unsigned bits) { return (std::uint64_t{1} << bits) - 1; }  // bits < 64

// Writes fields of less than 64 bits one after the other.
class Packer {
 public:
  explicit Packer(std::uint64_t* words) : out_(words) {}

  [[gnu::always_inline]] void append(std::uint64_t field, unsigned width) {
    word_ |= field << filled_;
    filled_ += width;
    if (filled_ < 64) return;
    *out_++ = word_;
    filled_ -= 64;
    word_ = field >> (width - filled_);
  }

  void finish() {
    if (filled_ > 0) *out_ = word_;
  }

 private:
  std::uint64_t* out_;
  std::uint64_t word_ = 0;
  unsigned filled_ = 0;
};

// The j-th field.  Fields of no bits are read from the first word, which is then one of the upper part.
inline std::uint64_t field(const std::uint64_t* words, std::size_t j, unsigned low) {
  const std::uint64_t bit = static_cast<std::uint64_t>(j) * low;
  const unsigned shift = bit % 64;
  std::uint64_t bits = words[bit / 64] >> shift;
  if (shift + low > 64) bits |= words[bit / 64 + 1] << (64 - shift);
  return bits & ones(low);
}

// ---- scalar: the specification.  `pack` and `join` can begin at any entry, to finish what a faster version began.

namespace scalar {

template <class I>
void pack(const I* indices, std::size_t begin, std::size_t count, I start, unsigned low, Packer& lower) {
  for (std::size_t j = begin; j < count; ++j) lower.append((indices[j] - start) & ones(low), low);
}

// Replaces the position of an index's bit in the upper part by the index.
template <class I>
void join(const std::uint64_t* words, std::size_t begin, std::size_t count, I start, unsigned low, I* indices) {
  for (std::size_t j = begin; j < count; ++j) {
    const std::uint64_t upper = static_cast<I>(indices[j] - j);
    indices[j] = start + static_cast<I>(upper << low | field(words, j, low));
  }
}

// There is no branch on the data, so that the compiler vectorises the loop for the target of its caller.
template <class I>
[[gnu::always_inline]] inline bool is_increasing(const I* indices, std::size_t count) {
  I bad = 0;
  for (std::size_t j = 1; j < count; ++j) bad |= indices[j] <= indices[j - 1];
  return bad == 0;
}

template <class I>
void encode(const I* indices, std::size_t count, I start, const EliasFano& code, std::uint64_t* words) {
  Packer lower(words);
  pack(indices, 0, count, start, code.low, lower);
  lower.finish();
  set_bits(Positions<I>{indices, count, start, code.low, 1}, 0, words + code.lower_words);
}

template <class I>
bool decode(const std::uint64_t* words, std::size_t count, I start, const EliasFano& code, I* indices) {
  Listing<I> upper{indices, count};
  if (!upper.template fill<ScalarOnes>(words + code.lower_words, code.upper_words, 0)) return false;
  join(words, 0, count, start, code.low, indices);
  return is_increasing(indices, count);
}

}  // namespace scalar

template <class I>
constexpr Version<decltype(scalar::encode<I>)> encode_versions[] = {{Isa::scalar, scalar::encode<I>}};
template <class I>
constexpr Version<decltype(scalar::decode<I>)> decode_versions[] = {{Isa::scalar, scalar::decode<I>}};

#ifdef SPARSEWIRE_X86

// ---- avx2, for 32-bit indices: eight lower parts at a time.  See bits.h for the upper ones.

namespace avx2 {

using u32 = std::uint32_t;

// Eight lower parts, joined in pairs and these in pairs again, are two fields of up to 60 bits.
constexpr unsigned widest_packed = 15;

SPARSEWIRE_AVX2 inline std::size_t pack(const u32* indices, std::size_t count, u32 start, unsigned low,
                                        Packer& lower) {
  if (low > widest_packed) return 0;
  const __m256i starts = _mm256_set1_epi32(static_cast<int>(start));
  const __m256i one_field = _mm256_set1_epi32(static_cast<int>(ones(low)));
  const __m256i two_fields = _mm256_set1_epi64x(static_cast<long long>(ones(2 * low)));
  const __m128i down = _mm_cvtsi32_si128(static_cast<int>(32 - low));
  const __m128i up = _mm_cvtsi32_si128(static_cast<int>(2 * low));
  std::size_t j = 0;
  for (; count - j >= 8; j += 8) {
    const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(indices + j));
    const __m256i fields = _mm256_and_si256(_mm256_sub_epi32(eight, starts), one_field);
    const __m256i pairs = _mm256_and_si256(_mm256_or_si256(fields, _mm256_srl_epi64(fields, down)), two_fields);
    const __m256i fours = _mm256_or_si256(pairs, _mm256_sll_epi64(_mm256_unpackhi_epi64(pairs, pairs), up));
    lower.append(static_cast<std::uint64_t>(_mm256_extract_epi64(fours, 0)), 4 * low);
    lower.append(static_cast<std::uint64_t>(_mm256_extract_epi64(fours, 2)), 4 * low);
  }
  return j;
}

// Eight fields of `low` bits take `low` bytes, so that every eight are laid out alike: the four bytes that hold a field
// begin at a known byte, and a known shift brings it down.
class EightFields {
 public:
  static constexpr unsigned widest = 25;  // and 7 bits before it, in four bytes

  SPARSEWIRE_AVX2 explicit EightFields(unsigned low)
      : second_(low / 2), mask_(_mm256_set1_epi32(static_cast<int>(ones(low)))) {
    alignas(32) std::uint8_t places[32];
    alignas(32) u32 shifts[8];
    for (unsigned lane = 0; lane < 8; ++lane) {
      const unsigned bit = lane * low - (lane < 4 ? 0 : 8 * second_);
      for (unsigned byte = 0; byte < 4; ++byte) places[4 * lane + byte] = static_cast<std::uint8_t>(bit / 8 + byte);
      shifts[lane] = bit % 8;
    }
    places_ = _mm256_load_si256(reinterpret_cast<const __m256i*>(places));
    shifts_ = _mm256_load_si256(reinterpret_cast<const __m256i*>(shifts));
  }

  // How many bytes are read, from where the fields begin.
  std::size_t reach() const { return second_ + sizeof(__m128i); }

  SPARSEWIRE_AVX2 __m256i load(const std::uint8_t* bytes) const {
    const __m128i first_four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m128i second_four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + second_));
    const __m256i raw = _mm256_inserti128_si256(_mm256_castsi128_si256(first_four), second_four, 1);
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(raw, places_), shifts_), mask_);
  }

 private:
  unsigned second_;  // the byte in which the fifth field begins
  __m256i places_, shifts_, mask_;
};

SPARSEWIRE_AVX2 inline std::size_t join(const std::uint64_t* words, std::size_t size, std::size_t count, u32 start,
                                        unsigned low, u32* indices) {
  if (low > EightFields::widest) return 0;
  const EightFields fields(low);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(words);
  const auto* const end = reinterpret_cast<const std::uint8_t*>(words + size);
  const __m256i starts = _mm256_set1_epi32(static_cast<int>(start));
  const __m128i up = _mm_cvtsi32_si128(static_cast<int>(low));
  __m256i ranks = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  std::size_t j = 0;
  for (; count - j >= 8 && end - bytes >= static_cast<std::ptrdiff_t>(fields.reach()); j += 8, bytes += low) {
    auto* const eight = reinterpret_cast<__m256i*>(indices + j);
    const __m256i upper = _mm256_sll_epi32(_mm256_sub_epi32(_mm256_loadu_si256(eight), ranks), up);
    _mm256_storeu_si256(eight, _mm256_add_epi32(_mm256_or_si256(upper, fields.load(bytes)), starts));
    ranks = _mm256_add_epi32(ranks, _mm256_set1_epi32(8));
  }
  return j;
}

SPARSEWIRE_AVX2 void encode(const u32* indices, std::size_t count, u32 start, const EliasFano& code,
                            std::uint64_t* words) {
  Packer lower(words);
  const std::size_t packed = pack(indices, count, start, code.low, lower);
  scalar::pack(indices, packed, count, start, code.low, lower);
  lower.finish();
  set_bits_in_groups({indices, count, start, code.low, 1}, words + code.lower_words, code.upper_words);
}

SPARSEWIRE_AVX2 bool decode(const std::uint64_t* words, std::size_t count, u32 start, const EliasFano& code,
                            u32* indices) {
  Listing<u32> upper{indices, count};
  if (!upper.fill<Avx2Ones>(words + code.lower_words, code.upper_words, 0)) return false;
  const std::size_t joined = join(words, code.words(), count, start, code.low, indices);
  scalar::join(words, joined, count, start, code.low, indices);
  return scalar::is_increasing(indices, count);
}

}  // namespace avx2

template <>
constexpr Version<decltype(avx2::encode)> encode_versions<std::uint32_t>[] = {
    {Isa::scalar, scalar::encode<std::uint32_t>}, {Isa::avx2, avx2::encode}};
template <>
constexpr Version<decltype(avx2::decode)> decode_versions<std::uint32_t>[] = {
    {Isa::scalar, scalar::decode<std::uint32_t>}, {Isa::avx2, avx2::decode}};

#endif

}  // namespace

EliasFano::EliasFano(std::size_t count, std::uint64_t span)
    : low(count == 0 ? 0 : 63 - __builtin_clzll(span / count)),
      lower_words(words_for(static_cast<std::uint64_t>(count) * low)),
      upper_bits(count == 0 ? 0 : count + ((span - 1) >> low)),
      upper_words(words_for(upper_bits)) {}

template <class I>
void encode_elias_fano(const I* indices, std::size_t count, I start, std::uint64_t span, std::uint64_t* words) {
  const EliasFano code(count, span);
  std::fill_n(words, code.words(), 0);
  pick(encode_versions<I>)(indices, count, start, code, words);
}

template <class I>
bool decode_elias_fano(const std::uint64_t* words, std::size_t count, I start, std::uint64_t span, I* indices) {
  const EliasFano code(count, span);
  if (!spare_bits_are_zero(words + code.lower_words, code.upper_bits)) return false;
  if (!pick(decode_versions<I>)(words, count, start, code, indices)) return false;
  // Increasing indices lie between the first and the last.  The first is compared too: an index that was too large has
  // wrapped around.
  const auto is_inside = [&](I index) { return static_cast<I>(index - start) < span; };
  return count == 0 || (is_inside(indices[0]) && is_inside(indices[count - 1]));
}

template void encode_elias_fano(const std::uint32_t*, std::size_t, std::uint32_t, std::uint64_t, std::uint64_t*);
template void encode_elias_fano(const std::uint64_t*, std::size_t, std::uint64_t, std::uint64_t, std::uint64_t*);
template bool decode_elias_fano(const std::uint64_t*, std::size_t, std::uint32_t, std::uint64_t, std::uint32_t*);
template bool decode_elias_fano(const std::uint64_t*, std::size_t, std::uint64_t, std::uint64_t, std::uint64_t*);

}  // namespace sparsewire
