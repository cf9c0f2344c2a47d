// step02  fused row softmax                                                            docs/02-fused-row-softmax.md
//
// step01's softmax reads S three times because a thread cannot keep a row. A block can: it reads its row once, side by
// side, keeps it in SRAM for the maximum, the sum and the division, and writes P once. This is what PyTorch's three
// lines do, and the fair baseline for everything that follows.
//
//      Q, K ──scores──▶ S ──softmax──▶ P, V ──values──▶ O        everything named here lies in HBM
//                            one row of S in SRAM
//
//   HBM       4X + 4S + L elements (at least, where a row does not fit SRAM and its end is read again)
//   executes  4 N^2 d FLOPs per head          extra memory  S, P, LSE
//
//   make step02 && ./step02
#include "common/tile/block_reduce.h"
#include "step01_naive_three_kernels.cu"  // scores and values stay as they are

namespace attention::ATTN_DEVICE::step02 {

using step01::launch_scores, step01::launch_values, step01::scores_cost, step01::values_cost, step01::scratch,
    step01::tiles;

/// The row of S that a block keeps in SRAM, in the type that it has in HBM: its first kCapacity elements. Later ones
/// are read again.
template <class E, int KiB>
struct SoftmaxSram {
  static constexpr int kCapacity = KiB * 1024 / sizeof(E);
  SramTile<E, 1, kCapacity> row;
  WarpResults max, sum;
};

/// Threads of a block that keeps so many KiB. Few where rows are short, and enough to have memory busy where two blocks
/// fill an SM's SRAM.
constexpr int softmax_threads(int kib) { return kib <= 4 ? 128 : kib <= 48 ? 256 : 512; }

/// P = softmax of each row of S, LSE = the row's log sum of exponentials. One block owns a row; its threads take runs
/// of Run neighbours in turn, 16 bytes where rows are multiples of that.
template <class E, int KiB, int Run>
__global__ void __launch_bounds__(softmax_threads(KiB))
    softmax(Global<const E> S,    // [1, rows, seqlen_k]: the rows of all heads
            Global<E> P,          // [1, rows, seqlen_k]
            Global<float> LSE) {  // [1, 1, rows]
  auto& sram = dynamic_sram<SoftmaxSram<E, KiB>>();
  const int64_t row = blockIdx.x;
  constexpr int kStep = softmax_threads(KiB) * Run;
  const int first = threadIdx.x * Run;
  auto load = [&](int j, float(&s)[Run]) {
    if (j < sram.kCapacity) sram.row.load_run(0, j, s);
    else S.load_run(row, j, s);
  };

  float m = -INFINITY;
  ATTN_UNROLL_4 for (int j = first; j < S.cols; j += kStep) {
    float s[Run];
    S.load_run(row, j, s);
    if (j < sram.kCapacity) sram.row.store_run(0, j, s);  // for this thread alone: it stays in its columns
    ATTN_UNROLL for (int r = 0; r < Run; ++r) m = fmaxf(m, s[r]);
  }
  m = row_max(m, sram.max);
  const float base = finite(m);

  float l = 0;  // a sum in pieces: each thread its own columns, then the warps, then the block
  for (int j = first; j < S.cols; j += kStep) {
    float s[Run];
    load(j, s);
    ATTN_UNROLL for (int r = 0; r < Run; ++r) l += expf(s[r] - base);
  }
  l = row_sum(l, sram.sum);

  const float inverse = l > 0 ? 1 / l : 0;
  for (int j = first; j < S.cols; j += kStep) {
    float s[Run];
    load(j, s);
    ATTN_UNROLL for (int r = 0; r < Run; ++r) s[r] = expf(s[r] - base) * inverse;
    P.template store_run<Run>(row, j, s);
  }
  if (threadIdx.x == 0) LSE.store(0, row, m + logf(l));
}

/// Calls f<E, KiB, Run>() with the fewest KiB in which `Sram` keeps a whole row, else with the most that the device's
/// SRAM allows.
template <template <class, int> class Sram, class E, int KiB, int... More, class F>
void with_row_in_sram(const Problem& p, F&& f) {
  if constexpr (sizeof...(More) > 0) {
    constexpr int kMore[] = {More...};
    if (p.seqlen_k > Sram<E, KiB>::kCapacity && int64_t{sizeof(Sram<E, kMore[0]>)} <= p.sram_limit)
      return with_row_in_sram<Sram, E, More...>(p, f);
  }
  constexpr int kVector = Global<E>::kVector;
  if (p.seqlen_k % kVector == 0) f.template operator()<E, KiB, kVector>();
  else f.template operator()<E, KiB, 1>();
}
template <template <class, int> class Sram, class F>
void with_row_in_sram(const Problem& p, F&& f) {
  with_element(p, [&](auto element) { with_row_in_sram<Sram, decltype(element), 4, 16, 48, 96>(p, f); });
}

inline void launch_softmax(const Problem& p, Source S, Target P, Target LSE) {
  with_row_in_sram<SoftmaxSram>(p, [&]<class E, int KiB, int Run>() {
    launch("softmax", softmax<E, KiB, Run>, p.L(), softmax_threads(KiB), sizeof(SoftmaxSram<E, KiB>),
           all_pairs<E>(p, S), all_pairs<E>(p, P), all_row_scalars(p, LSE));
  });
}

/// Elements of all rows that `Sram` has no room for.
template <template <class, int> class Sram>
int64_t read_again(const Problem& p) {
  int64_t elements = 0;
  with_row_in_sram<Sram>(p, [&]<class E, int KiB, int>() {
    elements = p.L() * std::max<int64_t>(0, p.seqlen_k - Sram<E, KiB>::kCapacity);
  });
  return elements;
}

inline void forward(const Problem& p, const Tensors& t) {
  void *S = t.scratch("S"), *P = t.scratch("P");
  launch_scores("scores", p, Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, Source{t.q, "Q"},
                Source{t.k, "K"}, Target{S, "S"});
  launch_softmax(p, Source{S, "S"}, Target{P, "P"}, Target{t.lse, "LSE"});
  launch_values("values", p, Source{P, "P"}, Source{t.v, "V"}, Target{t.o, "O"});
}

/// What is read again, twice, comes from the L2 as long as that holds the ends of all rows in flight.
inline KernelCost softmax_cost(const Problem& p) {
  const int64_t again = read_again<SoftmaxSram>(p);
  KernelCost cost("softmax", p);
  cost.loads("S", p.S() + 2 * again, p.S()).stores("P", p.S(), p.S()).stores("LSE", p.L(), p.L());
  return again > 0 ? cost.moves_at_least() : cost;
}

inline std::vector<KernelCost> cost(const Problem& p) {
  return {scores_cost("scores", p, "Q", "K", "S"), softmax_cost(p), values_cost("values", p, "P", "V", "O")};
}

inline Step step() {
  return {.id = "step02",
          .title = "fused row softmax",
          .idea = "a block keeps its row of S in SRAM: S is read once, P written once",
          .chapter = "docs/02-fused-row-softmax.md",
          .tiles = tiles,
          .largest_head_dim = 256,
          .methods = {{.name = "forward", .scratch = scratch, .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::step02
