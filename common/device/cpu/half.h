// The 16-bit types on a CPU. Compilers differ in which of them they know, so these are plain structs of 16 bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace attention {
inline namespace on_cpu {

struct half {
  uint16_t bits;  // sign, 5 bits of exponent, 10 of fraction
};
struct bfloat16 {
  uint16_t bits;  // the upper half of a float
};

inline float to_float(float x) { return x; }
inline float to_float(bfloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
/// A half's exponent and fraction, moved to their places in a float, are the value times 2^-112, subnormals included.
inline float to_float(half x) {
  const uint32_t magnitude = (x.bits & 0x7fffu) << 13, sign = (x.bits & 0x8000u) << 16;
  const float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t special = (x.bits & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : std::bit_cast<uint32_t>(value);  // infinity, NaN
  return std::bit_cast<float>(special | sign);
}

/// To the nearest, ties to even.
template <class E>
E from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if constexpr (std::is_same_v<E, bfloat16>) {
    if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  } else if constexpr (std::is_same_v<E, half>) {
    const uint16_t sign = bits >> 16 & 0x8000;
    const float magnitude = std::fabs(x);
    if (x != x) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
    if (magnitude < 0x1p-14f)  // subnormal: adding 0.5 rounds to multiples of 2^-24, which lie in the sum's last bits
      return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(magnitude + 0.5f) & 0x7ff))};
    const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
    return {static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13))};
  } else {
    return x;
  }
}

}  // namespace on_cpu
}  // namespace attention
