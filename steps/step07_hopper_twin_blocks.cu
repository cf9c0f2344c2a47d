// step07  Hopper, twin blocks                                                          docs/07-hopper-twin-blocks.md
//
// The algorithm is step04's, on Hopper's own units: one thread asks the copy engine for whole tiles, and warpgroups of
// 128 threads start products that read them from SRAM. Two blocks share an SM and know nothing of each other, so that
// one's softmax runs under the other's products.
//
//      copy engine    K, V ┄┄▶ place 0     K, V ┄┄▶ place 1     K, V ┄┄▶ place 0     two key tiles in SRAM: one travels
//      block A        s = Q K^T │ softmax │ O += P V │ s = Q K^T │ softmax │ ...
//      block B           softmax │ O += P V │ s = Q K^T │ softmax │ O += P V ...
//
//   HBM       4X + L elements, as step04
//   executes  4 N^2 d FLOPs per head          extra memory  LSE
//
//   make step07 && ./step07          (on a Hopper GPU, or without any GPU)
#include "common/step/step.h"
#include "common/tile/view.h"
#include "common/tile/warpgroup.h"

namespace attention::ATTN_DEVICE::step07 {

template <class T>
struct Sram {
  SwizzledTile<typename T::Element, T::kBr, T::kHeadDim> q;
  SwizzledTile<typename T::Element, T::kBc, T::kHeadDim> k[2], v[2];
  Barrier q_full, k_full[2], v_full[2];
};

/// O = softmax(softmax_scale Q K^T) V and its LSE. A block owns Br queries, a warpgroup of it 64, and loops over the
/// key tiles they see. (step09 hands the kernel a mask and tensors of its own.)
template <class T, class Mask = attention::Mask, class In = TensorMap, class Out = TensorMap>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    attention(Mask mask, float softmax_scale,
              const __grid_constant__ In Q,   // [heads, seqlen_q, head_dim]
              const __grid_constant__ In K,   // [heads, seqlen_k, head_dim]
              const __grid_constant__ In V,   // [heads, seqlen_k, head_dim]
              const __grid_constant__ Out O,  // [heads, seqlen_q, head_dim]
              Global<float> LSE) {            // [heads, 1, seqlen_q]
  using E = typename T::Element;
  static_assert(
      T::kBlocksPerSm * (sizeof(Sram<T>) + 1024) <= 228 * 1024);  // of an SM; 1024 bytes of each block are the system's
  auto& sram = aligned_sram<Sram<T>>();
  const auto [head, q0] = mask.place_of_block(T::kBr);
  const int tiles = key_tiles(mask, q0 + T::kBr, T::kBc);
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / 128, 0), warp_row = threadIdx.x / 32 * 16;
  const int all_see = mask.keys_seen(q0 + warp_row);  // keys before this one are seen by every row of the warp
  const bool leader = threadIdx.x == 0;
  const float scale = kLog2e * softmax_scale;  // e^(softmax_scale x) = 2^(scale x); s and m stay unscaled

  const auto load = [&](int j) {
    copy_tile(sram.k[j % 2], K, j * T::kBc, head, sram.k_full[j % 2]);
    copy_tile(sram.v[j % 2], V, j * T::kBc, head, sram.v_full[j % 2]);
  };
  if (leader) {
    sram.q_full.init(1);
    for (int i = 0; i < 2; ++i) sram.k_full[i].init(1), sram.v_full[i].init(1);
    barriers_are_ready();
  }
  __syncthreads();  // the barriers are there
  if (leader) {
    copy_tile(sram.q, Q, q0, head, sram.q_full);
    load(0);
  }
  __syncwarp();  // the leader's warp waits for it here and not at a barrier, where its turning lanes would hold it up

  float o[T::kHeadDim / 2] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  sram.q_full.wait(0);
  ATTN_UNROLL_1 for (int j = 0; j < tiles; ++j) {
    const int place = j % 2, parity = j / 2 % 2;
    float s[T::kBc / 2], alpha[2], shift[2], by[2];
    uint32_t p[T::kBc / 16][4];
    __syncthreads();  // both warpgroups are done with the other place
    if (leader && j + 1 < tiles) load(j + 1);
    __syncwarp();

    sram.k_full[place].wait(parity);
    begin_products();
    start_multiply_abt(s, sram.q, warpgroup * 64, sram.k[place]);
    wait_products<0>();
    fence_registers(s);

    if ((j + 1) * T::kBc > all_see) mask.apply_on_edge(SumsView(s), q0 + warp_row, j * T::kBc);
    update_maxima(s, m, l, alpha, shift, by, scale);
    scale_rows(o, alpha);
    exponentiate(s, shift, by, l);
    pack_weights<E>(p, s);

    sram.v_full[place].wait(parity);
    begin_products();
    start_multiply_ab(o, p, sram.v[place]);
    wait_products<0>();
    fence_registers(o);
    fence_registers(p);
  }

  named_sync(1 + warpgroup, 128);  // the warpgroup is done with its rows of Q: O takes their place
  store_o_and_lse(o, m, l, softmax_scale, sram.q, warp_row, O, LSE, mask, q0, head);
  if (threadIdx.x % 32 == 0) wait_until_copies_back_have_read();  // SRAM must last until then
}

// As many keys to a tile as two blocks' SRAM and registers hold.
template <class E>
using TwinTiles = TileList<Tile<E, 128, 128, 64, 8, 4, 2>, Tile<E, 128, 64, 128, 8, 4, 2>>;
using Tiles = Joined<TwinTiles<half>, TwinTiles<bfloat16>>::type;

template <class T>
void launch_attention(const Problem& p, const Tensors& t) {
  const TensorMaps maps = tensor_maps<T>(p, t);
  launch("attention", attention<T>, p.heads_total() * ceil_div(p.seqlen_q, T::kBr), T::kThreads, sizeof(Sram<T>),
         Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale, maps.q, maps.k, maps.v, maps.o,
         row_scalars(p, Target{t.lse, "LSE"}));
}

inline void forward(const Problem& p, const Tensors& t) {
  with_tile(p, Tiles{}, [&](auto tile) { launch_attention<decltype(tile)>(p, t); });
}

inline std::vector<TileChoice> tiles(const Problem& p) {
  return tile_choices(p, Tiles{}, [](auto t) { return sizeof(Sram<decltype(t)>); });
}

inline Step step() {
  return {.id = "step07",
          .title = "Hopper, twin blocks",
          .idea = "the copy engine loads, warpgroups multiply, and two blocks per SM hide each other's softmax",
          .chapter = "docs/07-hopper-twin-blocks.md",
          .before = "step04",
          .tiles = tiles,
          .largest_head_dim = kAnyHeadDim,
          .default_dtype = Dtype::fp16,
          .refusal = only_on_hopper,
          .methods = {{.name = "forward", .cost = copy_engine_cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::step07
