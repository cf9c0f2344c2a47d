// The softmax's arithmetic that is not the lesson of the step that uses it: exponentials, a row's maximum and sum, and
// what ends a forward.
#pragma once

#include "common/tile/tile.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// e^x = 2^(x log2 e), and a GPU computes 2^x in one instruction. Subtract first, then multiply: x = 0 must stay 0, so
/// that a row's largest score gives exactly 1 however huge it is.
constexpr float kLog2e = 1.44269504f;

/// The scale of a row's scores where a weight is one multiply-add, 2^(scale x - shift) with shift = scale m rounded to
/// fp32 (steps/step06). The rounding is a factor that all weights of the row share: it cancels in O / l, as long as it
/// neither overflows nor vanishes. Below 2^26 it is within 2^-2 and 2^2. From there on a score's last bit is a factor
/// of 2^4 at least in its weight, and any scale near the right one will do: the power of two below, whose products have
/// no rounding and overflow no sooner.
constexpr float kHugeShift = 1 << 26;
__device__ __forceinline__ float power_of_two_if(bool huge, float scale) {
  return huge ? __uint_as_float(__float_as_uint(scale) & 0xff800000u) : scale;
}
__device__ __forceinline__ float row_scale(float shift, float scale) {
  return power_of_two_if(fabsf(shift) >= kHugeShift, scale);
}

/// A row that has seen no key has m = -inf. 2^(-inf - 0) is 0, where -inf - -inf would be NaN.
__device__ __forceinline__ float finite(float m) { return m == -INFINITY ? 0 : m; }

/// Maximum and sum along the rows of a fragment: x[i] holds what this lane found in its columns of row(i); afterwards
/// every lane of the row holds the row's.
template <class Frag>
__device__ __forceinline__ void row_max(float (&x)[Frag::kRows]) {
  lanes_max<Frag::kLanes>(x);
}
template <class Frag>
__device__ __forceinline__ void row_sum(float (&x)[Frag::kRows]) {
  lanes_sum<Frag::kLanes>(x);
}

/// What ends a forward: O = o / l, and LSE = softmax_scale m + ln l (natural), of the rows that exist. l holds what
/// each lane summed of its rows. A row that has seen no key has m = -inf and l = 0: its O is 0 and its LSE -inf.
template <class Output, class E>
__device__ __forceinline__ void store_o_and_lse(Output& o, const float (&m)[Output::kRows], float (&l)[Output::kRows],
                                                float softmax_scale, Global<E> O, Global<float> LSE, int q0) {
  const Timed timed(Noted::store, O.data);
  row_sum<Output>(l);
  ATTN_UNROLL for (int i = 0; i < o.kRows; ++i) {
    const int row = q0 + o.row(i);
    const float inverse = l[i] > 0 ? 1 / l[i] : 0;
    ATTN_UNROLL for (int j = 0; j < o.kCols; ++j) o(i, j) *= inverse;
    if (o.first_lane_of_row() && row < O.rows) LSE.store(0, row, softmax_scale * finite(m[i]) + logf(l[i]));
  }
  store_tile(O, o, q0);
}

}  // namespace ATTN_DEVICE
}  // namespace attention
