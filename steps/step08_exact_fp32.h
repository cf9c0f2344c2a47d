// step08 in fp32, exact. A tensor core multiplies numbers of 11 bits, so each number is the sum of two of them, hi + lo
// (common/tile/split_product.h), and a product of numbers is three of parts:
//
//      HBM  Q, K, V ──▶ split_rows ──▶ hi │ lo ┄┄▶ ring, each place for both parts
//      s = Q lo K hi + Q hi K lo + Q hi K hi       in two or three pieces, each in accumulators of its own
//      t = p hi V lo + p lo V hi + p hi V hi       p is split in registers; o = alpha o + t
//
// No sum stays in the tensor cores for long, since they cut off digits. Q, K and V are split once, by a kernel of its
// own, and not by every block that meets them. A warpgroup waits for its products; the others' run meanwhile, and taking
// turns gains nothing here.
#pragma once

#include "common/step/step.h"
#include "common/tile/split_warpgroup.h"
#include "common/tile/view.h"

namespace attention::ATTN_DEVICE::step08 {

constexpr int kStages = 2;

// ---- the parts ------------------------------------------------------------------------------------------------------

constexpr int kSplitRows = 64, kSplitThreads = 256;

template <int D>
struct SplitSram {
  SplitTile<kSplitRows, D> tile;
};

/// X in two parts. Every 64 rows have a power of two of their own, by which they are multiplied.
template <int D>
__global__ void __launch_bounds__(kSplitThreads)
    split_rows(Global<const float> X,    // [heads, rows, D]
               Global<half> parts,       // [heads, rows, 2 D]: all hi of a row, then all lo
               Global<float> unscale) {  // [heads, 1, rows / 64]: what undoes the power of two
  auto& sram = dynamic_sram<SplitSram<D>>();
  const auto [head, row0] = Order::of_grid(unscale.cols).ascending(static_cast<int>(blockIdx.x), kSplitRows);
  load_tile<kSplitThreads>(sram.tile, X.head(head), row0);
  __syncthreads();  // the tile is complete
  if (threadIdx.x == 0) unscale.head(head).store(0, row0 / kSplitRows, sram.tile.unscale());
  ATTN_UNROLL for (int n = threadIdx.x; n < kSplitRows * 2 * D / 8; n += kSplitThreads) {
    const int row = n / (2 * D / 8), col = n % (2 * D / 8) * 8;
    float x[8];
    sram.tile.part.load_run(row, col, x);
    if (row0 + row < X.rows) parts.head(head).template store_run<8>(row0 + row, col, x);
  }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

template <class T>
struct ExactSram {
  SwizzledTile<half, T::kBr, 2 * T::kHeadDim> q;  // hi and lo, as in k and v
  SwizzledTile<half, T::kBc, 2 * T::kHeadDim> k[kStages], v[kStages];
  Barrier q_full, k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
  float k_unscale[kStages], v_unscale[kStages];
};

/// O = softmax(softmax_scale Q K^T) V and its LSE, from parts of Q, K and V. A block owns Br queries, each of its
/// consumer warpgroups 64.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    exact_attention(Mask mask, float softmax_scale,
                    const __grid_constant__ TensorMap Q,  // [heads, seqlen_q, 2 head_dim], hi and lo
                    const __grid_constant__ TensorMap K,  // [heads, seqlen_k, 2 head_dim]
                    const __grid_constant__ TensorMap V,  // [heads, seqlen_k, 2 head_dim]
                    Global<const float> unscale_q,        // [heads, 1, seqlen_q / 64]
                    Global<const float> unscale_k,        // [heads, 1, seqlen_k / 64]
                    Global<const float> unscale_v,        // [heads, 1, seqlen_k / 64]
                    Global<float> O,                      // [heads, seqlen_q, head_dim]
                    Global<float> LSE) {                  // [heads, 1, seqlen_q]
  constexpr int kConsumers = T::kBr / 64, kProducerRegisters = 24, kConsumerRegisters = kConsumers == 2 ? 240 : 160;
  constexpr int kLaunchRegisters = 65536 / T::kThreads / 8 * 8;  // of a thread; those of an SM are 65536
  constexpr int kSteps = T::kHeadDim / 16, kPanels = T::kHeadDim / kPanelColumns;
  constexpr int kPiece = (kSteps + kPanels) / (1 + kPanels);  // of the sum over head_dim, in s and in each of t
  static_assert(T::kBc == kSplitRows && T::kThreads == 128 * (1 + kConsumers));
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * kLaunchRegisters);
  static_assert(sizeof(ExactSram<T>) <= 227 * 1024);
  auto& sram = aligned_sram<ExactSram<T>>();
  const auto [head, q0] = mask.place_of_block(T::kBr);
  const int tiles = key_tiles(mask, q0 + T::kBr, T::kBc);
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    sram.q_full.init(1);
    for (int i = 0; i < kStages; ++i) {
      sram.k_full[i].init(1), sram.v_full[i].init(1);
      sram.k_empty[i].init(4 * kConsumers), sram.v_empty[i].init(4 * kConsumers);
    }
    barriers_are_ready();
  }
  __syncthreads();  // the barriers are there

  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      Ring<kStages> ring;
      copy_tile(sram.q, Q, q0, head, sram.q_full);
      for (int j = 0; j < tiles; ++j, ring.next()) {
        const float k_unscale = unscale_k.head(head).load(0, j), v_unscale = unscale_v.head(head).load(0, j);
        sram.k_empty[ring.stage].wait(ring.parity ^ 1);
        sram.k_unscale[ring.stage] = k_unscale;  // who sees the tile complete sees this too
        copy_tile(sram.k[ring.stage], K, j * T::kBc, head, sram.k_full[ring.stage]);
        sram.v_empty[ring.stage].wait(ring.parity ^ 1);
        sram.v_unscale[ring.stage] = v_unscale;
        copy_tile(sram.v[ring.stage], V, j * T::kBc, head, sram.v_full[ring.stage]);
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    const int me = warpgroup - 1, warp_row = threadIdx.x / 32 * 16 - 64;
    const bool first_lane = threadIdx.x % 32 == 0;      // of its warp
    const float scale = kLog2e * softmax_scale;         // e^(softmax_scale x) = 2^(scale x); m stays unscaled
    const int all_see = mask.keys_seen(q0 + warp_row);  // keys before this one are seen by every row of the warp
    const float q_unscale = unscale_q.head(head).load(0, min(q0 / 64 + me, static_cast<int>(unscale_q.cols) - 1));
    Ring<kStages> ring;
    sram.q_full.wait(0);

    float o[kPanels][32] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    ATTN_UNROLL_1 for (int j = 0; j < tiles; ++j, ring.next()) {
      float s[32], t[kPanels][32], alpha[2];
      uint32_t hi[4][4], lo[4][4];
      sram.k_full[ring.stage].wait(ring.parity);
      const float s_unscale = q_unscale * sram.k_unscale[ring.stage];
      begin_products();
      start_split_abt(s, sram.q, me * 64, sram.k[ring.stage], 0, kPiece);
      ATTN_UNROLL for (int n = 0; n < kPanels; ++n)
        start_split_abt(t[n], sram.q, me * 64, sram.k[ring.stage], (n + 1) * kPiece, min((n + 2) * kPiece, kSteps));
      wait_products<0>();
      fence_registers(s);
      fence_panels(t);
      if (first_lane) sram.k_empty[ring.stage].arrive();

      ATTN_UNROLL for (int panel = 0; panel < kPanels; ++panel)
        ATTN_UNROLL for (int n = 0; n < 32; ++n) s[n] += t[panel][n];
      if ((j + 1) * T::kBc > all_see) mask.apply_on_edge(SumsView(s), q0 + warp_row, j * T::kBc);
      online_softmax_of_parts(s, m, l, alpha, scale, s_unscale);
      split_weights(hi, lo, s);

      sram.v_full[ring.stage].wait(ring.parity);
      const float v_unscale = sram.v_unscale[ring.stage] / kWeightScale;
      begin_products();
      start_split_ab(t, hi, lo, sram.v[ring.stage]);
      wait_products<0>();
      fence_panels(t);
      fence_registers(hi);
      fence_registers(lo);
      if (first_lane) sram.v_empty[ring.stage].arrive();
      scale_and_add(o, alpha, t, v_unscale);
    }
    store_exact_o_and_lse(o, m, l, softmax_scale, O.head(head), LSE.head(head), q0 + warp_row);
  }
}

// ---- launches -------------------------------------------------------------------------------------------------------

using ExactTiles =
    TileList<Tile<Split<AtMostOne>, 192, 64, 64, 16, 4, 1>, Tile<Split<AtMostOne>, 128, 64, 128, 12, 4, 1>>;

inline int64_t tiles_of(int64_t rows) { return ceil_div(rows, kSplitRows); }

inline void exact_forward(const Problem& p, const Tensors& t) {
  with_tile(p, ExactTiles{}, [&](auto tile) {
    using T = decltype(tile);
    constexpr int D = T::kHeadDim;
    const int64_t heads = p.heads_total();
    struct Parts {
      TensorMap map;
      Global<const float> unscale;
    };
    const auto split =
        [&](const void* x, const char* name, const char* parts, const char* unscale, int64_t rows, int box) {
          launch("split", split_rows<D>, heads * tiles_of(rows), kSplitThreads, sizeof(SplitSram<D>),
                 view<float>(Source{x, name}, heads, rows, D),
                 view<half>(Target{t.scratch(parts), parts}, heads, rows, 2 * D),
                 view<float>(Target{t.scratch(unscale), unscale}, heads, 1, tiles_of(rows)));
          return Parts{tensor_map<half>(t.scratch(parts), parts, heads, rows, 2 * D, box, 2 * D / kPanelColumns),
                       view<float>(Source{t.scratch(unscale), unscale}, heads, 1, tiles_of(rows))};
        };
    const Parts q = split(t.q, "Q", "Q parts", "Q scales", p.seqlen_q, T::kBr),
                k = split(t.k, "K", "K parts", "K scales", p.seqlen_k, T::kBc),
                v = split(t.v, "V", "V parts", "V scales", p.seqlen_k, T::kBc);
    launch("attention", exact_attention<T>, heads * ceil_div(p.seqlen_q, T::kBr), T::kThreads, sizeof(ExactSram<T>),
           Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, q.map, k.map, v.map, q.unscale, k.unscale,
           v.unscale, query_rows<float>(p, Target{t.o, "O"}), row_scalars(p, Target{t.lse, "LSE"}));
  });
}

inline std::vector<Scratch> exact_scratch(const Problem& p) {
  std::vector<Scratch> list;
  const auto add = [&](const std::string& tensor, int64_t rows) {
    list.push_back({.name = tensor + " parts", .bytes = p.row() * rows * 4, .handed_on = true});
    list.push_back({.name = tensor + " scales", .bytes = p.heads_total() * tiles_of(rows) * 4, .handed_on = true});
  };
  add("Q", p.seqlen_q), add("K", p.seqlen_k), add("V", p.seqlen_k);
  return list;
}

/// Two parts of a number take its 4 bytes. Each consumer lane reads its warpgroup's scale of Q, one thread those of K
/// and V.
inline std::vector<KernelCost> exact_cost(const Problem& p) {
  const Visits visits = visits_by_query_blocks(p, p.tile.br, p.tile.bc, 1);
  const int64_t heads = p.heads_total(), lanes = heads * visits.blocks * p.tile.br * 2;
  std::vector<KernelCost> kernels;
  const auto split = [&](const std::string& tensor, int64_t rows) {
    kernels.push_back(KernelCost("split", p)
                          .loads(tensor, p.row() * rows, p.row() * rows)
                          .stores(tensor + " parts", p.row() * rows, p.row() * rows)
                          .stores(tensor + " scales", heads * tiles_of(rows), heads * tiles_of(rows)));
  };
  split("Q", p.seqlen_q), split("K", p.seqlen_k), split("V", p.seqlen_k);
  KernelCost attention("attention", p);
  attention.loads("Q parts", p.Xq(), p.Xq()).loads("Q scales", lanes, heads * tiles_of(p.seqlen_q));
  for (const std::string tensor : {"K", "V"})
    attention.loads(tensor + " parts", visits.rows * p.row(), p.Xk())
        .loads(tensor + " scales", heads * visits.tiles, heads * tiles_of(p.seqlen_k));
  kernels.push_back(attention.stores("O", p.Xq(), p.Xq())
                        .stores("LSE", p.L(), p.L())
                        .multiplies(visits, 2)
                        .by_copy_engine()
                        .by_warpgroups());
  return kernels;
}

inline std::vector<TileChoice> exact_tiles(const Problem& p) {
  return tile_choices(p, ExactTiles{}, [](auto t) { return sizeof(ExactSram<decltype(t)>); });
}

}  // namespace attention::ATTN_DEVICE::step08
