// Which tile shapes are compiled in, and how a step picks one at run time.
#pragma once

#include <vector>

#include "common/harness/error.h"
#include "common/harness/step.h"
#include "common/tile/product.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// A block owns Br rows of one side and loops over the other side in tiles of Bc rows; rows are HeadDim long (shorter ones are
/// padded with zeros). Each of its Warps owns Br / Warps of the rows, Lanes lanes to a row.
template <class E, int Br, int Bc, int HeadDim, int Warps, int Lanes, int BlocksPerSm>
struct Tile {
  using Element = E;
  static constexpr int kBr = Br, kBc = Bc, kHeadDim = HeadDim;
  static constexpr int kThreads = 32 * Warps, kWarpRows = Br / Warps, kBlocksPerSm = BlocksPerSm;
  using Own = SramTile<E, Br, HeadDim>;    // the block's rows: Q (K and V where a block owns keys)
  using Loop = SramTile<E, Bc, HeadDim>;   // a tile of the other side
  using Staging = SramTile<E, Br, Bc>;     // P on its way from the fragment of scores to the left side of a product
  using Scores = Fragment<kWarpRows, Bc, Lanes, 1>;
  using Output = Fragment<kWarpRows, HeadDim, Lanes, 4>;
};

template <class... Ts>
struct TileList {};

// A 128x64 tile gives each lane 8x8 outputs, the largest micro-tile whose accumulators fit the registers; it needs 102 KiB of
// SRAM at head_dim 64, so the smaller ones are for GPUs with less (99 KiB: sm_86, sm_89, sm_120; 64 KiB: sm_75).
using ForwardTiles = TileList<
    Tile<float, 128, 64, 64, 4, 8, 2>, Tile<float, 64, 64, 64, 4, 8, 3>, Tile<float, 64, 32, 64, 2, 8, 3>,
    Tile<float, 128, 64, 128, 8, 16, 1>, Tile<float, 64, 32, 128, 4, 16, 2>, Tile<float, 32, 32, 128, 2, 16, 3>,
    Tile<float, 64, 32, 256, 8, 32, 1>, Tile<float, 32, 16, 256, 4, 16, 2>>;

// The backward keeps two accumulators and two fragments of scores, so a lane's micro-tiles are half as tall.
using BackwardTiles = TileList<
    Tile<float, 64, 64, 64, 4, 8, 2>, Tile<float, 32, 32, 64, 2, 8, 3>,
    Tile<float, 64, 64, 128, 8, 16, 1>, Tile<float, 32, 32, 128, 4, 16, 1>, Tile<float, 16, 16, 128, 4, 16, 2>,
    Tile<float, 16, 16, 256, 4, 16, 1>>;

/// The padded head_dim that serves `head_dim`, 0 when none does.
constexpr int padded_head_dim(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : head_dim <= 256 ? 256 : 0; }

/// Calls f(T{}) for the T of the list that is problem.tile at this head_dim. Throws Unsupported when there is none.
template <class F, class... Ts>
void with_tile(const Problem& problem, TileList<Ts...>, F&& f) {
  auto matches = [&](auto t) {
    return padded_head_dim(problem.head_dim) == t.kHeadDim && problem.tile == TileShape{t.kBr, t.kBc};
  };
  const bool found = ((matches(Ts{}) && (f(Ts{}), true)) || ...);
  if (!found) throw Unsupported("no tile " + std::to_string(problem.tile.br) + "x" + std::to_string(problem.tile.bc) + " for head_dim " + std::to_string(problem.head_dim));
}

/// The list's shapes for this head_dim, in order, each with the bytes of SRAM that `sram_bytes(T{})` says a block needs.
template <class F, class... Ts>
std::vector<TileChoice> tile_choices(const Problem& problem, TileList<Ts...>, F&& sram_bytes) {
  std::vector<TileChoice> choices;
  auto add = [&](auto t) {
    if (padded_head_dim(problem.head_dim) == t.kHeadDim) choices.push_back({{t.kBr, t.kBc}, static_cast<int64_t>(sram_bytes(t))});
  };
  (add(Ts{}), ...);
  return choices;
}

}  // namespace ATTN_DEVICE
}  // namespace attention
