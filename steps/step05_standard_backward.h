// What step05's recompute backward is compared with: the standard backward, whose P, dP and dS go through HBM.
//
//   dV = P^T dO    dP = dO V^T    dS = P ∘ (dP - delta)    dQ = dS K    dK = dS^T Q                     delta = row sum of P ∘ dP
#pragma once

#include "step02_fused_row_softmax.cu"  // P, and the products
#include "step04_online_softmax.cu"     // the forward

namespace attention::ATTN_DEVICE::step05 {

// ---- the kernels ----------------------------------------------------------------------------------------------------------

template <class T>
struct TransposedSram {
  typename T::Pairs p;
  typename T::Loop d_o;
};

/// dV = P^T dO (and dK = dS^T Q). A block owns Br keys and loops over the query tiles, of which it loads P transposed.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) transposed_values(
    typename T::In P,      // [heads, seqlen_q, seqlen_k]
    typename T::In dO,     // [heads, seqlen_q, head_dim]
    typename T::Out dV) {  // [heads, seqlen_k, head_dim]
  auto& sram = dynamic_sram<TransposedSram<T>>();
  const auto [head, k0] = Order::of_grid(ceil_div(P.cols, T::kBr)).keys(blockIdx.x, T::kBr);
  const int warp_row0 = threadIdx.x / 32 * T::kWarpRows;

  typename T::Output dv(warp_row0);
  for (int q0 = 0; q0 < P.rows; q0 += T::kBc) {
    __syncthreads();  // every warp is done with the last tiles
    load_tile<T::kThreads, transposed>(sram.p, P.head(head), q0, k0);
    load_tile<T::kThreads>(sram.d_o, dO.head(head), q0);
    __syncthreads();  // the tiles are complete
    multiply_ab(dv, sram.p, sram.d_o);
  }
  store_tile(dV.head(head), dv, k0);
}

template <int Capacity>
struct SoftmaxBackwardSram {
  SramTile<float, 1, Capacity> p, dp;
  WarpResults sum;
};
template <>
struct SoftmaxBackwardSram<0> {
  WarpResults sum;
};

/// dS = softmax_scale P ∘ (dP - row sum of P ∘ dP): the softmax's backward, with the scale of S = scale Q K^T. One block owns a
/// row, and each thread its own columns of it.
template <class E, int Capacity>
__global__ void softmax_backward(float softmax_scale, Global<const E> P, Global<const E> dP, Global<E> dS) {
  auto& sram = dynamic_sram<SoftmaxBackwardSram<Capacity>>();
  const int64_t row = blockIdx.x;

  float delta = 0;
  ATTN_UNROLL_4 for (int64_t j = threadIdx.x; j < P.cols; j += step02::kSoftmaxThreads) {
    const float p = P.load(row, j), dp = dP.load(row, j);
    if constexpr (Capacity > 0) sram.p.store(0, j, p), sram.dp.store(0, j, dp);
    delta += p * dp;
  }
  delta = row_sum(delta, sram.sum);
  ATTN_UNROLL_4 for (int64_t j = threadIdx.x; j < P.cols; j += step02::kSoftmaxThreads) {
    if constexpr (Capacity > 0) dS.store(row, j, softmax_scale * sram.p.load(0, j) * (sram.dp.load(0, j) - delta));
    else dS.store(row, j, softmax_scale * P.load(row, j) * (dP.load(row, j) - delta));
  }
}

// ---- launches -------------------------------------------------------------------------------------------------------------

/// The forward's tile is its own: the first of step04's that fits.
inline Problem with_forward_tile(Problem p) {
  for (const TileChoice& choice : step04::tiles(p))
    if (choice.sram_bytes <= p.sram_limit) return p.tile = choice.shape, p;
  throw Unsupported("step05: no tile of the forward fits " + std::to_string(p.sram_limit) + " bytes of SRAM");
}

/// What the standard forward leaves behind: P. S is only passing through, in the memory that dP will take.
inline void save_p(const Problem& backward, const Tensors& t) {
  const Problem p = with_forward_tile(backward);
  void* S = t.scratch("dP");
  step02::launch_scores("scores", p, Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, Source{t.q, "Q"}, Source{t.k, "K"}, Target{S, "S"});
  step02::launch_softmax(p, Source{S, "S"}, Target{t.scratch("P"), "P"}, Target{t.lse, "LSE"});
}

inline void launch_transposed_values(const char* name, const Problem& p, Source P, Source dO, Target dV) {
  with_tile(p, ForwardTiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    launch(name, transposed_values<T>, p.heads_total() * ceil_div(p.seqlen_k, T::kBr), T::kThreads, sizeof(TransposedSram<T>), pairs<E>(p, P),
           query_rows<E>(p, dO), key_rows<E>(p, dV));
  });
}

inline void standard_backward(const Problem& backward, const Tensors& t) {
  const Problem p = with_forward_tile(backward);
  void *P = t.scratch("P"), *dP = t.scratch("dP"), *dS = t.scratch("dS");
  launch_transposed_values("dV", p, Source{P, "P"}, Source{t.d_o, "dO"}, Target{t.dv, "dV"});
  step02::launch_scores("dP", p, Mask{p.seqlen_q, p.seqlen_k, false}, 1, Source{t.d_o, "dO"}, Source{t.v, "V"}, Target{dP, "dP"});
  step02::with_row_capacity<SoftmaxBackwardSram>(p, [&](auto capacity) {
    with_element(p, [&](auto element) {
      using E = decltype(element);
      launch("dS", softmax_backward<E, capacity()>, p.L(), step02::kSoftmaxThreads, sizeof(SoftmaxBackwardSram<capacity()>), p.softmax_scale,
             all_pairs<E>(p, Source{P, "P"}), all_pairs<E>(p, Source{dP, "dP"}), all_pairs<E>(p, Target{dS, "dS"}));
    });
  });
  step02::launch_values("dQ", p, Source{dS, "dS"}, Source{t.k, "K"}, Target{t.dq, "dQ"});
  launch_transposed_values("dK", p, Source{dS, "dS"}, Source{t.q, "Q"}, Target{t.dk, "dK"});
}

// ---- what it costs ----------------------------------------------------------------------------------------------------------

inline KernelCost transposed_cost(const char* name, const Problem& p, const char* P, const char* dO, const char* dV) {
  const Visits visits = visits_all(p.seqlen_k, p.seqlen_q, p.tile.br, p.tile.bc);
  return KernelCost(name, p).loads(P, p.S(), p.S()).loads(dO, visits.rows * p.row(), p.Xq()).stores(dV, p.Xk(), p.Xk()).multiplies(visits);
}

inline std::vector<KernelCost> standard_cost(const Problem& backward) {
  const Problem p = with_forward_tile(backward);
  int64_t reads = 1;
  step02::with_row_capacity<SoftmaxBackwardSram>(p, [&](auto capacity) { reads = capacity() > 0 ? 1 : 2; });
  return {transposed_cost("dV", p, "P", "dO", "dV"), step02::scores_cost("dP", p, "dO", "V", "dP"),
          KernelCost("dS", p).loads("P", reads * p.S(), reads * p.S()).loads("dP", reads * p.S(), reads * p.S()).stores("dS", p.S(), p.S()),
          step02::values_cost("dQ", p, "dS", "K", "dQ"), transposed_cost("dK", p, "dS", "Q", "dK")};
}

inline std::vector<Scratch> standard_scratch(const Problem& p) {
  return {quadratic_scratch("P", p), quadratic_scratch("dP", p), quadratic_scratch("dS", p)};
}

}  // namespace attention::ATTN_DEVICE::step05
