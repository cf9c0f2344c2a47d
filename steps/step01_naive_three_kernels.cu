// step01  naive three kernels                                                        docs/01-naive-three-kernels.md
//
// softmax(Q K^T) V as anyone would first write it: one kernel per operation and, between them, the N x N matrices S and
// P in HBM. The softmax gives each row to one thread, which walks over it three times.
//
//      Q, K ──scores──▶ S ──softmax──▶ P, V ──values──▶ O        everything named here lies in HBM
//
//   HBM       at least 4X + 6S + L elements (X: one of Q K V O, S: N x N per head, L: a number per row): neighbouring
//             threads of the softmax read different rows, so lines come, go half used, and come again
//   executes  4 N^2 d FLOPs per head          extra memory  S, P, LSE
//
//   make step01 && ./step01
#include "common/step/step.h"
#include "common/tile/mask.h"
#include "common/tile/shapes.h"
#include "common/tile/softmax.h"
#include "common/tile/view.h"

namespace attention::ATTN_DEVICE::step01 {

template <class T>
struct ScoresSram {
  typename T::Own q;
  typename T::Loop k;
};

/// S = softmax_scale Q K^T, -inf where the query does not see the key. A block owns Br queries and loops over the key
/// tiles.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    scores(Mask mask, float softmax_scale,
           typename T::In Q,     // [heads, seqlen_q, head_dim]
           typename T::In K,     // [heads, seqlen_k, head_dim]
           typename T::Out S) {  // [heads, seqlen_q, seqlen_k]
  auto& sram = dynamic_sram<ScoresSram<T>>();
  const auto [head, q0] = Order::of_grid(ceil_div(mask.seqlen_q, T::kBr)).ascending(blockIdx.x, T::kBr);
  const int warp_row0 = threadIdx.x / 32 * T::kWarpRows;

  load_tile<T::kThreads>(sram.q, Q.head(head), q0);
  for (int k0 = 0; k0 < mask.seqlen_k; k0 += T::kBc) {
    __syncthreads();  // every warp is done with the last key tile
    load_tile<T::kThreads>(sram.k, K.head(head), k0);
    __syncthreads();  // the tiles are complete
    typename T::Scores s(warp_row0);
    multiply_abt(s, sram.q, sram.k);
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i)
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j) s(i, j) *= softmax_scale;
    mask.apply(s, q0, k0);
    store_tile(S.head(head), s, q0, k0);
  }
}

/// P = softmax of each row of S, LSE = the row's log sum of exponentials. One thread owns a row.
template <class E>
__global__ void softmax(Global<const E> S,    // [1, rows, seqlen_k]: the rows of all heads
                        Global<E> P,          // [1, rows, seqlen_k]
                        Global<float> LSE) {  // [1, 1, rows]
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= S.rows) return;

  float m = -INFINITY;
  for (int64_t j = 0; j < S.cols; ++j) m = fmaxf(m, S.load(row, j));
  const float base = finite(m);

  float l = 0;
  for (int64_t j0 = 0; j0 < S.cols; j0 += 64) {  // in pieces of 64: one chain of thousands of additions fails 1e-6
    float piece = 0;
    for (int64_t j = j0; j < j0 + 64 && j < S.cols; ++j) piece += expf(S.load(row, j) - base);
    l += piece;
  }

  const float inverse = l > 0 ? 1 / l : 0;
  for (int64_t j = 0; j < S.cols; ++j) P.store(row, j, expf(S.load(row, j) - base) * inverse);
  LSE.store(0, row, m + logf(l));
}

template <class T>
struct ValuesSram {
  typename T::Pairs p;
  typename T::Loop v;
};

/// O = P V. A block owns Br queries and loops over the key tiles.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    values(typename T::In P,     // [heads, seqlen_q, seqlen_k]
           typename T::In V,     // [heads, seqlen_k, head_dim]
           typename T::Out O) {  // [heads, seqlen_q, head_dim]
  auto& sram = dynamic_sram<ValuesSram<T>>();
  const auto [head, q0] = Order::of_grid(ceil_div(P.rows, T::kBr)).ascending(blockIdx.x, T::kBr);
  const int warp_row0 = threadIdx.x / 32 * T::kWarpRows;

  typename T::Output o(warp_row0);
  for (int k0 = 0; k0 < P.cols; k0 += T::kBc) {
    __syncthreads();  // every warp is done with the last tiles
    load_tile<T::kThreads>(sram.p, P.head(head), q0, k0);
    load_tile<T::kThreads>(sram.v, V.head(head), k0);
    __syncthreads();  // the tiles are complete
    multiply_ab(o, sram.p, sram.v);
  }
  store_tile(O.head(head), o, q0);
}

/// Launches scores for A [heads, seqlen_q, d] and B [heads, seqlen_k, d].
inline void launch_scores(const char* name, const Problem& p, Mask mask, float scale, Source A, Source B, Target S) {
  with_tile(p, ForwardTiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    launch(name, scores<T>, p.heads_total() * ceil_div(p.seqlen_q, T::kBr), T::kThreads, sizeof(ScoresSram<T>), mask,
           scale, query_rows<E>(p, A), key_rows<E>(p, B), pairs<E>(p, S));
  });
}

/// Launches values for P [heads, seqlen_q, seqlen_k] and V [heads, seqlen_k, d].
inline void launch_values(const char* name, const Problem& p, Source P, Source V, Target O) {
  with_tile(p, ForwardTiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    launch(name, values<T>, p.heads_total() * ceil_div(p.seqlen_q, T::kBr), T::kThreads, sizeof(ValuesSram<T>),
           pairs<E>(p, P), key_rows<E>(p, V), query_rows<E>(p, O));
  });
}

inline void forward(const Problem& p, const Tensors& t) {
  void *S = t.scratch("S"), *P = t.scratch("P");
  launch_scores("scores", p, Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, Source{t.q, "Q"},
                Source{t.k, "K"}, Target{S, "S"});
  with_element(p, [&](auto element) {
    using E = decltype(element);
    launch("softmax", softmax<E>, ceil_div(p.L(), 128), 128, 0, all_pairs<E>(p, Source{S, "S"}),
           all_pairs<E>(p, Target{P, "P"}), all_row_scalars(p, Target{t.lse, "LSE"}));
  });
  launch_values("values", p, Source{P, "P"}, Source{t.v, "V"}, Target{t.o, "O"});
}

inline std::vector<Scratch> scratch(const Problem& p) { return {quadratic_scratch("S", p), quadratic_scratch("P", p)}; }

/// scores reads each query row once and every key row once per query tile; values the same with P and V.
inline KernelCost scores_cost(const char* name, const Problem& p, const char* A, const char* B, const char* S) {
  const Visits visits = visits_all(p.seqlen_q, p.seqlen_k, p.tile.br, p.tile.bc);
  return KernelCost(name, p)
      .loads(A, p.Xq(), p.Xq())
      .loads(B, visits.rows * p.row(), p.Xk())
      .stores(S, p.S(), p.S())
      .multiplies(visits);
}
inline KernelCost values_cost(const char* name, const Problem& p, const char* P, const char* V, const char* O) {
  const Visits visits = visits_all(p.seqlen_q, p.seqlen_k, p.tile.br, p.tile.bc);
  return KernelCost(name, p)
      .loads(P, p.S(), p.S())
      .loads(V, visits.rows * p.row(), p.Xk())
      .stores(O, p.Xq(), p.Xq())
      .multiplies(visits);
}

inline std::vector<KernelCost> cost(const Problem& p) {
  return {scores_cost("scores", p, "Q", "K", "S"),
          KernelCost("softmax", p)
              .loads("S", 3 * p.S(), 3 * p.S())
              .stores("P", p.S(), p.S())
              .stores("LSE", p.L(), p.L())
              .moves_at_least(),
          values_cost("values", p, "P", "V", "O")};
}

inline std::vector<TileChoice> tiles(const Problem& p) {
  return tile_choices(p, ForwardTiles{}, [](auto t) {
    return std::max(sizeof(ScoresSram<decltype(t)>), sizeof(ValuesSram<decltype(t)>));
  });
}

inline Step step() {
  return {.id = "step01",
          .title = "naive three kernels",
          .idea = "one kernel per operation; S and P travel through HBM; one thread per softmax row",
          .chapter = "docs/01-naive-three-kernels.md",
          .tiles = tiles,
          .largest_head_dim = 256,
          .methods = {{.name = "forward", .scratch = scratch, .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::step01
