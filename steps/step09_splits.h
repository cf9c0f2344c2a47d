// step09: into how many parts a row's keys go, and which kernel and tile compute them.
#pragma once

#include "step04_online_softmax.cu"
#include "step07_hopper_twin_blocks.cu"

namespace attention::ATTN_DEVICE::step09 {

constexpr int kMostParts = 128;

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
/// other: each has a place. Those of step07 share its tensor cores: an SM is one place, and two blocks take it 1.7
/// times as long as one.
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

}  // namespace attention::ATTN_DEVICE::step09
