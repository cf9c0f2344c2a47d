// The 16-bit types on the host: fp16 (IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits) and bf16 (the upper half of a
// float: 1, 8, 7). Both round to nearest, ties to even, as the GPU's conversions do.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "common/harness/problem.h"

namespace attention {

/// The bits of the fp16 or bf16 nearest to `value`. What is too large becomes infinity (fp16: from 65520 on); a NaN stays a NaN,
/// with the upper bits of its payload.
uint16_t to_fp16(float value);
uint16_t to_bf16(float value);

/// The value behind the bits, exactly.
float from_fp16(uint16_t bits);
float from_bf16(uint16_t bits);

/// `value` rounded to `dtype` (unchanged in fp32).
float round_to(Dtype dtype, float value);

/// Rounds every element to `dtype`, on all cores. Returns the index of the first finite element that became infinite, -1 when
/// there is none.
int64_t round_all(Dtype dtype, std::span<float> values);

/// Floats to elements of `dtype`, fp16 or bf16, and back, on all cores.
std::vector<uint16_t> narrow(Dtype dtype, std::span<const float> values);
void widen(Dtype dtype, std::span<const uint16_t> bits, std::span<float> values);

/// The unit roundoff u: rounding changes a number by at most u of itself (from the smallest normal number on).
inline double unit_roundoff(Dtype dtype) { return std::ldexp(1.0, dtype == Dtype::fp32 ? -24 : dtype == Dtype::fp16 ? -11 : -8); }

/// The smallest number above 0: below the normal numbers all are multiples of it, and rounding changes a number by up to half of it.
inline double smallest_subnormal(Dtype dtype) { return std::ldexp(1.0, dtype == Dtype::fp32 ? -149 : dtype == Dtype::fp16 ? -24 : -133); }

}  // namespace attention
