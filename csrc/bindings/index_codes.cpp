// index_codes.cpp: indices as few bits.
//
// An encoder is given the right number of words.  A decoder returns false if the words encode no such indices.
#include "../bitmap.h"
#include "../elias_fano.h"
#include "arrays.h"

namespace sparsewire::bindings {
namespace {

// Calls visit(indices, n, start) with typed arguments; the first and the last index are in [start, start + span).
template <class Visit>
void with_support(const In& indices, std::uint64_t start, std::uint64_t span, Visit visit) {
  with_index_type(indices.dtype(), [&](auto index) {
    using I = decltype(index);
    const std::size_t n = indices.size();
    if (n > 0) {
      const std::uint64_t first = indices.as<I>()[0], last = indices.as<I>()[n - 1];
      require(start <= first && first <= last && last - start < span && n - 1 <= last - first,
              "encode: index out of range");
    }
    visit(indices.as<I>(), n, static_cast<I>(start));
  });
}

void encode_elias_fano(In indices, std::uint64_t start, std::uint64_t span, OutOf<std::uint64_t> words) {
  with_support(indices, start, span, [&](auto* first, std::size_t n, auto begin) {
    require(words.size() == sw::EliasFano(n, span).words(), "encode_elias_fano: wrong number of words");
    sw::encode_elias_fano(first, n, begin, span, words.data());
  });
}

void encode_bitmap(In indices, std::uint64_t start, std::uint64_t span, OutOf<std::uint64_t> words) {
  with_support(indices, start, span, [&](auto* first, std::size_t n, auto begin) {
    require(words.size() == sw::bitmap_words(span), "encode_bitmap: wrong number of words");
    sw::encode_bitmap(first, n, begin, span, words.data());
  });
}

bool encode_tiles(In indices, std::uint64_t start, std::uint64_t span, OutOf<std::uint64_t> words) {
  bool is_done = false;
  with_support(indices, start, span, [&](auto* first, std::size_t n, auto begin) {
    const std::size_t before = sw::directory_words(span);
    require(words.size() >= before, "encode_tiles: no room for the directory");
    is_done = sw::encode_tiles(first, n, begin, span, words.data(), words.size() - before);
  });
  return is_done;
}

std::size_t count_tiles(In indices, std::uint64_t start) {
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = decltype(index);
    return sw::count_tiles(indices.as<I>(), indices.size(), static_cast<I>(start));
  });
}

bool decode_elias_fano(InOf<std::uint64_t> words, std::uint64_t start, std::uint64_t span, Out indices) {
  const std::size_t n = indices.size();
  if (n > span || words.size() != sw::EliasFano(n, span).words()) return false;
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = decltype(index);
    return sw::decode_elias_fano(words.data(), n, static_cast<I>(start), span, indices.as<I>());
  });
}

bool decode_bitmap(InOf<std::uint64_t> words, std::uint64_t start, std::uint64_t span, Out indices) {
  if (words.size() != sw::bitmap_words(span)) return false;
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = decltype(index);
    return sw::decode_bitmap(words.data(), indices.size(), static_cast<I>(start), span, indices.as<I>());
  });
}

bool decode_tiles(InOf<std::uint64_t> words, std::uint64_t start, std::uint64_t span, Out indices) {
  return with_index_type(indices.dtype(), [&](auto index) {
    using I = decltype(index);
    return sw::decode_tiles(words.data(), words.size(), indices.size(), static_cast<I>(start), span, indices.as<I>());
  });
}

}  // namespace

void bind_index_codes(nb::module_& m) {
  m.def("encode_elias_fano", &encode_elias_fano);
  m.def("decode_elias_fano", &decode_elias_fano);
  m.def("encode_bitmap", &encode_bitmap);
  m.def("decode_bitmap", &decode_bitmap);
  m.def("encode_tiles", &encode_tiles);
  m.def("decode_tiles", &decode_tiles);
  m.def("count_tiles", &count_tiles);
}

}  // namespace sparsewire::bindings
