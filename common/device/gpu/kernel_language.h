// The kernel language on a GPU: CUDA itself, plus a bounded view of HBM and one launch function.
// common/device/cpu/kernel_language.h gives the same names for the CPU executor; keep the two in step.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/device/gpu/cuda_check.h"
#include "common/device/gpu/launch_log.h"
#include "common/device/timed.h"
#include "common/base/error.h"

#define ATTN_UNROLL _Pragma("unroll")
#define ATTN_UNROLL_BOTH _Pragma("unroll")  // ATTN_UNROLL that the CPU executor follows too: the products' inner loops
#define ATTN_PRODUCT \
  __forceinline__  // a tile product: part of its kernel here, a function of its own on the CPU executor
#define ATTN_UNROLL_1 _Pragma("unroll 1")
#define ATTN_UNROLL_2 _Pragma("unroll 2")
#define ATTN_UNROLL_4 _Pragma("unroll 4")

namespace attention {
inline namespace ATTN_DEVICE {

constexpr unsigned kAllLanes = 0xffffffffu;  // of a warp, as the mask of the _sync functions

using bfloat16 = __nv_bfloat16;  // `half` has its name from CUDA

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(bfloat16 x) { return __bfloat162float(x); }
template <class E>
__device__ __forceinline__ E from_float(float x) {  // to the nearest, ties to even
  if constexpr (std::is_same_v<E, half>) return __float2half_rn(x);
  else if constexpr (std::is_same_v<E, bfloat16>) return __float2bfloat16_rn(x);
  else return x;
}

/// ld.global.cg: loads that go past L1 to L2, like __ldcg. A kernel never loads what it stores, so unlike __ldcg these
/// are not volatile, and the compiler may have many of them in flight.
__device__ __forceinline__ float load_past_l1(const float* address) {
  float x;
  asm("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(address));
  return x;
}
template <class E>
__device__ __forceinline__ float load_past_l1(const E* address) {
  unsigned short bits;
  asm("ld.global.cg.u16 %0, [%1];" : "=h"(bits) : "l"(address));
  return to_float(reinterpret_cast<const E&>(bits));
}
__device__ __forceinline__ float4 load_past_l1(const float4* address, bool wanted) {  // 0 where it is not wanted
  float4 x;
  asm("{\n.reg .pred wanted;\nsetp.ne.s32 wanted, %5, 0;\n"
      "mov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\nmov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n"
      "@wanted ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&f"(x.x), "=&f"(x.y), "=&f"(x.z), "=&f"(x.w)
      : "l"(address), "r"(static_cast<int>(wanted)));
  return x;
}

/// A view of one tensor in HBM, [heads, rows, cols], contiguous; head(h) is the view of one head's matrix. T is float,
/// half or bfloat16, const to read. Values are fp32 on this side of the view, whatever they are in HBM. Loads go past
/// L1 (tile loads touch each byte once per block, so that what crosses from L2 is what the kernel asks for). The CPU
/// executor's Global checks each access against rows and cols and counts its bytes.
template <class T>
struct Global {
  using E = std::remove_const_t<T>;
  static constexpr int kVector = 16 / sizeof(E);  // elements in the widest access
  T* data;
  int64_t rows;
  int64_t cols;

  Global(T* address, const char* /*tensor*/, int64_t /*heads*/, int64_t rows_, int64_t cols_)
      : data(address), rows(rows_), cols(cols_) {}
  __device__ Global(T* address, int64_t rows_, int64_t cols_) : data(address), rows(rows_), cols(cols_) {}

  __device__ Global head(int64_t h) const { return Global(data + h * rows * cols, rows, cols); }
  /// What lies below the first `row` rows of this head.
  __device__ Global rows_from(int64_t row) const { return Global(data + row * cols, rows - row, cols); }
  __device__ float load(int64_t row, int64_t col) const { return load_past_l1(data + row * cols + col); }
  /// kVector neighbours as they are in HBM, or zeros (and no access) when `inside` is false.
  __device__ float4 load_vector_if(bool inside, int64_t row, int64_t col) const {
    return load_past_l1(reinterpret_cast<const float4*>(data + row * cols + col), inside);
  }
  __device__ void store(int64_t row, int64_t col, float value) const { data[row * cols + col] = from_float<E>(value); }
  /// N neighbours in one access: one element or kVector of them.
  template <int N>
  __device__ void load_run(int64_t row, int64_t col, float (&values)[N]) const {
    static_assert(N == 1 || N == kVector);
    if constexpr (N == 1) {
      values[0] = load(row, col);
    } else {
      const float4 run = load_vector_if(true, row, col);
      ATTN_UNROLL for (int n = 0; n < N; ++n) values[n] = to_float(reinterpret_cast<const E*>(&run)[n]);
    }
  }
  /// N neighbours in one access.
  template <int N>
  __device__ void store_run(int64_t row, int64_t col, const float* values) const {
    struct alignas(N * sizeof(E)) {
      E element[N];
    } run;
    ATTN_UNROLL for (int n = 0; n < N; ++n) run.element[n] = from_float<E>(values[n]);
    *reinterpret_cast<decltype(run)*>(data + row * cols + col) = run;
  }
  /// atomicAdd: adds N neighbours, 2 or 4, to what is there (fp32 alone). Blocks add in no given order, so that a sum's
  /// last bits may differ from run to run. On sm_90 and newer it is one instruction (for four of them CUDA has no name
  /// that returns nothing: PTX ISA, "red").
  template <int N>
  __device__ void add_run(int64_t row, int64_t col, const float* values) const {
    E* const to = data + row * cols + col;
    note(Noted::store, data);
#if __CUDA_ARCH__ >= 900
    if constexpr (N == 4)
      asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]),
                   "f"(values[1]), "f"(values[2]), "f"(values[3])
                   : "memory");
    else atomicAdd(reinterpret_cast<float2*>(to), make_float2(values[0], values[1]));
#else
    ATTN_UNROLL for (int n = 0; n < N; ++n) atomicAdd(to + n, values[n]);
#endif
  }
};

/// 2^x in one instruction, as exact as exp2f (2 ulp) but for results under 2^-126, which become 0: beside a row's
/// largest weight, 2^0, both are nothing.
__device__ __forceinline__ float exp2_or_zero(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The block's dynamic SRAM, laid out as `Layout` (a struct of SRAM tiles). launch() asks for sizeof(Layout), so that
/// the size is written once.
template <class Layout>
__device__ __forceinline__ Layout& dynamic_sram() {
  note_begin_of_block();
  extern __shared__ __align__(16) unsigned char sram_bytes[];
  return *reinterpret_cast<Layout*>(sram_bytes);
}

/// The CPU executor's hooks for SRAM accesses and FLOPs: nothing on a GPU.
__device__ __forceinline__ void note_sram_read(const void*, int) {}
__device__ __forceinline__ void note_sram_write(const void*, int) {}
__device__ __forceinline__ void count_flops(int64_t) {}

/// Each x[n] becomes the maximum (sum) over the `Lanes` neighbouring lanes that share it; all 32 lanes take part.
template <int Lanes, int N>
__device__ __forceinline__ void lanes_max(float (&x)[N]) {
  ATTN_UNROLL for (int n = 0; n < N; ++n)
    ATTN_UNROLL for (int step = Lanes / 2; step > 0; step /= 2)
      x[n] = fmaxf(x[n], __shfl_xor_sync(kAllLanes, x[n], step));
}
template <int Lanes, int N>
__device__ __forceinline__ void lanes_sum(float (&x)[N]) {
  ATTN_UNROLL for (int n = 0; n < N; ++n)
    ATTN_UNROLL for (int step = Lanes / 2; step > 0; step /= 2) x[n] += __shfl_xor_sync(kAllLanes, x[n], step);
}

/// lanes_max<32> for numbers that are not negative: their bits are in their order, and one instruction compares those
/// of 32 lanes.
template <int N>
__device__ __forceinline__ void warp_max_of_magnitudes(float (&x)[N]) {
#if __CUDA_ARCH__ >= 800
  ATTN_UNROLL for (int n = 0; n < N; ++n) x[n] = __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(x[n])));
#else
  lanes_max<32>(x);
#endif
}

/// Blocks that do something one after the other: `turn` counts those that have. A warp waits until `mine` have, and
/// then says that it has.
__device__ __forceinline__ void wait_turn(unsigned* turn, unsigned mine) {
  if (threadIdx.x % 32 == 0) {
    while (*static_cast<volatile unsigned*>(turn) != mine) {
    }
    __threadfence();
  }
  __syncwarp();
}
__device__ __forceinline__ void pass_turn(unsigned* turn) {
  __threadfence();
  __syncwarp();
  if (threadIdx.x % 32 == 0) atomicAdd(turn, 1u);
}

/// The first Count lanes of a warp by their sizes: next() is the smallest, then the next larger one, Count times, for
/// all 32 lanes alike. Sizes are not negative; those that agree in their first 18 bits keep the lanes' order. Each lane
/// comes once whatever its size, a NaN too.
struct LaneOrder {
  unsigned key;  // this lane's size and number; all ones when it has been taken
  __device__ __forceinline__ int next() {
    unsigned smallest = key;
#if __CUDA_ARCH__ >= 800
    smallest = __reduce_min_sync(kAllLanes, smallest);
#else
    ATTN_UNROLL for (int step = 16; step > 0; step /= 2)
      smallest = min(smallest, __shfl_xor_sync(kAllLanes, smallest, step));
#endif
    if (key == smallest) key = ~0u;
    return smallest % 32;
  }
};
template <int Count>
__device__ __forceinline__ LaneOrder order_of_lanes(float size) {
  const unsigned lane = threadIdx.x % 32;
  return {lane < Count ? (__float_as_uint(size) & ~31u) | lane : ~0u};
}

/// Four neighbouring columns of N rows, and the sums of their products with four numbers y: N sums of four terms each,
/// in the order of the columns.
template <int N>
struct FourColumns {
  float4 row[N];
  __device__ __forceinline__ void load(int i, const float* four) { row[i] = *reinterpret_cast<const float4*>(four); }
};
template <int N>
__device__ __forceinline__ void multiply_add(float (&sums)[N], const FourColumns<N>& x, const float4& y) {
  ATTN_UNROLL for (int i = 0; i < N; ++i)
    sums[i] = fmaf(x.row[i].w, y.w, fmaf(x.row[i].z, y.z, fmaf(x.row[i].y, y.y, fmaf(x.row[i].x, y.x, sums[i]))));
}
__device__ __forceinline__ void multiply_add(float (&acc)[4], float a, const float4& b) {
  acc[0] = fmaf(a, b.x, acc[0]);
  acc[1] = fmaf(a, b.y, acc[1]);
  acc[2] = fmaf(a, b.z, acc[2]);
  acc[3] = fmaf(a, b.w, acc[3]);
}

#if defined(ATTN_TIMED)
/// This source's kernels write their times where the launch log says.
static void bring_rings(const char* name) {
  static const void* brought = nullptr;
  const Rings& now = on_gpu::launch_log().rings;
  if (brought == now.heads) return;
  cuda_check(cudaMemcpyToSymbol(rings, &now, sizeof now), name);
  brought = now.heads;
}
#endif

/// kernel<<<grid, block, sram_bytes>>>(args...), with what a plain launch forgets: the opt-in to more than 48 KiB of
/// SRAM, an error left over from earlier work (so that blame falls on the right kernel), and this launch's own error.
/// Throws DeviceFailure naming the kernel, Unsupported when the grid exceeds what a GPU takes.
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), int64_t grid, int block, int64_t sram_bytes, Args... args) {
  on_gpu::LaunchLog& log = on_gpu::launch_log();
#if defined(ATTN_TIMED)
  bring_rings(name);
#endif
  log.before(name, reinterpret_cast<const void*>(kernel), grid, block, sram_bytes);
  kernel<<<static_cast<unsigned>(grid), block, sram_bytes>>>(args...);
  log.after(name);
}

}  // namespace ATTN_DEVICE
}  // namespace attention
