// exercise03  tiled SRAM                                                                               docs/exercises/README.md
//
// step03 without its softmax. Pass 1 finds the maximum of each row, pass 2 computes the scores again and uses it.
//
//   make exercise03 && ./exercise03
#include "steps/step03_tiled_sram.cu"  // all the rest

namespace attention::ATTN_DEVICE::exercise03 {

using step03::Sram, step03::cost, step03::tiles;

/// O = softmax(softmax_scale Q K^T) V and its LSE. A block owns Br queries and loops over the key tiles they see, twice.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) attention(
    Mask mask,
    float softmax_scale,
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
    // TODO 1 of 4: m[i] = the largest s(i, j) so far. This lane has s.kRows x s.kCols of the scores.
    // end of TODO 1
  }
  // TODO 2 of 4: each lane knows the maxima of its own columns: row_max<Scores>(m) joins the lanes of a row.
  // end of TODO 2

  for (int k0 = 0; k0 < keys_end; k0 += T::kBc) {
    __syncthreads();  // every warp is done with the last tiles
    load_tile<T::kThreads>({&sram.k, &sram.v}, {K.head(head), V.head(head)}, k0);
    __syncthreads();  // the tiles are complete
    Scores s(warp_row0);
    multiply_abt(s, sram.q, sram.k);
    mask.apply(s, q0, k0);
    // TODO 3 of 4: s(i, j) becomes p = e^(softmax_scale (s - m)) = exp2_or_zero(scale * (s - m)), and l[i] grows by the row's sum.
    // Where m[i] is -INFINITY, the row sees no key: subtract 0, not m.
    // end of TODO 3
    // TODO 4 of 4: O += P V. s is P now; multiply_ab(o, s, sram.p, sram.v) multiplies it with the tile of V.
    // end of TODO 4
  }

  store_o_and_lse(o, m, l, softmax_scale, O.head(head), LSE.head(head), q0);
}

inline void forward(const Problem& p, const Tensors& t) {
  with_tile(p, ForwardTiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    launch("attention", attention<T>, p.heads_total() * ceil_div(p.seqlen_q, T::kBr), T::kThreads, sizeof(Sram<T>),
           Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale,
           query_rows<E>(p, Source{t.q, "Q"}), key_rows<E>(p, Source{t.k, "K"}), key_rows<E>(p, Source{t.v, "V"}),
           query_rows<E>(p, Target{t.o, "O"}), row_scalars(p, Target{t.lse, "LSE"}));
  });
}

inline Step step() {
  return {.id = "exercise03", .title = "tiled SRAM", .idea = "step03 with the softmax left to you",
          .chapter = "docs/exercises/README.md", .tiles = tiles, .largest_head_dim = 64,
          .if_wrong = "fill in the TODOs of docs/exercises/exercise03_tiled_sram.cu; docs/exercises/README.md says what each one asks for",
          .methods = {{.name = "forward", .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::exercise03
