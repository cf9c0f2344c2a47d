// step09  split keys                                                                          docs/09-split-keys.md
//
// Few heads leave most of a GPU idle: a block owns queries, and there are not enough of those. So the keys of a row
// are shared out too. Each part is step04 on keys of its own, with an O and an LSE of its own; and as alpha merges
// two tiles, e^(LSE_s - LSE) merges the parts.
//
//      Q, keys of part 0 ▶ [ step04 ] ──▶ O_0, LSE_0 ─┐
//      Q, keys of part 1 ▶ [ step04 ] ──▶ O_1, LSE_1 ─┼▶ [ O = sum of e^(LSE_s - LSE) O_s ] ──▶ O, LSE
//      Q, keys of part 2 ▶ [ step04 ] ──▶ O_2, LSE_2 ─┘
//
//   HBM       4X + L elements, and twice parts (X + L) in fp32, which stay in the L2 where they fit
//   executes  4 N^2 d FLOPs per head          extra memory  LSE, parts (X + L) in fp32
//
//   make step09 && ./step09 --heads 1          (--splits 1 is step04, --splits n up to n parts)
#include "step09_splits.h"  // the rule of --splits auto; steps 04 and 07, whose kernels compute the parts, come with it

namespace attention::ATTN_DEVICE::step09 {

/// The mask of a part. A head of step04's kernel is a part here: its keys count from the first that the part owns.
struct PartMask : Mask {
  int parts, keys_per_part;

  __device__ __forceinline__ Place place_of_block(int rows) {
    const Place place = Mask::place_of_block(rows);
    seqlen_k -= place.head % parts * keys_per_part;  // and so the diagonal, which lies seqlen_k - seqlen_q to the right
    return place;
  }
  __device__ __forceinline__ int keys_end(int i_end) const {
    const int end = Mask::keys_end(i_end);
    return end < keys_per_part ? end : keys_per_part;
  }
};

/// Q, K or V as the parts see it: all parts of a head the same rows of Q, each rows of K and V of its own.
template <class View>
struct PartView {
  View whole;
  int parts, rows_per_part;
  __device__ __forceinline__ View head(int part) const {
    return whole.head(part / parts).rows_from(part % parts * rows_per_part);
  }
};

/// Where step07's kernel differs from step04's: its tiles are copied by boxes, it visits one key tile at least, and its
/// sums are a warpgroup's.
template <class E, int Rows, int Cols>
__device__ __forceinline__ void copy_tile(SwizzledTile<E, Rows, Cols>& to, const PartView<TensorMap>& from, int row0,
                                          int part, Barrier& full) {
  attention::copy_tile(to, from.whole, row0 + part % from.parts * from.rows_per_part, part / from.parts, full);
}
__device__ __forceinline__ int key_tiles(const PartMask& mask, int q_end, int bc) {
  return max(1, (mask.keys_end(q_end) + bc - 1) / bc);
}
template <class E, int Br, int D>
__device__ __forceinline__ void store_o_and_lse(float (&o)[D / 2], float (&m)[2], float (&l)[2], float softmax_scale,
                                                SwizzledTile<E, Br, D>&, int warp_row, Global<float> O,
                                                Global<float> LSE, const PartMask&, int q0, int part) {
  Fragment<16, D, 4, 2> rows(warp_row);
  ATTN_UNROLL for (int n = 0; n < D / 2; ++n) rows(n / 2 % 2, n / 4 * 2 + n % 2) = o[n];
  attention::store_o_and_lse(rows, m, l, softmax_scale, O.head(part), LSE.head(part), q0);
}

constexpr int kMergeWarps = 4;

struct MergeSram {
  SramTile<float, kMergeWarps, kMostParts> weight;
};

/// O = sum over parts of e^(LSE_s - LSE) O_s with LSE = log of the sum of e^LSE_s. A warp owns a row, a lane of it
/// every 32nd column; a part that saw none of its keys has LSE_s = -inf and weighs nothing.
template <class E, int HeadDim>
__global__ void merge(int parts,
                      Global<const float> partial_O,    // [heads, parts * seqlen_q, head_dim]
                      Global<const float> partial_LSE,  // [heads, parts, seqlen_q]
                      Global<E> O,                      // [heads, seqlen_q, head_dim]
                      Global<float> LSE,                // [heads, 1, seqlen_q]
                      int64_t rows) {                   // of all heads
  auto& sram = dynamic_sram<MergeSram>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row_of_all = int64_t{blockIdx.x} * kMergeWarps + warp;
  if (row_of_all >= rows) return;
  const int head = static_cast<int>(row_of_all / O.rows);
  const int64_t row = row_of_all % O.rows;

  float m[1] = {-INFINITY}, l[1] = {0};
  for (int s = lane; s < parts; s += 32) {
    const float lse = partial_LSE.head(head).load(s, row);
    sram.weight.store(warp, s, lse);
    m[0] = fmaxf(m[0], lse);
  }
  lanes_max<32>(m);
  for (int s = lane; s < parts; s += 32) {
    const float weight = expf(sram.weight.load(warp, s) - finite(m[0]));  // what this lane stored
    sram.weight.store(warp, s, weight);
    l[0] += weight;
  }
  lanes_sum<32>(l);
  __syncwarp();  // the weights are there

  float o[HeadDim / 32] = {};
  ATTN_UNROLL_4 for (int s = 0; s < parts; ++s) {
    const float weight = sram.weight.load(warp, s);
    ATTN_UNROLL for (int c = 0; c < HeadDim / 32; ++c)
      if (const int col = 32 * c + lane; col < O.cols)
        o[c] += weight * partial_O.head(head).load(s * O.rows + row, col);
  }
  const float inverse = l[0] > 0 ? 1 / l[0] : 0;
  ATTN_UNROLL for (int c = 0; c < HeadDim / 32; ++c)
    if (const int col = 32 * c + lane; col < O.cols) O.head(head).store(row, col, o[c] * inverse);
  if (lane == 0) LSE.head(head).store(0, row, finite(m[0]) + logf(l[0]));
}

// ---- launches -------------------------------------------------------------------------------------------------------

inline void forward(const Problem& p, const Tensors& t) {
  const Splits split = splits(p);
  const int parts = static_cast<int>(split.parts), keys = static_cast<int>(split.keys_per_part);
  if (parts == 1 && on_copy_engine(p))
    return with_tile(p, HopperTiles{}, [&](auto tile) { step07::launch_attention<decltype(tile)>(p, t); });
  if (parts == 1) return with_step04s_tile(p, [&](auto tile) { step04::launch_attention<decltype(tile)>(p, t); });

  const int64_t heads = p.heads_total();
  void *partial_O = t.scratch("partial O"), *partial_LSE = t.scratch("partial LSE");
  const auto attention = [&](auto tile, auto kernel, int64_t sram, auto Q, auto K, auto V) {
    launch("attention", kernel, heads * parts * ceil_div(p.seqlen_q, tile.kBr), tile.kThreads, sram,
           PartMask{{p.seqlen_q, p.seqlen_k, p.causal}, parts, keys}, p.softmax_scale, PartView{Q, parts, 0},
           PartView{K, parts, keys}, PartView{V, parts, keys},
           view<float>(Target{partial_O, "partial O"}, heads * parts, p.seqlen_q, p.head_dim),
           view<float>(Target{partial_LSE, "partial LSE"}, heads * parts, 1, p.seqlen_q));
  };
  if (on_copy_engine(p))
    with_tile(p, HopperTiles{}, [&](auto tile) {
      using T = decltype(tile);
      const TensorMaps maps = tensor_maps<T>(p, t);
      attention(tile, step07::attention<T, PartMask, PartView<TensorMap>, Global<float>>, sizeof(step07::Sram<T>),
                maps.q, maps.k, maps.v);
    });
  else
    with_step04s_tile(p, [&](auto tile) {
      using T = decltype(tile);
      using E = typename T::Element;
      attention(tile, step04::attention<T, PartMask, PartView<typename T::In>, Global<float>>, sizeof(step04::Sram<T>),
                query_rows<E>(p, Source{t.q, "Q"}), key_rows<E>(p, Source{t.k, "K"}), key_rows<E>(p, Source{t.v, "V"}));
    });
  with_tile_of(p, [&](auto tile) {
    using E = typename decltype(tile)::Element;
    launch("merge", merge<E, tile.kHeadDim>, ceil_div(p.L(), kMergeWarps), 32 * kMergeWarps, sizeof(MergeSram), parts,
           view<float>(Source{partial_O, "partial O"}, heads, parts * p.seqlen_q, p.head_dim),
           view<float>(Source{partial_LSE, "partial LSE"}, heads, parts, p.seqlen_q),
           query_rows<E>(p, Target{t.o, "O"}), row_scalars(p, Target{t.lse, "LSE"}), p.L());
  });
}

// ---- what it costs --------------------------------------------------------------------------------------------------

inline std::vector<Scratch> scratch(const Problem& p) {
  const int64_t parts = splits(p).parts;
  if (parts == 1) return {};
  return {{.name = "partial O", .bytes = parts * p.Xq() * 4, .handed_on = true},
          {.name = "partial LSE", .bytes = parts * p.L() * 4, .handed_on = true}};
}

/// Each part loads its queries, and the keys that they see in it: a problem of its own whose keys begin later and end
/// sooner.
inline std::vector<KernelCost> cost(const Problem& p) {
  const Splits split = splits(p);
  const int64_t parts = split.parts;
  const bool copy_engine = on_copy_engine(p);
  if (parts == 1) return copy_engine ? copy_engine_cost(p) : step04::cost(p);
  Visits visits{.own = p.tile.br, .loop = p.tile.bc};
  for (Problem part = p; part.seqlen_k > 0; part.seqlen_k -= split.keys_per_part) {
    const Visits here =
        visits_by_query_blocks(part, p.tile.br, p.tile.bc, copy_engine, split.keys_per_part / p.tile.bc);
    visits.tiles += here.tiles, visits.rows += here.rows;
  }
  KernelCost attention("attention", p);
  attention.loads("Q", parts * p.Xq(), p.Xq())
      .loads({"K", "V"}, visits.rows * p.row(), p.Xk())
      .stores("partial O", parts * p.Xq(), parts * p.Xq())
      .stores("partial LSE", parts * p.L(), parts * p.L())
      .multiplies(visits, 2);
  if (copy_engine) attention.by_copy_engine().by_warpgroups();
  return {attention, KernelCost("merge", p)
                         .loads("partial O", parts * p.Xq(), parts * p.Xq())
                         .loads("partial LSE", parts * p.L(), parts * p.L())
                         .stores("O", p.Xq(), p.Xq())
                         .stores("LSE", p.L(), p.L())};
}

inline Step step() {
  return {.id = "step09",
          .title = "split keys",
          .idea = "several blocks share a row's keys, each with its own O and LSE, and a second kernel merges them",
          .chapter = "docs/09-split-keys.md",
          .before = "step04",
          .tiles = tiles,
          .largest_head_dim = 256,
          .techniques = {{"copy-engine", "on a Hopper GPU, too, step04's kernel computes the parts, not step07's"}},
          .splits = splits,
          .methods = {{.name = "forward", .scratch = scratch, .cost = cost, .run = forward}}};
}

}  // namespace attention::ATTN_DEVICE::step09
