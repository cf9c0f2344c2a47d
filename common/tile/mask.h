// Which query sees which key, and in which order blocks take the tiles: each rule once, and what follows from it for
// whole tiles.
#pragma once

#include "common/base/problem.h"
#include "common/device/device.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// Where a block works: a head, and the first row of its tile.
struct Place {
  int head, row0;
};

/// In which order the tiles of all heads are taken; blocks start in the order of blockIdx.x. `together` heads go
/// through their tiles side by side: under a causal mask, whose tiles differ in length, so that short ones are left to
/// fill the GPU at the end, and the K and V of these heads stay in L2. Otherwise all take equally long, and one head's
/// K and V at a time is best.
struct Order {
  static constexpr int kTogetherIfCausal = 16;
  int tiles, heads, together;  // tiles of a head, heads in all

  /// Of this grid, which has a block for every tile of every head.
  static __device__ __forceinline__ Order of_grid(int64_t tiles, int together = 1) {
    return {static_cast<int>(tiles), static_cast<int>(gridDim.x / static_cast<unsigned>(tiles)), together};
  }
  /// Where tile `number` is, of `rows` rows each, first rows first: so go keys, of which the first are seen by the most
  /// queries, and queries that all see as many keys.
  __device__ __forceinline__ Place ascending(int number, int rows) const {
    const auto [head, tile] = head_and_tile(number);
    return {head, tile * rows};
  }
  /// The same, last rows first: so go queries, of which the last see the most keys.
  __device__ __forceinline__ Place descending(int number, int rows) const {
    const auto [head, tile] = head_and_tile(number);
    return {head, (tiles - 1 - tile) * rows};
  }

 private:
  struct HeadAndTile {
    int head, tile;
  };
  __device__ __forceinline__ HeadAndTile head_and_tile(int number) const {
    const int first = number / (together * tiles) * together, rest = number - first * tiles;
    const int side_by_side = heads - first < together ? heads - first : together;
    return {first + rest % side_by_side, rest / side_by_side};
  }
};

/// Causal is bottom-right: query i sees the keys j <= i + seqlen_k - seqlen_q. (Dao-AILab/flash-attention 2.1 and newer
/// do the same; PyTorch's is_causal is top-left.) Positions past the ends, which pad ragged tiles, see nothing and are
/// not seen. Lengths are up to kMostTokens (base/problem.h), so that 32 bits hold every position, a tile past the ends
/// included.
struct Mask {
  int seqlen_q, seqlen_k;
  bool causal;

  Mask(int64_t queries, int64_t keys, bool is_causal)
      : seqlen_q(static_cast<int>(queries)), seqlen_k(static_cast<int>(keys)), causal(is_causal) {}

  /// The rule: query i sees the first keys_seen(i) keys (0 or less: none).
  __device__ __forceinline__ int keys_seen(int i) const {
    const int below = causal ? i + 1 - seqlen_q + seqlen_k : seqlen_k;
    return below < seqlen_k ? below : seqlen_k;
  }
  __device__ __forceinline__ bool visible(int i, int j) const { return i < seqlen_q && j < keys_seen(i); }

  /// True when every query of [i0, i0 + rows) sees every key of [j0, j0 + cols): then nothing in the tile needs
  /// masking.
  __device__ __forceinline__ bool all_visible(int i0, int rows, int j0, int cols) const {
    return i0 + rows <= seqlen_q && j0 + cols <= keys_seen(i0);
  }

  /// s = -inf where the query does not see the key; (i0, j0) is the tile's first pair. Rows past the last query see
  /// what it sees; they are never stored. Tiles away from the edges, nearly all of them, pay for one comparison.
  template <class Scores>
  __device__ __forceinline__ void apply(Scores& s, int i0, int j0) const {
    if (j0 + s.col(s.kCols - 1) + 1 > keys_seen(i0 + s.row(0))) apply_on_edge(s, i0, j0);
  }
  /// The same for who knows which tiles lie on an edge (step06): without asking.
  template <class Scores>
  __device__ __forceinline__ void apply_on_edge(Scores&& s, int i0, int j0) const {
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) {
      const int end = keys_seen(i0 + s.row(i)) - j0 - s.col0;
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j)
        if (s.from_col0(j) >= end) s(i, j) = -INFINITY;  // a constant on the left
    }
  }
  /// One past the last key that any of the queries before i_end sees.
  __device__ __forceinline__ int keys_end(int i_end) const {
    const int end = keys_seen(i_end - 1);
    return end < 0 ? 0 : end;
  }
  /// The first query that sees key j.
  __device__ __forceinline__ int queries_begin(int j) const {
    const int begin = causal ? j - seqlen_k + seqlen_q : 0;
    return begin < 0 ? 0 : begin;
  }
  /// The place of this block in a grid with a block for every tile of `rows` queries (keys) of every head.
  __device__ __forceinline__ Place place_of_block(int rows) const {
    return Order::of_grid(ceil_div(seqlen_q, rows), causal ? Order::kTogetherIfCausal : 1)
        .descending(static_cast<int>(blockIdx.x), rows);
  }
  __device__ __forceinline__ Place place_of_keys(int rows) const {
    return Order::of_grid(ceil_div(seqlen_k, rows)).ascending(static_cast<int>(blockIdx.x), rows);
  }
};

}  // namespace ATTN_DEVICE
}  // namespace attention
