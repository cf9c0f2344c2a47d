// The two tile products that every step is made of, each in two forms: fp32 on the CUDA cores, 16-bit types on the
// tensor cores. Which one a step gets follows from its tiles (a third, fp32 on tensor cores, is in split_product.h). A
// warp computes its own rows.
//
// On CUDA cores each lane has a micro-tile of kRows x kCols outputs, so that a value read from SRAM is used kRows or
// kCols times. fp32 needs care to stay within 1e-6 (docs/exactness.md): a sum of n products rounds n times, so long
// sums are taken in pieces, each in accumulators of its own that start at zero, and small terms before large ones.
#pragma once

#include "common/tile/tile.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// How large a score's terms are, by groups of neighbouring columns: lane n adds up those in group n % Groups of four
/// rows of A and as many of B. (A column that is large is large in every row.)
template <int Groups, int Rows, int ARows, int BRows, int D>
__device__ __forceinline__ float size_of_terms(const SramTile<float, ARows, D>& a, int row0,
                                               const SramTile<float, BRows, D>& b) {
  constexpr int kGroup = D / Groups, kSamples = 4;
  static_assert(Rows % kSamples == 0 && BRows % kSamples == 0);
  const int col = threadIdx.x % Groups * kGroup;
  float size = 0;
  ATTN_UNROLL for (int n = 0; n < kSamples; ++n)
    ATTN_UNROLL for (int d = 0; d < kGroup; d += 4) {
      const float4 x = *reinterpret_cast<const float4*>(a.read(row0 + n * (Rows / kSamples), col + d, 4));
      const float4 y = *reinterpret_cast<const float4*>(b.read(n * (BRows / kSamples), col + d, 4));
      size += (fabsf(x.x * y.x) + fabsf(x.y * y.y)) + (fabsf(x.z * y.z) + fabsf(x.w * y.w));
    }
  return size;
}

/// s = A B^T for the warp's rows of A: scores from query and key rows. A sum rounds relative to its size, so small
/// terms come first: the columns are added four at a time, in the order of their terms' sizes. (Trained models have a
/// few columns tens of times as large as the others; behind one of them every term would round as if it were as large.
/// docs/exactness.md)
template <int Rows, int Cols, int Lanes, int ARows, int BRows, int D>
__device__ ATTN_PRODUCT void multiply_abt(Fragment<Rows, Cols, Lanes, 1>& s, const SramTile<float, ARows, D>& a,
                                          const SramTile<float, BRows, D>& b) {
  constexpr int kRows = Rows * Lanes / 32, kCols = Cols / Lanes, kGroups = D / 4 < 32 ? D / 4 : 32,
                kGroup = D / kGroups, kPiece = 64;
  static_assert(BRows == Cols && D % kPiece == 0 && kPiece % kGroup == 0);
  const TimedProduct timed(s(s.kRows - 1, s.kCols - 1));
  if (threadIdx.x % 32 == 0) count_flops(2LL * Rows * Cols);
  const float *a_row[kRows], *b_row[kCols];
  ATTN_UNROLL for (int i = 0; i < kRows; ++i) a_row[i] = a.read(s.row(i), 0, D);
  ATTN_UNROLL for (int j = 0; j < kCols; ++j) b_row[j] = b.read(s.col(j), 0, D);
  ATTN_UNROLL for (int i = 0; i < kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < kCols; ++j) s(i, j) = 0;

  LaneOrder order = order_of_lanes<kGroups>(size_of_terms<kGroups, Rows>(a, s.row(0) - threadIdx.x % 32 / Lanes, b));
  int next = order.next();
  ATTN_UNROLL_1 for (int piece = 0; piece < D; piece += kPiece) {
    float sum[kCols][kRows] = {};
    ATTN_UNROLL_2 for (int n = 0; n < kPiece; n += kGroup) {
      const int group = next * kGroup;
      next = order.next();  // in time: the lanes have to agree
      ATTN_UNROLL for (int d = 0; d < kGroup; d += 4) {
        FourColumns<kRows> x;
        ATTN_UNROLL_BOTH for (int i = 0; i < kRows; ++i) x.load(i, a_row[i] + group + d);
        ATTN_UNROLL_BOTH for (int j = 0; j < kCols; ++j)
          multiply_add(sum[j], x, *reinterpret_cast<const float4*>(b_row[j] + group + d));
      }
    }
    ATTN_UNROLL for (int i = 0; i < kRows; ++i)
      ATTN_UNROLL for (int j = 0; j < kCols; ++j) s(i, j) += sum[j][i];
  }
}

/// o += P V for the warp's rows of P: weights times value rows. The sum over this tile's keys is taken on its own and
/// added to o once.
template <int Rows, int D, int Lanes, int PRows, int Bc>
__device__ ATTN_PRODUCT void multiply_ab(Fragment<Rows, D, Lanes, 4>& o, const SramTile<float, PRows, Bc>& p,
                                         const SramTile<float, Bc, D>& v) {
  using Output = Fragment<Rows, D, Lanes, 4>;
  constexpr int kRows = Output::kRows, kRuns = Output::kCols / 4;
  const TimedProduct timed(o(o.kRows - 1, o.kCols - 1));
  if (threadIdx.x % 32 == 0) count_flops(2LL * Rows * Bc);
  float sum[kRows][kRuns][4] = {};
  ATTN_UNROLL_2 for (int key = 0; key < Bc; key += 4) {
    float4 x[kRows];
    ATTN_UNROLL_BOTH for (int i = 0; i < kRows; ++i) x[i] = *reinterpret_cast<const float4*>(p.read(o.row(i), key, 4));
    ATTN_UNROLL_BOTH for (int k = 0; k < 4; ++k)
      ATTN_UNROLL_BOTH for (int run = 0; run < kRuns; ++run) {
        const float4 y = *reinterpret_cast<const float4*>(v.read(key + k, o.col(4 * run), 4));
        ATTN_UNROLL_BOTH for (int i = 0; i < kRows; ++i)
          multiply_add(sum[i][run], k == 0 ? x[i].x : k == 1 ? x[i].y : k == 2 ? x[i].z : x[i].w, y);
      }
  }
  ATTN_UNROLL for (int i = 0; i < kRows; ++i)
    ATTN_UNROLL for (int run = 0; run < kRuns; ++run)
      ATTN_UNROLL for (int r = 0; r < 4; ++r) o(i, 4 * run + r) += sum[i][run][r];
}

/// o += P V with P still in registers, as scores leave it: fp32 weights go through the warp's own rows of `staging`
/// first, because a lane needs whole rows of P and holds only some columns. Nobody but this warp touches those rows, so
/// lanes need to wait for each other, not for the block. A second product through the same staging needs a __syncwarp
/// in between.
template <int Rows, int D, int Lanes, int PRows, int Bc>
__device__ ATTN_PRODUCT void multiply_ab(Fragment<Rows, D, Lanes, 4>& o, const Fragment<Rows, Bc, Lanes, 1>& p,
                                         SramTile<float, PRows, Bc>& staging, const SramTile<float, Bc, D>& v) {
  ATTN_UNROLL for (int i = 0; i < p.kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < p.kCols; ++j) staging.store(p.row(i), p.col(j), p(i, j));
  __syncwarp();  // the row's other columns come from its other lanes
  multiply_ab(o, staging, v);
}

// ---- 16-bit types on the tensor cores: sums in fp32, 16x16 by 16x8 at a time --------------------------------------

/// The 16x16 left-hand operand whose upper left corner is (row, col) of the tile.
template <class E, int Rows, int Cols>
__device__ __forceinline__ void left_operand(uint32_t (&x)[4], const SramTile<E, Rows, Cols>& a, int row, int col) {
  const int lane = threadIdx.x % 32;
  load_matrices<false>(x, a.read(row + lane % 16, col + lane / 16 * 8, 8));
}

/// The same from a fragment: what a lane holds of two neighbouring 8-column products is what the operand wants of it.
template <class E, int Rows, int Cols>
__device__ __forceinline__ void left_operand(uint32_t (&x)[4], const Fragment<Rows, Cols, 4, 2>& p, int i, int j) {
  x[0] = pack<E>(p(i, j), p(i, j + 1)), x[1] = pack<E>(p(i + 1, j), p(i + 1, j + 1));
  x[2] = pack<E>(p(i, j + 2), p(i, j + 3)), x[3] = pack<E>(p(i + 1, j + 2), p(i + 1, j + 3));
}

/// out += X Y for the 16-column operands x of each of the fragment's 16-row blocks, and the columns of Y in two 16x8
/// operands.
template <class E, int Rows, int Cols>
__device__ __forceinline__ void multiply_add_blocks(Fragment<Rows, Cols, 4, 2>& out, const uint32_t (&x)[Rows / 16][4],
                                                    int n, const uint32_t (&y)[4]) {
  ATTN_UNROLL for (int m = 0; m < Rows / 16; ++m) {
    tensor_multiply_add<E>(
        out(2 * m, 2 * n), out(2 * m, 2 * n + 1), out(2 * m + 1, 2 * n), out(2 * m + 1, 2 * n + 1), x[m], y[0], y[1]);
    tensor_multiply_add<E>(out(2 * m, 2 * n + 2), out(2 * m, 2 * n + 3), out(2 * m + 1, 2 * n + 2),
                           out(2 * m + 1, 2 * n + 3), x[m], y[2], y[3]);
  }
}

template <int Rows, int Cols, class E, int ARows, int BRows, int D>
__device__ ATTN_PRODUCT void multiply_abt(Fragment<Rows, Cols, 4, 2>& s, const SramTile<E, ARows, D>& a,
                                          const SramTile<E, BRows, D>& b) {
  static_assert(BRows == Cols && Rows % 16 == 0 && Cols % 16 == 0);
  const int lane = threadIdx.x % 32, row0 = s.row0 - lane / 4;
  const TimedProduct timed(s(s.kRows - 1, s.kCols - 1));
  if (lane == 0) count_flops(2LL * Rows * Cols);
  ATTN_UNROLL for (int i = 0; i < s.kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < s.kCols; ++j) s(i, j) = 0;
  ATTN_UNROLL for (int d = 0; d < D; d += 16) {
    uint32_t x[Rows / 16][4];
    ATTN_UNROLL for (int m = 0; m < Rows / 16; ++m) left_operand(x[m], a, row0 + 16 * m, d);
    ATTN_UNROLL for (int n = 0; n < Cols / 8; n += 2) {
      uint32_t y[4];  // B^T: a row of B is a column
      load_matrices<false>(y, b.read(8 * n + lane % 8 + lane / 16 * 8, d + lane / 8 % 2 * 8, 8));
      multiply_add_blocks<E>(s, x, n, y);
    }
  }
}

/// o += P V for 16 keys, whose weights are the operands x.
template <class E, int Rows, int D, int Bc>
__device__ __forceinline__ void multiply_ab_16_keys(Fragment<Rows, D, 4, 2>& o, const uint32_t (&x)[Rows / 16][4],
                                                    const SramTile<E, Bc, D>& v, int key) {
  const int lane = threadIdx.x % 32;
  ATTN_UNROLL for (int n = 0; n < D / 8; n += 2) {
    uint32_t y[4];
    load_matrices<true>(y, v.read(key + lane % 16, 8 * n + lane / 16 * 8, 8));
    multiply_add_blocks<E>(o, x, n, y);
  }
}
template <int Rows, int D, class E, int PRows, int Bc>
__device__ ATTN_PRODUCT void multiply_ab(Fragment<Rows, D, 4, 2>& o, const SramTile<E, PRows, Bc>& p,
                                         const SramTile<E, Bc, D>& v) {
  const int lane = threadIdx.x % 32, row0 = o.row0 - lane / 4;
  const TimedProduct timed(o(o.kRows - 1, o.kCols - 1));
  if (lane == 0) count_flops(2LL * Rows * Bc);
  ATTN_UNROLL for (int key = 0; key < Bc; key += 16) {
    uint32_t x[Rows / 16][4];
    ATTN_UNROLL for (int m = 0; m < Rows / 16; ++m) left_operand(x[m], p, row0 + 16 * m, key);
    multiply_ab_16_keys(o, x, v, key);
  }
}

/// 16-bit weights need no staging: the fragment of scores already has the left-hand operand's layout.
struct NoStaging {};
template <int Rows, int D, class E, int Bc>
__device__ ATTN_PRODUCT void multiply_ab(Fragment<Rows, D, 4, 2>& o, const Fragment<Rows, Bc, 4, 2>& p, NoStaging&,
                                         const SramTile<E, Bc, D>& v) {
  const TimedProduct timed(o(o.kRows - 1, o.kCols - 1));
  if (threadIdx.x % 32 == 0) count_flops(2LL * Rows * Bc);
  ATTN_UNROLL for (int key = 0; key < Bc; key += 16) {
    uint32_t x[Rows / 16][4];
    ATTN_UNROLL for (int m = 0; m < Rows / 16; ++m) left_operand<E>(x[m], p, 2 * m, key / 4);
    multiply_ab_16_keys(o, x, v, key);
  }
}

/// out += A^T B: row i of `out` belongs to column i of A, its columns to those of B from col0 on. The sum runs down the
/// rows of A and B.
template <int Rows, int Cols, class E, int Keys, int ACols, int BCols>
__device__ ATTN_PRODUCT void multiply_atb(Fragment<Rows, Cols, 4, 2>& out, const SramTile<E, Keys, ACols>& a,
                                          const SramTile<E, Keys, BCols>& b, int col0) {
  const int lane = threadIdx.x % 32, row0 = out.row0 - lane / 4;
  const TimedProduct timed(out(out.kRows - 1, out.kCols - 1));
  if (lane == 0) count_flops(2LL * Rows * Cols * Keys / BCols);
  ATTN_UNROLL for (int key = 0; key < Keys; key += 16) {
    uint32_t x[Rows / 16][4];
    ATTN_UNROLL for (int m = 0; m < Rows / 16; ++m)
      load_matrices<true>(x[m], a.read(key + lane % 8 + lane / 16 * 8, row0 + 16 * m + lane / 8 % 2 * 8, 8));
    ATTN_UNROLL for (int n = 0; n < Cols / 8; n += 2) {
      uint32_t y[4];
      load_matrices<true>(y, b.read(key + lane % 16, col0 + 8 * n + lane / 16 * 8, 8));
      multiply_add_blocks<E>(out, x, n, y);
    }
  }
}

}  // namespace ATTN_DEVICE
}  // namespace attention
