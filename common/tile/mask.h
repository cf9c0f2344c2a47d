// Which query sees which key: the one rule, and what follows from it for whole tiles.
#pragma once

#include "common/device/device.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// Heads that go through their query tiles side by side under a causal mask (place_of_block; Order in warpgroup.h).
constexpr unsigned kHeadsTogether = 16;

/// Where a block works: a head, and the first query of its tile.
struct Place {
  int head, q0;
};

/// Causal is bottom-right: query i sees the keys j <= i + seqlen_k - seqlen_q. (Dao-AILab/flash-attention 2.1 and newer do the
/// same; PyTorch's is_causal is top-left.) Positions past the ends, which pad ragged tiles, see nothing and are not seen.
struct Mask {
  int64_t seqlen_q;
  int64_t seqlen_k;
  bool causal;

  __device__ bool visible(int64_t i, int64_t j) const { return i < seqlen_q && j < seqlen_k && (!causal || j <= i + seqlen_k - seqlen_q); }

  /// True when every query of [i0, i0 + rows) sees every key of [j0, j0 + cols): then nothing in the tile needs masking.
  __device__ bool all_visible(int64_t i0, int rows, int64_t j0, int cols) const {
    return i0 + rows <= seqlen_q && j0 + cols <= seqlen_k && (!causal || j0 + cols - 1 <= i0 + seqlen_k - seqlen_q);
  }
  /// s = -inf where the query does not see the key; (i0, j0) is the tile's first pair. Tiles away from the edges, nearly all of
  /// them, pay for a few comparisons alone.
  template <class Scores>
  __device__ __forceinline__ void apply(Scores& s, int64_t i0, int64_t j0) const {
    if (all_visible(i0 + s.row(0), s.row(s.kRows - 1) - s.row(0) + 1, j0, s.col(s.kCols - 1) + 1)) return;
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i)
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j)
        if (!visible(i0 + s.row(i), j0 + s.col(j))) s(i, j) = -INFINITY;
  }
  /// The same for who knows which tiles lie on an edge (step06): without asking, and with one comparison of 32 bits per pair. Rows
  /// past the last query see what it sees; they are never stored.
  template <class Scores>
  __device__ __forceinline__ void apply_on_edge(Scores& s, int64_t i0, int64_t j0) const {
    const int in_all = clamped(seqlen_k - j0), in_first_row = causal ? clamped(i0 + 1 + seqlen_k - seqlen_q - j0) : in_all;  // keys seen
    ATTN_UNROLL for (int i = 0; i < s.kRows; ++i) {
      const int below = causal ? in_first_row + s.row(i) : in_all, end = below < in_all ? below : in_all;
      ATTN_UNROLL for (int j = 0; j < s.kCols; ++j)
        if (s.col(j) >= end) s(i, j) = -INFINITY;
    }
  }
  static __device__ int clamped(int64_t x) {
    constexpr int64_t kFar = 1 << 20;  // beyond any tile
    return static_cast<int>(x < -kFar ? -kFar : x < kFar ? x : kFar);
  }
  /// The place of this block, one of a grid with a block for every tile of `rows` queries of every head. Blocks start in the order of
  /// blockIdx.x. Under a causal mask the last queries see the most keys: their tiles go first, and kHeadsTogether heads side by side,
  /// so that short tiles are left to fill the GPU at the end, and the K and V of these heads stay in L2.
  __device__ Place place_of_block(int rows) const {
    const unsigned tiles = static_cast<unsigned>(ceil_div(seqlen_q, rows));
    const auto [head, tile] = head_and_tile(blockIdx.x, tiles, causal ? kHeadsTogether : 1);
    return {head, (static_cast<int>(tiles) - 1 - tile) * rows};
  }
  /// The same for the `number`th block of a grid with one for every tile of `rows` keys: the first keys are seen by the most queries. q0 is the
  /// first key.
  __device__ Place place_of_keys(unsigned number, int rows) const {
    const auto [head, tile] = head_and_tile(number, static_cast<unsigned>(ceil_div(seqlen_k, rows)), causal ? kHeadsTogether / 2 : 1);
    return {head, tile * rows};
  }
  static __device__ Place head_and_tile(unsigned number, unsigned tiles, unsigned side_by_side) {
    const unsigned heads = gridDim.x / tiles, first = number / (side_by_side * tiles) * side_by_side, n = number - first * tiles;
    const unsigned together = heads - first < side_by_side ? heads - first : side_by_side;
    return {static_cast<int>(first + n % together), static_cast<int>(n / together)};
  }
  /// One past the last key that any of the queries before i_end sees.
  __device__ int64_t keys_end(int64_t i_end) const {
    if (i_end > seqlen_q) i_end = seqlen_q;
    const int64_t end = causal ? i_end + seqlen_k - seqlen_q : seqlen_k;
    return end < 0 ? 0 : end;
  }
  /// The first query that sees key j.
  __device__ int64_t queries_begin(int64_t j) const {
    const int64_t begin = causal ? j - (seqlen_k - seqlen_q) : 0;
    return begin < 0 ? 0 : begin;
  }
};

}  // namespace ATTN_DEVICE
}  // namespace attention
