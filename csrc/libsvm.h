// libsvm.h: lines of LIBSVM's text format as the arrays of a sparse matrix.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>

namespace sparsewire {

//   label [qid:N] index:value index:value ... [# comment]
//
// Between words are spaces and tabs; a carriage return counts as one of them.  Lines without a word are no rows.
// Labels and values are decimal numbers, indices whole ones that increase strictly within a row.  A number becomes the
// nearest double, and from there the nearest V; explicit zeros stay.

// What a malformed line should have had in the place of a word.  The same as in kernels/reference/libsvm.py.
enum class Expected {
  nothing,  // no line is malformed
  label,
  one_label,
  finite_number,
  smaller_number,
  query,
  entry,
  value,
  larger_index,
  index_from_lowest,
  index_up_to_highest,
};

struct LinesWanted {
  std::size_t first, every;       // lines first, first + every, ..., counted from 0; the others may be anything
  std::uint64_t lowest, highest;  // indices outside are malformed; highest is at most the largest I
};

// Room for a text of n bytes: n / 2 rows and n / 4 entries, and nothing beyond is touched.
template <class I, class V>
struct LibsvmRoom {
  double* labels;
  std::int64_t* counts;  // entries of each row
  I* indices;
  V* values;
};

struct LibsvmParsed {
  std::size_t rows = 0, entries = 0;  // in the room; without those of a malformed line
  std::size_t lines = 0;              // that were read or passed over
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max(), largest = -1;  // index of any entry
  bool has_query = false;
  Expected expected = Expected::nothing;
  std::size_t line = 0, word = 0;  // where in the text the malformed line begins, and the word that is wrong
};

// The rows of a text whose every line, also the last one, ends with '\n'; up to the first malformed line.
template <class I, class V>
LibsvmParsed parse_libsvm(const char* text, std::size_t n, LinesWanted wanted, LibsvmRoom<I, V> room);

}  // namespace sparsewire
