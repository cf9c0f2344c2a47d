// step10  one-pass backward                                                            docs/10-one-pass-backward.md
//
// step05 computes S and dP twice, once for dK and dV and once for dQ. Here a block owns keys and does all of it in one
// pass over the queries: five products instead of seven. What it costs is dQ: every block has a share of every row, so
// they add them up in HBM, in fp32.
//
//      S^T = K Q^T,  dP^T = V dO^T ─▶ P^T, dS^T ─▶ dV += P^T dO,  dK += dS^T Q     from registers: rows are keys
//                                          dS^T ─▶ SRAM ─▶ dQ = dS K ─▶ HBM        a tile later: one barrier serves both
//      copies   next Q, dO, LSE, delta ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶│
//
//   HBM       9X + 5L elements, and dQ in fp32 four times: cleared, read and written where it is added to, read
//   executes  10 N^2 d FLOPs per head          extra memory  2L, dQ in fp32
//
//   make step10 && ./step10          (--deterministic: dQ is added up in a fixed order)
#include "common/step/step.h"
#include "common/tile/backward.h"
#include "common/tile/mask.h"
#include "step06_asynchronous_pipeline.cu"  // the forward
#include "step10_sums.h"                    // where dQ is added up, and the kernel that brings it from there

namespace attention::ATTN_DEVICE::step10 {

template <class T>
struct Sram {
  using Row = SramTile<float, 1, T::kBc>;
  typename T::Own k, v;
  struct Queries {
    typename T::Loop q, d_o;
    Row lse, delta;
  } queries[2];             // a tile, and the next one on its way
  typename T::Pairs ds[2];  // dS^T: this tile's, and the last one's
  unsigned number;          // of the block, where they are ordered
};

/// dK, dV, and this block's share of dQ. A block owns Br keys and loops over the query tiles that see them.
/// Ordered: the blocks of a head add to a query tile one after the other, those of the last keys first. A block takes
/// its number when it begins, and waits for smaller numbers alone, which have begun: so somebody can always go on,
/// whatever order blocks start in.
template <class T, bool Ordered>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) keys_backward(
    Mask mask, float softmax_scale,
    typename T::In Q,           // [heads, seqlen_q, head_dim]
    typename T::In K,           // [heads, seqlen_k, head_dim]
    typename T::In V,           // [heads, seqlen_k, head_dim]
    typename T::In dO,          // [heads, seqlen_q, head_dim]
    Global<const float> lse2,   // [heads, 1, padded rows]
    Global<const float> delta,  // [heads, 1, padded rows]
    Global<float> dQ_sums,      // [heads, padded rows * head_dim of T / 128, 128]: as the lanes have them
    typename T::Out dK,         // [heads, seqlen_k, head_dim]
    typename T::Out dV,         // [heads, seqlen_k, head_dim]
    unsigned* turns) {          // [1 + heads * query tiles * warps], zeros: how many blocks have begun, and have added
  constexpr int kWarps = T::kThreads / 32, kQueries = T::kBc;
  using Share = ShareOfDq<T>;
  auto& sram = dynamic_sram<Sram<T>>();
  const int number = Ordered ? number_of_block(turns, sram.number) : static_cast<int>(blockIdx.x);
  const Order order = Order::of_grid(ceil_div(mask.seqlen_k, T::kBr), mask.causal ? kTogetherBackward : 1);
  const auto [head, k0] = Ordered ? order.descending(number, T::kBr) : order.ascending(number, T::kBr);
  const int warp = threadIdx.x / 32, warp_row0 = warp * T::kWarpRows;
  const int first = mask.queries_begin(k0) / kQueries * kQueries, end = mask.seqlen_q;
  const float scale = kLog2e * softmax_scale;  // e^(softmax_scale x) = 2^(scale x)

  const auto start_copies = [&](int q0, int place) {
    auto& to = sram.queries[place];
    load_tile_async<T::kThreads>(to.q, Q.head(head), q0);
    load_tile_async<T::kThreads>(to.d_o, dO.head(head), q0);
    load_row_async(to.lse, lse2.head(head), q0);
    load_row_async(to.delta, delta.head(head), q0);
  };
  const auto turn_of = [&](int q0) {
    return turns + 1 + (int64_t{head} * ceil_div(mask.seqlen_q, kQueries) + q0 / kQueries) * kWarps + warp;
  };
  const auto add_dq = [&](int q0, int place) {
    typename Share::Sums dq(Share::row(warp));
    multiply_atb(dq, sram.ds[place], sram.k, Share::col(warp));
    if (Ordered)
      wait_turn(turn_of(q0), static_cast<unsigned>((mask.keys_end(q0 + kQueries) - 1) / T::kBr - k0 / T::kBr));
    Share::add(dQ_sums.head(head), dq, q0 / kQueries * kWarps + warp);
  };

  load_tile_async<T::kThreads>(sram.k, K.head(head), k0);
  load_tile_async<T::kThreads>(sram.v, V.head(head), k0);
  start_copies(first, 0);
  commit_copies();
  typename T::Output dk(warp_row0), dv(warp_row0);
  NoStaging in_registers;

  int place = 0;
  for (int q0 = first; q0 < end; q0 += kQueries, place ^= 1) {
    wait_copies<0>();
    __syncthreads();  // this tile is complete; the last one's dS^T is, too, and every warp is done with that tile
    if (q0 + kQueries < end) start_copies(q0 + kQueries, place ^ 1);
    commit_copies();
    if (q0 > first) add_dq(q0 - kQueries, place ^ 1);

    const auto& queries = sram.queries[place];
    typename T::Scores p(warp_row0), ds(warp_row0);
    multiply_abt(p, sram.k, queries.q);
    multiply_abt(ds, sram.v, queries.d_o);
    if (Ordered && q0 > first)
      pass_turn(turn_of(q0 - kQueries));  // two products later: what was added has arrived by now
    const bool all_visible = mask.all_visible(q0, kQueries, k0, T::kBr);
    ATTN_UNROLL for (int j = 0; j < p.kCols; ++j) {
      const float lse = queries.lse.load(0, p.col(j)), row_delta = queries.delta.load(0, p.col(j));
      ATTN_UNROLL for (int i = 0; i < p.kRows; ++i) {
        const bool visible = all_visible || mask.visible(q0 + p.col(j), k0 + p.row(i));
        p(i, j) = visible ? exp2_or_zero(fmaf(scale, p(i, j), -lse)) : 0;
        ds(i, j) = p(i, j) * (ds(i, j) - row_delta);  // softmax_scale comes last, to dK and dQ
      }
    }
    multiply_ab(dv, p, in_registers, queries.d_o);
    multiply_ab(dk, ds, in_registers, queries.q);
    store_tile(sram.ds[place], ds);
  }
  __syncthreads();  // the last dS^T is complete
  const int last = (end - 1) / kQueries * kQueries;
  add_dq(last, place ^ 1);
  if (Ordered) pass_turn(turn_of(last));

  ATTN_UNROLL for (int i = 0; i < dk.kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < dk.kCols; ++j) dk(i, j) *= softmax_scale;
  store_tile(dK.head(head), dk, k0);
  store_tile(dV.head(head), dv, k0);
}

// ---- launches -------------------------------------------------------------------------------------------------------

// Two accumulators and two fragments of scores fill a warp's registers: at head_dim 64 there is room for 32 keys, which
// share each operand read from Q and dO, at 128 for 16. The smaller tiles are for GPUs with less SRAM.
template <class E>
using KeyTiles = TileList<Tile<E, 128, 32, 64, 4, 4, 2>, Tile<E, 64, 64, 64, 4, 4, 2>, Tile<E, 128, 64, 128, 8, 4, 1>,
                          Tile<E, 128, 32, 128, 8, 4, 1>, Tile<E, 64, 32, 128, 4, 4, 2>>;
using Tiles = Built<Joined<KeyTiles<half>, KeyTiles<bfloat16>>::type, Sram>;

/// Words of `turns`: one, and one for each warp that adds to a query tile.
inline int64_t turns_of(const Problem& p) {
  int64_t warps = 0;
  with_tile(p, Tiles{}, [&](auto tile) { warps = decltype(tile)::kThreads / 32; });
  return 1 + p.heads_total() * padded_rows(p) / p.tile.bc * warps;
}

/// step06 with the first of its tiles.
inline Problem of_forward(const Problem& p) { return with_first_tile(p, step06::tiles(p)); }

inline void forward(const Problem& p, const Tensors& t) { step06::forward(of_forward(p), t); }

inline void backward(const Problem& p, const Tensors& t) {
  with_tile(p, Tiles{}, [&](auto tile) {
    using T = decltype(tile);
    using E = typename T::Element;
    constexpr int kLanes = T::kHeadDim / kEight, kRowThreads = 128;
    const int64_t heads = p.heads_total(), rows = padded_rows(p), row_blocks = heads * rows / (kRowThreads / kLanes),
                  lines = rows * T::kHeadDim / 128;
    const auto scratch = [&](auto kind, const char* name, int64_t r, int64_t c) {
      return view<float>(decltype(kind){t.scratch(name), name}, heads, r, c);
    };
    const Source read{};
    const Target write{};
    const auto dO = query_rows<E>(p, Source{t.d_o, "dO"});
    const bool ordered = p.leaves_out(any_order().name);
    auto* turns = ordered ? static_cast<unsigned*>(t.scratch("turns")) : nullptr;

    launch("delta", rows_backward<E, kLanes>, row_blocks, kRowThreads, 0, query_rows<E>(p, Source{t.o, "O"}), dO,
           row_scalars(p, Source{t.lse, "LSE"}), scratch(write, "lse2", 1, rows), scratch(write, "delta", 1, rows),
           scratch(write, "dQ sums", rows, T::kHeadDim), turns, ordered ? turns_of(p) : 0);
    launch("dQ dK dV", ordered ? keys_backward<T, true> : keys_backward<T, false>, heads * ceil_div(p.seqlen_k, T::kBr),
           T::kThreads, sizeof(Sram<T>), Mask{p.seqlen_q, p.seqlen_k, p.causal}, p.softmax_scale,
           query_rows<E>(p, Source{t.q, "Q"}), key_rows<E>(p, Source{t.k, "K"}), key_rows<E>(p, Source{t.v, "V"}), dO,
           scratch(read, "lse2", 1, rows), scratch(read, "delta", 1, rows), scratch(write, "dQ sums", lines, 128),
           key_rows<E>(p, Target{t.dk, "dK"}), key_rows<E>(p, Target{t.dv, "dV"}), turns);
    launch("convert dQ", convert_dq<T>, heads * lines / 16, 128, 0, p.softmax_scale,
           scratch(read, "dQ sums", lines, 128), query_rows<E>(p, Target{t.dq, "dQ"}));
  });
}

// ---- what it costs --------------------------------------------------------------------------------------------------

inline std::vector<TileChoice> tiles(const Problem& p) {
  return tile_choices(p, Tiles{}, [](auto t) { return sizeof(Sram<decltype(t)>); });
}

inline std::string refusal(const Problem& p) {
  if (p.dtype == Dtype::fp32) return "is for fp16 and bf16 (--dtype fp16); step05 is a backward in fp32";
  if (p.compute_capability != 0 && p.compute_capability < 80)
    return "needs a GPU of compute capability 8.0 or newer, which copies asynchronously, this one has " +
           capability_name(p.compute_capability) + "; step05 is a backward without that";
  if (p.head_dim % 8 != 0 || p.head_dim > 128)
    return "takes head_dim 8, 16, 24 and so on to 128, not " + std::to_string(p.head_dim) + "; step05 takes any to 256";
  return "";
}

inline Step step() {
  return {
      .id = "step10",
      .title = "one-pass backward",
      .idea = "a block owns keys and computes dK, dV and its share of dQ in one pass over the queries",
      .chapter = "docs/10-one-pass-backward.md",
      .before = "step05",
      .tiles = tiles,
      .largest_head_dim = 128,
      .default_dtype = Dtype::fp16,
      .refusal = refusal,
      .techniques = {any_order()},
      .methods = {
          {.name = "forward", .cost = [](const Problem& p) { return step06::cost(of_forward(p)); }, .run = forward},
          {.name = "one-pass backward",
           .backward = true,
           .scratch = [](const Problem& p) { return one_pass_scratch(p, turns_of(p)); },
           .cost = [](const Problem& p) { return one_pass_cost(p); },
           .prepare = forward,
           .run = backward,
           .any_order = "dq"}}};
}

}  // namespace attention::ATTN_DEVICE::step10
