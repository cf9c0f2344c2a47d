// step03  tiled SRAM                                                                           docs/03-tiled-sram.md
//
// S and P leave HBM for good: one kernel, whose blocks own Br queries and see the keys a tile at a time. A softmax
// needs its row's maximum before the first exponential, so pass 1 walks over the key tiles for the maximum alone, and
// pass 2 computes each tile of scores a second time to use it.
//
//      Q ─┐
//      K ─┴▶ [ s, maximum ]                pass 1, in SRAM and registers
//      K, V ▶ [ s, p, sum, O += p V ] ──▶ O, LSE      pass 2
//
//   HBM       4X + L elements: nothing N x N
//   executes  6 N^2 d FLOPs per head          extra memory  LSE
//
//   make step03 && ./step03
#include "common/step/step.h"
#include "common/tile/mask.h"
#include "common/tile/shapes.h"
#include "common/tile/softmax.h"
#include "common/tile/view.h"

namespace attention::ATTN_DEVICE::step03 {

template <class T>
struct Sram {
  typename T::Own q;
  typename T::Loop k, v;
  typename T::Staging p;
};

/// O = softmax(softmax_scale Q K^T) V and its LSE. A block owns Br queries and loops twice over the key tiles they see.
template <class T, class In = typename T::In, class Out = typename T::Out>
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
    __syncthreads();  // every warp is done with the last key tile
    load_tile<T::kThreads>(sram.k, K.head(head), k0);
    __syncthreads();  // the tiles are complete
    Scores s(warp_row0);
    multiply_abt(s, sram.q, sram.k);
    mask.apply(s, q0, k0);
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i)
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j) m[i] = fmaxf(m[i], s(i, j));
  }
  row_max<Scores>(m);

  for (int k0 = 0; k0 < keys_end; k0 += T::kBc) {
    __syncthreads();  // every warp is done with the last tiles
    load_tile<T::kThreads>({&sram.k, &sram.v}, {K.head(head), V.head(head)}, k0);
    __syncthreads();  // the tiles are complete
    Scores s(warp_row0);
    multiply_abt(s, sram.q, sram.k);
    mask.apply(s, q0, k0);
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) {
      const float base = finite(m[i]);
      float sum = 0;
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j) sum += s(i, j) = exp2_or_zero(scale * (s(i, j) - base));
      l[i] += sum;
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
  with_tile(p, ForwardTiles{}, [&](auto tile) { launch_attention<decltype(tile)>(p, t); });
}

/// K is asked for twice per visited tile (once a pass), V once. Three products: scores, scores again, P V.
inline std::vector<KernelCost> cost(const Problem& p) {
  const Visits visits = visits_by_query_blocks(p, p.tile.br, p.tile.bc);
  return {KernelCost("attention", p)
              .loads("Q", p.Xq(), p.Xq())
              .loads("K", 2 * visits.rows * p.row(), p.Xk())
              .loads("V", visits.rows * p.row(), p.Xk())
              .stores("O", p.Xq(), p.Xq())
              .stores("LSE", p.L(), p.L())
              .multiplies(visits, 3)};
}

inline std::vector<TileChoice> tiles(const Problem& p) {
  return tile_choices(p, ForwardTiles{}, [](auto t) { return sizeof(Sram<decltype(t)>); });
}

inline Step step() {
  return {.id = "step03",
          .title = "tiled SRAM",
          .idea = "one kernel; S and P live in SRAM a tile at a time; the scores are computed twice",
          .chapter = "docs/03-tiled-sram.md",
          .tiles = tiles,
          .largest_head_dim = 256,
          .methods = {{.name = "forward", .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::step03
