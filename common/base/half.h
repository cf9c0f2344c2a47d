// The 16-bit types on the host: fp16 (IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits) and bf16 (the upper half
// of a float: 1, 8, 7). Both round to nearest, ties to even, as the GPU's conversions do.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/problem.h"

namespace attention {

constexpr uint32_t kFloatInfinity = 0x7f800000;

/// The bits shifted right by `shift`, rounded to nearest, ties to even.
constexpr uint32_t shift_rounded(uint32_t bits, int shift) {
  return (bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift;
}

/// The bits of the fp16 or bf16 nearest to `value`. What is too large becomes infinity (fp16: from 65520 on); a NaN
/// stays a NaN, with the upper bits of its payload. Inline: the CPU executor's kernels convert every element.
inline uint16_t to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (magnitude > kFloatInfinity) {
    const uint32_t payload = magnitude >> 13 & 0x3ff;
    return static_cast<uint16_t>(sign | 0x7c00 | (payload ? payload : 0x200));
  }
  constexpr uint32_t kOverflow = 0x477ff000;        // 65520, halfway between 65504 and what would be the next number
  constexpr uint32_t kSmallestNormal = 0x38800000;  // 2^-14
  if (magnitude >= kOverflow) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude >= kSmallestNormal)
    return static_cast<uint16_t>(sign | shift_rounded(magnitude - (uint32_t{127 - 15} << 23), 13));
  // Subnormal: a multiple of 2^-24, which is the spacing of floats from 0.5 to 1, so that adding 0.5 rounds to it.
  return static_cast<uint16_t>(
      sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f)));
}

inline uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > kFloatInfinity) return static_cast<uint16_t>(bits >> 16 | (bits >> 16 & 0x7f ? 0 : 0x40));
  return static_cast<uint16_t>(shift_rounded(bits, 16));
}

/// The value behind the bits, exactly.
inline float from_fp16(uint16_t half) {
  const uint32_t sign = uint32_t{half} << 16 & 0x80000000, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | kFloatInfinity | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + (uint32_t{127 - 15} << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -value : value;
}

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// `value` rounded to `dtype` (unchanged in fp32).
float round_to(Dtype dtype, float value);

/// Rounds every element to `dtype`, on all cores. Returns the index of the first finite element that became infinite,
/// -1 when there is none.
int64_t round_all(Dtype dtype, std::span<float> values);

/// Floats to elements of `dtype`, fp16 or bf16, and back, on all cores.
std::vector<uint16_t> narrow(Dtype dtype, std::span<const float> values);
void widen(Dtype dtype, std::span<const uint16_t> bits, std::span<float> values);

/// The unit roundoff u: rounding changes a number by at most u of itself (from the smallest normal number on).
inline double unit_roundoff(Dtype dtype) {
  return std::ldexp(1.0, dtype == Dtype::fp32 ? -24 : dtype == Dtype::fp16 ? -11 : -8);
}

/// The largest number: 65504 in fp16, 3.4e38 in the others.
inline double largest_number(Dtype dtype) {
  return dtype == Dtype::fp16 ? 65504 : dtype == Dtype::fp32 ? 0x1.fffffep127 : 0x1.fep127;
}

/// The smallest number above 0: below the normal numbers all are multiples of it, and rounding changes a number by up
/// to half of it.
inline double smallest_subnormal(Dtype dtype) {
  return std::ldexp(1.0, dtype == Dtype::fp32 ? -149 : dtype == Dtype::fp16 ? -24 : -133);
}

}  // namespace attention
