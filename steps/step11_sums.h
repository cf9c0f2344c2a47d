// step11: the kernel that brings the sums of dQ to its own type and order.
#pragma once

#include "common/tile/backward.h"

namespace attention::ATTN_DEVICE::step11 {

/// Sums lie in HBM as lanes added them, four numbers of a lane side by side, so that a warp's addition is one run of
/// memory. Of x[n], the n-th of four such runs, a lane has the numbers that belong to a quarter of a row. This exchanges
/// them among four lanes: afterwards lane q of the four has x[l] = what lane l had in x[q], all of its row.
__device__ __forceinline__ void exchange_in_four_lanes(float (&x)[4][4]) {
  ATTN_UNROLL for (int step = 2; step > 0; step /= 2) {
    const bool upper = threadIdx.x & step;
    ATTN_UNROLL for (int n = 0; n < 4; ++n)
      if (!(n & step))
        ATTN_UNROLL for (int i = 0; i < 4; ++i) {
          const float other = __shfl_xor_sync(kAllLanes, upper ? x[n][i] : x[n | step][i], step);
          (upper ? x[n][i] : x[n | step][i]) = other;
        }
  }
}

/// dQ = softmax_scale dQ_sums in the tensor's type and order. A warp takes what a warp added for half of its columns; a
/// lane has eight columns of two rows at last.
template <class E, int Bc, int D>
__global__ void convert_dq(float softmax_scale,
                           Global<const float> dQ_sums,  // [heads, query tiles * 2 pieces * 8, 128 lanes * 4]
                           Global<E> dQ) {               // [heads, seqlen_q, head_dim]
  const auto [head, number] = thread_of_head(dQ_sums.rows * 32);
  const int lane = threadIdx.x % 32, n32 = static_cast<int>(number / 32);
  const int half = n32 % 2, warp = n32 / 2 % 4, piece = n32 / 8 % 2, tile = n32 / 16;
  float x[4][4];
  ATTN_UNROLL for (int n = 0; n < 4; ++n)
    dQ_sums.head(head).load_run((tile * 2 + piece) * 8 + half * 4 + n, (warp * 32 + lane) * 4, x[n]);
  exchange_in_four_lanes(x);

  const int row = tile * Bc + (D == 64 ? piece * 64 : 0) + warp * 16 + lane / 4,
            col = (D == 64 ? 0 : piece * 64) + half * 32 + lane % 4 * 8;
  ATTN_UNROLL for (int i = 0; i < 2; ++i) {
    float out[8];
    ATTN_UNROLL for (int n = 0; n < 8; ++n) out[n] = softmax_scale * x[n / 2][2 * i + n % 2];
    if (row + 8 * i < static_cast<int>(dQ.rows)) dQ.head(head).template store_run<8>(row + 8 * i, col, out);
  }
}

}  // namespace attention::ATTN_DEVICE::step11
