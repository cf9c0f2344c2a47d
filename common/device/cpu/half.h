// The 16-bit types on a CPU. Compilers differ in which of them they know, so these are plain structs of 16 bits.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "common/base/half.h"

namespace attention {
inline namespace on_cpu {

struct half {
  uint16_t bits;  // sign, 5 bits of exponent, 10 of fraction
};
struct bfloat16 {
  uint16_t bits;  // the upper half of a float
};

inline float to_float(float x) { return x; }
#if defined(__F16C__)  // one instruction of the processor in place of ten
inline float to_float(half x) { return _cvtsh_ss(x.bits); }
inline uint16_t nearest_fp16(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
#else
inline float to_float(half x) { return from_fp16(x.bits); }
inline uint16_t nearest_fp16(float x) { return to_fp16(x); }
#endif
inline float to_float(bfloat16 x) { return from_bf16(x.bits); }

/// To the nearest, ties to even.
template <class E>
E from_float(float x) {
  if constexpr (std::is_same_v<E, half>) return {nearest_fp16(x)};
  else if constexpr (std::is_same_v<E, bfloat16>) return {to_bf16(x)};
  else return x;
}

}  // namespace on_cpu
}  // namespace attention
