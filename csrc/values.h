// values.h: the value types, their magnitude as an integer, and the type their sums are made in.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sparsewire {

struct half {
  std::uint16_t bits;
};
struct bfloat16 {
  std::uint16_t bits;
};

template <class To, class From>
[[gnu::always_inline]] inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// ---- magnitude: |x| as an unsigned integer, so that NaN has a place in the order (above infinity)

template <std::size_t bytes>
struct UnsignedOf;
template <>
struct UnsignedOf<2> {
  using type = std::uint16_t;
};
template <>
struct UnsignedOf<4> {
  using type = std::uint32_t;
};
template <>
struct UnsignedOf<8> {
  using type = std::uint64_t;
};
template <class V>
using Magnitude = typename UnsignedOf<sizeof(V)>::type;

template <class V>
constexpr int magnitude_bits = 8 * sizeof(V) - (std::is_integral_v<V> ? 0 : 1);

// The largest number that is a magnitude of V or could be taken for one: every float's bits are below it.
template <class V>
constexpr Magnitude<V> largest_magnitude = static_cast<Magnitude<V>>(~std::uint64_t{0} >> (64 - magnitude_bits<V>));

template <class V>
constexpr Magnitude<V> infinity = largest_magnitude<V>;  // integers have no NaN above it
template <>
inline constexpr std::uint64_t infinity<double> = 0x7ff0'0000'0000'0000;
template <>
inline constexpr std::uint32_t infinity<float> = 0x7f80'0000;
template <>
inline constexpr std::uint16_t infinity<half> = 0x7c00;
template <>
inline constexpr std::uint16_t infinity<bfloat16> = 0x7f80;

template <class V>
[[gnu::always_inline]] inline Magnitude<V> magnitude(V value) {
  const auto bits = bits_as<Magnitude<V>>(value);
  if constexpr (std::is_integral_v<V>) {
    return value < 0 ? Magnitude<V>{0} - bits : bits;
  } else {
    return bits & largest_magnitude<V>;
  }
}

// A magnitude for which all NaN are equal, just above infinity.
template <class V>
[[gnu::always_inline]] inline Magnitude<V> rank_of_magnitude(Magnitude<V> m) {
  return m > infinity<V> ? static_cast<Magnitude<V>>(infinity<V> + 1) : m;
}

template <class V>
[[gnu::always_inline]] inline Magnitude<V> rank_of(V value) {
  return rank_of_magnitude<V>(magnitude(value));
}

// ---- sums: half types in float, rounded once; integers wrap around

template <class V>
struct SumOf {
  using type = V;
};
template <>
struct SumOf<half> {
  using type = float;
};
template <>
struct SumOf<bfloat16> {
  using type = float;
};
template <class V>
using Sum = typename SumOf<V>::type;

// x + neutral is x, the sign of a zero included.
template <class V>
constexpr Sum<V> neutral = std::is_integral_v<V> ? Sum<V>(0) : Sum<V>(-0.0);

template <class S>
[[gnu::always_inline]] inline S plus(S a, S b) {
  if constexpr (std::is_integral_v<S>) {
    return static_cast<S>(static_cast<std::make_unsigned_t<S>>(a) + static_cast<std::make_unsigned_t<S>>(b));
  } else {
    return a + b;
  }
}

template <class V>
[[gnu::always_inline]] inline V widen(V value) {
  return value;
}

[[gnu::always_inline]] inline float widen(bfloat16 value) {
  return bits_as<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// In software, because the baseline of x86-64 has no half conversions; without a branch, so that it vectorises.
[[gnu::always_inline]] inline float widen(half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000) << 16;
  const std::uint32_t rest = value.bits & 0x7fff;
  const std::uint32_t normal = (rest << 13) + (112u << 23);   // exponent bias 127 instead of 15
  const std::uint32_t special = (rest << 13) + (224u << 23);  // exponent 255 instead of 31
  const auto subnormal = bits_as<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(rest)) * 0x1p-24f);
  return bits_as<float>(sign | (rest >= 0x7c00 ? special : rest < 0x0400 ? subnormal : normal));
}

template <class V>
[[gnu::always_inline]] inline V narrow(Sum<V> sum) {
  return sum;
}

template <>
[[gnu::always_inline]] inline bfloat16 narrow<bfloat16>(float sum) {
  const auto bits = bits_as<std::uint32_t>(sum);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
  const std::uint32_t quiet_nan = bits >> 16 | 0x0040;
  return {static_cast<std::uint16_t>((bits & 0x7fff'ffff) > 0x7f80'0000 ? quiet_nan : rounded)};
}

template <>
[[gnu::always_inline]] inline half narrow<half>(float sum) {
  const auto bits = bits_as<std::uint32_t>(sum);
  const std::uint32_t rest = bits & 0x7fff'ffff;
  const std::uint32_t normal = (rest - (112u << 23) + 0x0fff + (rest >> 13 & 1)) >> 13;  // ties to even
  // Adding one half, whose last bit is worth the smallest half number, rounds to a multiple of that.
  const std::uint32_t subnormal = bits_as<std::uint32_t>(bits_as<float>(rest) + 0.5f) - bits_as<std::uint32_t>(0.5f);
  const std::uint32_t rounded = rest < 0x3880'0000 ? subnormal : rest >= 0x477f'f000 ? 0x7c00 : normal;
  return {static_cast<std::uint16_t>((bits >> 16 & 0x8000) | (rest > 0x7f80'0000 ? 0x7e00 : rounded))};
}

}  // namespace sparsewire
