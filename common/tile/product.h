// The two tile products that every step is made of. A warp computes its own rows: each lane a micro-tile of kRows x kCols
// outputs, so that a value read from SRAM is used kRows or kCols times.
//
// fp32 needs care to stay within 1e-6 (docs/exactness.md): a sum of n products rounds n times, so long sums are taken in
// pieces, each in accumulators of its own that start at zero.
#pragma once

#include "common/tile/tile.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// s = A B^T for the warp's rows of A: scores from query and key rows. Summed over D in pieces of 64.
template <int Rows, int Cols, int Lanes, int ARows, int BRows, int D>
__device__ __forceinline__ void multiply_abt(Fragment<Rows, Cols, Lanes, 1>& s, const SramTile<float, ARows, D>& a, const SramTile<float, BRows, D>& b) {
  constexpr int kRows = s.kRows, kCols = s.kCols, kPiece = 64;
  static_assert(BRows == Cols && D % kPiece == 0);
  if (threadIdx.x % 32 == 0) count_flops(2LL * Rows * Cols);
  ATTN_UNROLL for (int i = 0; i < kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < kCols; ++j) s(i, j) = 0;
  ATTN_UNROLL_1 for (int d0 = 0; d0 < D; d0 += kPiece) {
    const float *a_row[kRows], *b_row[kCols];
    ATTN_UNROLL for (int i = 0; i < kRows; ++i) a_row[i] = a.read(s.row(i), d0, kPiece);
    ATTN_UNROLL for (int j = 0; j < kCols; ++j) b_row[j] = b.read(s.col(j), d0, kPiece);
    Partial piece[kRows][kCols] = {};
    ATTN_UNROLL_2 for (int d = 0; d < kPiece; d += 4) {
      float4 x[kRows];
      ATTN_UNROLL for (int i = 0; i < kRows; ++i) x[i] = *reinterpret_cast<const float4*>(a_row[i] + d);
      ATTN_UNROLL for (int j = 0; j < kCols; ++j) {
        const float4 y = *reinterpret_cast<const float4*>(b_row[j] + d);
        ATTN_UNROLL for (int i = 0; i < kRows; ++i) multiply_add(piece[i][j], x[i], y);
      }
    }
    ATTN_UNROLL for (int i = 0; i < kRows; ++i)
      ATTN_UNROLL for (int j = 0; j < kCols; ++j) s(i, j) += total(piece[i][j]);
  }
}

/// o += P V for the warp's rows of P: weights times value rows. The sum over this tile's keys is taken on its own and added
/// to o once.
template <int Rows, int D, int Lanes, int PRows, int Bc>
__device__ __forceinline__ void fold(Fragment<Rows, D, Lanes, 4>& o, const SramTile<float, PRows, Bc>& p, const SramTile<float, Bc, D>& v) {
  constexpr int kRows = o.kRows, kRuns = o.kCols / 4;
  if (threadIdx.x % 32 == 0) count_flops(2LL * Rows * Bc);
  float sum[kRows][kRuns][4] = {};
  ATTN_UNROLL_2 for (int key = 0; key < Bc; key += 4) {
    float4 x[kRows];
    ATTN_UNROLL for (int i = 0; i < kRows; ++i) x[i] = *reinterpret_cast<const float4*>(p.read(o.row(i), key, 4));
    ATTN_UNROLL for (int k = 0; k < 4; ++k)
      ATTN_UNROLL for (int run = 0; run < kRuns; ++run) {
        const float4 y = *reinterpret_cast<const float4*>(v.read(key + k, o.col(4 * run), 4));
        ATTN_UNROLL for (int i = 0; i < kRows; ++i) multiply_add(sum[i][run], k == 0 ? x[i].x : k == 1 ? x[i].y : k == 2 ? x[i].z : x[i].w, y);
      }
  }
  ATTN_UNROLL for (int i = 0; i < kRows; ++i)
    ATTN_UNROLL for (int run = 0; run < kRuns; ++run)
      ATTN_UNROLL for (int r = 0; r < 4; ++r) o(i, 4 * run + r) += sum[i][run][r];
}

/// o += P V with P still in registers, as scores leave it: fp32 weights go through the warp's own rows of `staging` first,
/// because a lane needs whole rows of P and holds only some columns. Nobody but this warp touches those rows, so lanes need
/// to wait for each other, not for the block. A second fold through the same staging needs a __syncwarp in between.
template <int Rows, int D, int Lanes, int PRows, int Bc>
__device__ __forceinline__ void fold(Fragment<Rows, D, Lanes, 4>& o, const Fragment<Rows, Bc, Lanes, 1>& p, SramTile<float, PRows, Bc>& staging, const SramTile<float, Bc, D>& v) {
  ATTN_UNROLL for (int i = 0; i < p.kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < p.kCols; ++j) staging.store(p.row(i), p.col(j), p(i, j));
  __syncwarp();  // the row's other columns come from its other lanes
  fold(o, staging, v);
}

}  // namespace ATTN_DEVICE
}  // namespace attention
