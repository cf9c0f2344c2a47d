// What both one-pass backwards (step10, step11) do before and beside their products: the numbers of each query row.
#pragma once

#include "common/tile/mask.h"
#include "common/tile/shapes.h"
#include "common/tile/softmax.h"
#include "common/tile/tile.h"
#include "common/tile/view.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// The row numbers as loops over query tiles of Bc rows want them: a head's rows are filled up to a whole number of
/// tiles.
inline int64_t padded_rows(const Problem& p) { return ceil_div(p.seqlen_q, p.tile.bc) * p.tile.bc; }

/// Numbers of a row of dQ's sums, which lie as the lanes of a tile have them: the tile's head_dim.
inline int64_t padded_head_dim(const Problem& p) { return p.head_dim <= 64 ? 64 : 128; }

/// Heads that go through their key tiles side by side under a causal mask (Order): half of a forward's, since each
/// brings twice as much.
constexpr int kTogetherBackward = Order::kTogetherIfCausal / 2;

constexpr int kEight = 8;  // columns of a thread below: 16 bytes of a 16-bit type

/// Which head the running thread works for, and its number among the `per_head` threads that do: whole blocks.
struct ThreadOfHead {
  int head;
  int64_t number;
};
__device__ __forceinline__ ThreadOfHead thread_of_head(int64_t per_head) {
  const unsigned blocks = static_cast<unsigned>(per_head / blockDim.x);
  return {static_cast<int>(blockIdx.x / blocks), int64_t{blockIdx.x % blocks} * blockDim.x + threadIdx.x};
}

/// LSE log2 e, as weights 2^(scale s - lse2) want it. Both terms are rounded, and from kHugeShift on that is worth more
/// than the range of fp32: there lse2 is rounded up so far that no weight overflows. Such rows' gradients are finite, and
/// no more is claimed of them: fp32 has no digits left for LSE.
__device__ __forceinline__ float log2_lse(float lse) {
  const float lse2 = kLog2e * lse;
  return fabsf(lse2) < kHugeShift ? lse2 : fmaf(fabsf(lse2), 0x1p-20f, lse2);
}

/// delta = row sum of O ∘ dO, lse2 = LSE log2 e, and dQ_sums = 0 (and turns, where adding is ordered). Lanes lanes own
/// a row, eight columns each. Rows past the last query have lse2 = inf, so that their weights 2^(s - inf) are 0; so has
/// a row that sees no key.
template <class E, int Lanes>
__global__ void rows_backward(
    Global<const E> O,        // [heads, seqlen_q, head_dim]
    Global<const E> dO,       // [heads, seqlen_q, head_dim]
    Global<const float> LSE,  // [heads, 1, seqlen_q]
    Global<float> lse2,       // [heads, 1, padded rows]
    Global<float> delta,      // [heads, 1, padded rows]
    Global<float> dQ_sums,    // [heads, padded rows, padded head_dim]
    unsigned* turns,          // [turns_count]; null: none
    int64_t turns_count) {
  const auto [head, number] = thread_of_head(lse2.cols * Lanes);
  const int64_t row = number / Lanes;
  const int col = static_cast<int>(number % Lanes) * kEight;
  const bool inside = row < O.rows, columns = col < O.cols;
  const float4 o = O.head(head).load_vector_if(inside && columns, row, col),
               d_o = dO.head(head).load_vector_if(inside && columns, row, col);
  float sum[1] = {};
  ATTN_UNROLL for (int n = 0; n < 4; ++n) {
    const float2 x = unpack<E>(reinterpret_cast<const uint32_t*>(&o)[n]),
                 y = unpack<E>(reinterpret_cast<const uint32_t*>(&d_o)[n]);
    sum[0] += x.x * y.x + x.y * y.y;
  }
  lanes_sum<Lanes>(sum);
  const float zeros[4] = {};
  ATTN_UNROLL for (int n = 0; n < 2; ++n)  // 16 bytes of each lane side by side
    dQ_sums.head(head).template store_run<4>(row, n * Lanes * 4 + col / 2, zeros);
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (thread < turns_count) turns[thread] = 0;
  if (col == 0) {
    const float lse = inside ? LSE.head(head).load(0, row) : -INFINITY;
    lse2.head(head).store(0, row, lse == -INFINITY ? INFINITY : log2_lse(lse));
    delta.head(head).store(0, row, sum[0]);
  }
}

/// A number for this block, one more than that of the block that began before it; `begun` counts them, and in_sram
/// tells all threads. CUDA promises no order in which blocks begin, so blockIdx.x would not do.
__device__ __forceinline__ int number_of_block(unsigned* begun, unsigned& in_sram) {
  if (threadIdx.x == 0) {
    note_sram_write(&in_sram, sizeof in_sram);
    in_sram = atomicAdd(begun, 1u);
  }
  __syncthreads();  // the number is there
  note_sram_read(&in_sram, sizeof in_sram);
  return static_cast<int>(in_sram);
}

// ---- what the host prepares -----------------------------------------------------------------------------------------

/// The problem with the first of these tiles that fits: a forward's tile is its own.
inline Problem with_first_tile(Problem p, const std::vector<TileChoice>& tiles) {
  for (const TileChoice& choice : tiles)
    if (choice.sram_bytes <= p.sram_limit) return p.tile = choice.shape, p;
  throw Unsupported("no tile of the forward fits " + std::to_string(p.sram_limit) + " bytes of SRAM");
}

/// Five products per visited tile: S, dP, dV, dK, dQ. Row numbers and shares of dQ are those of whole tiles.
inline std::vector<KernelCost> one_pass_cost(const Problem& p) {
  const Visits visits = visits_by_key_blocks(p, p.tile.br, p.tile.bc);
  const int64_t padded = p.heads_total() * padded_rows(p), asked_rows = visits.tiles * visits.loop * p.heads_total();
  const int64_t asked_q = visits.rows * p.row(), sums = padded * padded_head_dim(p);
  return {KernelCost("delta", p)
              .loads({"O", "dO"}, p.Xq(), p.Xq())
              .loads("LSE", p.L(), p.L())
              .stores({"lse2", "delta"}, padded, padded)
              .stores("dQ sums", sums, sums),
          KernelCost("dQ dK dV", p)
              .loads({"K", "V"}, p.Xk(), p.Xk())
              .loads({"Q", "dO"}, asked_q, p.Xq())
              .loads({"lse2", "delta"}, asked_rows, padded)
              .loads("dQ sums", 0, sums)
              .stores("dQ sums", asked_rows * padded_head_dim(p), sums)
              .stores({"dK", "dV"}, p.Xk(), p.Xk())
              .multiplies(visits, 5),
          KernelCost("convert dQ", p).loads("dQ sums", sums, sums).stores("dQ", p.Xq(), p.Xq())};
}

/// `turns`: words that order the additions, where a fixed order is asked for.
inline std::vector<Scratch> one_pass_scratch(const Problem& p, int64_t turns) {
  const int64_t padded = p.heads_total() * padded_rows(p), bytes = sizeof(float);
  std::vector<Scratch> scratch = {
      {"lse2", padded * bytes}, {"delta", padded * bytes}, {"dQ sums", padded * padded_head_dim(p) * bytes}};
  if (p.leaves_out(any_order().name)) scratch.push_back({"turns", turns * static_cast<int64_t>(sizeof(unsigned))});
  return scratch;
}

}  // namespace ATTN_DEVICE
}  // namespace attention
