// step05  recompute backward                                                         docs/05-recompute-backward.md
//
// Training needs dQ, dK and dV. The standard backward keeps P from the forward and sends dP and dS through HBM: three
// N x N matrices. The recompute backward keeps a number per row, LSE, and computes each tile of P again:
// P = exp(S - LSE).
//
//      P, dO ─▶ dV    dO, V ─▶ dP    P, dP ─▶ dS    dS, K ─▶ dQ    dS, Q ─▶ dK
//                                        standard (step05_standard_backward.cuh): all of it in HBM
//
//      O, dO ─▶ delta                      a number per row: row sum of P ∘ dP = row sum of O ∘ dO
//      Q, K, V, dO, LSE, delta ─▶ [ p, dp, ds ] ─▶ dK, dV     a block owns keys, loops over queries
//      Q, K, V, dO, LSE, delta ─▶ [ p, dp, ds ] ─▶ dQ         a block owns queries, loops over keys
//                                                             (no atomics, so bitwise repeatable)
//
//   HBM       standard 8X + 7S, recompute 13X + 5L elements
//   executes  standard 8 N^2 d, recompute 14 N^2 d FLOPs per head
//   extra memory  standard P, dP, dS; recompute delta
//
//   make step05 && ./step05
#include "step05_standard_backward.h"  // for comparison, and step04, the forward

namespace attention::ATTN_DEVICE::step05 {

// ---- the kernels ----------------------------------------------------------------------------------------------------

/// delta_i = sum over d of O_id dO_id, which is the row sum of P ∘ dP (FlashAttention-2, section 3.1). A warp owns a
/// row.
template <class E>
__global__ void delta_of_rows(Global<const E> O,      // [1, rows, head_dim]: the rows of all heads
                              Global<const E> dO,     // [1, rows, head_dim]
                              Global<float> delta) {  // [1, 1, rows]
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= O.rows) return;
  float sum[1] = {0};
  for (int64_t d = threadIdx.x % 32; d < O.cols; d += 32) sum[0] += O.load(row, d) * dO.load(row, d);
  lanes_sum<32>(sum);
  if (threadIdx.x % 32 == 0) delta.store(0, row, sum[0]);
}

template <class T>
struct KeysSram {
  typename T::Own k, v;
  typename T::Loop q, d_o;
  typename T::Staging p;                  // P^T, then dS^T
  SramTile<float, 1, T::kBc> lse, delta;  // of the query tile
};

/// dK and dV. A block owns Br keys, so everything is transposed: S^T = K Q^T, rows are keys and columns queries.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    keys_backward(Mask mask, float softmax_scale,
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
        p(i, j) = visible ? exp2_or_zero(kLog2e * (__fmul_rn(softmax_scale, p(i, j)) - lse))
                          : 0;  // LSE was rounded: so must its score be, not fused
        ds(i, j) = softmax_scale * p(i, j) * (ds(i, j) - row_delta);
      }
    }
    multiply_ab(dv, p, sram.p, sram.d_o);
    __syncwarp();  // P^T has been read by the row's other lanes before dS^T takes its place
    multiply_ab(dk, ds, sram.p, sram.q);
  }
  store_tile(dK.head(head), dk, k0);
  store_tile(dV.head(head), dv, k0);
}

template <class T>
struct QueriesSram {
  typename T::Own q, d_o;
  typename T::Loop k, v;
  typename T::Staging ds;
  SramTile<float, 1, T::kBr> lse, delta;
};

/// dQ. A block owns Br queries and loops over the key tiles they see.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    queries_backward(Mask mask, float softmax_scale,
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
      ATTN_UNROLL for (int j = 0; j < p.kCols; ++j)
        ds(i, j) =
            softmax_scale * exp2_or_zero(kLog2e * (__fmul_rn(softmax_scale, p(i, j)) - base)) * (ds(i, j) - row_delta);
    }
    multiply_ab(dq, ds, sram.ds, sram.k);
  }
  store_tile(dQ.head(head), dq, q0);
}

// ---- launches -------------------------------------------------------------------------------------------------------

inline void recompute_backward(const Problem& p, const Tensors& t) {
  with_tile(p, BackwardTiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    const Mask mask{p.seqlen_q, p.seqlen_k, p.causal};
    const auto Q = query_rows<E>(p, Source{t.q, "Q"}), dO = query_rows<E>(p, Source{t.d_o, "dO"});
    const auto K = key_rows<E>(p, Source{t.k, "K"}), V = key_rows<E>(p, Source{t.v, "V"});
    const auto LSE = row_scalars(p, Source{t.lse, "LSE"}), delta = row_scalars(p, Source{t.scratch("delta"), "delta"});

    launch("delta", delta_of_rows<E>, ceil_div(p.L(), 4), 128, 0, all_query_rows<E>(p, Source{t.o, "O"}),
           all_query_rows<E>(p, Source{t.d_o, "dO"}), all_row_scalars(p, Target{t.scratch("delta"), "delta"}));
    launch("dK dV", keys_backward<T>, p.heads_total() * ceil_div(p.seqlen_k, T::kBr), T::kThreads, sizeof(KeysSram<T>),
           mask, p.softmax_scale, Q, K, V, dO, LSE, delta, key_rows<E>(p, Target{t.dk, "dK"}),
           key_rows<E>(p, Target{t.dv, "dV"}));
    launch("dQ", queries_backward<T>, p.heads_total() * ceil_div(p.seqlen_q, T::kBr), T::kThreads,
           sizeof(QueriesSram<T>), mask, p.softmax_scale, Q, K, V, dO, LSE, delta,
           query_rows<E>(p, Target{t.dq, "dQ"}));
  });
}

// ---- what it costs --------------------------------------------------------------------------------------------------

/// Per visited tile, dK dV multiplies four times (S, dP, dV, dK) and dQ three times (S, dP, dQ).
inline std::vector<KernelCost> recompute_cost(const Problem& p) {
  const Visits keys = visits_by_key_blocks(p, p.tile.br, p.tile.bc),
               queries = visits_by_query_blocks(p, p.tile.br, p.tile.bc);
  return {KernelCost("delta", p).loads({"O", "dO"}, p.Xq(), p.Xq()).stores("delta", p.L(), p.L()),
          KernelCost("dK dV", p)
              .loads({"K", "V"}, p.Xk(), p.Xk())
              .loads({"Q", "dO"}, keys.rows * p.row(), p.Xq())
              .loads({"LSE", "delta"}, keys.rows * p.heads_total(), p.L())
              .stores({"dK", "dV"}, p.Xk(), p.Xk())
              .multiplies(keys, 4),
          KernelCost("dQ", p)
              .loads({"Q", "dO"}, p.Xq(), p.Xq())
              .loads({"LSE", "delta"}, p.L(), p.L())
              .loads({"K", "V"}, queries.rows * p.row(), p.Xk())
              .stores("dQ", p.Xq(), p.Xq())
              .multiplies(queries, 3)};
}

inline std::vector<TileChoice> tiles(const Problem& p) {
  return tile_choices(p, BackwardTiles{}, [](auto t) {
    return std::max(sizeof(KeysSram<decltype(t)>), sizeof(QueriesSram<decltype(t)>));
  });
}

inline Step step() {
  return {
      .id = "step05",
      .title = "recompute backward",
      .idea = "the backward computes P again from Q, K and LSE; nothing N x N is saved",
      .chapter = "docs/05-recompute-backward.md",
      .tiles = tiles,
      .largest_head_dim = 256,
      .methods = {
          {.name = "forward", .cost = forward_cost, .run = forward},
          {.name = "standard backward",
           .backward = true,
           .scratch = standard_scratch,
           .cost = standard_cost,
           .prepare = save_p,
           .run = standard_backward},
          {.name = "recompute backward",
           .backward = true,
           .scratch = [](const Problem& p) { return std::vector{row_scratch("delta", p)}; },
           .cost = recompute_cost,
           .prepare = forward,
           .run = recompute_backward}}};
}

}  // namespace attention::ATTN_DEVICE::step05
