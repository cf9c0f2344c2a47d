// The 16-bit types on a CPU. Compilers differ in which of them they know, so these are plain structs of 16 bits.
#pragma once

#include <cstdint>
#include <type_traits>

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
inline float to_float(half x) { return from_fp16(x.bits); }
inline float to_float(bfloat16 x) { return from_bf16(x.bits); }

/// To the nearest, ties to even.
template <class E>
E from_float(float x) {
  if constexpr (std::is_same_v<E, half>) return {to_fp16(x)};
  else if constexpr (std::is_same_v<E, bfloat16>) return {to_bf16(x)};
  else return x;
}

}  // namespace on_cpu
}  // namespace attention
