// exercise05  recompute backward                                                                       docs/exercises/README.md
//
// step05 without the lines of its recompute backward that are not loads: dQ, dK and dV from Q, K, V, O, dO and LSE.
//
//   make exercise05 && ./exercise05
#include "steps/step05_recompute_backward.cu"  // all the rest

namespace attention::ATTN_DEVICE::exercise05 {

using step05::KeysSram, step05::QueriesSram, step05::forward_cost, step05::forward, step05::recompute_scratch, step05::recompute_cost, step05::tiles;

/// delta_i = sum over d of O_id dO_id, which is the row sum of P ∘ dP (FlashAttention-2, section 3.1). A warp owns a row.
template <class E>
__global__ void delta_of_rows(
    Global<const E> O,      // [1, rows, head_dim]: the rows of all heads
    Global<const E> dO,     // [1, rows, head_dim]
    Global<float> delta) {  // [1, 1, rows]
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= O.rows) return;
  float sum[1] = {0};
  // TODO 1 of 4: sum[0] = the sum of O dO over the row. This lane takes every 32nd column; lanes_sum<32>(sum) joins the lanes.
  // end of TODO 1
  if (threadIdx.x % 32 == 0) delta.store(0, row, sum[0]);
}

/// dK and dV. A block owns Br keys, so everything is transposed: S^T = K Q^T, rows are keys and columns queries.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) keys_backward(
    Mask mask,
    float softmax_scale,
    typename T::In Q,           // [heads, seqlen_q, head_dim]
    typename T::In K,           // [heads, seqlen_k, head_dim]
    typename T::In V,           // [heads, seqlen_k, head_dim]
    typename T::In dO,          // [heads, seqlen_q, head_dim]
    Global<const float> LSE,    // [heads, 1, seqlen_q]
    Global<const float> delta,  // [heads, 1, seqlen_q]
    typename T::Out dK,         // [heads, seqlen_k, head_dim]
    typename T::Out dV) {       // [heads, seqlen_k, head_dim]
  auto& sram = dynamic_sram<KeysSram<T>>();
  const auto [head, k0] = mask.place_of_keys(T::kBr);
  const int warp_row0 = threadIdx.x / 32 * T::kWarpRows;

  load_tile<T::kThreads>(sram.k, K.head(head), k0);
  load_tile<T::kThreads>(sram.v, V.head(head), k0);
  typename T::Output dk(warp_row0), dv(warp_row0);

  for (int q0 = mask.queries_begin(k0) / T::kBc * T::kBc; q0 < mask.seqlen_q; q0 += T::kBc) {
    __syncthreads();  // every warp is done with the last query tile
    load_tile<T::kThreads>({&sram.q, &sram.d_o}, {Q.head(head), dO.head(head)}, q0);
    load_tile<T::kThreads>({&sram.lse, &sram.delta}, {LSE.head(head), delta.head(head)}, 0, q0);
    __syncthreads();  // the tiles are complete

    typename T::Scores p(warp_row0), ds(warp_row0);
    multiply_abt(p, sram.k, sram.q);
    multiply_abt(ds, sram.v, sram.d_o);
    const bool all_visible = mask.all_visible(q0, T::kBc, k0, T::kBr);
    ATTN_UNROLL for (int j = 0; j < p.kCols; ++j) {
      const float lse = sram.lse.load(0, p.col(j)), row_delta = sram.delta.load(0, p.col(j));
      ATTN_UNROLL for (int i = 0; i < p.kRows; ++i) {
        const bool visible = all_visible || mask.visible(q0 + p.col(j), k0 + p.row(i));
        // TODO 2 of 4: p(i, j) is softmax_scale's factor away from a score. It becomes P = e^(score - lse), 0 where not visible (round
        // the score with __fmul_rn(softmax_scale, p(i, j)), as LSE was, and take exp2_or_zero and kLog2e); ds(i, j), which is dP, becomes
        // dS = softmax_scale P (dP - row_delta).
        // end of TODO 2
      }
    }
    // TODO 3 of 4: dV += P^T dO, dK += dS^T Q: multiply_ab(sum, left, sram.p, right), twice. Both send their left side through sram.p; the
    // second must not do so while another lane still reads the first.
    // end of TODO 3
  }
  store_tile(dK.head(head), dk, k0);
  store_tile(dV.head(head), dv, k0);
}

/// dQ. A block owns Br queries and loops over the key tiles they see.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) queries_backward(
    Mask mask,
    float softmax_scale,
    typename T::In Q,           // [heads, seqlen_q, head_dim]
    typename T::In K,           // [heads, seqlen_k, head_dim]
    typename T::In V,           // [heads, seqlen_k, head_dim]
    typename T::In dO,          // [heads, seqlen_q, head_dim]
    Global<const float> LSE,    // [heads, 1, seqlen_q]
    Global<const float> delta,  // [heads, 1, seqlen_q]
    typename T::Out dQ) {       // [heads, seqlen_q, head_dim]
  auto& sram = dynamic_sram<QueriesSram<T>>();
  const auto [head, q0] = mask.place_of_block(T::kBr);
  const int keys_end = mask.keys_end(q0 + T::kBr);
  const int warp_row0 = threadIdx.x / 32 * T::kWarpRows;

  load_tile<T::kThreads>(sram.q, Q.head(head), q0);
  load_tile<T::kThreads>(sram.d_o, dO.head(head), q0);
  load_tile<T::kThreads>(sram.lse, LSE.head(head), 0, q0);
  load_tile<T::kThreads>(sram.delta, delta.head(head), 0, q0);
  typename T::Output dq(warp_row0);

  for (int k0 = 0; k0 < keys_end; k0 += T::kBc) {
    __syncthreads();  // every warp is done with the last key tile
    load_tile<T::kThreads>({&sram.k, &sram.v}, {K.head(head), V.head(head)}, k0);
    __syncthreads();  // the tiles are complete

    typename T::Scores p(warp_row0), ds(warp_row0);
    multiply_abt(p, sram.q, sram.k);
    mask.apply(p, q0, k0);
    multiply_abt(ds, sram.d_o, sram.v);
    ATTN_UNROLL for (int i = 0; i < p.kRows; ++i) {
      const float lse = sram.lse.load(0, p.row(i)), row_delta = sram.delta.load(0, p.row(i));
      const float base = finite(lse);
      // TODO 4 of 4: ds(i, j) becomes dS as in keys_backward, for each column j of this row. apply has set the invisible p to -INFINITY; base
      // stands for lse.
      // end of TODO 4
    }
    multiply_ab(dq, ds, sram.ds, sram.k);
  }
  store_tile(dQ.head(head), dq, q0);
}

inline void recompute_backward(const Problem& p, const Tensors& t) {
  with_tile(p, BackwardTiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    const Mask mask{p.seqlen_q, p.seqlen_k, p.causal};
    const auto Q = query_rows<E>(p, Source{t.q, "Q"}), dO = query_rows<E>(p, Source{t.d_o, "dO"});
    const auto K = key_rows<E>(p, Source{t.k, "K"}), V = key_rows<E>(p, Source{t.v, "V"});
    const auto LSE = row_scalars(p, Source{t.lse, "LSE"}), delta = row_scalars(p, Source{t.scratch("delta"), "delta"});

    launch("delta", delta_of_rows<E>, ceil_div(p.L(), 4), 128, 0, all_query_rows<E>(p, Source{t.o, "O"}), all_query_rows<E>(p, Source{t.d_o, "dO"}),
           all_row_scalars(p, Target{t.scratch("delta"), "delta"}));
    launch("dK dV", keys_backward<T>, p.heads_total() * ceil_div(p.seqlen_k, T::kBr), T::kThreads, sizeof(KeysSram<T>), mask, p.softmax_scale, Q, K, V,
           dO, LSE, delta, key_rows<E>(p, Target{t.dk, "dK"}), key_rows<E>(p, Target{t.dv, "dV"}));
    launch("dQ", queries_backward<T>, p.heads_total() * ceil_div(p.seqlen_q, T::kBr), T::kThreads, sizeof(QueriesSram<T>), mask, p.softmax_scale, Q, K,
           V, dO, LSE, delta, query_rows<E>(p, Target{t.dq, "dQ"}));
  });
}

inline Step step() {
  return {.id = "exercise05", .title = "recompute backward", .idea = "step05 with P and dS left to you",
          .chapter = "docs/exercises/README.md", .tiles = tiles, .largest_head_dim = 64,
          .if_wrong = "fill in the TODOs of docs/exercises/exercise05_recompute_backward.cu; docs/exercises/README.md says what each one asks for",
          .methods = {{.name = "forward", .cost = forward_cost, .run = forward},
                      {.name = "recompute backward", .backward = true, .scratch = recompute_scratch, .cost = recompute_cost, .prepare = forward, .run = recompute_backward}}};
}

}  // namespace attention::ATTN_DEVICE::exercise05
