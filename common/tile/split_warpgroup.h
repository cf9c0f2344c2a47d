// fp32 on warpgroup products (warpgroup.h), as split_product.h has it on those of a warp. Tiles hold numbers in two
// parts, all hi of a row and then all lo, and a product of numbers is three of parts. A tensor core cuts off what its
// sums cannot hold, so no sum stays in it for long: what it gives is added in fp32. docs/exact-tensor-cores.md has the
// reasons.
#pragma once

#include "common/tile/warpgroup.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// s = Q K^T for the 64 rows of Q from first_row on, summed over 16 dimensions in each of the steps [begin, end):
/// started, not finished. The products with a lo come first: they are 2^-11 of hi hi', and what a tensor core cuts off
/// of their sum is as much smaller.
template <int Br, int Bc, int Parts>
__device__ __forceinline__ void start_split_abt(float (&s)[Bc / 2], const SwizzledTile<half, Br, Parts>& q,
                                                int first_row, const SwizzledTile<half, Bc, Parts>& k, int begin,
                                                int end) {
  using Product = WarpgroupProduct<Bc, half>;
  constexpr int kLo = Parts / 2 / 16;  // steps from a hi to its lo
  const Timed timed(Noted::warpgroup_product);
  if (threadIdx.x % 128 == 0) count_flops(2LL * 64 * Bc * (end - begin) / kLo);
  const uint64_t a = tile_descriptor(sram_address(&q) + first_row * kPanelRowBytes),
                 b = tile_descriptor(sram_address(&k));
  const auto q_part = [&](int step) { return a + along_rows(step, q.kPanelBytes); };
  const auto k_part = [&](int step) { return b + along_rows(step, k.kPanelBytes); };
  Product::first_abt(s, q_part(kLo + begin), k_part(begin));
  Product::abt(s, q_part(begin), k_part(kLo + begin), 1);
  ATTN_UNROLL for (int step = begin + 1; step < end; ++step) {
    Product::abt(s, q_part(kLo + step), k_part(step), 1);
    Product::abt(s, q_part(step), k_part(kLo + step), 1);
  }
  ATTN_UNROLL for (int step = begin; step < end; ++step) Product::abt(s, q_part(step), k_part(step), 1);
  commit_products();
}

/// t[n] = P V for the n-th 64 columns of V: started, not finished.
template <int Bc, int Parts>
__device__ __forceinline__ void start_split_ab(float (&t)[Parts / 128][32], const uint32_t (&hi)[Bc / 16][4],
                                               const uint32_t (&lo)[Bc / 16][4],
                                               const SwizzledTile<half, Bc, Parts>& v) {
  using Product = WarpgroupProduct<64, half>;
  constexpr int kPanels = Parts / 128;  // of a part
  const Timed timed(Noted::warpgroup_product);
  if (threadIdx.x % 128 == 0) count_flops(2LL * 64 * Bc);
  ATTN_UNROLL for (int n = 0; n < kPanels; ++n) {
    const uint64_t v_hi = tile_descriptor(sram_address(&v) + n * v.kPanelBytes, v.kPanelBytes),
                   v_lo = tile_descriptor(sram_address(&v) + (kPanels + n) * v.kPanelBytes, v.kPanelBytes);
    Product::first_ab(t[n], hi[0], v_lo);
    Product::ab(t[n], lo[0], v_hi);
    ATTN_UNROLL for (int step = 1; step < Bc / 16; ++step) {
      Product::ab(t[n], hi[step], v_lo + across_rows(step));
      Product::ab(t[n], lo[step], v_hi + across_rows(step));
    }
    ATTN_UNROLL for (int step = 0; step < Bc / 16; ++step) Product::ab(t[n], hi[step], v_hi + across_rows(step));
  }
  commit_products();
}

/// As online_softmax, of scores in units of `unscale`; m is in units of 1. Powers of two, so nothing is rounded; both
/// stay above fp32's smallest number, so that -inf stays -inf.
template <int N>
__device__ __forceinline__ void online_softmax_of_parts(float (&s)[N], float (&m)[2], float (&l)[2], float (&alpha)[2],
                                                        float scale, float unscale) {
  constexpr float kSmallest = 0x1p-126f;
  ATTN_UNROLL for (int i = 0; i < 2; ++i) {
    const float top = fmaxf(m[i], fmaxf(unscale, kSmallest) * row_maximum<2>(s, i, -INFINITY)),
                by = row_scale(__fmul_rn(scale, finite(top)), scale), by_raw = fmaxf(by * unscale, kSmallest),
                shift = __fmul_rn(by, finite(top));
    alpha[i] = exp2_or_zero(__fmul_rn(by, m[i]) - shift);
    m[i] = top;
    float sum[2] = {};
    ATTN_UNROLL for (int n = 0; n < N / 4; ++n)
      ATTN_UNROLL for (int c = 0; c < 2; ++c)
        sum[c] += s[4 * n + 2 * i + c] = exp2_or_zero(fmaf(by_raw, s[4 * n + 2 * i + c], -shift));
    l[i] = l[i] * alpha[i] + (sum[0] + sum[1]);
  }
}

/// P as the left operand of P V, in two parts. Weights are at most 1, so their power of two is known.
constexpr float kWeightScale = 0x1p15f;
template <int N>
__device__ __forceinline__ void split_weights(uint32_t (&hi)[N / 8][4], uint32_t (&lo)[N / 8][4], const float (&s)[N]) {
  ATTN_UNROLL for (int k = 0; k < N / 8; ++k)
    ATTN_UNROLL for (int r = 0; r < 4; ++r) {
      const int n = 8 * k + 2 * r;
      split(hi[k][r], lo[k][r], kWeightScale * s[n], kWeightScale * s[n + 1]);
    }
}

template <int Panels>
__device__ __forceinline__ void fence_panels(float (&t)[Panels][32]) {
  ATTN_UNROLL for (int panel = 0; panel < Panels; ++panel) fence_registers(t[panel]);
}

/// o = alpha o + unscale t.
template <int Panels>
__device__ __forceinline__ void scale_and_add(float (&o)[Panels][32], const float (&alpha)[2],
                                              const float (&t)[Panels][32], float unscale) {
  ATTN_UNROLL for (int panel = 0; panel < Panels; ++panel)
    ATTN_UNROLL for (int n = 0; n < 32; ++n) o[panel][n] = fmaf(unscale, t[panel][n], alpha[n / 2 % 2] * o[panel][n]);
}

/// O = o / l and LSE, from the registers of a warp to HBM.
template <int Panels>
__device__ __forceinline__ void store_exact_o_and_lse(float (&o)[Panels][32], const float (&m)[2], float (&l)[2],
                                                      float softmax_scale, Global<float> O, Global<float> LSE,
                                                      int row0) {
  const int lane = threadIdx.x % 32;
  lanes_sum<4>(l);
  ATTN_UNROLL for (int i = 0; i < 2; ++i) {
    const int row = row0 + sum_row(lane, 2 * i);
    if (row >= O.rows) continue;
    const float inverse = l[i] > 0 ? 1 / l[i] : 0;
    ATTN_UNROLL for (int panel = 0; panel < Panels; ++panel)
      ATTN_UNROLL for (int n = 2 * i; n < 32; n += 4) {
        const float both[] = {o[panel][n] * inverse, o[panel][n + 1] * inverse};
        O.template store_run<2>(row, panel * 64 + sum_col(lane, n), both);
      }
    if (lane % 4 == 0) LSE.store(0, row, softmax_scale * finite(m[i]) + logf(l[i]));
  }
}

}  // namespace ATTN_DEVICE
}  // namespace attention
