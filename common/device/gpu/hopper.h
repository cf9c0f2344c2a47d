// The instructions of Hopper's copy engine, barriers and warpgroup products, one small named function each (PTX ISA;
// sm_90a alone). What is made of them is in common/tile/warpgroup.h.
#pragma once

#include <cuda.h>

#include "common/device/gpu/cuda_check.h"
#include "common/device/gpu/kernel_language.h"

// A kernel of these units may stand in a file that is compiled for other GPUs too: there its instructions are left out,
// and the host never launches it.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ATTN_SM90A(...)
#else
#define ATTN_SM90A(...) asm volatile(__VA_ARGS__)
#endif

namespace attention {
inline namespace ATTN_DEVICE {

/// An address in SRAM as instructions take it: 32 bits, from the start of the block's own.
__device__ __forceinline__ uint32_t sram_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// The block's dynamic SRAM as `Layout`, which holds tiles that begin at multiples of 1024 bytes.
template <class Layout>
__device__ __forceinline__ Layout& aligned_sram() {
  extern __shared__ __align__(1024) unsigned char aligned_sram_bytes[];
  note_begin_of_block();
  return *reinterpret_cast<Layout*>(aligned_sram_bytes);
}

// ---- barriers -------------------------------------------------------------------------------------------------------

/// mbarrier: a phase ends when all expected arrivals and all expected bytes have come. A new barrier stands in phase 0;
/// phases have the parities 0, 1, 0, 1 ...
struct Barrier {
  uint64_t state;

  /// mbarrier.init: each phase takes this many arrivals.
  __device__ __forceinline__ void init(int arrivals) {
    ATTN_SM90A("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sram_address(&state)), "r"(arrivals) : "memory");
  }
  /// mbarrier.arrive: one arrival.
  __device__ __forceinline__ void arrive() {
    ATTN_SM90A("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sram_address(&state)) : "memory");
  }
  /// mbarrier.arrive.expect_tx: one arrival, which announces bytes that a copy will bring.
  __device__ __forceinline__ void arrive_and_expect(int bytes) {
    ATTN_SM90A(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sram_address(&state)), "r"(bytes) : "memory");
  }
  /// mbarrier.try_wait.parity: whether the phase of this parity has ended (the parity before the first phase's counts
  /// as ended).
  __device__ __forceinline__ bool ended(int parity) const {
    uint32_t yes = 1;
    ATTN_SM90A(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(
            yes) : "r"(sram_address(&state)),
        "r"(parity) : "memory");
    return yes;
  }
  __device__ __forceinline__ void wait(int parity) const {
    const Timed timed(Noted::wait, static_cast<int>(sram_address(&state)));
    while (!ended(parity)) {
    }
  }
};

/// fence.mbarrier_init: the barriers that this thread has made exist for the copy engine too.
__device__ __forceinline__ void barriers_are_ready() {
  ATTN_SM90A("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" :: : "memory");
}

/// bar.sync: `threads` threads meet at the barrier of this number (1 to 15; 0 is __syncthreads').
__device__ __forceinline__ void named_sync(int number, int threads) {
  const Timed timed(Noted::wait, number);
  ATTN_SM90A("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/// bar.arrive: the same for who does not wait.
__device__ __forceinline__ void named_arrive(int number, int threads) {
  ATTN_SM90A("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- the copy engine ------------------------------------------------------------------------------------------------

/// What the copy engine must know of a tensor. A kernel takes it as `const __grid_constant__ TensorMap`.
using TensorMap = CUtensorMap;

/// Where the tensor lies: a map begins with it. Only a timeline's names depend on that (timed.h).
__device__ __forceinline__ const void* tensor_of(const TensorMap& map) {
  return *reinterpret_cast<const void* const*>(&map);
}

/// cp.async.bulk.tensor, HBM to SRAM: one thread starts the copy of the box whose first row is `row`; zeros where the
/// tensor has ended. `done` counts the bytes of the whole box.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& from, int row, int head, Barrier& done) {
  note(Noted::bulk_copy, tensor_of(from), static_cast<int>(sram_address(&done.state)));
  ATTN_SM90A(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(sram_address(to)),
      "l"(&from), "r"(sram_address(&done.state)), "r"(0), "r"(row), "r"(0), "r"(head) : "memory");
}
/// cp.async.bulk.tensor, SRAM to HBM: one thread starts the copy of a box of one panel; rows past the tensor's end are
/// left out.
__device__ __forceinline__ void copy_box_back(const TensorMap& to, const void* from, int row, int panel, int head) {
  note(Noted::bulk_store, tensor_of(to));
  ATTN_SM90A("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&to),
             "r"(sram_address(from)), "r"(0), "r"(row), "r"(panel), "r"(head) : "memory");
}
/// cp.async.bulk, HBM to SRAM: one thread starts the copy of Count neighbours of a tensor that has one row, from `col`
/// on: whole multiples of 16 bytes, and so where they lie.
template <class E, int Count>
__device__ __forceinline__ void copy_run(E (&to)[Count], Global<const E> from, int64_t col, Barrier& done) {
  note(Noted::bulk_copy, from.data, static_cast<int>(sram_address(&done.state)));
  ATTN_SM90A(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(sram_address(to)),
      "l"(from.data + col), "r"(static_cast<int>(sizeof to)), "r"(sram_address(&done.state)) : "memory");
}
/// stmatrix: four 8x8 matrices of 16-bit elements to SRAM; lane l passes the address of row l % 8 of matrix l / 8.
/// load_matrices turned round.
template <class E>
__device__ __forceinline__ void store_matrices(E* row, const uint32_t (&x)[4]) {
  ATTN_SM90A("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(sram_address(row)), "r"(x[0]),
             "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
/// cp.async.bulk.commit_group: the copies back that this thread has started are a group.
__device__ __forceinline__ void commit_copies_back() { ATTN_SM90A("cp.async.bulk.commit_group;" :: : "memory"); }
/// cp.async.bulk.wait_group.read: waits until all of this thread's copies back have read their SRAM.
__device__ __forceinline__ void wait_until_copies_back_have_read() {
  const Timed timed(Noted::wait_bulk_stores);
  ATTN_SM90A("cp.async.bulk.wait_group.read 0;" :: : "memory");
}
/// fence.proxy.async: what this thread has stored in SRAM is visible to the copy engine and the tensor cores.
__device__ __forceinline__ void stores_visible_to_engines() {
  ATTN_SM90A("fence.proxy.async.shared::cta;" :: : "memory");
}

// ---- registers ------------------------------------------------------------------------------------------------------

/// setmaxnreg: from here on a thread of this warpgroup has that many registers; what some give up others can take.
template <int Registers>
__device__ __forceinline__ void give_registers() {
  ATTN_SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void take_registers() {
  ATTN_SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ---- warpgroup products ---------------------------------------------------------------------------------------------

/// wgmma.fence: the registers that the next products read and add to are as the code before left them.
__device__ __forceinline__ void begin_products() { ATTN_SM90A("wgmma.fence.sync.aligned;" :: : "memory"); }
/// wgmma.commit_group: the products started since the last one are a group.
__device__ __forceinline__ void commit_products() { ATTN_SM90A("wgmma.commit_group.sync.aligned;" :: : "memory"); }
/// wgmma.wait_group: waits until all groups but the `Pending` youngest are finished.
template <int Pending>
__device__ __forceinline__ void wait_products() {
  const Timed timed(Noted::wait_products, Pending);
  ATTN_SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// No instruction. The compiler does not know that a product still writes (or reads) its registers until the wait: this
/// keeps it from moving their uses to before.
template <int N>
__device__ __forceinline__ void fence_registers(float (&x)[N]) {
  ATTN_UNROLL for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N>
__device__ __forceinline__ void fence_registers(uint32_t (&x)[N][4]) {
  ATTN_UNROLL for (int i = 0; i < N; ++i)
    ATTN_UNROLL for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(x[i][j])::"memory");
}

/// wgmma.mma_async: 64 rows by N columns of fp32 sums in the registers of a warpgroup, d (+)= A B for 16 elements of
/// type E in between. A tile in SRAM is told by a descriptor (swizzle.h).
///   abt(d, a, b, accumulate)  A and B in SRAM, both with the summed dimension along their rows; accumulate 0: d starts at zero
///   ab(d, a, b)               A in registers, B in SRAM with the summed dimension across its rows
///   atb(d, a, b)              A and B in SRAM, both with the summed dimension across their rows
///   first_abt, first_ab, first_atb  the same, and what d held is not read: its registers are free until then
template <int N, class E>
struct WarpgroupProduct;

#define ATTN_SUMS_8(c, d, n) \
  c(d[n]), c(d[n + 1]), c(d[n + 2]), c(d[n + 3]), c(d[n + 4]), c(d[n + 5]), c(d[n + 6]), c(d[n + 7])
#define ATTN_SUMS_32(c, d, n) \
  ATTN_SUMS_8(c, d, n), ATTN_SUMS_8(c, d, n + 8), ATTN_SUMS_8(c, d, n + 16), ATTN_SUMS_8(c, d, n + 24)
#define ATTN_SUMS_64(c, d, n) ATTN_SUMS_32(c, d, n), ATTN_SUMS_32(c, d, n + 32)
#define ATTN_NAMES_32                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, "                                                                                                          \
  "%25, %26, %27, %28, %29, %30, %31"
#define ATTN_NAMES_64                                                                                                \
  ATTN_NAMES_32                                                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54"                                                                                                              \
  ", %55, %56, %57, %58, %59, %60, %61, %62, %63"
// A and B by descriptors, i0 and i1; whether d is read: i2; `across`: "0", or "1" where the summed dimension lies
// across the rows.
#define ATTN_TWO_TILES(N, Half, type, sums, accumulate, across, i0, i1, i2)                                    \
  ATTN_SM90A("{\n.reg .pred p;\nsetp.ne.b32 p, " i2                                                            \
             ", 0;\n"                                                                                          \
             "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" ATTN_NAMES_##Half            \
             "}, " i0 ", " i1 ", p, 1, 1, " across ", " across ";\n}" : ATTN_SUMS_##Half(sums, d, 0) : "l"(a), \
             "l"(b), "r"(accumulate))
// A in registers i0 to i3, B by its descriptor i4; whether d is read: i5.
#define ATTN_LEFT_IN_REGISTERS(N, Half, type, sums, accumulate, i0, i1, i2, i3, i4, i5)                             \
  ATTN_SM90A("{\n.reg .pred p;\nsetp.ne.b32 p, " i5                                                                 \
             ", 0;\n"                                                                                               \
             "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" ATTN_NAMES_##Half                 \
             "}, "                                                                                                  \
             "{" i0 ", " i1 ", " i2 ", " i3 "}, " i4 ", p, 1, 1, 1;\n}" : ATTN_SUMS_##Half(sums, d, 0) : "r"(a[0]), \
             "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
// i0 to i5 are the names of the operands behind the Half = N / 2 sums of a thread.
#define ATTN_WARPGROUP_PRODUCT(N, Half, E, type, i0, i1, i2, i3, i4, i5)                                    \
  template <>                                                                                               \
  struct WarpgroupProduct<N, E> {                                                                           \
    static __device__ __forceinline__ void abt(float (&d)[Half], uint64_t a, uint64_t b, int accumulate) {  \
      ATTN_TWO_TILES(N, Half, type, "+f", accumulate, "0", i0, i1, i2);                                     \
    }                                                                                                       \
    static __device__ __forceinline__ void first_abt(float (&d)[Half], uint64_t a, uint64_t b) {            \
      ATTN_TWO_TILES(N, Half, type, "=f", 0, "0", i0, i1, i2);                                              \
    }                                                                                                       \
    static __device__ __forceinline__ void atb(float (&d)[Half], uint64_t a, uint64_t b) {                  \
      ATTN_TWO_TILES(N, Half, type, "+f", 1, "1", i0, i1, i2);                                              \
    }                                                                                                       \
    static __device__ __forceinline__ void first_atb(float (&d)[Half], uint64_t a, uint64_t b) {            \
      ATTN_TWO_TILES(N, Half, type, "=f", 0, "1", i0, i1, i2);                                              \
    }                                                                                                       \
    static __device__ __forceinline__ void ab(float (&d)[Half], const uint32_t (&a)[4], uint64_t b) {       \
      ATTN_LEFT_IN_REGISTERS(N, Half, type, "+f", 1, i0, i1, i2, i3, i4, i5);                               \
    }                                                                                                       \
    static __device__ __forceinline__ void first_ab(float (&d)[Half], const uint32_t (&a)[4], uint64_t b) { \
      ATTN_LEFT_IN_REGISTERS(N, Half, type, "=f", 0, i0, i1, i2, i3, i4, i5);                               \
    }                                                                                                       \
  };
ATTN_WARPGROUP_PRODUCT(64, 32, half, "f16", "%32", "%33", "%34", "%35", "%36", "%37")
ATTN_WARPGROUP_PRODUCT(64, 32, bfloat16, "bf16", "%32", "%33", "%34", "%35", "%36", "%37")
ATTN_WARPGROUP_PRODUCT(128, 64, half, "f16", "%64", "%65", "%66", "%67", "%68", "%69")
ATTN_WARPGROUP_PRODUCT(128, 64, bfloat16, "bf16", "%64", "%65", "%66", "%67", "%68", "%69")
#undef ATTN_WARPGROUP_PRODUCT
#undef ATTN_LEFT_IN_REGISTERS
#undef ATTN_TWO_TILES
#undef ATTN_NAMES_64
#undef ATTN_NAMES_32
#undef ATTN_SUMS_64
#undef ATTN_SUMS_32
#undef ATTN_SUMS_8

// ---- what the host prepares -----------------------------------------------------------------------------------------

using EncodeTensorMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                     const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// The driver's cuTensorMapEncodeTiled, asked for by name, so that no program needs libcuda to start. Throws
/// DeviceFailure.
inline EncodeTensorMap encode_tensor_map() {
  static const EncodeTensorMap found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
               "cuTensorMapEncodeTiled");
#else
    cuda_check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result),
               "cuTensorMapEncodeTiled");
#endif
    if (result != cudaDriverEntryPointSuccess)
      throw DeviceFailure("this driver has no cuTensorMapEncodeTiled: install one for CUDA 12.0 or newer");
    return reinterpret_cast<EncodeTensorMap>(function);
  }();
  return found;
}

/// The tensor [heads, rows, head_dim] of 16-bit elements E, contiguous, seen as {64 columns, rows, head_dim / 64
/// panels, heads}, in boxes of box_rows rows of box_panels panels that lie swizzled in SRAM (swizzle.h). Throws
/// DeviceFailure.
template <class E>
TensorMap tensor_map(const void* data, const char* tensor, int64_t heads, int64_t rows, int head_dim, int box_rows,
                     int box_panels) {
  const cuuint64_t columns = 64, row_bytes = static_cast<cuuint64_t>(head_dim) * sizeof(E);
  const cuuint64_t size[4] = {
      columns, static_cast<cuuint64_t>(rows), head_dim / columns, static_cast<cuuint64_t>(heads)};
  const cuuint64_t stride[3] = {row_bytes, columns * sizeof(E), static_cast<cuuint64_t>(rows) * row_bytes};
  const cuuint32_t box[4] = {columns, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_panels), 1},
                   step[4] = {1, 1, 1, 1};
  TensorMap map;
  const CUresult result = encode_tensor_map()(
      &map, std::is_same_v<E, half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
      const_cast<void*>(data), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw DeviceFailure(std::string("cuTensorMapEncodeTiled refuses ") + tensor + " of " + std::to_string(rows) +
                        " rows (CUresult " + std::to_string(result) + ")");
  return map;
}

/// Enqueues that `bytes` bytes become 0.
inline void set_to_zero(void* address, int64_t bytes) {
  cuda_check(cudaMemsetAsync(address, 0, static_cast<size_t>(bytes)), "setting a counter to zero");
}

/// How many SMs this GPU has.
inline int multiprocessors() {
  static const int count = [] {
    int device = 0, n = 0;
    cuda_check(cudaGetDevice(&device), "counting multiprocessors");
    cuda_check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device), "counting multiprocessors");
    return n;
  }();
  return count;
}

}  // namespace ATTN_DEVICE
}  // namespace attention
