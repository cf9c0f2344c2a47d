// step08  Hopper, specialised warps                                                    docs/08-hopper-specialised-warps.md
//
// One warpgroup only loads and gives its registers to those that compute; tiles reach them through a ring. A warpgroup
// that computes is never idle: its own product P V, and the other warpgroups' products, run during its softmax.
//
//      producer      K, V ┄┄▶ ring of places ┄┄▶ as soon as one is empty            overlap: a warpgroup's own two tiles
//      warpgroup 1   [ s = Q K^T of tile j, O += P V of tile j - 1 ] │ softmax of tile j   │ [ ...
//      warpgroup 2            softmax                                │ [ s = Q K^T, O += P V ] │ softmax   ping-pong: whose turn
//
//   HBM       4X + L elements, as step04
//   executes  4 N^2 d FLOPs per head          extra memory  LSE, 4 bytes that count tiles
//
//   make step08 && ./step08          (--no-pingpong, --no-overlap, --no-persistent show what each is worth)
//   ./step08 --dtype fp32            exact, in parts: step08_exact_fp32.h
#include "common/step/step.h"
#include "common/tile/view.h"
#include "common/tile/warpgroup.h"
#include "step08_exact_fp32.h"  // --dtype fp32

namespace attention::ATTN_DEVICE::step08 {

/// Two warpgroups that compute take turns in starting their products. Three are faster without turns, and with two
/// chains of operations per row (measured: docs/08-hopper-specialised-warps.md, experiments).
template <class T>
constexpr bool kPingpong = T::kBr == 128;
template <class T>
constexpr int kChains = T::kBr == 128 ? 1 : 2;

template <class T, bool Persistent>
struct Sram {
  using Rows = SwizzledTile<typename T::Element, T::kBr, T::kHeadDim>;
  using Keys = SwizzledTile<typename T::Element, T::kBc, T::kHeadDim>;
  Rows q_and_o[1 + Persistent];  // O takes Q's place, unless the next Q is on its way there
  Keys k[kStages], v[kStages];
  Barrier q_full, q_empty, k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
  int tile;  // whose Q it is; -1: there is no more
  __device__ __forceinline__ Rows& q() { return q_and_o[0]; }
  __device__ __forceinline__ Rows& o() { return q_and_o[Persistent]; }
};

/// O = softmax(softmax_scale Q K^T) V and its LSE. A block owns Br queries, each of its consumer warpgroups 64; a
/// tile's number says which.
template <class T, bool Persistent, bool Pingpong, bool Overlap>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    attention(Mask mask, Order order, float softmax_scale,
              const __grid_constant__ TensorMap Q,  // [heads, seqlen_q, head_dim]
              const __grid_constant__ TensorMap K,  // [heads, seqlen_k, head_dim]
              const __grid_constant__ TensorMap V,  // [heads, seqlen_k, head_dim]
              const __grid_constant__ TensorMap O,  // [heads, seqlen_q, head_dim]
              Global<float> LSE,                    // [heads, 1, seqlen_q]
              unsigned* taken) {                    // [1]: tiles that blocks have taken beyond their first
  using E = typename T::Element;
  constexpr int kConsumers = T::kBr / 64, kProducerRegisters = 24, kConsumerRegisters = kConsumers == 2 ? 240 : 160;
  constexpr int kLaunchRegisters = 65536 / T::kThreads / 8 * 8;  // of a thread; those of an SM are 65536
  static_assert(T::kThreads == 128 * (1 + kConsumers));
  // Else setmaxnreg waits for ever.
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * kLaunchRegisters);
  static_assert(sizeof(Sram<T, Persistent>) <= 227 * 1024);
  auto& sram = aligned_sram<Sram<T, Persistent>>();
  const int total = order.tiles * order.heads;
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  // A place is full when its bytes have come, and empty when each warp that computes has said so.
  if (threadIdx.x == 0) {
    sram.q_full.init(1), sram.q_empty.init(4 * kConsumers);
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
      int round = 0;
      for (int tile = blockIdx.x;; ++round) {
        sram.q_empty.wait((round & 1) ^ 1);
        sram.tile = tile < total ? tile : -1;
        if (tile >= total) {
          sram.q_full.arrive();
          break;
        }
        const auto [head, q0] = order.descending(tile, T::kBr);
        const int tiles = key_tiles(mask, q0 + T::kBr, T::kBc);
        copy_tile(sram.q(), Q, q0, head, sram.q_full);
        for (int j = 0; j < tiles; ++j, ring.next()) {
          sram.k_empty[ring.stage].wait(ring.parity ^ 1);
          copy_tile(sram.k[ring.stage], K, j * T::kBc, head, sram.k_full[ring.stage]);
          sram.v_empty[ring.stage].wait(ring.parity ^ 1);
          copy_tile(sram.v[ring.stage], V, j * T::kBc, head, sram.v_full[ring.stage]);
        }
        if (!Persistent) break;
        tile = gridDim.x + atomicAdd(taken, 1u);
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    const int me = warpgroup - 1, warp_row = threadIdx.x / 32 * 16 - 64;
    const bool first_lane = threadIdx.x % 32 == 0;  // of its warp
    const float scale = kLog2e * softmax_scale;     // e^(softmax_scale x) = 2^(scale x); s and m stay unscaled
    Ring<kStages> k_ring, v_ring;
    if (Pingpong && me == kConsumers - 1) Turn<kConsumers>::pass(me);

    ATTN_UNROLL_1 for (int round = 0;; ++round) {
      sram.q_full.wait(round & 1);
      const int tile = sram.tile;
      if (tile < 0) break;
      const auto [head, q0] = order.descending(tile, T::kBr);
      const int tiles = key_tiles(mask, q0 + T::kBr, T::kBc);
      const int all_see = mask.keys_seen(q0 + warp_row);  // keys before this one are seen by every row of the warp

      // The first tile's scores and the last tile's P V stand outside of the loop. One loop with `if (j > 0)` would
      // make ptxas run its products one by one.
      float s[T::kBc / 2], o[T::kHeadDim / 2] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {}, alpha[2];
      uint32_t p[T::kBc / 16][4];
      sram.k_full[k_ring.stage].wait(k_ring.parity);
      begin_products();
      start_multiply_abt(s, sram.q(), me * 64, sram.k[k_ring.stage]);
      wait_products<0>();
      fence_registers(s);
      if (first_lane) sram.k_empty[k_ring.stage].arrive();
      k_ring.next();
      if (T::kBc > all_see) mask.apply_on_edge(SumsView(s), q0 + warp_row, 0);
      online_softmax<kChains<T>>(s, m, l, alpha, scale);
      pack_weights<E>(p, s);
      sram.v_full[v_ring.stage].wait(v_ring.parity);

      ATTN_UNROLL_1 for (int j = 1; j < tiles; ++j) {
        sram.k_full[k_ring.stage].wait(k_ring.parity);
        if (Pingpong) Turn<kConsumers>::wait(me);
        begin_products();
        start_multiply_abt(s, sram.q(), me * 64, sram.k[k_ring.stage]);
        start_multiply_ab(o, p, sram.v[v_ring.stage]);
        if (Pingpong) Turn<kConsumers>::pass(me);
        wait_products<1>();  // the scores
        fence_registers(s);
        if (first_lane) sram.k_empty[k_ring.stage].arrive();
        k_ring.next();
        Barrier& v_done = sram.v_empty[v_ring.stage];
        v_ring.next();
        if (!Overlap) {
          wait_products<0>();
          fence_registers(o);
          fence_registers(p);
          if (first_lane) v_done.arrive();
        }
        if ((j + 1) * T::kBc > all_see) mask.apply_on_edge(SumsView(s), q0 + warp_row, j * T::kBc);
        online_softmax<kChains<T>>(s, m, l, alpha, scale);
        fence_registers(s);
        // These weights' V is waited for here, between the softmax and the wait for the last P V: without a loop
        // between the two ptxas moves that wait above the softmax, and nothing overlaps.
        sram.v_full[v_ring.stage].wait(v_ring.parity);
        if (Overlap) {
          wait_products<0>();  // P V of the tile before
          fence_registers(o);
          fence_registers(p);
          if (first_lane) v_done.arrive();
        }
        scale_rows(o, alpha);
        pack_weights<E>(p, s);
      }
      if (Persistent && first_lane) sram.q_empty.arrive();

      begin_products();
      start_multiply_ab(o, p, sram.v[v_ring.stage]);
      wait_products<0>();
      fence_registers(o);
      fence_registers(p);
      if (first_lane) sram.v_empty[v_ring.stage].arrive();
      v_ring.next();

      if (Persistent) {
        if (first_lane) wait_until_copies_back_have_read();
        __syncwarp();  // the warp's rows of the last O have left
      } else {
        named_sync(4 + me, 128);  // the warpgroup is done with its rows of Q: O takes their place
      }
      store_o_and_lse(o, m, l, softmax_scale, sram.o(), warp_row, O, LSE, mask, q0, head);
      if (!Persistent) break;
    }
    if (first_lane) wait_until_copies_back_have_read();  // SRAM must last until then
  }
}

// Three warpgroups compute at head_dim 64, two at 128, where their registers are what limits them; and one loads.
template <class E>
using SpecialisedTiles = TileList<Tile<E, 192, 128, 64, 16, 4, 1>, Tile<E, 128, 128, 128, 12, 4, 1>>;
using Tiles = Joined<SpecialisedTiles<half>, SpecialisedTiles<bfloat16>>::type;

inline void forward(const Problem& p, const Tensors& t) {
  if (p.dtype == Dtype::fp32) return exact_forward(p, t);
  with_tile(p, Tiles{}, [&](auto tile) {
    using T = decltype(tile);
    const TensorMaps maps = tensor_maps<T>(p, t);
    const int64_t query_tiles = p.heads_total() * ceil_div(p.seqlen_q, T::kBr);
    const bool pingpong = !p.leaves_out("pingpong"), overlap = !p.leaves_out("overlap");
    const auto launch_with = [&](auto persistent, int64_t blocks, unsigned* taken) {
      constexpr bool P = decltype(persistent)::value;
      constexpr bool Turns = kPingpong<T>;
      const auto kernel = pingpong ? (overlap ? attention<T, P, Turns, true> : attention<T, P, Turns, false>)
                                   : (overlap ? attention<T, P, false, true> : attention<T, P, false, false>);
      launch("attention", kernel, blocks, T::kThreads, sizeof(Sram<T, P>), Mask{p.seqlen_q, p.seqlen_k, p.causal},
             order_of(p, T::kBr), p.softmax_scale, maps.q, maps.k, maps.v, maps.o, row_scalars(p, Target{t.lse, "LSE"}),
             taken);
    };
    if (p.leaves_out("persistent")) return launch_with(std::false_type{}, query_tiles, nullptr);
    auto* taken = static_cast<unsigned*>(t.scratch("tile counter"));
    set_to_zero(taken, sizeof *taken);
    launch_with(std::true_type{}, std::min<int64_t>(query_tiles, multiprocessors()), taken);
  });
}

inline std::vector<Scratch> scratch(const Problem& p) {
  if (p.dtype == Dtype::fp32) return exact_scratch(p);
  if (p.leaves_out("persistent")) return {};
  return {{"tile counter", sizeof(unsigned), false}};
}

inline std::vector<KernelCost> cost(const Problem& p) {
  return p.dtype == Dtype::fp32 ? exact_cost(p) : copy_engine_cost(p);
}

inline std::vector<TileChoice> tiles(const Problem& p) {
  if (p.dtype == Dtype::fp32) return exact_tiles(p);
  return tile_choices(p, Tiles{}, [](auto t) { return sizeof(Sram<decltype(t), true>); });
}

inline std::string refusal(const Problem& p) {
  if (p.dtype == Dtype::fp32 && !p.on_tensor_cores)
    return "takes fp32 on tensor cores alone (--product tensor-cores); step04 is the same algorithm in fp32 on CUDA "
           "cores";
  if (p.dtype == Dtype::fp32 && !p.left_out.empty())
    return "leaves out no technique in fp32, whose kernel has its own (steps/step08_exact_fp32.h)";
  return needs_hopper(p);
}

inline Step step() {
  return {.id = "step08",
          .title = "Hopper, specialised warps",
          .idea = "a producer loads, consumers compute, and each one's softmax runs under products",
          .chapter = "docs/08-hopper-specialised-warps.md",
          .tiles = tiles,
          .largest_head_dim = kAnyHeadDim,
          .default_dtype = Dtype::fp16,
          .fp32_on_tensor_cores = true,
          .refusal = refusal,
          .techniques = {{"pingpong",
                          "at head_dim 128 too, the warpgroups start their products in any order, not in turns"},
                         {"overlap", "a warpgroup waits for its product P V before its next softmax"},
                         {"persistent", "a block per query tile"}},
          .methods = {{.name = "forward", .scratch = scratch, .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::step08
