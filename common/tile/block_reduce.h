// Maximum and sum of a row that a whole block shares (fragments, whose rows stay within a warp, use those of tile.h).
#pragma once

#include "common/tile/softmax.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// One number per warp of the block, on its way from the warps' own results to the block's.
using WarpResults = SramTile<float, 1, 32>;

/// The maximum (sum) of x over all threads of the block, for all of them. `results` must not serve a second reduction
/// unless a __syncthreads lies in between: give each its own.
__device__ __forceinline__ float row_max(float x, WarpResults& results) {
  float warp[1] = {x};
  lanes_max<32>(warp);
  if (threadIdx.x % 32 == 0) results.store(0, threadIdx.x / 32, warp[0]);
  __syncthreads();  // every warp's result is there
  for (unsigned w = 0; w < blockDim.x / 32; ++w) warp[0] = fmaxf(warp[0], results.load(0, w));
  return warp[0];
}
__device__ __forceinline__ float row_sum(float x, WarpResults& results) {
  float warp[1] = {x};
  lanes_sum<32>(warp);
  if (threadIdx.x % 32 == 0) results.store(0, threadIdx.x / 32, warp[0]);
  __syncthreads();  // every warp's result is there
  float sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += results.load(0, w);
  return sum;
}

}  // namespace ATTN_DEVICE
}  // namespace attention
