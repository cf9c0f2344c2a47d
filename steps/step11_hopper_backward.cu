// step11  Hopper, backward                                                             docs/11-hopper-backward.md
//
// step10 on Hopper's engines. A block owns 128 keys, each of two warpgroups that compute 64 of them, and walks over the
// query tiles that a third one brings. What keeps the tensor cores busy is the order of the five products, and whose
// turn at them it is.
//
//      producer      Q, LSE, dO, delta ┄┄▶ two places each
//      warpgroup 1   dP^T │ P^T, dS^T ─▶ SRAM │ [ dV += P^T dO, dK += dS^T Q, dQ = dS K, next S^T ] │ dQ ─▶ HBM
//      warpgroup 2   [ dV, dK, dQ, next S^T ] │ dQ ─▶ HBM    dP^T │ P^T, dS^T ─▶ SRAM                │ [ ...
//                                                                             turns: one at a time between [ and ]
//
//   HBM       9X + 5L elements, and dQ in fp32 four times, as step10
//   executes  10 N^2 d FLOPs per head          extra memory  2L, dQ in fp32
//
//   make step11 && ./step11          (--no-turns, --no-ahead show what each is worth; --deterministic: dQ in a fixed
//                                    order)
#include "step07_hopper_twin_blocks.cu"  // the forward
#include "step11_kernels.h"
#include "step11_sums.h"

namespace attention::ATTN_DEVICE::step11 {

// ---- launches -------------------------------------------------------------------------------------------------------

template <class E>
using SpecialisedTiles = TileList<Tile<E, 128, 128, 64, 12, 4, 1>, Tile<E, 128, 64, 128, 12, 4, 1>>;
using Tiles = Joined<SpecialisedTiles<half>, SpecialisedTiles<bfloat16>>::type;

/// Words of `turns`: one, and one for each warp that adds to a query tile.
inline int64_t turns_of(const Problem& p) { return 1 + p.heads_total() * padded_rows(p) / p.tile.bc * kConsumers * 4; }

inline void backward(const Problem& p, const Tensors& t) {
  with_tile(p, Tiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    constexpr int D = T::kHeadDim, kPanels = D / kPanelColumns;
    const int64_t heads = p.heads_total(), rows = padded_rows(p);
    const auto sums = [&](auto kind, const char* name, int64_t r, int64_t c) {
      return view<float>(decltype(kind){t.scratch(name), name}, heads, r, c);
    };
    const Source read{};
    const Target write{};
    const int64_t lane_rows = rows * D / 512;  // of 128 lanes with four sums each
    const bool ordered = p.leaves_out(any_order().name);
    auto* order = ordered ? static_cast<unsigned*>(t.scratch("turns")) : nullptr;
    const auto by_tile = [&](const void* x, const char* name, int64_t n, int box) {
      return tensor_map<E>(x, name, heads, n, D, box, kPanels);
    };

    launch("delta", rows_backward<E, D / kEight>, heads * rows * D / kEight / 128, 128, 0,
           query_rows<E>(p, Source{t.o, "O"}), query_rows<E>(p, Source{t.d_o, "dO"}),
           row_scalars(p, Source{t.lse, "LSE"}), sums(write, "lse2", 1, rows), sums(write, "delta", 1, rows),
           sums(write, "dQ sums", rows, D), order, ordered ? turns_of(p) : 0);
    const bool turns = !p.leaves_out("turns"), ahead = !p.leaves_out("ahead");
    constexpr bool kPreset = D == 128;
    const auto kernel =
        ordered ? keys_backward<T, true, true, true, kPreset>
        : turns
            ? (ahead ? keys_backward<T, true, true, false, kPreset> : keys_backward<T, true, false, false, kPreset>)
            : (ahead ? keys_backward<T, false, true, false, kPreset> : keys_backward<T, false, false, false, kPreset>);
    launch("dQ dK dV", kernel, heads * ceil_div(p.seqlen_k, T::kBr), T::kThreads, sizeof(Sram<T>),
           Mask{p.seqlen_q, p.seqlen_k, p.causal},
           Order{static_cast<int>(ceil_div(p.seqlen_k, T::kBr)), static_cast<int>(heads),
                 p.causal ? kTogetherBackward : 1},
           p.softmax_scale, by_tile(t.q, "Q", p.seqlen_q, T::kBc), by_tile(t.k, "K", p.seqlen_k, T::kBr),
           by_tile(t.v, "V", p.seqlen_k, T::kBr), by_tile(t.d_o, "dO", p.seqlen_q, T::kBc), sums(read, "lse2", 1, rows),
           sums(read, "delta", 1, rows), sums(write, "dQ sums", lane_rows, 512),
           tensor_map<E>(t.dk, "dK", heads, p.seqlen_k, D, 16, 1),
           tensor_map<E>(t.dv, "dV", heads, p.seqlen_k, D, 16, 1), order);
    launch("convert dQ", convert_dq<E, T::kBc, D>, heads * lane_rows * 32 / 128, 128, 0, p.softmax_scale,
           sums(read, "dQ sums", lane_rows, 512), query_rows<E>(p, Target{t.dq, "dQ"}));
  });
}

// ---- what it costs --------------------------------------------------------------------------------------------------

inline Problem of_forward(const Problem& p) { return with_first_tile(p, step07::tiles(p)); }

inline void forward(const Problem& p, const Tensors& t) { step07::forward(of_forward(p), t); }

inline std::vector<KernelCost> forward_cost(const Problem& p) { return copy_engine_cost(of_forward(p)); }

inline std::vector<KernelCost> cost(const Problem& p) {
  std::vector<KernelCost> kernels = one_pass_cost(p);
  kernels[1].by_copy_engine().by_warpgroups();
  return kernels;
}

inline std::vector<Scratch> scratch(const Problem& p) { return one_pass_scratch(p, turns_of(p)); }

inline std::vector<TileChoice> tiles(const Problem& p) {
  return tile_choices(p, Tiles{}, [](auto t) { return sizeof(Sram<decltype(t)>); });
}

inline std::string refusal(const Problem& p) {
  if (p.dtype == Dtype::fp32) return "is for fp16 and bf16 (--dtype fp16); step05 is a backward in fp32";
  return needs_hopper(p, "step10 takes 8, 16, 24 and so on to 128, step05 any to 256",
                      "step10 is the same algorithm for 8.0 and newer");
}

inline Step step() {
  return {
      .id = "step11",
      .title = "Hopper, backward",
      .idea = "step10 with a producer, warpgroup products in the right order, and turns",
      .chapter = "docs/11-hopper-backward.md",
      .before = "step10",
      .tiles = tiles,
      .largest_head_dim = kAnyHeadDim,
      .default_dtype = Dtype::fp16,
      .refusal = refusal,
      .techniques = {{"turns", "the warpgroups start their products whenever they are ready"},
                     {"ahead", "a tile's S is started when the last tile is done, not behind its dQ"},
                     any_order()},
      .methods = {{.name = "forward", .cost = forward_cost, .run = forward},
                  {.name = "Hopper backward",
                   .backward = true,
                   .scratch = scratch,
                   .cost = cost,
                   .prepare = forward,
                   .run = backward,
                   .any_order = "dq"}}};
}

}  // namespace attention::ATTN_DEVICE::step11
