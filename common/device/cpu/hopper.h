// Hopper's units on the CPU executor: the names of gpu/hopper.h, which also says what each is on a GPU; keep the two in
// step. The engine behind them, and what it checks, is hopper_block.h.
#pragma once

#include <cstring>

#include "common/device/cpu/kernel_language.h"
#include "common/device/cpu/tensor_core.h"

#define ATTN_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace attention {
inline namespace ATTN_DEVICE {

/// An address in SRAM as instructions take it: bytes from the start of the block's own.
__forceinline__ uint32_t sram_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - executor::block_view.sram);
}

/// The block's dynamic SRAM as `Layout`, which holds tiles that begin at multiples of 1024 bytes.
template <class Layout>
__forceinline__ Layout& aligned_sram(ATTN_CALLER) {
  return dynamic_sram<Layout>(file, line);
}

// ---- barriers -------------------------------------------------------------------------------------------------------

struct Barrier {
  uint64_t state;  // which of the executor's barriers it is

  __forceinline__ void init(int arrivals, ATTN_CALLER) { executor::make_barrier(&state, arrivals, {file, line}); }
  __forceinline__ void arrive(ATTN_CALLER) { executor::arrive_at_barrier(&state, 0, {file, line}); }
  __forceinline__ void arrive_and_expect(int bytes, ATTN_CALLER) {
    executor::arrive_at_barrier(&state, bytes, {file, line});
  }
  __forceinline__ void wait(int parity, ATTN_CALLER) const { executor::wait_at_barrier(&state, parity, {file, line}); }
};

__forceinline__ void barriers_are_ready(ATTN_CALLER) { executor::fence_stores({file, line}); }
__forceinline__ void named_sync(int number, int threads, ATTN_CALLER) {
  executor::named_barrier(number, threads, true, {file, line});
}
__forceinline__ void named_arrive(int number, int threads, ATTN_CALLER) {
  executor::named_barrier(number, threads, false, {file, line});
}

// ---- the copy engine ------------------------------------------------------------------------------------------------

/// A tensor [heads, rows, row_bytes] and the boxes that it is copied in.
struct TensorMap {
  unsigned char* data;
  int64_t heads, rows, row_bytes;
  int box_rows, box_panels, tensor;

  executor::BulkCopy box(int row, int panel, int head, const char* file, int line) const {
    if (head < 0 || head >= heads) [[unlikely]]
      executor::report_hbm_access({executor::HbmAccess::Kind::head, tensor, data, heads, 1, head, 0, 1}, {file, line});
    constexpr int kPanelBytes = 128;
    return {data + head * rows * row_bytes + panel * kPanelBytes, rows,   row,   row_bytes, box_rows, box_panels,
            int64_t{box_rows} * box_panels * kPanelBytes,         tensor, false, head,      panel};
  }
};

__forceinline__ void copy_box(void* to, const TensorMap& from, int row, int head, Barrier& done, ATTN_CALLER) {
  executor::start_bulk_copy(to, from.box(row, 0, head, file, line), &done.state, {file, line});
}
template <class E, int Count>
__forceinline__ void copy_run(E (&to)[Count], Global<const E> from, int64_t col, Barrier& done, ATTN_CALLER) {
  executor::start_bulk_copy(to, from.run(0, col, Count, file, line), &done.state, {file, line});
}
__forceinline__ void copy_box_back(const TensorMap& to, const void* from, int row, int panel, int head, ATTN_CALLER) {
  executor::start_bulk_copy_back(from, to.box(row, panel, head, file, line), {file, line});
}
__forceinline__ void commit_copies_back(ATTN_CALLER) { executor::commit_bulk_copies_back({file, line}); }
__forceinline__ void wait_until_copies_back_have_read(ATTN_CALLER) { executor::wait_bulk_copies_back({file, line}); }
__forceinline__ void stores_visible_to_engines(ATTN_CALLER) { executor::fence_stores({file, line}); }

struct StoreMatrices {
  const uint32_t* from;
  uint16_t* row;
};
inline void store_matrices_of_warp(void* const* lanes) {
  for (int lane = 0; lane < executor::kWarp; ++lane)
    for (int matrix = 0; matrix < 4; ++matrix)
      for (int n = 0; n < 2; ++n)
        static_cast<const StoreMatrices*>(lanes[8 * matrix + lane / 4])->row[lane % 4 * 2 + n] =
            static_cast<uint16_t>(static_cast<const StoreMatrices*>(lanes[lane])->from[matrix] >> 16 * n);
}
template <class E>
void store_matrices(E* row, const uint32_t (&x)[4], ATTN_CALLER) {
  StoreMatrices deposit{x, &row->bits};
  executor::warp_collective(store_matrices_of_warp, &deposit, {file, line});
}

// ---- registers ------------------------------------------------------------------------------------------------------

template <int Registers>
__forceinline__ void give_registers(ATTN_CALLER) {
  static_assert(Registers % 8 == 0 && Registers >= 24 && Registers <= 256);
  executor::set_registers(Registers, false, {file, line});
}
template <int Registers>
__forceinline__ void take_registers(ATTN_CALLER) {
  static_assert(Registers % 8 == 0 && Registers >= 24 && Registers <= 256);
  executor::set_registers(Registers, true, {file, line});
}

// ---- warpgroup products ---------------------------------------------------------------------------------------------

__forceinline__ void begin_products(ATTN_CALLER) { executor::fence_products({file, line}); }
__forceinline__ void commit_products(ATTN_CALLER) { executor::commit_products({file, line}); }
template <int Pending>
__forceinline__ void wait_products(ATTN_CALLER) {
  executor::wait_products(Pending, {file, line});
}

/// On a GPU no instruction: from here on the compiler may use these registers. Here: and so no product may still be at
/// them.
template <int N>
__forceinline__ void fence_registers(float (&x)[N], ATTN_CALLER) {
  executor::use_registers(x, x + N, {file, line});
}
template <int N>
__forceinline__ void fence_registers(uint32_t (&x)[N][4], ATTN_CALLER) {
  executor::use_registers(x, x + N, {file, line});
}

template <int N, class E>
struct WarpgroupProduct {
  static constexpr bool kBf16 = std::is_same_v<E, bfloat16>;
  static __forceinline__ void abt(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate, ATTN_CALLER) {
    executor::start_product(
        d, {.a = a, .b = b, .columns = N, .bf16 = kBf16, .accumulate = accumulate != 0}, {file, line});
  }
  static __forceinline__ void first_abt(float (&d)[N / 2], uint64_t a, uint64_t b, ATTN_CALLER) {
    abt(d, a, b, 0, file, line);
  }
  static __forceinline__ void atb(float (&d)[N / 2], uint64_t a, uint64_t b, ATTN_CALLER) {
    executor::start_product(
        d, {.a = a, .b = b, .columns = N, .bf16 = kBf16, .a_across = true, .b_across = true}, {file, line});
  }
  static __forceinline__ void first_atb(float (&d)[N / 2], uint64_t a, uint64_t b, ATTN_CALLER) {
    executor::start_product(
        d, {.a = a, .b = b, .columns = N, .bf16 = kBf16, .a_across = true, .b_across = true, .accumulate = false},
        {file, line});
  }
  static __forceinline__ void ab(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, ATTN_CALLER) {
    executor::start_product(d, {.b = b, .a_registers = a, .columns = N, .bf16 = kBf16, .b_across = true}, {file, line});
  }
  static __forceinline__ void first_ab(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, ATTN_CALLER) {
    executor::start_product(
        d, {.b = b, .a_registers = a, .columns = N, .bf16 = kBf16, .b_across = true, .accumulate = false},
        {file, line});
  }
};

// ---- what the host prepares -----------------------------------------------------------------------------------------

template <class E>
TensorMap tensor_map(const void* data, const char* tensor, int64_t heads, int64_t rows, int head_dim, int box_rows,
                     int box_panels) {
  return {static_cast<unsigned char*>(const_cast<void*>(data)),
          heads,
          rows,
          head_dim * static_cast<int64_t>(sizeof(E)),
          box_rows,
          box_panels,
          executor::tensor_id(tensor)};
}

inline void set_to_zero(void* address, int64_t bytes) { std::memset(address, 0, static_cast<size_t>(bytes)); }

/// A block that stays runs on an OS thread, as on an SM.
inline int multiprocessors() { return executor::os_threads(); }

}  // namespace ATTN_DEVICE
}  // namespace attention

#undef ATTN_CALLER
