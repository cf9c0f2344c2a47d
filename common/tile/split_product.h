// The third tile product: fp32 on the tensor cores (--product tensor-cores). A tensor core multiplies numbers of 11
// bits, so each number is split into two of them, x = hi + lo, and a product of numbers is three of parts:
//
//      x y = hi hi' + (hi lo' + lo hi')          lo lo' is below the rounding of fp32
//
// A tensor core multiplies exactly, but its sums lose a little each time: the small products are summed before the
// large ones, no sum is long, each tile starts fresh ones, and O is added to outside. docs/exact-tensor-cores.md has
// the reasons and the numbers.
#pragma once

#include "common/tile/product.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// fp16 ends at 65504, and below 2^-14 its digits get fewer. So tiles are multiplied by a power of two first, which is
/// exact, and the product is divided by it afterwards: the one that takes `largest` to [2^14, 2^15). Not above 2^126,
/// whose inverse is a normal number still.
__device__ __forceinline__ float power_of_two_scale(float largest) {
  const uint32_t exponent = 268 - (__float_as_uint(largest) >> 23);  // 127 + 14 - (exponent - 127)
  return __uint_as_float((exponent < 253 ? exponent : 253) << 23);
}
__device__ __forceinline__ float inverse_power(float power_of_two) {
  return __uint_as_float((254u << 23) - __float_as_uint(power_of_two));
}

/// Two neighbours, split: both hi in one register, both lo in another.
__device__ __forceinline__ void split(uint32_t& hi, uint32_t& lo, float x, float y) {
  hi = pack<half>(x, y);
  const float2 rounded = unpack<half>(hi);
  lo = pack<half>(x - rounded.x, y - rounded.y);
}

/// Rows x Cols numbers in SRAM as two parts, in the 4 bytes each (and with the pitch) of fp32 rows.
template <int Rows, int Cols>
struct SplitTile {
  static constexpr int kRows = Rows;
  static constexpr int kCols = Cols;
  union {
    SramTile<half, Rows, 2 * Cols> part;  // hi in the first Cols columns, lo in the others
    SramTile<float, Rows, Cols> whole;    // on the way there, where rows are not aligned
  };
  SramTile<float, 1, 32> largest;  // |x|, of each warp's share
  SramTile<float, 1, 4> scale;     // (0, 0): the power of two that the tile was multiplied by

  __device__ __forceinline__ float unscale() const { return inverse_power(scale.load(0, 0)); }
};

/// Two registers that go to SRAM in one access.
struct alignas(8) RegisterPair {
  uint32_t first, second;
};

/// HBM -> SRAM, as for other tiles, and split on the way. The whole tile is in flight at once: its largest number,
/// which sets the scale, must be known before the first is split. Contains a __syncthreads; another must follow before
/// anyone reads the tiles.
template <int Threads, int N, int Rows, int Cols, class T>
__device__ __forceinline__ void load_tile(SplitTile<Rows, Cols>* const (&to)[N], const Global<T> (&from)[N],
                                          int64_t row0, int64_t col0 = 0) {
  const Timed timed(Noted::load, from[0].data, from[N - 1].data);
  constexpr int kPerRow = Cols / 4, kStep = Threads / kPerRow, kVectors = Rows / kStep;
  static_assert(Threads % kPerRow == 0 && Rows % kStep == 0);
  const int row = threadIdx.x / kPerRow, col = threadIdx.x % kPerRow * 4;
  float4 x[N][kVectors];
  if (from[0].cols % 4 == 0) {
    const int64_t below = from[0].rows - row0 - row;
    const int rows = col0 + col >= from[0].cols ? 0
                     : below < Rows             ? static_cast<int>(below)
                                                : Rows;  // to load, in these columns
    ATTN_UNROLL for (int n = 0; n < N; ++n)
      ATTN_UNROLL for (int r = 0; r < kVectors; ++r)
        x[n][r] = from[n].rows_from(row0 + row).load_vector_if(r * kStep < rows, r * kStep, col0 + col);
  } else {
    SramTile<float, Rows, Cols>* whole[N];
    ATTN_UNROLL for (int n = 0; n < N; ++n) whole[n] = &to[n]->whole;
    load_unaligned_tiles<Threads>(whole, from, row0, col0);
    __syncthreads();  // a thread's vectors come from its neighbours
    ATTN_UNROLL for (int n = 0; n < N; ++n)
      ATTN_UNROLL for (int r = 0; r < kVectors; ++r)
        x[n][r] = *reinterpret_cast<const float4*>(to[n]->whole.read(row + r * kStep, col, 4));
  }

  float largest[N] = {};
  ATTN_UNROLL for (int n = 0; n < N; ++n)
    ATTN_UNROLL for (int r = 0; r < kVectors; ++r)
      largest[n] = fmaxf(
          largest[n], fmaxf(fmaxf(fabsf(x[n][r].x), fabsf(x[n][r].y)), fmaxf(fabsf(x[n][r].z), fabsf(x[n][r].w))));
  warp_max_of_magnitudes(largest);
  if (threadIdx.x % 32 == 0)
    ATTN_UNROLL for (int n = 0; n < N; ++n) to[n]->largest.store(0, threadIdx.x / 32, largest[n]);
  __syncthreads();  // every warp's largest is there, and every vector has been read

  ATTN_UNROLL for (int n = 0; n < N; ++n) {
    float largest_of_all = 0;
    ATTN_UNROLL for (int warp = 0; warp < Threads / 32; ++warp)
      largest_of_all = fmaxf(largest_of_all, to[n]->largest.load(0, warp));
    const float scale = power_of_two_scale(largest_of_all);
    if (threadIdx.x == 0) to[n]->scale.store(0, 0, scale);
    ATTN_UNROLL for (int r = 0; r < kVectors; ++r) {
      RegisterPair hi, lo;
      split(hi.first, lo.first, scale * x[n][r].x, scale * x[n][r].y);
      split(hi.second, lo.second, scale * x[n][r].z, scale * x[n][r].w);
      *reinterpret_cast<RegisterPair*>(to[n]->part.write(row + r * kStep, col, 4)) = hi;
      *reinterpret_cast<RegisterPair*>(to[n]->part.write(row + r * kStep, Cols + col, 4)) = lo;
    }
  }
}
template <int Threads, int Rows, int Cols, class T>
__device__ __forceinline__ void load_tile(SplitTile<Rows, Cols>& to, Global<T> from, int64_t row0, int64_t col0 = 0) {
  load_tile<Threads>({&to}, {from}, row0, col0);
}

/// out += X Y for Count 16-column operands of X and, for every 16 columns of out, as many of Y; load_right(y_hi, y_lo,
/// k, n) loads the k-th of the n-th 16. The products with a lo come first: they are 2^-11 of hi hi', and what the
/// accumulator cuts off of them is as much smaller.
template <int Count, int Rows, int Cols, class LoadRight>
__device__ __forceinline__ void multiply_split(Fragment<Rows, Cols, 4, 2>& out,
                                               const uint32_t (&x_hi)[Count][Rows / 16][4],
                                               const uint32_t (&x_lo)[Count][Rows / 16][4], LoadRight&& load_right) {
  uint32_t y_hi[Count][Cols / 16][4];
  ATTN_UNROLL for (int k = 0; k < Count; ++k) {
    uint32_t y_lo[Cols / 16][4];
    ATTN_UNROLL for (int n = 0; n < Cols / 16; ++n) load_right(y_hi[k][n], y_lo[n], k, n);
    ATTN_UNROLL for (int n = 0; n < Cols / 16; ++n) multiply_add_blocks<half>(out, x_hi[k], 2 * n, y_lo[n]);
    ATTN_UNROLL for (int n = 0; n < Cols / 16; ++n) multiply_add_blocks<half>(out, x_lo[k], 2 * n, y_hi[k][n]);
  }
  ATTN_UNROLL for (int k = 0; k < Count; ++k)
    ATTN_UNROLL for (int n = 0; n < Cols / 16; ++n) multiply_add_blocks<half>(out, x_hi[k], 2 * n, y_hi[k][n]);
}

/// s = A B^T, in pieces of 32 dimensions, which keeps large scores exact. 32 columns of s at a time, 16 where the warp
/// has 32 rows: four accumulators (16 x 8 numbers each) for the tensor cores to go round, as a product's sum is ready
/// only some instructions later.
template <int Rows, int Cols, int ARows, int BRows, int D>
__device__ ATTN_PRODUCT void multiply_abt(Fragment<Rows, Cols, 4, 2>& s, const SplitTile<ARows, D>& a,
                                          const SplitTile<BRows, D>& b) {
  constexpr int kPiece = 32, kCount = kPiece / 16, kAtATime = Rows == 16 && Cols % 32 == 0 ? 32 : 16;
  static_assert(BRows == Cols && Rows % 16 == 0 && Cols % kAtATime == 0 && D % kPiece == 0);
  const int lane = threadIdx.x % 32, row0 = s.row0 - lane / 4;
  const float unscale = a.unscale() * b.unscale();
  const TimedProduct timed(s(s.kRows - 1, s.kCols - 1));
  if (lane == 0) count_flops(2LL * Rows * Cols);
  ATTN_UNROLL for (int d0 = 0; d0 < D; d0 += kPiece) {
    uint32_t x_hi[kCount][Rows / 16][4], x_lo[kCount][Rows / 16][4];
    ATTN_UNROLL for (int k = 0; k < kCount; ++k)
      ATTN_UNROLL for (int m = 0; m < Rows / 16; ++m) {
        left_operand(x_hi[k][m], a.part, row0 + 16 * m, d0 + 16 * k);
        left_operand(x_lo[k][m], a.part, row0 + 16 * m, D + d0 + 16 * k);
      }
    ATTN_UNROLL for (int col0 = 0; col0 < Cols; col0 += kAtATime) {
      Fragment<Rows, kAtATime, 4, 2> piece(0);
      multiply_split<kCount>(piece, x_hi, x_lo, [&](uint32_t(&y_hi)[4], uint32_t(&y_lo)[4], int k, int n) {
        const int row = col0 + 16 * n + lane % 8 + lane / 16 * 8,
                  col = d0 + 16 * k + lane / 8 % 2 * 8;  // B^T: a row of B is a column
        load_matrices<false>(y_hi, b.part.read(row, col, 8));
        load_matrices<false>(y_lo, b.part.read(row, D + col, 8));
      });
      ATTN_UNROLL for (int i = 0; i < s.kRows; ++i)
        ATTN_UNROLL for (int j = 0; j < kAtATime / 4; ++j) {
          float& sum = s(i, col0 / 4 + j);
          sum = d0 == 0 ? unscale * piece(i, j) : fmaf(unscale, piece(i, j), sum);
        }
    }
  }
}

/// What is known of the weights that a product is given: the forward's are e^(s - m), and so at most 1; of others the
/// largest of each row is found first. Stands where fp32 on CUDA cores has its staging tile: weights are split in
/// registers.
struct AtMostOne {};
struct AnyWeights {};

/// o += P V with P still in registers, in pieces of 64 keys or, where o leaves fewer registers, 32. What the tile gives
/// goes to o once.
template <int Rows, int D, int Bc, class Weights>
__device__ ATTN_PRODUCT void multiply_ab(Fragment<Rows, D, 4, 2>& o, const Fragment<Rows, Bc, 4, 2>& p, Weights&,
                                         const SplitTile<Bc, D>& v) {
  constexpr int kRows = Fragment<Rows, D, 4, 2>::kRows, kPiece = Bc < 4096 / D ? Bc : 4096 / D, kCount = kPiece / 16,
                kPieces = Bc / kPiece;
  static_assert(Rows % 16 == 0 && Bc % kPiece == 0 && kPiece % 16 == 0);
  const int lane = threadIdx.x % 32;
  const TimedProduct timed(o(o.kRows - 1, o.kCols - 1));
  if (lane == 0) count_flops(2LL * Rows * Bc);

  const float v_unscale = v.unscale();
  float scale[kRows], unscale[kRows];
  ATTN_UNROLL for (int i = 0; i < kRows; ++i) scale[i] = 0x1p15f;
  if constexpr (std::is_same_v<Weights, AnyWeights>) {
    float largest[kRows] = {};
    ATTN_UNROLL for (int i = 0; i < kRows; ++i)
      ATTN_UNROLL for (int j = 0; j < p.kCols; ++j) largest[i] = fmaxf(largest[i], fabsf(p(i, j)));
    lanes_max<4>(largest);
    // Both factors together stay below 2^126, so that one normal number undoes them: weights under 2^-98 / max |V| get
    // a smaller one.
    ATTN_UNROLL for (int i = 0; i < kRows; ++i) scale[i] = fminf(power_of_two_scale(largest[i]), 0x1p126f * v_unscale);
  }
  ATTN_UNROLL for (int i = 0; i < kRows; ++i) unscale[i] = inverse_power(scale[i]) * v_unscale;

  uint32_t x_hi[kPieces][kCount][Rows / 16][4], x_lo[kPieces][kCount][Rows / 16][4];
  ATTN_UNROLL for (int k = 0; k < Bc / 16; ++k)
    ATTN_UNROLL for (int m = 0; m < Rows / 16; ++m)
      ATTN_UNROLL for (int quarter = 0; quarter < 4;
                       ++quarter) {  // upper before lower, left before right, as left_operand has them
        const int i = 2 * m + quarter % 2, j = 4 * k + quarter / 2 * 2;
        split(x_hi[k / kCount][k % kCount][m][quarter], x_lo[k / kCount][k % kCount][m][quarter], scale[i] * p(i, j),
              scale[i] * p(i, j + 1));
      }

  ATTN_UNROLL for (int n = 0; n < D / 8; n += 2) {
    float sum[kRows][4] = {};
    ATTN_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
      Fragment<Rows, 16, 4, 2> part(0);
      multiply_split<kCount>(part, x_hi[piece], x_lo[piece], [&](uint32_t(&y_hi)[4], uint32_t(&y_lo)[4], int k, int) {
        const int key = piece * kPiece + 16 * k + lane % 16;
        load_matrices<true>(y_hi, v.part.read(key, 8 * n + lane / 16 * 8, 8));
        load_matrices<true>(y_lo, v.part.read(key, D + 8 * n + lane / 16 * 8, 8));
      });
      ATTN_UNROLL for (int i = 0; i < kRows; ++i)
        ATTN_UNROLL for (int j = 0; j < 4; ++j) sum[i][j] = piece == 0 ? part(i, j) : sum[i][j] + part(i, j);
    }
    ATTN_UNROLL for (int i = 0; i < kRows; ++i)
      ATTN_UNROLL for (int j = 0; j < 4; ++j) o(i, 2 * n + j) = fmaf(unscale[i], sum[i][j], o(i, 2 * n + j));
  }
}

/// o += P V with P in SRAM, in fp32 as it came from HBM.
template <int Rows, int D, int PRows, int Bc>
__device__ ATTN_PRODUCT void multiply_ab(Fragment<Rows, D, 4, 2>& o, const SramTile<float, PRows, Bc>& p,
                                         const SplitTile<Bc, D>& v) {
  Fragment<Rows, Bc, 4, 2> weights(o.row0 - threadIdx.x % 32 / 4);
  ATTN_UNROLL for (int i = 0; i < weights.kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < weights.kCols; j += 2) {
      const float2 both = *reinterpret_cast<const float2*>(p.read(weights.row(i), weights.col(j), 2));
      weights(i, j) = both.x, weights(i, j + 1) = both.y;
    }
  AnyWeights any;
  multiply_ab(o, weights, any, v);
}

}  // namespace ATTN_DEVICE
}  // namespace attention
