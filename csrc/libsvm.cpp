#include "libsvm.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>

namespace sparsewire {
namespace {

// Every line ends with '\n', which no loop over a word or over blanks passes: so none of them looks for the end.

bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool ends_line(char c) { return c == '\n' || c == '#'; }
bool ends_word(char c) { return is_blank(c) || ends_line(c); }

const char* skip_blanks(const char* p) {
  while (is_blank(*p)) ++p;
  return p;
}

const char* next_line(const char* p, const char* end) {
  return static_cast<const char*>(std::memchr(p, '\n', static_cast<std::size_t>(end - p))) + 1;
}

constexpr long most_digits = 19;  // 10^19 < 2^64

// The digits from p on as a number, modulo 2^64.  p is then behind them.
std::uint64_t read_digits(const char*& p, std::uint64_t number = 0) {
  for (; is_digit(*p); ++p) number = 10 * number + static_cast<std::uint64_t>(*p - '0');
  return number;
}

// Without a digit p stays where it is.  What does not fit is as large as can be.
std::uint64_t read_whole_number(const char*& p) {
  const char* const first = p;
  const std::uint64_t number = read_digits(p);
  if (p - first <= most_digits) return number;
  const char* significant = first;
  while (*significant == '0') ++significant;
  return p - significant <= most_digits ? number : std::numeric_limits<std::uint64_t>::max();
}

// ---- decimal numbers

// All of these are doubles, exactly.
constexpr double powers_of_ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr long largest_power_of_ten = 22;

struct Decimal {
  std::uint64_t digits;  // all of them as one number, modulo 2^64
  long digit_count;
  long exponent;  // of ten, for the last digit
};

// Whether the number is at least 0.1.
bool is_large(const char* first, const Decimal& decimal) {
  long zeros = 0;
  for (; *first == '0' || *first == '.'; ++first) zeros += *first == '0';
  return decimal.digit_count - zeros + decimal.exponent >= 0;
}

// Unsigned numbers of any length and size.  What is too large becomes infinity.  Seventeen digits, which it takes to
// write any double, come here: dividing them exactly, by a power of five in 128 bits, was no faster.
double convert_any(const char* first, const char* last, const Decimal& decimal) {
  double number = 0;
  if (std::from_chars(first, last, number).ec != std::errc::result_out_of_range) return number;
  return is_large(first, decimal) ? std::numeric_limits<double>::infinity() : 0.0;
}

// A short number is the product or the quotient of two doubles, so it is rounded once.
double convert(const char* first, const char* last, const Decimal& decimal) {
  const auto [digits, digit_count, exponent] = decimal;
  if (digit_count <= most_digits && digits < (std::uint64_t{1} << 53)) {
    const auto number = static_cast<double>(digits);
    if (0 <= exponent && exponent <= largest_power_of_ten) return number * powers_of_ten[exponent];
    if (-largest_power_of_ten <= exponent && exponent < 0) return number / powers_of_ten[-exponent];
  }
  return convert_any(first, last, decimal);
}

constexpr long longest_exponent = 1'000'000'000;  // beyond it another digit makes no difference

// The exponent from p, which is behind the 'e', on.  False if there is none.
bool read_exponent(const char*& p, long& exponent) {
  const bool is_negative = *p == '-';
  p += *p == '-' || *p == '+';
  if (!is_digit(*p)) return false;
  long number = 0;
  for (; is_digit(*p); ++p)
    if (number < longest_exponent) number = 10 * number + (*p - '0');
  exponent = is_negative ? -number : number;
  return true;
}

// A word without its sign.
bool is_not_finite(const char* p) {
  for (const char* name : {"nan", "infinity", "inf"}) {
    std::size_t i = 0;
    while (name[i] != '\0' && (p[i] | 0x20) == name[i]) ++i;
    if (name[i] == '\0' && ends_word(p[i])) return true;
  }
  return false;
}

// The number that the word at p is; p is then behind it.  Otherwise what was expected, which is `wanted` if it is no
// number at all.
template <class V>
Expected read_number(const char*& p, V& number, Expected wanted) {
  if (*p == '1' && ends_word(p[1])) {  // most values of many files are 1
    number = 1;
    ++p;
    return Expected::nothing;
  }
  const bool is_negative = *p == '-';
  p += *p == '-' || *p == '+';
  const char* const first = p;
  Decimal decimal{read_digits(p), p - first, 0};
  if (*p == '.') {
    const char* const fraction = ++p;
    decimal.digits = read_digits(p, decimal.digits);
    decimal.digit_count += p - fraction;
    decimal.exponent = fraction - p;
  }
  if (decimal.digit_count == 0) return is_not_finite(first) ? Expected::finite_number : wanted;
  if (*p == 'e' || *p == 'E') {
    long exponent;
    if (!read_exponent(++p, exponent)) return wanted;
    decimal.exponent += exponent;
  }
  if (!ends_word(*p)) return wanted;
  const double magnitude = convert(first, p, decimal);
  number = static_cast<V>(is_negative ? -magnitude : magnitude);
  return std::isinf(number) ? Expected::smaller_number : Expected::nothing;
}

// ---- lines

bool has_comma(const char* word) {
  while (!ends_word(*word) && *word != ',') ++word;
  return *word == ',';
}

bool is_query(const char* p) { return p[0] == 'q' && p[1] == 'i' && p[2] == 'd' && p[3] == ':'; }

// Stores row by row in the room.
template <class I, class V>
class Reader {
 public:
  Reader(LinesWanted wanted, LibsvmRoom<I, V> room) : wanted_(wanted), room_(room) {}

  // One line that may be a row.  False if it is malformed; `word` is then what is wrong.
  bool read(const char* p) {
    word = p = skip_blanks(p);
    return ends_line(*p) || (read_label(p) && read_query(p) && read_entries(p));
  }

  LibsvmParsed parsed;
  const char* word = nullptr;

 private:
  bool fail(Expected expected) {
    parsed.expected = expected;
    return false;
  }

  bool read_label(const char*& p) {
    const Expected expected = read_number(p, room_.labels[parsed.rows], Expected::label);
    if (expected == Expected::nothing) return true;
    return fail(expected == Expected::label && has_comma(word) ? Expected::one_label : expected);
  }

  bool read_query(const char*& p) {
    p = skip_blanks(p);
    row_has_query_ = false;
    if (!is_query(p)) return true;
    word = p;
    p += 4;
    const char* const number = p;
    read_digits(p);
    if (p == number || !ends_word(*p)) return fail(Expected::query);
    row_has_query_ = true;
    return true;
  }

  bool read_entries(const char* p) {
    I* indices = room_.indices + parsed.entries;
    V* values = room_.values + parsed.entries;
    std::int64_t previous = -1;
    std::size_t count = 0;
    for (p = skip_blanks(p); !ends_line(*p); p = skip_blanks(p)) {
      word = p;
      const std::uint64_t index = read_whole_number(p);
      if (p == word || *p != ':') return fail(Expected::entry);
      if (index > wanted_.highest) return fail(Expected::index_up_to_highest);
      if (index < wanted_.lowest) return fail(Expected::index_from_lowest);
      if (static_cast<std::int64_t>(index) <= previous) return fail(Expected::larger_index);
      const Expected expected = read_number(++p, values[count], Expected::value);
      if (expected != Expected::nothing) return fail(expected);
      previous = static_cast<std::int64_t>(index);
      indices[count++] = static_cast<I>(index);
    }
    if (count > 0) {
      parsed.smallest = std::min(parsed.smallest, static_cast<std::int64_t>(indices[0]));
      parsed.largest = std::max(parsed.largest, previous);
    }
    room_.counts[parsed.rows++] = static_cast<std::int64_t>(count);
    parsed.entries += count;
    parsed.has_query |= row_has_query_;
    return true;
  }

  const LinesWanted wanted_;
  const LibsvmRoom<I, V> room_;
  bool row_has_query_ = false;
};

}  // namespace

template <class I, class V>
LibsvmParsed parse_libsvm(const char* text, std::size_t n, LinesWanted wanted, LibsvmRoom<I, V> room) {
  Reader<I, V> reader(wanted, room);
  const char* const end = text + n;
  std::size_t next = wanted.first;
  for (const char* line = text; line != end; line = next_line(line, end)) {
    if (reader.parsed.lines++ != next) continue;
    next += wanted.every;
    if (!reader.read(line)) {
      reader.parsed.line = static_cast<std::size_t>(line - text);
      reader.parsed.word = static_cast<std::size_t>(reader.word - text);
      break;
    }
  }
  return reader.parsed;
}

template LibsvmParsed parse_libsvm(const char*, std::size_t, LinesWanted, LibsvmRoom<std::int32_t, float>);
template LibsvmParsed parse_libsvm(const char*, std::size_t, LinesWanted, LibsvmRoom<std::int32_t, double>);
template LibsvmParsed parse_libsvm(const char*, std::size_t, LinesWanted, LibsvmRoom<std::int64_t, float>);
template LibsvmParsed parse_libsvm(const char*, std::size_t, LinesWanted, LibsvmRoom<std::int64_t, double>);

}  // namespace sparsewire
