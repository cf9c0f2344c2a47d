// exercise04  online softmax                                                                           docs/exercises/README.md
//
// step04 without its online softmax: one pass over the keys, with a running maximum m and a running sum l.
//
//   make exercise04 && ./exercise04
#include "steps/step04_online_softmax.cu"  // all the rest

namespace attention::ATTN_DEVICE::exercise04 {

using step04::Sram, step04::cost, step04::tiles;

/// O = softmax(softmax_scale Q K^T) V and its LSE. A block owns Br queries and loops over the key tiles they see.
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
    __syncthreads();  // every warp is done with the last tiles
    load_tile<T::kThreads>({&sram.k, &sram.v}, {K.head(head), V.head(head)}, k0);
    __syncthreads();  // the tiles are complete
    Scores s(warp_row0);
    multiply_abt(s, sram.q, sram.k);
    mask.apply(s, q0, k0);
    float m_new[Scores::kRows];
    // TODO 1 of 3: m_new[i] = the largest of m[i] and the row's scores s(i, j); row_max<Scores>(m_new) joins the lanes of a row.
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) m_new[i] = m[i];
    // end of TODO 1
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) {
      const float base = finite(m_new[i]);
      // TODO 2 of 3: alpha = e^(softmax_scale (m - m_new)), as a power of two (scale has the factor) and with base for m_new. It
      // rescales what has been summed so far: o(i, j) here, l[i] below.
      const float alpha = 1;
      // end of TODO 2
      // TODO 3 of 3: s(i, j) becomes p = exp2_or_zero(scale * (s - base)); the tile's sum of p, in a variable of its own, joins the
      // rescaled l[i]; m[i] moves on.
      // end of TODO 3
    }
    multiply_ab(o, s, sram.p, sram.v);
  }

  store_o_and_lse(o, m, l, softmax_scale, O.head(head), LSE.head(head), q0);
}

inline void forward(const Problem& p, const Tensors& t) {
  with_tile(p, SweepTiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    launch("attention", attention<T>, p.heads_total() * ceil_div(p.seqlen_q, T::kBr), T::kThreads, sizeof(Sram<T>),
           Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale,
           query_rows<E>(p, Source{t.q, "Q"}), key_rows<E>(p, Source{t.k, "K"}), key_rows<E>(p, Source{t.v, "V"}),
           query_rows<E>(p, Target{t.o, "O"}), row_scalars(p, Target{t.lse, "LSE"}));
  });
}

inline Step step() {
  return {.id = "exercise04", .title = "online softmax", .idea = "step04 with the running maximum and sum left to you",
          .chapter = "docs/exercises/README.md", .tiles = tiles, .largest_head_dim = 64,
          .if_wrong = "fill in the TODOs of docs/exercises/exercise04_online_softmax.cu; docs/exercises/README.md says what each one asks for",
          .methods = {{.name = "forward", .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::exercise04
