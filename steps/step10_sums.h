// step10: where dQ is added up in fp32, and the kernel that brings it from there to its own type and order.
#pragma once

#include "common/tile/backward.h"
#include "common/tile/swizzle.h"
#include "common/tile/tile.h"

namespace attention::ATTN_DEVICE::step10 {

/// A warp's share of a query tile's dQ: 32 columns of 16 or 32 rows. It is added up in the order in which the lanes hold
/// it, four numbers of a lane side by side: so an addition takes 16 bytes from each lane, and a warp's go to one place.
template <class T>
struct ShareOfDq {
  static constexpr int kRows = T::kBc * T::kHeadDim / (T::kThreads / 32) / 32, kAcross = T::kBc / kRows,
                       kLines = kRows / 4;  // of 32 lanes' four numbers
  static_assert(kRows == 16 || kRows == 32);
  using Sums = Fragment<kRows, 32, 4, 2>;
  static __device__ __forceinline__ int row(int warp) { return warp % kAcross * kRows; }
  static __device__ __forceinline__ int col(int warp) { return warp / kAcross * 32; }
  static __device__ __forceinline__ void add(Global<float> sums, const Sums& dq, int share) {
    ATTN_UNROLL for (int i = 0; i < dq.kRows; ++i)
      ATTN_UNROLL for (int j = 0; j < dq.kCols; j += 4)
        sums.template add_run<4>(share * kLines + (i * dq.kCols + j) / 4, threadIdx.x % 32 * 4, &dq.value[i][j]);
  }
};

/// dQ = softmax_scale dQ_sums, in the tensor's type and order. A warp converts 16 rows of a warp's share.
template <class T>
__global__ void convert_dq(float softmax_scale,
                           Global<const float> dQ_sums,       // [heads, padded rows * head_dim of T / 128, 128]
                           Global<typename T::Element> dQ) {  // [heads, seqlen_q, head_dim]
  using Share = ShareOfDq<T>;
  constexpr int kWarps = T::kThreads / 32, kLines = 4;  // of 16 rows
  const auto [head, number] = thread_of_head(dQ_sums.rows * (32 / kLines));
  const int lane = threadIdx.x % 32, line = static_cast<int>(number / 32) * kLines;
  const int share = line / Share::kLines, warp = share % kWarps;
  const int row = share / kWarps * T::kBc + Share::row(warp) + line % Share::kLines / kLines * 16 + sum_row(lane, 0),
            col = Share::col(warp) + sum_col(lane, 0);
  ATTN_UNROLL for (int n = 0; n < kLines; ++n) {
    const float4 x = dQ_sums.head(head).load_vector_if(true, line + n, lane * 4);
    const float left[2] = {softmax_scale * x.x, softmax_scale * x.y},
                right[2] = {softmax_scale * x.z, softmax_scale * x.w};
    const int r = row + n / 2 * 8, c = col + n % 2 * 16;
    if (r < static_cast<int>(dQ.rows) && c < static_cast<int>(dQ.cols)) dQ.head(head).template store_run<2>(r, c, left);
    if (r < static_cast<int>(dQ.rows) && c + 8 < static_cast<int>(dQ.cols))
      dQ.head(head).template store_run<2>(r, c + 8, right);
  }
}

}  // namespace attention::ATTN_DEVICE::step10
