// exercise02  fused row softmax                                                                        docs/exercises/README.md
//
// step02 without its softmax: a block owns a row of S, reads it once, keeps it in SRAM and writes the row of P once.
//
//   make exercise02 && ./exercise02
#include "steps/step02_fused_row_softmax.cu"  // all the rest

namespace attention::ATTN_DEVICE::exercise02 {

using step02::launch_scores, step02::launch_values, step02::scratch, step02::cost, step02::tiles;
using step02::SoftmaxSram, step02::kSoftmaxThreads, step02::with_row_capacity;

/// P = softmax of each row of S, LSE = the row's log sum of exponentials. One block owns a row.
template <class E, int Capacity>
__global__ void softmax(Global<const E> S, Global<E> P, Global<float> LSE) {
  auto& sram = dynamic_sram<SoftmaxSram<Capacity>>();
  const int64_t row = blockIdx.x;
  auto s = [&](int64_t j) {
    if constexpr (Capacity > 0) return sram.row.load(0, j);
    else return S.load(row, j);
  };

  float m = -INFINITY;
  // TODO 1 of 4: read the row from HBM, once. This thread takes the elements threadIdx.x, threadIdx.x + kSoftmaxThreads, ...: keep
  // each in SRAM (sram.row.store(0, j, x), where Capacity > 0) and their maximum in m.
  // end of TODO 1
  // TODO 2 of 4: m = the maximum of all threads. row_max(m, sram.max) joins them.
  // end of TODO 2
  const float base = finite(m);

  float l = 0;  // a sum in pieces: each thread its own columns, then the warps, then the block
  // TODO 3 of 4: l = the row's sum of exp(s(j) - base): this thread's elements first, then row_sum(l, sram.sum).
  // end of TODO 3

  const float inverse = l > 0 ? 1 / l : 0;
  // TODO 4 of 4: write this thread's elements of P.
  // end of TODO 4
  if (threadIdx.x == 0) LSE.store(0, row, m + logf(l));
}

inline void launch_softmax(const Problem& p, Source S, Target P, Target LSE) {
  with_row_capacity<SoftmaxSram>(p, [&](auto capacity) {
    with_element(p, [&](auto element) {
      using E = decltype(element);
      launch("softmax", softmax<E, capacity()>, p.L(), kSoftmaxThreads, sizeof(SoftmaxSram<capacity()>), all_pairs<E>(p, S), all_pairs<E>(p, P),
             all_row_scalars(p, LSE));
    });
  });
}

inline void forward(const Problem& p, const Tensors& t) {
  void *S = t.scratch("S"), *P = t.scratch("P");
  launch_scores("scores", p, Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, Source{t.q, "Q"}, Source{t.k, "K"}, Target{S, "S"});
  launch_softmax(p, Source{S, "S"}, Target{P, "P"}, Target{t.lse, "LSE"});
  launch_values("values", p, Source{P, "P"}, Source{t.v, "V"}, Target{t.o, "O"});
}

inline Step step() {
  return {.id = "exercise02", .title = "fused row softmax", .idea = "step02 with the softmax left to you",
          .chapter = "docs/exercises/README.md", .tiles = tiles, .largest_head_dim = 64,
          .if_wrong = "fill in the TODOs of docs/exercises/exercise02_fused_row_softmax.cu; docs/exercises/README.md says what each one asks for",
          .methods = {{.name = "forward", .scratch = scratch, .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::exercise02
