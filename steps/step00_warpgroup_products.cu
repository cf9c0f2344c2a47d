// step00's warpgroup products: how many a second a Hopper SM makes of tiles in SRAM          docs/00-two-memories.md
#include "step00_measurement.h"
#include "common/tile/warpgroup.h"

namespace attention::ATTN_DEVICE::step00 {

constexpr int kWarpgroups = 2, kRows = 128, kHeadDim = 128;  // of a block; two blocks fit an SM

template <class E>
struct WarpgroupSram {
  SwizzledTile<E, 64 * kWarpgroups, kHeadDim> q;
  SwizzledTile<E, kRows, kHeadDim> k;
};

/// S = Q K^T again and again, of tiles that stay in SRAM: step07 without its copies, its mask and its softmax. While
/// one warpgroup waits for its product the others' run. The numbers lie between 1 and 2 and have random signs and
/// digits, as those of the mma.sync products do.
template <class E>
__global__ void __launch_bounds__(128 * kWarpgroups, 2) multiply_warpgroups(int64_t rounds, float* result) {
  auto& sram = aligned_sram<WarpgroupSram<E>>();
  uint32_t bits = threadIdx.x * 2654435761u;
  const auto fill = [&](E* element, int count) {
    for (int n = threadIdx.x; n < count; n += blockDim.x) {
      bits = bits * 1664525u + 1013904223u;  // Numerical Recipes' generator
      element[n] = from_float<E>((bits & 1 ? -1.0f : 1.0f) * (1 + static_cast<float>(bits >> 8) * 0x1p-24f));
    }
  };
  fill(sram.q.element, sizeof sram.q.element / sizeof(E));
  fill(sram.k.element, sizeof sram.k.element / sizeof(E));
  stores_visible_to_engines();
  __syncthreads();  // the tiles are complete
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  float s[kRows / 2] = {};
  ATTN_UNROLL_1 for (int64_t round = 0; round < rounds; ++round) {
    begin_products();
    start_multiply_abt(s, sram.q, 64 * warpgroup, sram.k);
    wait_products<0>();
    fence_registers(s);
  }
  float sum = 0;
  ATTN_UNROLL for (int i = 0; i < kRows / 2; ++i) sum += s[i];
  if (sum == 0.123456f) *result = sum;  // never, or once in a lifetime
}

template <class E>
double warpgroup_rate(Measurement& m) {
  constexpr int kThreads = 128 * kWarpgroups, kSram = sizeof(WarpgroupSram<E>);
  cuda_check(cudaFuncSetAttribute(multiply_warpgroups<E>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSram),
             "multiply_warpgroups");
  const int64_t blocks = m.full_grid(multiply_warpgroups<E>, kThreads, kSram);
  const double seconds = m.seconds_per_round("multiply_warpgroups", [&](int64_t rounds) {
    multiply_warpgroups<E><<<static_cast<unsigned>(blocks), kThreads, kSram>>>(rounds, m.result);
  });
  return static_cast<double>(blocks) * 2 * 64 * kWarpgroups * kRows * kHeadDim / seconds;
}

void measure_warpgroup_products(Measurement& m, DeviceFigures& f) {
  if (m.compute_capability() != 90) return;
  f.wgmma_fp16 = warpgroup_rate<half>(m);
  f.wgmma_bf16 = warpgroup_rate<bfloat16>(m);
}

}  // namespace attention::ATTN_DEVICE::step00
