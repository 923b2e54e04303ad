// kernels.cpp: what a message goes through, with any bytes: decode, check, merge, split, scatter, encode again.
//
// A target of libFuzzer, which looks for inputs that reach new code; `make fuzz` builds it with both sanitizers.  Every
// array is allocated with exactly the size that the kernels promise to stay in, so a sanitizer sees any step outside.
// What was decoded must be valid by plain comparisons, the same for every instruction set, and the same after encoding.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../csrc/bitmap.h"
#include "../csrc/checksum.h"
#include "../csrc/dispatch.h"
#include "../csrc/elias_fano.h"
#include "../csrc/first_invalid.h"
#include "../csrc/libsvm.h"
#include "../csrc/merge.h"
#include "../csrc/quantize.h"
#include "../csrc/scatter.h"
#include "../csrc/split_at.h"
#include "../csrc/without.h"

namespace {

namespace sw = sparsewire;

constexpr std::uint64_t most_positions = 1 << 13, most_entries = 1 << 10;
const std::vector<std::string> isas = sw::available_isas();

void must(bool ok) {
  if (!ok) std::abort();
}

// Memory of exactly n elements; a vector may have more behind it.
template <class T>
struct Room {
  explicit Room(std::size_t n) : data(new T[n]()), size(n) {}
  std::unique_ptr<T[]> data;
  std::size_t size;
  T* get() const { return data.get(); }
};

struct Input {
  const std::uint8_t* data;
  std::size_t size;

  template <class T>
  T take() {
    T value{};
    const std::size_t n = size < sizeof value ? size : sizeof value;
    if (n > 0) std::memcpy(&value, data, n);
    data += n;
    size -= n;
    return value;
  }
  template <class T>
  Room<T> take_room(std::size_t n) {
    Room<T> room(n);
    const std::size_t bytes = size < n * sizeof(T) ? size : n * sizeof(T);
    if (bytes > 0) std::memcpy(room.get(), data, bytes);
    data += bytes;
    size -= bytes;
    return room;
  }
};

enum Form { coo, elias_fano, bitmap, tiles };

template <class I>
bool decoded(Form form, const Room<std::uint64_t>& words, I start, std::uint64_t span, const Room<I>& indices) {
  const std::size_t count = indices.size;
  if (form == elias_fano) return sw::decode_elias_fano(words.get(), count, start, span, indices.get());
  if (form == bitmap) return sw::decode_bitmap(words.get(), count, start, span, indices.get());
  if (form == tiles) return sw::decode_tiles(words.get(), words.size, count, start, span, indices.get());
  if (count > 0) std::memcpy(indices.get(), words.get(), count * sizeof(I));
  return span == 0 ? count == 0 : sw::first_invalid(indices.get(), count, start, start + span - 1) < 0;
}

std::size_t words_of(Form form, std::size_t count, std::uint64_t span, std::size_t itemsize, std::size_t tiles_told) {
  if (form == elias_fano) return count > 0 ? sw::EliasFano(count, span).words() : 0;
  if (form == bitmap) return sw::bitmap_words(span);
  if (form == tiles) return sw::directory_words(span) + tiles_told;
  return (count * itemsize + 7) / 8;
}

template <class I>
bool is_valid(const Room<I>& indices, I start, std::uint64_t span) {
  for (std::size_t j = 0; j < indices.size; ++j) {
    const std::uint64_t index = indices.get()[j];
    if (index < start || index - start >= span || (j > 0 && index <= indices.get()[j - 1])) return false;
  }
  return true;
}

template <class I>
void encode_again(const Room<I>& indices, I start, std::uint64_t span) {
  const std::size_t count = indices.size;
  const std::size_t filled = count > 0 ? sw::count_tiles(indices.get(), count, start) : 0;
  for (const Form form : {elias_fano, bitmap, tiles}) {
    if (count == 0 && form == elias_fano) continue;
    Room<std::uint64_t> words(words_of(form, count, span, sizeof(I), filled));
    if (form == elias_fano) sw::encode_elias_fano(indices.get(), count, start, span, words.get());
    if (form == bitmap) sw::encode_bitmap(indices.get(), count, start, span, words.get());
    if (form == tiles) must(sw::encode_tiles(indices.get(), count, start, span, words.get(), filled));
    Room<I> again(count);
    must(decoded(form, words, start, span, again));
    must(count == 0 || std::memcmp(again.get(), indices.get(), count * sizeof(I)) == 0);
  }
}

// One piece of a message in [start, start + span); nothing if the bytes are none.
template <class I, class V>
bool read_piece(Input& input, I start, std::uint64_t span, std::vector<Room<I>>& indices, std::vector<Room<V>>& values) {
  const Form form = static_cast<Form>(input.take<std::uint8_t>() % 4);
  const std::size_t count = input.take<std::uint16_t>() % (most_entries + 1);
  const std::size_t tiles_told = input.take<std::uint8_t>();
  if (count > span) return false;
  const Room<std::uint64_t> words = input.take_room<std::uint64_t>(words_of(form, count, span, sizeof(I), tiles_told));
  if (form == tiles && count > 64 * words.size) return false;
  std::vector<Room<I>> answers;
  std::vector<bool> verdicts;
  for (const std::string& isa : isas) {
    must(sw::force_isa(isa));
    answers.emplace_back(count);
    verdicts.push_back(decoded(form, words, start, span, answers.back()));
  }
  for (std::size_t i = 1; i < answers.size(); ++i) {
    must(verdicts[i] == verdicts[0]);
    must(!verdicts[0] || count == 0 || std::memcmp(answers[i].get(), answers[0].get(), count * sizeof(I)) == 0);
  }
  if (!verdicts[0]) return false;
  must(is_valid(answers[0], start, span));
  encode_again(answers[0], start, span);
  indices.push_back(std::move(answers[0]));
  values.push_back(input.take_room<V>(count));
  return true;
}

template <class I, class V>
void use(Input input, I start, std::uint64_t span) {
  std::vector<Room<I>> indices;
  std::vector<Room<V>> values;
  std::vector<sw::Run<I, V>> runs;
  std::size_t total = 0;
  const int pieces = 1 + input.take<std::uint8_t>() % 4;
  for (int piece = 0; piece < pieces; ++piece)
    if (!read_piece<I, V>(input, start, span, indices, values)) break;
  for (std::size_t j = 0; j < indices.size(); ++j) {
    runs.push_back({indices[j].get(), values[j].get(), indices[j].size});
    total += indices[j].size;
  }
  if (runs.empty()) return;
  const auto operation = static_cast<sw::Operation>(input.take<std::uint8_t>() % 3);
  Room<I> out_indices(total);
  Room<V> out_values(total);
  const std::size_t count = sw::merge(operation, runs, out_indices.get(), out_values.get());
  must(count <= total);
  Room<I> merged(count);
  if (count > 0) std::memcpy(merged.get(), out_indices.get(), count * sizeof(I));
  must(is_valid(merged, start, span));
  Room<V> dense(span);
  sw::scatter(dense.get(), merged.get(), out_values.get(), count, start);
  sw::scatter_add(dense.get(), merged.get(), out_values.get(), count, start);
  sw::spread(dense.get(), dense.size, merged.get(), out_values.get(), count, start);
  Room<I> rest_indices(count);
  Room<V> rest_values(count);
  must(sw::without(sw::Run<I, V>{merged.get(), out_values.get(), count}, indices[0].get(), indices[0].size,
                   rest_indices.get(), rest_values.get()) <= count);
  const Room<std::uint64_t> cuts = input.take_room<std::uint64_t>(3);
  Room<std::int64_t> positions(cuts.size);
  sw::split_at(merged.get(), count, cuts.get(), cuts.size, positions.get());
  for (std::size_t c = 0; c < cuts.size; ++c)
    must(positions.get()[c] >= 0 && static_cast<std::size_t>(positions.get()[c]) <= count);
}

void read_levels(Input input) {
  const int bits = 2 << input.take<std::uint8_t>() % 3;
  const std::size_t n = input.take<std::uint16_t>() % most_entries, bucket = 1 + input.take<std::uint16_t>();
  const Room<float> scales = input.take_room<float>((n + bucket - 1) / bucket);
  const Room<std::uint8_t> codes = input.take_room<std::uint8_t>((n * static_cast<std::size_t>(bits) + 7) / 8);
  Room<float> out(n);
  sw::dequantize(scales.get(), codes.get(), n, {bits, bucket}, out.get());
}

void read_text(Input input) {
  const sw::LinesWanted wanted{input.take<std::uint8_t>() % 3u, 1u + input.take<std::uint8_t>() % 3, 0, 1 << 20};
  Room<char> text(input.size + 1);
  if (input.size > 0) std::memcpy(text.get(), input.data, input.size);
  text.get()[input.size] = '\n';
  const std::size_t n = text.size;
  Room<double> labels(n / 2);
  Room<std::int64_t> counts(n / 2);
  Room<std::int32_t> indices(n / 4);
  Room<float> values(n / 4);
  const sw::LibsvmRoom<std::int32_t, float> room{labels.get(), counts.get(), indices.get(), values.get()};
  const sw::LibsvmParsed parsed = sw::parse_libsvm(text.get(), n, wanted, room);
  must(parsed.rows <= labels.size && parsed.entries <= indices.size && parsed.line <= n && parsed.word <= n);
}

void sum_bytes(Input input) {
  const auto cut = input.take<std::uint16_t>();
  const Room<std::uint8_t> bytes = input.take_room<std::uint8_t>(input.size);
  const std::size_t first = bytes.size ? cut % (bytes.size + 1) : 0;
  std::uint64_t right = 0;
  for (const std::string& isa : isas) {
    must(sw::force_isa(isa));
    const std::uint64_t whole = sw::checksum(bytes.get(), bytes.size, cut);
    must(whole == sw::checksum(bytes.get() + first, bytes.size - first, sw::checksum(bytes.get(), first, cut)));
    must(isa == isas.front() || whole == right);
    right = whole;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input{data, size};
  const auto kind = input.take<std::uint8_t>();
  const std::uint64_t span = input.take<std::uint32_t>() % (most_positions + 1), start = input.take<std::uint64_t>();
  must(sw::force_isa(isas[kind / 16 % isas.size()]));
  const auto narrow = static_cast<std::uint32_t>(start % ((std::uint64_t{1} << 32) - span + 1));
  const std::uint64_t wide = start % ((std::uint64_t{1} << 63) - span + 1);
  switch (kind % 16) {
    case 0: use<std::uint32_t, float>(input, narrow, span); break;
    case 1: use<std::uint32_t, double>(input, narrow, span); break;
    case 2: use<std::uint32_t, sw::half>(input, narrow, span); break;
    case 3: use<std::uint32_t, sw::bfloat16>(input, narrow, span); break;
    case 4: use<std::uint32_t, std::int32_t>(input, narrow, span); break;
    case 5: use<std::uint32_t, std::int64_t>(input, narrow, span); break;
    case 6: use<std::uint64_t, float>(input, wide, span); break;
    case 7: use<std::uint64_t, double>(input, wide, span); break;
    case 8: use<std::uint64_t, std::int64_t>(input, wide, span); break;
    case 9: read_levels(input); break;
    case 10: read_text(input); break;
    case 11: sum_bytes(input); break;
    default: use<std::uint32_t, float>(input, narrow, span); break;
  }
  return 0;
}
