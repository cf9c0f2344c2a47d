// playground  your own kernel                                                                          docs/playground.md
//
// A kernel to begin with: right, short and slow. A thread owns a query row, keeps q and O in registers, and reads K and
// V from HBM for itself alone, a key at a time. Change it, or write another: the harness checks it, counts its bytes
// and sets it beside step04.
//
//      Q, K, V ──▶ [ s, m grows: l, O *= alpha, p, O += p V ] ──▶ O, LSE      a row in the registers of a thread
//
//   make playground && ./playground
#include "common/step/step.h"
#include "common/tile/mask.h"
#include "common/tile/shapes.h"
#include "common/tile/softmax.h"
#include "common/tile/view.h"

namespace attention::ATTN_DEVICE::playground {

constexpr int kThreads = 128, kKeys = 32,
              kHeadDim = 64;  // query rows of a block, keys per partial sum, the largest head_dim

/// O = softmax(softmax_scale Q K^T) V and its LSE. `LSE` is one line for all heads, so LSE.cols is the number of query
/// rows.
template <class E>
__global__ void attention(Mask mask, float softmax_scale, Global<const E> Q, Global<const E> K, Global<const E> V,
                          Global<E> O, Global<float> LSE) {
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= LSE.cols) return;
  const int64_t head = n / mask.seqlen_q, row = n % mask.seqlen_q;
  const int keys_end = mask.keys_end(static_cast<int>(row) + 1);  // this row sees the keys before it
  const float scale = kLog2e * softmax_scale;

  float q[kHeadDim], o[kHeadDim], m = -INFINITY, l = 0;
  ATTN_UNROLL for (int c = 0; c < kHeadDim; ++c) q[c] = c < Q.cols ? Q.head(head).load(row, c) : 0, o[c] = 0;

  for (int k0 = 0; k0 < keys_end; k0 += kKeys) {
    const int k_end = k0 + kKeys < keys_end ? k0 + kKeys : keys_end;
    float pv[kHeadDim] = {}, sum = 0,
          rescale = 1;  // of these keys alone: one chain of additions over all keys would not hold 1e-6
    for (int j = k0; j < k_end; ++j) {
      float s = 0;
      ATTN_UNROLL for (int c = 0; c < kHeadDim; ++c)
        if (c < Q.cols) s += q[c] * K.head(head).load(j, c);
      const float m_new = fmaxf(m, s), alpha = exp2_or_zero(scale * (m - m_new)), p = exp2_or_zero(scale * (s - m_new));
      ATTN_UNROLL for (int c = 0; c < kHeadDim; ++c)
        if (c < Q.cols) pv[c] = alpha * pv[c] + p * V.head(head).load(j, c);
      sum = alpha * sum + p;
      rescale *= alpha;
      m = m_new;
    }
    ATTN_UNROLL for (int c = 0; c < kHeadDim; ++c) o[c] = rescale * o[c] + pv[c];
    l = rescale * l + sum;
    count_flops(4 * (k_end - k0));  // per dimension: q k and p v. The executor holds it against cost()
  }

  const float inverse = l > 0 ? 1 / l : 0;  // a row that sees no key: O = 0, LSE = -inf
  ATTN_UNROLL for (int c = 0; c < kHeadDim; ++c)
    if (c < Q.cols) O.head(head).store(row, c, o[c] * inverse);
  LSE.store(0, n, softmax_scale * m + logf(l));
}

inline void forward(const Problem& p, const Tensors& t) {
  with_element(p, [&](auto element) {
    using E = decltype(element);
    launch("attention", attention<E>, ceil_div(p.L(), kThreads), kThreads, 0, Mask{p.seqlen_q, p.seqlen_k, p.causal},
           p.softmax_scale, query_rows<E>(p, Source{t.q, "Q"}), key_rows<E>(p, Source{t.k, "K"}),
           key_rows<E>(p, Source{t.v, "V"}), query_rows<E>(p, Target{t.o, "O"}),
           all_row_scalars(p, Target{t.lse, "LSE"}));
  });
}

/// K and V are asked for once per query row, as far as it sees them: blocks of 1 row, tiles of 1 key. Two products:
/// scores, P V.
inline std::vector<KernelCost> cost(const Problem& p) {
  const Visits visits = visits_by_query_blocks(p, 1, 1);
  return {KernelCost("attention", p)
              .loads("Q", p.Xq(), p.Xq())
              .loads({"K", "V"}, visits.rows * p.row(), p.Xk())
              .stores("O", p.Xq(), p.Xq())
              .stores("LSE", p.L(), p.L())
              .multiplies(visits, 2)};
}

/// The one tile: 128 query rows of a block, 32 keys to a partial sum, no SRAM.
inline std::vector<TileChoice> tiles(const Problem&) { return {{{kThreads, kKeys}, 0}}; }

inline Step step() {
  return {.id = "playground",
          .title = "your own kernel",
          .idea = "a thread owns a query row; replace it by your own idea",
          .chapter = "docs/playground.md",
          .tiles = tiles,
          .largest_head_dim = kHeadDim,
          .methods = {{.name = "forward", .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::playground
