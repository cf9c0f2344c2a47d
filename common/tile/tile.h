// The tile: the unit in which every step moves and multiplies. It has three homes - HBM (Global), SRAM (SramTile),
// registers (Fragment) - and this file has the functions that take it from one to the other. The products are in
// product.h. docs/tile-product.md walks through both.
#pragma once

#include "common/device/device.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// Rows x Cols elements in SRAM. The pitch is 16 bytes longer than a row: in units of 16 bytes it is odd, so that the
/// same column of eight neighbouring rows lies in eight different bank groups. Without the padding every 16-byte read
/// down a column would hit the same four banks.
template <class E, int Rows, int Cols>
struct SramTile {
  static constexpr int kRows = Rows;
  static constexpr int kCols = Cols;
  static constexpr int kPitch = Cols + 16 / static_cast<int>(sizeof(E));
  static_assert(Cols * sizeof(E) % 16 == 0, "a row is a whole number of 16-byte vectors");
  alignas(16) E element[Rows][kPitch];

  /// Where to read (write) `count` neighbouring elements of a row. The hooks cost nothing on a GPU.
  __device__ __forceinline__ const E* read(int row, int col, int count) const {
    note_sram_read(&element[row][col], count * static_cast<int>(sizeof(E)));
    return &element[row][col];
  }
  __device__ __forceinline__ E* write(int row, int col, int count) {
    note_sram_write(&element[row][col], count * static_cast<int>(sizeof(E)));
    return &element[row][col];
  }
  __device__ __forceinline__ float load(int row, int col) const { return to_float(*read(row, col, 1)); }
  __device__ __forceinline__ void store(int row, int col, float value) { *write(row, col, 1) = from_float<E>(value); }
  /// N neighbours in one access; col is a multiple of N.
  template <int N>
  __device__ __forceinline__ void load_run(int row, int col, float (&values)[N]) const {
    const auto run = *reinterpret_cast<const Run<N>*>(read(row, col, N));
    ATTN_UNROLL for (int n = 0; n < N; ++n) values[n] = to_float(run.element[n]);
  }
  template <int N>
  __device__ __forceinline__ void store_run(int row, int col, const float (&values)[N]) {
    Run<N> run;
    ATTN_UNROLL for (int n = 0; n < N; ++n) run.element[n] = from_float<E>(values[n]);
    *reinterpret_cast<Run<N>*>(write(row, col, N)) = run;
  }

 private:
  template <int N>
  struct alignas(N * sizeof(E)) Run {
    E element[N];
  };
};

/// Rows x Cols fp32 values in the registers of one warp. `Lanes` lanes share a row, so 32 / Lanes rows lie side by
/// side, and a lane holds runs of `Run` neighbouring columns: value[i][j] is element (row(i), col(j)) of the block's
/// tile, whose rows first_row .. first_row + Rows - 1 are this warp's. (The accumulators of a tensor core's m16n8
/// product are the case Lanes = 4, Run = 2.)
template <int Rows, int Cols, int Lanes, int Run>
struct Fragment {
  static constexpr int kLanes = Lanes;
  static constexpr int kRows = Rows * Lanes / 32;  // of one lane
  static constexpr int kCols = Cols / Lanes;
  static_assert(kRows * 32 == Rows * Lanes && kCols * Lanes == Cols && kCols % Run == 0);
  int row0, col0;
  float value[kRows][kCols];

  __device__ __forceinline__ explicit Fragment(int first_row) {
    const int lane = threadIdx.x % 32;
    row0 = first_row + lane / Lanes;
    col0 = lane % Lanes * Run;
    ATTN_UNROLL for (int i = 0; i < kRows; ++i)
      ATTN_UNROLL for (int j = 0; j < kCols; ++j) value[i][j] = 0;
  }
  __device__ __forceinline__ int row(int i) const { return row0 + 32 / Lanes * i; }
  __device__ __forceinline__ int col(int j) const { return col0 + from_col0(j); }
  static __device__ __forceinline__ int from_col0(int j) { return j / Run * (Lanes * Run) + j % Run; }
  __device__ __forceinline__ float& operator()(int i, int j) { return value[i][j]; }
  __device__ __forceinline__ float operator()(int i, int j) const { return value[i][j]; }
  /// One lane of each row speaks for it: a row's LSE is stored once, not Lanes times.
  __device__ __forceinline__ bool first_lane_of_row() const { return col0 == 0; }
};

/// load_tile where rows start anywhere (head_dim or seqlen_k not a multiple of 16 bytes): one element at a time.
template <int Threads, int N, class E, int Rows, int Cols, class T>
__device__ __forceinline__ void load_unaligned_tiles(SramTile<E, Rows, Cols>* const (&to)[N],
                                                     const Global<T> (&from)[N], int64_t row0, int64_t col0) {
  ATTN_UNROLL for (int t = 0; t < N; ++t)
    ATTN_UNROLL_4 for (int n = threadIdx.x; n < Rows * Cols; n += Threads) {
      const int row = n / Cols, col = n % Cols;
      const bool inside = row0 + row < from[t].rows && col0 + col < from[t].cols;
      to[t]->store(row, col, inside ? from[t].load(row0 + row, col0 + col) : 0);
    }
}

/// HBM -> SRAM, transposed: element (row0 + r, col0 + c) of `from` lands in (c, r) of the tile.
enum Orientation { transposed };
template <int Threads, Orientation, class E, int Rows, int Cols, class T>
__device__ __forceinline__ void load_tile(SramTile<E, Rows, Cols>& to, Global<T> from, int64_t row0, int64_t col0) {
  const Timed timed(Noted::load, from.data);
  ATTN_UNROLL_4 for (int n = threadIdx.x; n < Rows * Cols; n += Threads) {
    // A warp takes 4 rows by 8 columns: it loads whole 32-byte sectors, and its 32 stores fall into 32 different banks.
    const int r = n % 4 + n / 32 % (Cols / 4) * 4, c = n / 4 % 8 + n / (8 * Cols) * 8;
    const bool inside = row0 + r < from.rows && col0 + c < from.cols;
    to.store(c, r, inside ? from.load(row0 + r, col0 + c) : 0);
  }
}

/// HBM -> SRAM: of each view, the tile whose first element is (row0, col0). What lies outside of a view becomes 0, so
/// that a ragged tile needs no special case in any product. Each of the block's Threads stays in its 16 bytes of a row
/// and goes down the rows, up to eight loads per tile in flight; K's and V's tiles, loaded by one call, are in flight
/// together, and memory is waited for once. A __syncthreads must follow before anyone reads the tiles.
template <int Threads, int N, class E, int Rows, int Cols, class T>
__device__ __forceinline__ void load_tile(SramTile<E, Rows, Cols>* const (&to)[N], const Global<T> (&from)[N],
                                          int64_t row0, int64_t col0 = 0) {
  const Timed timed(Noted::load, from[0].data, from[N - 1].data);
  constexpr int kVector = Global<T>::kVector, kPerRow = Cols / kVector, kStep = Threads / kPerRow;
  static_assert(Threads % kPerRow == 0 && sizeof(E) == sizeof(T));
  constexpr int kBatch = Rows <= kStep ? 1 : Rows / kStep < 8 ? Rows / kStep : 8;
  constexpr bool kWhole = Rows % (kBatch * kStep) == 0;  // no thread ever steps past the tile
  if (from[0].cols % kVector != 0) return load_unaligned_tiles<Threads>(to, from, row0, col0);
  const int row = threadIdx.x / kPerRow, col = threadIdx.x % kPerRow * kVector;
  const int64_t below = from[0].rows - row0 - row;
  const int rows = col0 + col >= from[0].cols ? 0
                   : below < Rows - row       ? static_cast<int>(below)
                                              : Rows - row;  // to load, in these columns
  ATTN_UNROLL for (int r0 = 0; r0 < Rows; r0 += kBatch * kStep) {
    float4 x[N][kBatch];
    ATTN_UNROLL for (int n = 0; n < N; ++n)
      ATTN_UNROLL for (int b = 0; b < kBatch; ++b)
        x[n][b] = from[n].rows_from(row0 + row).load_vector_if(r0 + b * kStep < rows, r0 + b * kStep, col0 + col);
    ATTN_UNROLL for (int n = 0; n < N; ++n)
      ATTN_UNROLL for (int b = 0, r = row + r0; b < kBatch; ++b, r += kStep)
        if (kWhole || r < Rows) *reinterpret_cast<float4*>(to[n]->write(r, col, kVector)) = x[n][b];
  }
}
template <int Threads, class E, int Rows, int Cols, class T>
__device__ __forceinline__ void load_tile(SramTile<E, Rows, Cols>& to, Global<T> from, int64_t row0, int64_t col0 = 0) {
  load_tile<Threads>({&to}, {from}, row0, col0);
}

/// HBM -> SRAM as above, but nobody waits: the tile's 16-byte vectors travel while the threads go on. It is complete
/// for all when each thread has waited for its own (wait_copies) and a __syncthreads has followed. Rows must be a whole
/// number of vectors long. row0 has 32 bits, for which who starts many copies has fewer registers to keep.
template <int Threads, class E, int Rows, int Cols>
__device__ __forceinline__ void load_tile_async(SramTile<E, Rows, Cols>& to, Global<const E> from, int row0) {
  const Timed timed(Noted::copy, from.data);
  constexpr int kVector = Global<const E>::kVector, kPerRow = Cols / kVector, kStep = Threads / kPerRow;
  static_assert(Threads % kPerRow == 0 && Rows % kStep == 0);
  const int row = threadIdx.x / kPerRow, col = threadIdx.x % kPerRow * kVector;
  const int64_t below = from.rows - row0 - row;
  const int rows = col >= from.cols ? 0 : below < Rows ? static_cast<int>(below) : Rows;  // to load, in these columns
  ATTN_UNROLL for (int r = 0; r < Rows; r += kStep)
    copy_async(to.write(row + r, col, kVector), from.rows_from(int64_t{row0} + row), r < rows, r, col);
}

/// The same for Cols neighbours of a tensor that has one row, from col0 on: a row's own numbers, LSE and delta. All of
/// them are there.
template <class E, int Cols>
__device__ __forceinline__ void load_row_async(SramTile<E, 1, Cols>& to, Global<const E> from, int64_t col0) {
  constexpr int kVector = Global<const E>::kVector;
  const int col = threadIdx.x * kVector;
  if (col < Cols) copy_async(to.write(0, col, kVector), from, true, 0, col0 + col);
}

/// Registers -> HBM: the part of the fragment that lies inside of `to`, whose element (row0, col0) is the tile's first.
template <class E, int Rows, int Cols, int Lanes, int Run>
__device__ __forceinline__ void store_tile(Global<E> to, const Fragment<Rows, Cols, Lanes, Run>& from, int64_t row0,
                                           int64_t col0 = 0) {
  const Timed timed(Noted::store, to.data);
  const bool aligned = to.cols % Run == 0;
  const int rows = static_cast<int>(to.rows - row0), cols = static_cast<int>(to.cols - col0);  // that exist
  ATTN_UNROLL for (int i = 0; i < from.kRows; ++i) {
    if (from.row(i) >= rows) continue;
    const int64_t row = row0 + from.row(i);
    ATTN_UNROLL for (int j = 0; j < from.kCols; j += Run) {
      const int64_t col = col0 + from.col(j);
      if (aligned) {
        if (from.col(j) < cols) to.template store_run<Run>(row, col, &from.value[i][j]);
      } else {
        ATTN_UNROLL for (int r = 0; r < Run; ++r)
          if (from.col(j) + r < cols) to.store(row, col + r, from(i, j + r));
      }
    }
  }
}

/// Registers -> SRAM, in the tile's 16-bit type. The warp's rows alone.
template <class E, int TileRows, int Rows, int Cols, int Lanes>
__device__ __forceinline__ void store_tile(SramTile<E, TileRows, Cols>& to,
                                           const Fragment<Rows, Cols, Lanes, 2>& from) {
  ATTN_UNROLL for (int i = 0; i < from.kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < from.kCols; j += 2)
      *reinterpret_cast<uint32_t*>(to.write(from.row(i), from.col(j), 2)) = pack<E>(from(i, j), from(i, j + 1));
}

}  // namespace ATTN_DEVICE
}  // namespace attention
