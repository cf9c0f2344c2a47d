// The tensor core's two instructions on the CPU executor: what the PTX ISA says they do, for a whole warp at a time.
#pragma once

#include "common/device/cpu/kernel_language.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// Two neighbours as one register, the first in the low half.
template <class E>
uint32_t pack(float low, float high) {
  return from_float<E>(low).bits | uint32_t{from_float<E>(high).bits} << 16;
}

/// What pack made one register of.
template <class E>
float2 unpack(uint32_t both) {
  return {to_float(E{static_cast<uint16_t>(both)}), to_float(E{static_cast<uint16_t>(both >> 16)})};
}

struct LoadMatrices {
  uint32_t* to;
  const uint16_t* row;
};
template <bool Transposed>
void load_matrices_of_warp(void* const* lanes) {
  for (int lane = 0; lane < executor::kWarp; ++lane)
    for (int matrix = 0; matrix < 4; ++matrix) {
      const auto element = [&](int row, int col) -> uint32_t {
        return static_cast<const LoadMatrices*>(lanes[8 * matrix + row])->row[col];
      };
      const int outer = lane / 4, inner = lane % 4 * 2;
      static_cast<const LoadMatrices*>(lanes[lane])->to[matrix] =
          Transposed ? element(inner, outer) | element(inner + 1, outer) << 16
                     : element(outer, inner) | element(outer, inner + 1) << 16;
    }
}

/// ldmatrix: four 8x8 matrices of 16-bit elements from SRAM. Lane l passes the address of row l % 8 of matrix l / 8 and
/// receives of each matrix the elements (l / 4, 2 (l % 4)) and their right-hand neighbours; transposed: (2 (l % 4), l /
/// 4) and the ones below.
template <bool Transposed, class E>
__attribute__((noinline)) void load_matrices(uint32_t (&x)[4], const E* row, const char* file = __builtin_FILE(),
                                             int line = __builtin_LINE()) {
  LoadMatrices deposit{x, &row->bits};
  executor::warp_collective(load_matrices_of_warp<Transposed>, &deposit, {file, line});
}

struct TensorMultiplyAdd {
  float* c[4];
  const uint32_t* a;
  uint32_t b[2];
};
template <class E>
void tensor_multiply_add_of_warp(void* const* lanes) {
  using Row = float __attribute__((vector_size(32)));
  const auto low = [](uint32_t both) { return to_float(E{static_cast<uint16_t>(both)}); };
  const auto high = [](uint32_t both) { return to_float(E{static_cast<uint16_t>(both >> 16)}); };
  Row b[16], c[16];
  float a[16][16];
  for (int lane = 0; lane < executor::kWarp; ++lane) {
    const auto& deposit = *static_cast<const TensorMultiplyAdd*>(lanes[lane]);
    const int row = lane / 4, col = lane % 4 * 2;
    for (int quarter = 0; quarter < 4; ++quarter) {
      a[row + quarter % 2 * 8][col + quarter / 2 * 8] = low(deposit.a[quarter]);
      a[row + quarter % 2 * 8][col + quarter / 2 * 8 + 1] = high(deposit.a[quarter]);
    }
    for (int part = 0; part < 2; ++part)
      b[8 * part + col][row] = low(deposit.b[part]), b[8 * part + col + 1][row] = high(deposit.b[part]);
    for (int n = 0; n < 4; ++n) c[row + n / 2 * 8][col + n % 2] = *deposit.c[n];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k) c[row] += a[row][k] * b[k];
  for (int lane = 0; lane < executor::kWarp; ++lane)
    for (int n = 0; n < 4; ++n)
      *static_cast<const TensorMultiplyAdd*>(lanes[lane])->c[n] = c[lane / 4 + n / 2 * 8][lane % 4 * 2 + n % 2];
}

/// mma.m16n8k16: c += A B for a 16x16 A (registers as load_matrices of its four quarters, upper before lower, left
/// before right), a 16x8 B and fp32 sums; lane l holds c at (l / 4, 2 (l % 4)), its right-hand neighbour, and both
/// eight rows below.
template <class E>
__attribute__((noinline)) void tensor_multiply_add(float& c0, float& c1, float& c2, float& c3, const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1, const char* file = __builtin_FILE(),
                                                   int line = __builtin_LINE()) {
  TensorMultiplyAdd deposit{{&c0, &c1, &c2, &c3}, a, {b0, b1}};
  executor::warp_collective(tensor_multiply_add_of_warp<E>, &deposit, {file, line});
}

}  // namespace ATTN_DEVICE
}  // namespace attention
