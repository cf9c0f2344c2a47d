// step11's kernel of the five products.
#pragma once

#include "common/step/step.h"
#include "common/tile/backward.h"
#include "common/tile/view.h"
#include "common/tile/warpgroup.h"

namespace attention::ATTN_DEVICE::step11 {

constexpr int kStages = 2, kConsumers = 2;
constexpr int kPiece = 64 * 64;  // dQ of a tile is two pieces of 64 queries by 64 columns, one of each warpgroup

template <class T>
struct Sram {
  using E = typename T::Element;
  SwizzledTile<E, T::kBr, T::kHeadDim> k, v;
  SwizzledTile<E, T::kBc, T::kHeadDim> q[kStages], d_o[kStages];
  SwizzledTile<E, T::kBr, T::kBc> ds[kStages];  // dS^T: rows are keys
  alignas(16) float lse[kStages][T::kBc], delta[kStages][T::kBc];
  unsigned number;  // of the block, where they are ordered
  Barrier k_full, v_full, q_full[kStages], d_o_full[kStages], q_empty[kStages], d_o_empty[kStages], ds_full[kStages];
};

/// dK, dV, and this block's share of dQ. Turns, Ahead: the techniques. Ordered: as in step10. Preset: the sums of dP
/// begin at -delta.
template <class T, bool Turns, bool Ahead, bool Ordered, bool Preset>
__global__ void __launch_bounds__(T::kThreads, 1) keys_backward(
    Mask mask, Order order, float softmax_scale,
    const __grid_constant__ TensorMap Q,   // [heads, seqlen_q, head_dim]
    const __grid_constant__ TensorMap K,   // [heads, seqlen_k, head_dim]
    const __grid_constant__ TensorMap V,   // [heads, seqlen_k, head_dim]
    const __grid_constant__ TensorMap dO,  // [heads, seqlen_q, head_dim]
    Global<const float> lse2,              // [heads, 1, padded rows]
    Global<const float> delta,             // [heads, 1, padded rows]
    Global<float> dQ_sums,                 // [heads, query tiles * 2 pieces * 8, 128 lanes * 4]
    const __grid_constant__ TensorMap dK,  // [heads, seqlen_k, head_dim]
    const __grid_constant__ TensorMap dV,  // [heads, seqlen_k, head_dim]
    unsigned* turns) {  // [1 + heads * query tiles * 8], zeros: how many blocks have begun, and have added
  using E = typename T::Element;
  constexpr int Bc = T::kBc, D = T::kHeadDim;
  static_assert(T::kBr == 128 && Bc * D == kConsumers * kPiece && sizeof(Sram<T>) <= 227 * 1024);
  auto& sram = aligned_sram<Sram<T>>();
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const int query_tiles = (mask.seqlen_q + Bc - 1) / Bc;
  const int number = Ordered ? number_of_block(turns, sram.number) : static_cast<int>(blockIdx.x);
  const auto [head, k0] = Ordered ? order.descending(number, T::kBr) : order.ascending(number, T::kBr);
  const int first = mask.queries_begin(k0) / Bc;
  // A head's blocks begin at different query tiles and come round, so that they add to different tiles of dQ.
  const int begin = Ordered ? first : first + k0 / T::kBr % (query_tiles - first);
  const auto after = [&](int j) { return j + 1 < query_tiles ? j + 1 : first; };

  if (threadIdx.x == 0) {
    sram.k_full.init(1), sram.v_full.init(1);
    for (int i = 0; i < kStages; ++i) {
      sram.q_full[i].init(1), sram.d_o_full[i].init(1), sram.q_empty[i].init(4 * kConsumers),
          sram.d_o_empty[i].init(4 * kConsumers);
      sram.ds_full[i].init(4 * kConsumers);
    }
    barriers_are_ready();
  }
  __syncthreads();  // the barriers are there

  if (warpgroup == 0) {
    give_registers<24>();
    if (threadIdx.x == 0) {
      Ring<kStages> ring;
      copy_tile(sram.k, K, k0, head, sram.k_full);
      for (int n = first, j = begin; n < query_tiles; ++n, j = after(j), ring.next()) {
        const int i = ring.stage;
        sram.q_empty[i].wait(ring.parity ^ 1);
        sram.q_full[i].arrive_and_expect(sram.q[i].kBytes + Bc * 4);
        copy_box(&sram.q[i], Q, j * Bc, head, sram.q_full[i]);
        copy_run(sram.lse[i], lse2.head(head), j * Bc, sram.q_full[i]);
        if (n == first) copy_tile(sram.v, V, k0, head, sram.v_full);
        sram.d_o_empty[i].wait(ring.parity ^ 1);
        sram.d_o_full[i].arrive_and_expect(sram.d_o[i].kBytes + Bc * 4);
        copy_box(&sram.d_o[i], dO, j * Bc, head, sram.d_o_full[i]);
        copy_run(sram.delta[i], delta.head(head), j * Bc, sram.d_o_full[i]);
      }
    }
    return;
  }
  take_registers<240>();
  const int me = warpgroup - 1, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  const int warp_row = threadIdx.x / 32 * 16 - 64;  // of the block's keys
  const bool speaker = lane == 0;
  const float scale = kLog2e * softmax_scale;
  float s[Bc / 2], dk[D / 2] = {}, dv[D / 2] = {};
  fence_registers(dk), fence_registers(dv);
  Ring<kStages> ring;
  if (Turns && me == 1) Turn<kConsumers>::pass(me);

  sram.k_full.wait(0);
  sram.q_full[0].wait(0);
  begin_products();
  start_sums_abt(s, sram.k, me * 64, sram.q[0]);
  wait_products<0>();
  fence_registers(s);
  sram.v_full.wait(0);

  const auto of_columns = [&](const float(&row)[Bc], int n) {  // the numbers of a lane's two queries of eight
    const float* at = &row[8 * n + lane % 4 * 2];
    note_sram_read(at, sizeof(float2));
    return *reinterpret_cast<const float2*>(at);
  };
  const auto turn_of = [&](int j) {
    return turns + 1 + ((int64_t{head} * query_tiles + j) * kConsumers + me) * 4 + thread / 32;
  };
  const auto tile = [&](int j, auto last) {
    constexpr bool kLast = decltype(last)::value;
    const int i = ring.stage, parity = ring.parity;
    ring.next();

    float dp[Bc / 2];
    sram.d_o_full[i].wait(parity);
    if (Preset) {  // the sums begin at -delta
      ATTN_UNROLL for (int n = 0; n < Bc / 8; ++n) {
        const float2 x = of_columns(sram.delta[i], n);
        dp[4 * n] = dp[4 * n + 2] = -x.x, dp[4 * n + 1] = dp[4 * n + 3] = -x.y;
      }
      fence_registers(dp);
    }
    begin_products();
    start_sums_abt<Preset>(dp, sram.v, me * 64, sram.d_o[i]);

    ATTN_UNROLL for (int n = 0; n < Bc / 8; ++n) {
      const float2 lse = of_columns(sram.lse[i], n);
      ATTN_UNROLL for (int c = 0; c < 4; ++c)
        s[4 * n + c] = exp2_or_zero(fmaf(scale, s[4 * n + c], c % 2 ? -lse.y : -lse.x));
    }
    const int q0 = j * Bc,
              key = k0 + warp_row + lane / 4;  // the first query; the lane's first key, the other is eight below
    if (k0 + T::kBr > mask.keys_seen(q0)) {
      ATTN_UNROLL for (int c = 0; c < 2; ++c) {
        const int row = key + 8 * c, begin = row < mask.seqlen_k ? mask.queries_begin(row) - q0 - lane % 4 * 2
                                                                 : Bc;  // whose first query is that
        ATTN_UNROLL for (int n = 0; n < Bc / 8; ++n)
          ATTN_UNROLL for (int r = 0; r < 2; ++r)
            if (8 * n + r < begin) s[4 * n + 2 * c + r] = 0;
      }
    }
    if (Ordered && j > first) pass_turn(turn_of(j - 1));  // a tile later: what was added has arrived by now
    uint32_t p[Bc / 16][4], ds[Bc / 16][4];
    pack_weights<E>(p, s);
    wait_products<0>();
    fence_registers(dp);
    ATTN_UNROLL for (int n = 0; n < Bc / 8; ++n) {
      float2 x{};
      if (!Preset) x = of_columns(sram.delta[i], n);
      ATTN_UNROLL for (int c = 0; c < 4; ++c)
        dp[4 * n + c] = s[4 * n + c] * (Preset ? dp[4 * n + c] : dp[4 * n + c] - (c % 2 ? x.y : x.x));
    }
    pack_weights<E>(ds, dp);
    ATTN_UNROLL for (int n = 0; n < Bc / 16; ++n)
      store_matrices(sram.ds[i].write(warp_row + lane % 16, 16 * n + lane / 16 * 8, 8), ds[n]);
    stores_visible_to_engines();
    __syncwarp();  // the warp's 16 rows of dS^T are there
    if (speaker) sram.ds_full[i].arrive();

    float dq[32];
    if (Turns) Turn<kConsumers>::wait(me);
    begin_products();
    start_multiply_ab(dv, p, sram.d_o[i]);
    start_multiply_ab(dk, ds, sram.q[i]);
    sram.ds_full[i].wait(parity);
    begin_products();
    start_sums_atb(dq, sram.ds[i], D == 64 ? me : 0, sram.k, D == 64 ? 0 : me);
    wait_products<1>();  // dV, dK
    fence_registers(dv), fence_registers(dk), fence_registers(p), fence_registers(ds);
    if (speaker) sram.q_empty[i].arrive(), sram.d_o_empty[i].arrive();
    if (!kLast && Ahead) {
      sram.q_full[ring.stage].wait(ring.parity);
      begin_products();
      start_sums_abt(s, sram.k, me * 64, sram.q[ring.stage]);
    }
    if (Turns) Turn<kConsumers>::pass(me);
    wait_products<!kLast && Ahead ? 1 : 0>();  // dQ
    fence_registers(dq);
    if (Ordered) wait_turn(turn_of(j), static_cast<unsigned>((mask.keys_end(q0 + Bc) - 1) / T::kBr - k0 / T::kBr));
    ATTN_UNROLL for (int n = 0; n < 8; ++n)
      dQ_sums.head(head).template add_run<4>((j * kConsumers + me) * 8 + n, thread * 4, &dq[4 * n]);
    if (!kLast && !Ahead) {
      sram.q_full[ring.stage].wait(ring.parity);
      begin_products();
      start_sums_abt(s, sram.k, me * 64, sram.q[ring.stage]);
    }
    if (!kLast) {
      wait_products<0>();
      fence_registers(s);
    }
  };
  int j = begin;
  ATTN_UNROLL_1 for (int n = first; n < query_tiles - 1; ++n, j = after(j)) tile(j, std::false_type{});
  tile(j, std::true_type{});
  if (Ordered) pass_turn(turn_of(query_tiles - 1));

  // dV takes the place of V, which nobody else reads; dK that of K when both warpgroups' last dQ is done
  const auto store = [&](float(&x)[D / 2], SwizzledTile<E, 128, D>& stage, const TensorMap& to) {
    ATTN_UNROLL for (int n = 0; n < D / 2; n += 2)
      *reinterpret_cast<uint32_t*>(stage.write(warp_row + sum_row(lane, n), sum_col(lane, n), 2)) =
          pack<E>(x[n], x[n + 1]);
    stores_visible_to_engines();
    __syncwarp();  // all 16 rows are there
    if (speaker && k0 + warp_row < mask.seqlen_k) {
      ATTN_UNROLL for (int panel = 0; panel < D / kPanelColumns; ++panel)
        copy_box_back(to, stage.at(warp_row, panel * kPanelColumns), k0 + warp_row, panel, head);
      commit_copies_back();
    }
  };
  store(dv, sram.v, dV);
  ATTN_UNROLL for (int n = 0; n < D / 2; ++n) dk[n] *= softmax_scale;
  named_sync(4, 256);  // K has been read for the last time
  store(dk, sram.k, dK);
  if (speaker) wait_until_copies_back_have_read();  // SRAM must last until then
}

}  // namespace attention::ATTN_DEVICE::step11
