// exercise01  naive three kernels                                                                      docs/exercises/README.md
//
// step01 without its softmax. The scores are in S, in HBM; write P, the softmax of each row, with one thread per row.
//
//   make exercise01 && ./exercise01
#include "steps/step01_naive_three_kernels.cu"  // all the rest

namespace attention::ATTN_DEVICE::exercise01 {

using step01::launch_scores, step01::launch_values, step01::scratch, step01::cost, step01::tiles;

/// P = softmax of each row of S, LSE = the row's log sum of exponentials. One thread owns a row.
template <class E>
__global__ void softmax(
    Global<const E> S,    // [1, rows, seqlen_k]: the rows of all heads
    Global<E> P,          // [1, rows, seqlen_k]
    Global<float> LSE) {  // [1, 1, rows]
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= S.rows) return;

  float m = -INFINITY;
  // TODO 1 of 3: m = the largest element of the row. S.load(row, j) reads one from HBM; the row has S.cols of them.
  // end of TODO 1
  const float base = finite(m);

  float l = 0;
  // TODO 2 of 3: l = the row's sum of exp(S - base). Add up 64 neighbours in a variable of their own, then add that to l, and so on.
  // end of TODO 2

  const float inverse = l > 0 ? 1 / l : 0;
  // TODO 3 of 3: write the row of P. P.store(row, j, x) writes one element.
  // end of TODO 3
  LSE.store(0, row, m + logf(l));
}

inline void forward(const Problem& p, const Tensors& t) {
  void *S = t.scratch("S"), *P = t.scratch("P");
  launch_scores("scores", p, Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, Source{t.q, "Q"}, Source{t.k, "K"}, Target{S, "S"});
  with_element(p, [&](auto element) {
    using E = decltype(element);
    launch("softmax", softmax<E>, ceil_div(p.L(), 128), 128, 0, all_pairs<E>(p, Source{S, "S"}), all_pairs<E>(p, Target{P, "P"}),
           all_row_scalars(p, Target{t.lse, "LSE"}));
  });
  launch_values("values", p, Source{P, "P"}, Source{t.v, "V"}, Target{t.o, "O"});
}

inline Step step() {
  return {.id = "exercise01", .title = "naive three kernels", .idea = "step01 with the softmax left to you",
          .chapter = "docs/exercises/README.md", .tiles = tiles, .largest_head_dim = 64,
          .if_wrong = "fill in the TODOs of docs/exercises/exercise01_naive_three_kernels.cu; docs/exercises/README.md says what each one asks for",
          .methods = {{.name = "forward", .scratch = scratch, .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::exercise01
