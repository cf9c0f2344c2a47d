// step06  asynchronous pipeline                                                        docs/06-asynchronous-pipeline.md
//
// The algorithm is step04's; what changes is who waits for what. Tiles travel by asynchronous copies while the tensor
// cores work: V during the scores, the next K during the softmax and P V. And since exponentials no longer hide behind
// loads, the softmax between the two products gets shorter.
//
//      copies     Q, K ┄┄▶│ V ┄┄┄┄┄┄┄┄┄┄▶│ next K ┄┄┄┄┄┄┄┄┄┄┄┄┄▶│ V ┄┄
//      products           │ s = Q K^T     │ p = 2^(..),  O += p V │ s = Q K^T     │ ...       │ = wait, __syncthreads
//
//   HBM       4X + L elements, as step04
//   executes  4 N^2 d FLOPs per head          extra memory  LSE
//
//   make step06 && ./step06
#include "common/step/step.h"
#include "common/tile/mask.h"
#include "common/tile/shapes.h"
#include "common/tile/softmax.h"
#include "common/tile/view.h"

namespace attention::ATTN_DEVICE::step06 {

template <class T>
struct Sram {
  typename T::Own q;
  typename T::Loop k, v;
  typename T::Staging p;
};

constexpr float kMostBehind = 8;  // weights may grow to 2^8 before m follows: fp16 ends at 65504, and sums are fp32

/// O = softmax(softmax_scale Q K^T) V and its LSE. A block owns Br queries and loops over the key tiles they see.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    attention(Mask mask, float softmax_scale,
              typename T::In Q,     // [heads, seqlen_q, head_dim]
              typename T::In K,     // [heads, seqlen_k, head_dim]
              typename T::In V,     // [heads, seqlen_k, head_dim]
              typename T::Out O,    // [heads, seqlen_q, head_dim]
              Global<float> LSE) {  // [heads, 1, seqlen_q]
  using Scores = typename T::Scores;
  auto& sram = dynamic_sram<Sram<T>>();
  const auto [head, q0] = mask.place_of_block(T::kBr);
  const int keys_end = mask.keys_end(q0 + T::kBr);
  const int warp_row0 = threadIdx.x / 32 * T::kWarpRows;
  const int all_see = mask.keys_end(q0 + warp_row0 + 1);  // keys before this one are seen by every row of the warp
  const float scale = kLog2e * softmax_scale;             // e^(softmax_scale x) = 2^(scale x); s and m stay unscaled
  const float slack = kMostBehind / scale;

  load_tile_async<T::kThreads>(sram.q, Q.head(head), q0);
  if (keys_end > 0) load_tile_async<T::kThreads>(sram.k, K.head(head), 0);
  commit_copies();
  typename T::Output o(warp_row0);
  float m[Scores::kRows], l[Scores::kRows];
  ATTN_UNROLL for (int i = 0; i < Scores::kRows; ++i) m[i] = -INFINITY, l[i] = 0;

  for (int k0 = 0; k0 < keys_end; k0 += T::kBc) {
    wait_copies<0>();
    __syncthreads();  // K is complete (and Q), and every warp is done with the last V
    load_tile_async<T::kThreads>(sram.v, V.head(head), k0);
    commit_copies();
    Scores s(warp_row0);
    multiply_abt(s, sram.q, sram.k);
    if (k0 + T::kBc > all_see) mask.apply_on_edge(s, q0, k0);

    wait_copies<0>();
    __syncthreads();  // V is complete, and every warp is done with K
    if (k0 + T::kBc < keys_end) load_tile_async<T::kThreads>(sram.k, K.head(head), k0 + T::kBc);
    commit_copies();

    float m_new[Scores::kRows];
    bool behind = false;
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) {
      m_new[i] = m[i];
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j) m_new[i] = fmaxf(m_new[i], s(i, j));
      behind |= m_new[i] > m[i] + slack;
    }
    if (__any_sync(kAllLanes, behind)) {  // rarely: m need not be the maximum, only near enough
      row_max<Scores>(m_new);
      ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) {
        const float base = finite(m_new[i]), by = row_scale(__fmul_rn(scale, base), scale);
        const float alpha = exp2_or_zero(__fmul_rn(by, m[i]) - __fmul_rn(by, base));  // rounded as the shifts below are
        ATTN_UNROLL for (int j = 0; j < o.kCols; ++j) o(i, j) *= alpha;
        l[i] *= alpha;
        m[i] = m_new[i];
      }
    }
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) {
      const float base = finite(m[i]);
      const float by = row_scale(__fmul_rn(scale, base), scale);  // scale, but in rows of huge scores
      const float shift = __fmul_rn(by, base);  // its rounding is a factor of all weights and of l: it cancels in O
      float sum = 0;
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j) sum += s(i, j) = exp2_or_zero(fmaf(by, s(i, j), -shift));
      l[i] += sum;
    }
    multiply_ab(o, s, sram.p, sram.v);
  }
  wait_copies<0>();  // Q, where no key is seen: a block must not end while its copies travel

  store_o_and_lse(o, m, l, softmax_scale, O.head(head), LSE.head(head), q0);
}

inline void forward(const Problem& p, const Tensors& t) {
  with_tile(p, AsyncTiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    launch("attention", attention<T>, p.heads_total() * ceil_div(p.seqlen_q, T::kBr), T::kThreads, sizeof(Sram<T>),
           Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, query_rows<E>(p, Source{t.q, "Q"}),
           key_rows<E>(p, Source{t.k, "K"}), key_rows<E>(p, Source{t.v, "V"}), query_rows<E>(p, Target{t.o, "O"}),
           row_scalars(p, Target{t.lse, "LSE"}));
  });
}

/// K and V are asked for once per visited tile. Two products: scores, P V.
inline std::vector<KernelCost> cost(const Problem& p) {
  const Visits visits = visits_by_query_blocks(p, p.tile.br, p.tile.bc);
  return {KernelCost("attention", p)
              .loads("Q", p.Xq(), p.Xq())
              .loads({"K", "V"}, visits.rows * p.row(), p.Xk())
              .stores("O", p.Xq(), p.Xq())
              .stores("LSE", p.L(), p.L())
              .multiplies(visits, 2)};
}

inline std::vector<TileChoice> tiles(const Problem& p) {
  return tile_choices(p, AsyncTiles{}, [](auto t) { return sizeof(Sram<decltype(t)>); });
}

inline std::string refusal(const Problem& p) {
  if (p.dtype == Dtype::fp32) return kForHalfAlone;
  if (p.compute_capability != 0 && p.compute_capability < 80)
    return "needs a GPU of compute capability 8.0 or newer, which copies asynchronously, this one has " +
           capability_name(p.compute_capability) + "; step04 is the same algorithm without that";
  if (p.head_dim % 8 != 0)
    return "takes head_dim 8, 16, 24 and so on to 256, not " + std::to_string(p.head_dim) +
           ": a copy is 16 bytes of one row; step04 takes any";
  return "";
}

inline Step step() {
  return {.id = "step06",
          .title = "asynchronous pipeline",
          .idea = "tiles travel while the tensor cores work, and the softmax in between is shorter",
          .chapter = "docs/06-asynchronous-pipeline.md",
          .before = "step04",
          .tiles = tiles,
          .largest_head_dim = 256,
          .default_dtype = Dtype::fp16,
          .refusal = refusal,
          .methods = {{.name = "forward", .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::step06
