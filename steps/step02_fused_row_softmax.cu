// step02  fused row softmax                                                            docs/02-fused-row-softmax.md
//
// step01's softmax reads S three times because a thread cannot keep a row. A block can: it reads its row once, side by side,
// keeps it in SRAM for the maximum, the sum and the division, and writes P once. This is what PyTorch's three lines do, and
// the fair baseline for everything that follows.
//
//      Q, K ──scores──▶ S ──softmax──▶ P, V ──values──▶ O        everything named here lies in HBM
//                            one row of S in SRAM
//
//   HBM       4X + 4S + L elements (+ 2S where a row does not fit SRAM and is read three times after all)
//   executes  4 N^2 d FLOPs per head          extra memory  S, P, LSE
//
//   make step02 && ./step02
#include "common/tile/block_reduce.h"
#include "step01_naive_three_kernels.cu"  // scores and values stay as they are

namespace attention::ATTN_DEVICE::step02 {

using step01::launch_scores, step01::launch_values, step01::scores_cost, step01::values_cost, step01::scratch, step01::tiles;

/// Capacity elements of a row; 0: the row stays in HBM and is read again.
template <int Capacity>
struct SoftmaxSram {
  SramTile<float, 1, Capacity> row;
  WarpResults max, sum;
};
template <>
struct SoftmaxSram<0> {
  WarpResults max, sum;
};

constexpr int kSoftmaxThreads = 256;

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
  ATTN_UNROLL_4 for (int64_t j = threadIdx.x; j < S.cols; j += kSoftmaxThreads) {
    const float x = S.load(row, j);
    if constexpr (Capacity > 0) sram.row.store(0, j, x);  // for this thread alone: it stays in its columns
    m = fmaxf(m, x);
  }
  m = row_max(m, sram.max);
  const float base = finite(m);

  float l = 0;  // a sum in pieces: each thread its own columns, then the warps, then the block
  for (int64_t j = threadIdx.x; j < S.cols; j += kSoftmaxThreads) l += expf(s(j) - base);
  l = row_sum(l, sram.sum);

  const float inverse = l > 0 ? 1 / l : 0;
  for (int64_t j = threadIdx.x; j < S.cols; j += kSoftmaxThreads) P.store(row, j, expf(s(j) - base) * inverse);
  if (threadIdx.x == 0) LSE.store(0, row, m + logf(l));
}

/// Calls f with the smallest compiled-in row capacity that holds seqlen_k elements within the device's SRAM, 0 if none does.
template <template <int> class Sram, class F>
void with_row_capacity(const Problem& p, F&& f) {
  auto fits = [&](auto capacity) { return p.seqlen_k <= capacity() && int64_t{sizeof(Sram<capacity()>)} <= p.sram_limit; };
  auto first_fit = [&](auto... capacity) { return ((fits(capacity) && (f(capacity), true)) || ...); };
  using std::integral_constant;
  if (!first_fit(integral_constant<int, 1024>{}, integral_constant<int, 4096>{}, integral_constant<int, 12288>{},
                 integral_constant<int, 24576>{}, integral_constant<int, 49152>{}))
    f(integral_constant<int, 0>{});
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

inline KernelCost softmax_cost(const Problem& p) {
  int64_t reads = 1;
  with_row_capacity<SoftmaxSram>(p, [&](auto capacity) { reads = capacity() > 0 ? 1 : 3; });
  return KernelCost("softmax", p).loads("S", reads * p.S(), reads * p.S()).stores("P", p.S(), p.S()).stores("LSE", p.L(), p.L());
}

inline std::vector<KernelCost> cost(const Problem& p) {
  return {scores_cost("scores", p, "Q", "K", "S"), softmax_cost(p), values_cost("values", p, "P", "V", "O")};
}

inline Step step() {
  return {.id = "step02", .title = "fused row softmax", .idea = "a block keeps its row of S in SRAM: S is read once, P written once",
          .chapter = "docs/02-fused-row-softmax.md", .tiles = tiles, .largest_head_dim = 256,
          .methods = {{.name = "forward", .scratch = scratch, .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::step02
