// step04  online softmax                                                                    docs/04-online-softmax.md
//
// Pass 1 disappears. Each row keeps a running maximum m and a running sum l; when a key tile brings a larger maximum,
// what has been summed so far is scaled down by alpha = exp(m - m_new). The same numbers as before, in one pass.
//
//      Q ─┐
//      K, V ▶ [ s, m grows: l, O *= alpha, p, sum, O += p V ] ──▶ O, LSE      in SRAM and registers
//
//   HBM       4X + L elements: nothing N x N
//   executes  4 N^2 d FLOPs per head          extra memory  LSE
//
//   make step04 && ./step04
#include "common/step/step.h"
#include "common/tile/mask.h"
#include "common/tile/shapes.h"
#include "common/tile/softmax.h"
#include "common/tile/view.h"

namespace attention::ATTN_DEVICE::step04 {

template <class T>
struct Sram {
  typename T::Own q;
  typename T::Loop k, v;
  typename T::Staging p;
};

/// O = softmax(softmax_scale Q K^T) V and its LSE. A block owns Br queries and loops over the key tiles they see.
/// (step09 hands the kernel a mask and views of its own.)
template <class T, class Mask = attention::Mask, class In = typename T::In, class Out = typename T::Out>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    attention(Mask mask, float softmax_scale,
              In Q,                 // [heads, seqlen_q, head_dim]
              In K,                 // [heads, seqlen_k, head_dim]
              In V,                 // [heads, seqlen_k, head_dim]
              Out O,                // [heads, seqlen_q, head_dim]
              Global<float> LSE) {  // [heads, 1, seqlen_q]
  using Scores = typename T::Scores;
  auto& sram = dynamic_sram<Sram<T>>();
  const auto [head, q0] = mask.place_of_block(T::kBr);
  const int keys_end = mask.keys_end(q0 + T::kBr);
  const int warp_row0 = threadIdx.x / 32 * T::kWarpRows;
  const float scale = kLog2e * softmax_scale;  // e^(softmax_scale x) = 2^(scale x); s and m stay unscaled

  load_tile<T::kThreads>(sram.q, Q.head(head), q0);
  typename T::Output o(warp_row0);
  float m[Scores::kRows], l[Scores::kRows];
  ATTN_UNROLL for (int i = 0; i < Scores::kRows; ++i) m[i] = -INFINITY, l[i] = 0;

  for (int k0 = 0; k0 < keys_end; k0 += T::kBc) {
    __syncthreads();  // every warp is done with the last tiles
    load_tile<T::kThreads>({&sram.k, &sram.v}, {K.head(head), V.head(head)}, k0);
    __syncthreads();  // the tiles are complete
    Scores s(warp_row0);
    multiply_abt(s, sram.q, sram.k);
    mask.apply(s, q0, k0);
    float m_new[Scores::kRows];
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) {
      m_new[i] = m[i];
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j) m_new[i] = fmaxf(m_new[i], s(i, j));
    }
    row_max<Scores>(m_new);
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) {
      const float base = finite(m_new[i]);
      const float alpha = exp2_or_zero(scale * (m[i] - base));
      if (m_new[i] > m[i])  // alpha is 1 where the maximum stays, in most tiles
        ATTN_UNROLL for (int j = 0; j < o.kCols; ++j) o(i, j) *= alpha;
      float sum = 0;
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j) sum += s(i, j) = exp2_or_zero(scale * (s(i, j) - base));
      l[i] = alpha * l[i] + sum;
      m[i] = m_new[i];
    }
    multiply_ab(o, s, sram.p, sram.v);
  }

  store_o_and_lse(o, m, l, softmax_scale, O.head(head), LSE.head(head), q0);
}

template <class T>
void launch_attention(const Problem& p, const Tensors& t) {
  using E = typename T::Element;
  launch("attention", attention<T>, p.heads_total() * ceil_div(p.seqlen_q, T::kBr), T::kThreads, sizeof(Sram<T>),
         Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, query_rows<E>(p, Source{t.q, "Q"}),
         key_rows<E>(p, Source{t.k, "K"}), key_rows<E>(p, Source{t.v, "V"}), query_rows<E>(p, Target{t.o, "O"}),
         row_scalars(p, Target{t.lse, "LSE"}));
}

inline void forward(const Problem& p, const Tensors& t) {
  with_tile(p, SweepTiles{}, [&](auto tile) { launch_attention<decltype(tile)>(p, t); });
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
  return tile_choices(p, SweepTiles{}, [](auto t) { return sizeof(Sram<decltype(t)>); });
}

inline Step step() {
  return {.id = "step04",
          .title = "online softmax",
          .idea = "one pass: a running maximum and sum, O rescaled when the maximum grows",
          .chapter = "docs/04-online-softmax.md",
          .tiles = tiles,
          .largest_head_dim = 256,
          .methods = {{.name = "forward", .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::step04
