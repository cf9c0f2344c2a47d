// What step05's recompute backward is compared with: the standard backward, whose P, dP and dS go through HBM.
//
//   dV = P^T dO    dP = dO V^T    dS = P ∘ (dP - delta)    dQ = dS K    dK = dS^T Q      delta = row sum of P ∘ dP
//
// Compiled beside step05's file, not with it: a change of one leaves the other built.
#include "step05_standard_backward.h"

#include "step02_fused_row_softmax.cu"  // P, and the products
#include "step04_online_softmax.cu"     // the forward

namespace attention::ATTN_DEVICE::step05 {

// ---- the kernels ----------------------------------------------------------------------------------------------------

template <class T>
struct TransposedSram {
  typename T::Pairs p;
  typename T::Loop d_o;
};

/// dV = P^T dO (and dK = dS^T Q). A block owns Br keys and loops over the query tiles, of which it loads P transposed.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    transposed_values(typename T::In P,      // [heads, seqlen_q, seqlen_k]
                      typename T::In dO,     // [heads, seqlen_q, head_dim]
                      typename T::Out dV) {  // [heads, seqlen_k, head_dim]
  auto& sram = dynamic_sram<TransposedSram<T>>();
  const auto [head, k0] = Order::of_grid(ceil_div(P.cols, T::kBr)).ascending(blockIdx.x, T::kBr);
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

template <class E, int KiB>
struct SoftmaxBackwardSram {
  static constexpr int kCapacity = KiB * 1024 / 2 / sizeof(E);  // of each row
  SramTile<E, 1, kCapacity> p, dp;
  WarpResults sum;
};

/// dS = softmax_scale P ∘ (dP - row sum of P ∘ dP): the softmax's backward, with the scale of S = scale Q K^T. One
/// block owns a row, and each thread its own runs of it, as in step02.
template <class E, int KiB, int Run>
__global__ void __launch_bounds__(step02::softmax_threads(KiB))
    softmax_backward(float softmax_scale,
                     Global<const E> P,   // [1, rows, seqlen_k]: the rows of all heads
                     Global<const E> dP,  // [1, rows, seqlen_k]
                     Global<E> dS) {      // [1, rows, seqlen_k]
  auto& sram = dynamic_sram<SoftmaxBackwardSram<E, KiB>>();
  const int64_t row = blockIdx.x;
  constexpr int kStep = step02::softmax_threads(KiB) * Run;
  const int first = threadIdx.x * Run;

  float delta = 0;
  ATTN_UNROLL_2 for (int j = first; j < P.cols; j += kStep) {
    float p[Run], dp[Run];
    P.load_run(row, j, p), dP.load_run(row, j, dp);
    if (j < sram.kCapacity) sram.p.store_run(0, j, p), sram.dp.store_run(0, j, dp);
    ATTN_UNROLL for (int r = 0; r < Run; ++r) delta += p[r] * dp[r];
  }
  delta = row_sum(delta, sram.sum);
  for (int j = first; j < P.cols; j += kStep) {
    float p[Run], ds[Run];
    if (j < sram.kCapacity) sram.p.load_run(0, j, p), sram.dp.load_run(0, j, ds);
    else P.load_run(row, j, p), dP.load_run(row, j, ds);
    ATTN_UNROLL for (int r = 0; r < Run; ++r) ds[r] = softmax_scale * p[r] * (ds[r] - delta);
    dS.template store_run<Run>(row, j, ds);
  }
}

// ---- launches -------------------------------------------------------------------------------------------------------

/// The forward's tile is its own: the first of step04's that fits.
static Problem with_forward_tile(Problem p) {
  for (const TileChoice& choice : step04::tiles(p))
    if (choice.sram_bytes <= p.sram_limit) return p.tile = choice.shape, p;
  throw Unsupported("step05: no tile of the forward fits " + std::to_string(p.sram_limit) + " bytes of SRAM");
}

void forward(const Problem& p, const Tensors& t) { step04::forward(with_forward_tile(p), t); }

/// S is only passing through, in the memory that dP will take.
void save_p(const Problem& backward, const Tensors& t) {
  const Problem p = with_forward_tile(backward);
  void* S = t.scratch("dP");
  step02::launch_scores("scores", p, Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, Source{t.q, "Q"},
                        Source{t.k, "K"}, Target{S, "S"});
  step02::launch_softmax(p, Source{S, "S"}, Target{t.scratch("P"), "P"}, Target{t.lse, "LSE"});
}

static void launch_transposed_values(const char* name, const Problem& p, Source P, Source dO, Target dV) {
  with_tile(p, ForwardTiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    launch(name, transposed_values<T>, p.heads_total() * ceil_div(p.seqlen_k, T::kBr), T::kThreads,
           sizeof(TransposedSram<T>), pairs<E>(p, P), query_rows<E>(p, dO), key_rows<E>(p, dV));
  });
}

void standard_backward(const Problem& backward, const Tensors& t) {
  const Problem p = with_forward_tile(backward);
  void *P = t.scratch("P"), *dP = t.scratch("dP"), *dS = t.scratch("dS");
  launch_transposed_values("dV", p, Source{P, "P"}, Source{t.d_o, "dO"}, Target{t.dv, "dV"});
  step02::launch_scores(
      "dP", p, Mask{p.seqlen_q, p.seqlen_k, false}, 1, Source{t.d_o, "dO"}, Source{t.v, "V"}, Target{dP, "dP"});
  step02::with_row_in_sram<SoftmaxBackwardSram>(p, [&]<class E, int KiB, int Run>() {
    launch("dS", softmax_backward<E, KiB, Run>, p.L(), step02::softmax_threads(KiB),
           sizeof(SoftmaxBackwardSram<E, KiB>), p.softmax_scale, all_pairs<E>(p, Source{P, "P"}),
           all_pairs<E>(p, Source{dP, "dP"}), all_pairs<E>(p, Target{dS, "dS"}));
  });
  step02::launch_values("dQ", p, Source{dS, "dS"}, Source{t.k, "K"}, Target{t.dq, "dQ"});
  launch_transposed_values("dK", p, Source{dS, "dS"}, Source{t.q, "Q"}, Target{t.dk, "dK"});
}

// ---- what it costs --------------------------------------------------------------------------------------------------

static KernelCost transposed_cost(const char* name, const Problem& p, const char* P, const char* dO, const char* dV) {
  const Visits visits = visits_all(p.seqlen_k, p.seqlen_q, p.tile.br, p.tile.bc);
  return KernelCost(name, p)
      .loads(P, p.S(), p.S())
      .loads(dO, visits.rows * p.row(), p.Xq())
      .stores(dV, p.Xk(), p.Xk())
      .multiplies(visits);
}

std::vector<KernelCost> forward_cost(const Problem& p) { return step04::cost(with_forward_tile(p)); }

std::vector<KernelCost> standard_cost(const Problem& backward) {
  const Problem p = with_forward_tile(backward);
  const int64_t again = step02::read_again<SoftmaxBackwardSram>(p);
  KernelCost softmax("dS", p);
  softmax.loads("P", p.S() + again, p.S()).loads("dP", p.S() + again, p.S()).stores("dS", p.S(), p.S());
  if (again > 0) softmax.moves_at_least();
  return {transposed_cost("dV", p, "P", "dO", "dV"), step02::scores_cost("dP", p, "dO", "V", "dP"), softmax,
          step02::values_cost("dQ", p, "dS", "K", "dQ"), transposed_cost("dK", p, "dS", "Q", "dK")};
}

std::vector<Scratch> standard_scratch(const Problem& p) {
  return {quadratic_scratch("P", p), quadratic_scratch("dP", p), quadratic_scratch("dS", p)};
}

}  // namespace attention::ATTN_DEVICE::step05
