// Where things are in Hopper's tiles: pure index arithmetic, no instruction and no CUDA, so that it is tested on any
// machine. (PTX ISA, "Asynchronous warpgroup level matrix instructions": shared memory layouts, matrix descriptor,
// register fragments.)
#pragma once

#include <cstdint>

namespace attention {

/// A tile in SRAM is made of panels of 64 columns (128 bytes of a 16-bit type), row under row. In a panel the 16-byte
/// chunk c of row r lies at c ^ (r % 8): neither eight rows of a column nor eight columns of a row meet in one bank.
constexpr int kPanelColumns = 64, kPanelRowBytes = 128, kChunkColumns = 8;
constexpr int swizzled_chunk(int row, int chunk) { return chunk ^ row % 8; }

/// The element's index in a tile of `rows` rows.
constexpr int swizzled_index(int rows, int row, int col) {
  return (col / kPanelColumns * rows + row) * kPanelColumns +
         swizzled_chunk(row, col % kPanelColumns / kChunkColumns) * kChunkColumns + col % kChunkColumns;
}

/// What a product must know of a tile that begins at `address` of SRAM, a multiple of 16: bits 0 to 13 the address, 16
/// to 29 the way from panel to panel, 32 to 45 the way from eight rows to the next eight, all in units of 16 bytes;
/// bits 62 and 63 hold 1, the 128-byte swizzle. A product that sums along the rows stays within a panel and passes over
/// the first of the two ways: 16 bytes by convention.
constexpr uint64_t tile_descriptor(uint32_t address, int panel_bytes = 16) {
  return uint64_t(address >> 4 & 0x3fff) | uint64_t(panel_bytes / 16) << 16 | uint64_t(8 * kPanelRowBytes / 16) << 32 |
         uint64_t(1) << 62;
}
/// How the descriptor moves on by `k` times 16 summed elements: along the rows of Q and K (32 bytes, four times, then
/// the next panel), and down the rows of V (16 rows).
constexpr int along_rows(int k, int panel_bytes) { return (k / 4 * panel_bytes + k % 4 * 32) / 16; }
constexpr int across_rows(int k) { return k * 16 * kPanelRowBytes / 16; }

/// A warp's 16 rows of a warpgroup's 64 x N sums: its lane's value n is this element. (tile.h's Fragment with 4 lanes
/// to a row in runs of 2.)
constexpr int sum_row(int lane, int n) { return lane / 4 + 8 * (n / 2 % 2); }
constexpr int sum_col(int lane, int n) { return n / 4 * 8 + lane % 4 * 2 + n % 2; }

/// Counts through the stages of a ring, for those who fill it and for those who empty it: which one is next, and the
/// parity of the phase in which it is filled.
template <int Stages>
struct Ring {
  int stage = 0, parity = 0;
  constexpr void next() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

}  // namespace attention
