// step11  Hopper, backward                                                             docs/11-hopper-backward.md
//
// step10 on Hopper's engines. A block owns 128 keys, each of its two warpgroups 64, and walks over the query tiles that a producer
// brings. Each warpgroup runs five products per tile; what keeps the tensor cores busy is their order, and whose turn it is.
//
//      producer      Q, LSE, dO, delta ┄┄▶ two places each
//      warpgroup 1   dP  │ P = 2^(S..), dS = P∘(dP - delta) ─▶ SRAM │ dV += P dO, dK += dS Q, dQ = dS K │ next S │ dQ ─▶ HBM
//      warpgroup 2       dV, dK, dQ, next S                         │ P, dS                             │ its turn ...
//
//   HBM       10X + 4L elements, and dQ in fp32 once more: cleared, added to, read
//   executes  10 N^2 d FLOPs per head          extra memory  LSE, delta, dQ in fp32
//
//   make step11 && ./step11          (a Hopper GPU; --no-turns, --no-ahead show what each is worth)
#include "common/step/step.h"
#include "common/tile/view.h"
#include "common/tile/warpgroup.h"

namespace attention::ATTN_DEVICE::step11 {

constexpr int kStages = 2, kConsumers = 2;
constexpr int kPiece = 64 * 64;  // dQ of a tile is two pieces of 64 queries by 64 columns, one of each warpgroup

// ---- what is of one row ------------------------------------------------------------------------------------------------------

/// delta = row sum of O ∘ dO, LSE in powers of two, dQ = 0. D / 8 lanes own a row. Rows past the last query of a head, which fill its last
/// tile, get LSE = inf: their weights are 2^-inf = 0, and so are those of a row that sees no key.
template <class E, int D>
__global__ void rows_backward(
    Global<const E> O,          // [heads, seqlen_q, head_dim]
    Global<const E> dO,         // [heads, seqlen_q, head_dim]
    Global<const float> LSE,    // [heads, 1, seqlen_q]
    Global<float> lse2,         // [heads, 1, rows]: seqlen_q and what fills the last tile
    Global<float> delta,        // [heads, 1, rows]
    Global<float> dQ_sums) {    // [heads, rows, head_dim], in the order of its adders
  constexpr int kLanes = D / 8;
  const int rows = static_cast<int>(lse2.cols), per_block = blockDim.x / kLanes, blocks = rows / per_block;
  const int head = blockIdx.x / blocks, row = blockIdx.x % blocks * per_block + threadIdx.x / kLanes, col = threadIdx.x % kLanes * 8;
  const bool inside = row < static_cast<int>(O.rows);
  const float4 o = O.head(head).load_vector_if(inside, row, col), d_o = dO.head(head).load_vector_if(inside, row, col);
  float sum[1] = {};
  ATTN_UNROLL for (int n = 0; n < 4; ++n) {
    const float2 x = unpack<E>(reinterpret_cast<const uint32_t*>(&o)[n]), y = unpack<E>(reinterpret_cast<const uint32_t*>(&d_o)[n]);
    sum[0] += x.x * y.x + x.y * y.y;
  }
  lanes_sum<kLanes>(sum);
  const float zeros[4] = {};
  ATTN_UNROLL for (int n = 0; n < 2; ++n) dQ_sums.head(head).template store_run<4>(row, col + 4 * n, zeros);
  if (col == 0) {
    const float lse = inside ? LSE.head(head).load(0, row) : -INFINITY;
    lse2.head(head).store(0, row, lse == -INFINITY ? INFINITY : kLog2e * lse);
    delta.head(head).store(0, row, sum[0]);
  }
}

/// dQ = softmax_scale dQ_sums in the tensor's type and order. A thread takes 16 sums: what four lanes of a warpgroup added in one go, two
/// rows of eight columns.
template <class E, int Bc, int D>
__global__ void convert_dq(
    float softmax_scale,
    Global<const float> dQ_sums,  // [heads, rows, head_dim], in the order of its adders
    Global<E> dQ) {               // [heads, seqlen_q, head_dim]
  const int per_head = static_cast<int>(dQ_sums.rows) * D / 16;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int head = static_cast<int>(thread / per_head), n = static_cast<int>(thread % per_head);
  const int quad = n % 32, columns = n / 32 % 8 * 8, piece = n / (kPiece / 16) % 2, q0 = n / (kPiece / 8) * Bc;
  const int row = q0 + quad / 8 * 16 + quad % 8 + (D == 64 ? piece * 64 : 0), col = columns + (D == 64 ? 0 : piece * 64);
  float out[2][8];
  ATTN_UNROLL for (int lane = 0; lane < 4; ++lane) {
    const int64_t at = int64_t{n} * 16 + lane * 4;
    const float4 x = dQ_sums.head(head).load_vector_if(true, at / D, at % D);
    out[0][2 * lane] = softmax_scale * x.x, out[0][2 * lane + 1] = softmax_scale * x.y;
    out[1][2 * lane] = softmax_scale * x.z, out[1][2 * lane + 1] = softmax_scale * x.w;
  }
  ATTN_UNROLL for (int i = 0; i < 2; ++i)
    if (row + 8 * i < static_cast<int>(dQ.rows)) dQ.head(head).template store_run<8>(row + 8 * i, col, out[i]);
}

// ---- the five products -------------------------------------------------------------------------------------------------------

template <class T>
struct Sram {
  using E = typename T::Element;
  SwizzledTile<E, T::kBr, T::kHeadDim> k, v;
  SwizzledTile<E, T::kBc, T::kHeadDim> q[kStages], d_o[kStages];
  SwizzledTile<E, T::kBr, T::kBc> ds[kStages];  // dS^T: rows are keys
#ifdef DQ_BULK
  alignas(128) float dq[2][kPiece];
#endif
  alignas(16) float lse[kStages][T::kBc], delta[kStages][T::kBc];
  Barrier k_full, v_full, q_full[kStages], d_o_full[kStages], q_empty[kStages], d_o_empty[kStages], ds_full[kStages];
};

/// out = A B^T for the 64 rows of A from first_row on: started, not finished.
template <bool Add = false, class E, int Br, int Bc, int D>
__device__ __forceinline__ void start_abt(float (&out)[Bc / 2], const SwizzledTile<E, Br, D>& a, int first_row, const SwizzledTile<E, Bc, D>& b) {
  using Product = WarpgroupProduct<Bc, E>;
  const uint64_t x = tile_descriptor(sram_address(&a) + first_row * kPanelRowBytes), y = tile_descriptor(sram_address(&b));
  if (Add) Product::abt(out, x, y, 1);
  else Product::first_abt(out, x, y);
  ATTN_UNROLL for (int step = 1; step < D / 16; ++step)
    Product::abt(out, x + along_rows(step, a.kPanelBytes), y + along_rows(step, b.kPanelBytes), 1);
  commit_products();
}

/// out = A^T B for 64 columns of A and 64 of B, those of the panels given: started, not finished.
template <class E, int Rows, int ACols, int BCols>
__device__ __forceinline__ void start_atb(float (&out)[32], const SwizzledTile<E, Rows, ACols>& a, int a_panel, const SwizzledTile<E, Rows, BCols>& b, int b_panel) {
  using Product = WarpgroupProduct<64, E>;
  const uint64_t x = tile_descriptor(sram_address(&a) + a_panel * a.kPanelBytes, a.kPanelBytes), y = tile_descriptor(sram_address(&b) + b_panel * b.kPanelBytes, b.kPanelBytes);
  Product::first_atb(out, x, y);
  ATTN_UNROLL for (int step = 1; step < Rows / 16; ++step) Product::atb(out, x + across_rows(step), y + across_rows(step));
  commit_products();
}

template <class T, bool Turns, bool Ahead, bool Preset>
__global__ void __launch_bounds__(T::kThreads, 1)
keys_backward(
    TileMask mask,
    int heads, int group,
    float softmax_scale,
    const __grid_constant__ TensorMap Q,    // [heads, seqlen_q, head_dim]
    const __grid_constant__ TensorMap K,    // [heads, seqlen_k, head_dim]
    const __grid_constant__ TensorMap V,    // [heads, seqlen_k, head_dim]
    const __grid_constant__ TensorMap dO,   // [heads, seqlen_q, head_dim]
    const float* __restrict__ LSE,          // [heads, 1, rows]
    const float* __restrict__ delta,        // [heads, 1, rows]
    float* __restrict__ dQ,                 // [heads, rows, head_dim], in the order of its adders
    const __grid_constant__ TensorMap dK,   // [heads, seqlen_k, head_dim]
    const __grid_constant__ TensorMap dV) { // [heads, seqlen_k, head_dim]
  using E = typename T::Element;
  constexpr int Bc = T::kBc, D = T::kHeadDim;
  static_assert(T::kBr == 128 && Bc * D == kConsumers * kPiece && sizeof(Sram<T>) <= 227 * 1024);
  auto& sram = aligned_sram<Sram<T>>();
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  // the heads of a group go through their key tiles side by side; under a causal mask the first keys are seen by most queries
  const int key_tiles = (mask.seqlen_k + 127) / 128, query_tiles = (mask.seqlen_q + Bc - 1) / Bc;
  const int g = blockIdx.x / (group * key_tiles), rest = blockIdx.x % (group * key_tiles), size = min(group, heads - g * group);
  const int head = g * group + rest % size, k0 = rest / size * 128;
  const int first = mask.causal ? max(0, k0 - (mask.seqlen_k - mask.seqlen_q)) / Bc : 0;

  if (threadIdx.x == 0) {
    sram.k_full.init(1), sram.v_full.init(1);
    for (int i = 0; i < kStages; ++i) {
      sram.q_full[i].init(1), sram.d_o_full[i].init(1), sram.q_empty[i].init(4 * kConsumers), sram.d_o_empty[i].init(4 * kConsumers);
      sram.ds_full[i].init(4 * kConsumers);
    }
    barriers_are_ready();
  }
  __syncthreads();  // the barriers are there

  if (warpgroup == 0) {
    give_registers<24>();
    if (threadIdx.x == 0) {
      Ring<kStages> ring;
      const int64_t row0 = int64_t{head} * query_tiles * Bc;
      copy_tile(sram.k, K, k0, head, sram.k_full);
      for (int j = first; j < query_tiles; ++j, ring.next()) {
        const int i = ring.stage;
        sram.q_empty[i].wait(ring.parity ^ 1);
        sram.q_full[i].arrive_and_expect(sram.q[i].kBytes + Bc * 4);
        copy_box(&sram.q[i], Q, j * Bc, head, sram.q_full[i]);
        copy_run(sram.lse[i], LSE + row0 + j * Bc, Bc * 4, sram.q_full[i]);
        if (j == first) copy_tile(sram.v, V, k0, head, sram.v_full);
        sram.d_o_empty[i].wait(ring.parity ^ 1);
        sram.d_o_full[i].arrive_and_expect(sram.d_o[i].kBytes + Bc * 4);
        copy_box(&sram.d_o[i], dO, j * Bc, head, sram.d_o_full[i]);
        copy_run(sram.delta[i], delta + row0 + j * Bc, Bc * 4, sram.d_o_full[i]);
      }
    }
    return;
  }
  take_registers<240>();
  const int me = warpgroup - 1, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  const int warp_row = threadIdx.x / 32 * 16 - 128;  // of the block's keys
  const bool speaker = lane == 0;
  const float scale = kLog2e * softmax_scale;
  float s[Bc / 2], dk[D / 2] = {}, dv[D / 2] = {};
  float* dq_piece = dQ + (int64_t{head} * query_tiles + first) * (kConsumers * kPiece) + me * kPiece + thread * 4;
  settle(dk), settle(dv);
  Ring<kStages> ring;
  if (Turns && me == 1) Turn<kConsumers>::pass(me);

  sram.k_full.wait(0);
  sram.q_full[0].wait(0);
  begin_products();
  start_abt(s, sram.k, me * 64, sram.q[0]);
  wait_products<0>();
  settle(s);
  sram.v_full.wait(0);

  const auto tile = [&](int j, auto last) {
    constexpr bool kLast = decltype(last)::value;
    const int i = ring.stage, parity = ring.parity;
    ring.next();

    float dp[Bc / 2];
    sram.d_o_full[i].wait(parity);
    if (Preset) {  // the sums begin at -delta
      ATTN_UNROLL for (int n = 0; n < Bc / 8; ++n) {
        const float2 x = *reinterpret_cast<const float2*>(&sram.delta[i][8 * n + lane % 4 * 2]);
        dp[4 * n] = dp[4 * n + 2] = -x.x, dp[4 * n + 1] = dp[4 * n + 3] = -x.y;
      }
      settle(dp);
    }
    begin_products();
    start_abt<Preset>(dp, sram.v, me * 64, sram.d_o[i]);

    ATTN_UNROLL for (int n = 0; n < Bc / 8; ++n) {
      const float2 lse = *reinterpret_cast<const float2*>(&sram.lse[i][8 * n + lane % 4 * 2]);
      ATTN_UNROLL for (int c = 0; c < 4; ++c) s[4 * n + c] = exp2_or_zero(fmaf(scale, s[4 * n + c], c % 2 ? -lse.y : -lse.x));
    }
    const int q0 = j * Bc, key = k0 + warp_row + lane / 4;  // the first query; the lane's first key, the other is eight below
    if (k0 + 128 > mask.seqlen_k || (mask.causal && k0 + 127 > q0 + mask.seqlen_k - mask.seqlen_q)) {
      ATTN_UNROLL for (int c = 0; c < 2; ++c) {
        const int row = key + 8 * c, from = mask.causal ? row - (mask.seqlen_k - mask.seqlen_q) - q0 : 0;  // the first query that sees the key
        const int begin = row < mask.seqlen_k ? from - lane % 4 * 2 : Bc;
        ATTN_UNROLL for (int n = 0; n < Bc / 8; ++n)
          ATTN_UNROLL for (int r = 0; r < 2; ++r)
            if (8 * n + r < begin) s[4 * n + 2 * c + r] = 0;
      }
    }
    uint32_t p[Bc / 16][4], ds[Bc / 16][4];
    pack_weights<E>(p, s);
    wait_products<0>();
    settle(dp);
    ATTN_UNROLL for (int n = 0; n < Bc / 8; ++n) {
      float2 x{};
      if (!Preset) x = *reinterpret_cast<const float2*>(&sram.delta[i][8 * n + lane % 4 * 2]);
      ATTN_UNROLL for (int c = 0; c < 4; ++c) dp[4 * n + c] = s[4 * n + c] * (Preset ? dp[4 * n + c] : dp[4 * n + c] - (c % 2 ? x.y : x.x));
    }
    pack_weights<E>(ds, dp);
    ATTN_UNROLL for (int n = 0; n < Bc / 16; ++n)
      store_matrices(sram.ds[i].at(warp_row + lane % 16, 16 * n + lane / 16 * 8), ds[n]);
    stores_visible_to_engines();
    __syncwarp();  // the warp's 16 rows of dS^T are there
    if (speaker) sram.ds_full[i].arrive();

    float dq[32];
    if (Turns) Turn<kConsumers>::wait(me);
    begin_products();
    start_fold(dv, p, sram.d_o[i]);
    start_fold(dk, ds, sram.q[i]);
    sram.ds_full[i].wait(parity);
    begin_products();
    start_atb(dq, sram.ds[i], D == 64 ? me : 0, sram.k, D == 64 ? 0 : me);
    wait_products<1>();  // dV, dK
    settle(dv), settle(dk), settle(p), settle(ds);
    if (speaker) sram.q_empty[i].arrive(), sram.d_o_empty[i].arrive();
    if (!kLast && Ahead) {
      sram.q_full[ring.stage].wait(ring.parity);
      begin_products();
      start_abt(s, sram.k, me * 64, sram.q[ring.stage]);
    }
    if (Turns) Turn<kConsumers>::pass(me);
    wait_products<!kLast && Ahead ? 1 : 0>();  // dQ
    settle(dq);
#ifdef DQ_BULK
    if (thread == 0) wait_until_copies_back_have_read();
    named_sync(5 + me, 128);
    ATTN_UNROLL for (int n = 0; n < 8; ++n) *reinterpret_cast<float4*>(&sram.dq[me][512 * n + thread * 4]) = make_float4(dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]);
    stores_visible_to_engines();
    named_sync(5 + me, 128);
    if (thread == 0) add_run_back(dq_piece, sram.dq[me], kPiece * 4), commit_copies_back();
#else
    ATTN_UNROLL for (int n = 0; n < 8; ++n) add_four(dq_piece + 512 * n, dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]);
#endif
    dq_piece += kConsumers * kPiece;
    if (!kLast && !Ahead) {
      sram.q_full[ring.stage].wait(ring.parity);
      begin_products();
      start_abt(s, sram.k, me * 64, sram.q[ring.stage]);
    }
    if (!kLast) {
      wait_products<0>();
      settle(s);
    }
  };
  ATTN_UNROLL_1 for (int j = first; j < query_tiles - 1; ++j) tile(j, std::false_type{});
  tile(query_tiles - 1, std::true_type{});

  // dV takes the place of V, which nobody else reads; dK that of K when both warpgroups' last dQ is done
  const auto store = [&](float (&x)[D / 2], SwizzledTile<E, 128, D>& stage, const TensorMap& to) {
    ATTN_UNROLL for (int n = 0; n < D / 2; n += 2)
      *reinterpret_cast<uint32_t*>(stage.at(warp_row + sum_row(lane, n), sum_col(lane, n))) = pack_pair<E>(x[n], x[n + 1]);
    stores_visible_to_engines();
    __syncwarp();  // all 16 rows are there
    if (speaker && k0 + warp_row < mask.seqlen_k) {
      ATTN_UNROLL for (int panel = 0; panel < D / kPanelColumns; ++panel) copy_box_back(to, stage.at(warp_row, panel * kPanelColumns), k0 + warp_row, panel, head);
      commit_copies_back();
    }
  };
  store(dv, sram.v, dV);
  ATTN_UNROLL for (int n = 0; n < D / 2; ++n) dk[n] *= softmax_scale;
  named_sync(4, 256);  // K has been read for the last time
  store(dk, sram.k, dK);
  if (speaker) wait_until_copies_back_have_read();  // SRAM must last until then
}

// ---- launches ------------------------------------------------------------------------------------------------------------------

template <class E>
using SpecialisedTiles = TileList<Tile<E, 128, 128, 64, 12, 4, 1>, Tile<E, 128, 64, 128, 12, 4, 1>>;
#ifdef HALF_ALONE
using Tiles = SpecialisedTiles<half>;
#else
using Tiles = Joined<SpecialisedTiles<half>, SpecialisedTiles<bfloat16>>::type;
#endif

/// Queries of a head, the last tile filled.
inline int64_t padded_rows(const Problem& p) { return ceil_div(p.seqlen_q, p.tile.bc) * p.tile.bc; }

inline void backward(const Problem& p, const Tensors& t) {
  with_tile(p, Tiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    constexpr int D = T::kHeadDim, kPanels = D / kPanelColumns;
    const int64_t heads = p.heads_total(), rows = padded_rows(p);
    const auto rows_of = [&](const char* name) { return view<float>(Target{t.scratch(name), name}, heads, 1, rows); };
    launch("delta", rows_backward<E, D>, heads * rows * D / 8 / 128, 128, 0, query_rows<E>(p, Source{t.o, "O"}), query_rows<E>(p, Source{t.d_o, "dO"}),
           row_scalars(p, Source{t.scratch("LSE"), "LSE"}), rows_of("LSE2"), rows_of("delta"), view<float>(Target{t.scratch("dQ sums"), "dQ sums"}, heads, rows, D));
    const auto by_tile = [&](const void* x, int64_t n, int box) { return tensor_map<E>(x, heads, n, D, box, kPanels); };
    const bool turns = !p.leaves_out("turns"), ahead = !p.leaves_out("ahead");
    #ifdef PRESET
    constexpr bool kPreset = PRESET;
#else
    constexpr bool kPreset = D == 128;
#endif
    const auto kernel = turns ? (ahead ? keys_backward<T, true, true, kPreset> : keys_backward<T, true, false, kPreset>)
                              : (ahead ? keys_backward<T, false, true, kPreset> : keys_backward<T, false, false, kPreset>);
    launch("dQ dK dV", kernel, heads * ceil_div(p.seqlen_k, T::kBr), T::kThreads, sizeof(Sram<T>), tile_mask(p), static_cast<int>(heads), p.causal ? 8 : 1,
           p.softmax_scale, by_tile(t.q, p.seqlen_q, T::kBc), by_tile(t.k, p.seqlen_k, T::kBr), by_tile(t.v, p.seqlen_k, T::kBr), by_tile(t.d_o, p.seqlen_q, T::kBc),
           static_cast<const float*>(t.scratch("LSE2")), static_cast<const float*>(t.scratch("delta")), static_cast<float*>(t.scratch("dQ sums")),
           tensor_map<E>(t.dk, heads, p.seqlen_k, D, 16, 1), tensor_map<E>(t.dv, heads, p.seqlen_k, D, 16, 1));
    launch("convert dQ", convert_dq<E, T::kBc, D>, heads * rows * D / 16 / 128, 128, 0, p.softmax_scale,
           view<float>(Source{t.scratch("dQ sums"), "dQ sums"}, heads, rows, D), query_rows<E>(p, Target{t.dq, "dQ"}));
  });
}

}  // namespace attention::ATTN_DEVICE::step11
