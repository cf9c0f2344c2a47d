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
#include "step04_online_softmax.cu"
#include "step07_hopper_twin_blocks.cu"

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

/// Where step07's kernel differs from step04's: its tiles are copied by boxes, it visits one key tile at least, and its sums
/// are a warpgroup's.
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

constexpr int kMostParts = 128, kMergeWarps = 4;

struct MergeSram {
  SramTile<float, kMergeWarps, kMostParts> weight;
};

/// O = sum over parts of e^(LSE_s - LSE) O_s with LSE = log of the sum of e^LSE_s. A warp owns a row, a lane of it every
/// 32nd column; a part that saw none of its keys has LSE_s = -inf and weighs nothing.
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

// Where a few queries are all there are (decoding), what counts is how many bytes of K and V are on their way: many
// small blocks.
template <class E>
using FewQueriesOnTensorCores = TileList<Tile<E, 16, 32, 64, 1, 4, 16>, Tile<E, 16, 32, 128, 1, 4, 10>>;
using FewQueriesTiles = Joined<TileList<Tile<float, 8, 32, 64, 1, 8, 8>, Tile<float, 8, 16, 128, 1, 8, 8>>,
                               FewQueriesOnTensorCores<half>, FewQueriesOnTensorCores<bfloat16>>::type;
constexpr int kFewQueries = 16;
template <class E>
using TwinAndSingleTiles = TileList<Tile<E, 128, 128, 64, 8, 4, 2>, Tile<E, 128, 64, 128, 8, 4, 2>,
                                    Tile<E, 64, 128, 64, 4, 4, 3>, Tile<E, 64, 64, 128, 4, 4, 2>>;
using HopperTiles = Joined<TwinAndSingleTiles<half>, TwinAndSingleTiles<bfloat16>>::type;

/// Whether step07's kernel computes, or step04's.
inline bool on_copy_engine(const Problem& p) { return !p.leaves_out("copy-engine") && only_on_hopper(p).empty(); }
template <class F>
void with_step04s_tile(const Problem& p, F&& f) {
  p.tile.br <= kFewQueries ? with_tile(p, FewQueriesTiles{}, f) : with_tile(p, ForwardTiles{}, f);
}
template <class F>
void with_tile_of(const Problem& p, F&& f) {
  on_copy_engine(p) ? with_tile(p, HopperTiles{}, f) : with_step04s_tile(p, f);
}

/// The rule of --splits auto. Costs are counted in the time that a block takes for one key tile: a part of c tiles
/// takes c + 1, as it has its Q to load and its O to store, and merging takes 5 and 1 for every 8 parts. Under a causal
/// mask short blocks fill the places that long ones leave; else the places are filled in rounds. More parts need more
/// memory: they are taken where they save 5 %. Blocks of step04 that share an SM wait for memory and hardly notice each
/// other: each has a place. Those of step07 share its tensor cores: an SM is one place, and two blocks take it 1.7 times as
/// long as one.
inline Splits splits(const Problem& p) {
  constexpr int64_t kPartCost = 1, kMergeCost = 5, kPartsMergedInOne = 8;
  const auto parts_of = [&](int64_t c, const std::string& reason) {
    return Splits{ceil_div(p.seqlen_k, c * p.tile.bc), c * p.tile.bc, reason};
  };
  const int64_t tiles = ceil_div(p.seqlen_k, p.tile.bc), most = std::min<int64_t>(tiles, kMostParts);
  if (p.splits > most)
    return parts_of(ceil_div(tiles, most), "asked for " + std::to_string(p.splits) + ", most: " + std::to_string(most));
  if (p.splits > 0) return parts_of(ceil_div(tiles, p.splits), "as asked");

  int64_t blocks_per_sm = 1;
  with_tile_of(p, [&](auto tile) { blocks_per_sm = tile.kBlocksPerSm; });
  const bool shared = on_copy_engine(p);
  const int64_t places = std::max(p.multiprocessors, 1) * (shared ? 1 : blocks_per_sm), pace = shared ? 17 : 20;
  const int64_t query_tiles = ceil_div(p.seqlen_q, p.tile.br);
  const auto cost = [&](int64_t c) {
    const auto work = [&](int64_t seen) { return seen + ceil_div(seen, c) * kPartCost; };  // of a query tile
    int64_t sum = p.causal ? 0 : query_tiles * work(tiles);
    for (int64_t end = p.tile.br; p.causal && end < p.seqlen_q + p.tile.br; end += p.tile.br)
      sum += work(ceil_div(std::max<int64_t>(0, std::min(end, p.seqlen_q) + p.seqlen_k - p.seqlen_q), p.tile.bc));
    sum *= p.heads_total();
    const int64_t longest = c + kPartCost, rounds = std::max<int64_t>(1, ceil_div(sum, places * longest));
    const int64_t merging = c < tiles ? kMergeCost + ceil_div(tiles, c) / kPartsMergedInOne : 0;
    if (p.causal) return std::max(20 * longest, ceil_div(sum * pace, places)) + 20 * merging;  // long rows go first
    return rounds * longest * (rounds > 1 ? pace : 20) + 20 * merging;  // in twentieths of a tile
  };
  int64_t best = tiles, least = cost(tiles);
  for (int64_t parts = 2; parts <= most; ++parts) {
    const int64_t c = ceil_div(tiles, parts);
    if (c == ceil_div(tiles, parts - 1)) continue;
    if (const int64_t here = cost(c); here * 105 < least * 100) best = c, least = here;
  }
  const std::string blocks = std::to_string(p.heads_total() * query_tiles) + " blocks without, " +
                             std::to_string(places) + " places on " + std::to_string(p.multiprocessors) + " SMs";
  const int64_t longest = std::max<int64_t>(ceil_div(tiles, most), kLongestChain / p.tile.bc);
  if (best <= longest) return parts_of(best, "auto: " + blocks);
  return parts_of(longest, "auto: no sum runs over more than " + std::to_string(kLongestChain) + " keys; " + blocks);
}

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

inline std::vector<Scratch> scratch(const Problem& p) {
  const int64_t parts = splits(p).parts;
  if (parts == 1) return {};
  return {{.name = "partial O", .bytes = parts * p.Xq() * 4, .handed_on = true},
          {.name = "partial LSE", .bytes = parts * p.L() * 4, .handed_on = true}};
}

/// Each part loads its queries, and the keys that they see in it: a problem of its own whose keys begin later and end sooner.
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
      .loads("K", visits.rows * p.row(), p.Xk())
      .loads("V", visits.rows * p.row(), p.Xk())
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

inline std::vector<TileChoice> tiles(const Problem& p) {
  if (on_copy_engine(p)) {
    // Half as many queries to a block where that makes a block for each SM and rows are too short to be worth merging.
    std::vector<TileChoice> list =
        tile_choices(p, HopperTiles{}, [](auto t) { return sizeof(step07::Sram<decltype(t)>); });
    const int64_t blocks = p.heads_total() * ceil_div(p.seqlen_q, 128),
                  half_blocks = p.heads_total() * ceil_div(p.seqlen_q, 64);
    const bool block_for_each = blocks * 10 < p.multiprocessors * 9 && half_blocks * 10 >= p.multiprocessors * 9;
    if (p.seqlen_q <= 64 || (block_for_each && p.seqlen_k <= 2048)) std::swap(list[0], list[1]);
    return list;
  }
  const auto sram = [](auto t) { return sizeof(step04::Sram<decltype(t)>); };
  std::vector<TileChoice> first = tile_choices(p, FewQueriesTiles{}, sram),
                          rest = tile_choices(p, ForwardTiles{}, sram);
  if (p.seqlen_q > kFewQueries) std::swap(first, rest);
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
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
