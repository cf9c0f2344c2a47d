// The times that a warp notes (timestamps.h), in a build of their own: ATTN_TIMED, make stepNN-timeline. A note costs
// its warp a read of the clock, of its place in SRAM, and a store that nobody waits for: no fence, no branch. ptxas
// runs a warpgroup's products one by one where it sees a branch between them.
#pragma once

#include <cuda_runtime.h>

namespace attention {
inline namespace ATTN_DEVICE {

/// Where this launch's warps write (kernel_language.h copies it before a launch).
static __constant__ Rings rings;

constexpr unsigned kHasRing = 0x52494e47;

/// Of this warp in SRAM: its ring's next stamp in two halves, the ring's bytes less one, kHasRing. SRAM of a block that
/// has not begun one holds anything else.
__device__ __forceinline__ unsigned place_of_warp() {
  __shared__ uint4 places[32];
  return static_cast<unsigned>(__cvta_generic_to_shared(&places[threadIdx.x / 32]));
}

__device__ __forceinline__ unsigned sm_clock() {
  unsigned now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
  return now;
}
/// The clock once x has been computed.
__device__ __forceinline__ unsigned sm_clock_after(float x) {
  unsigned now = 0;
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0x7fedcba9;\n@p mov.u32 %0, %%clock;\n}"
               : "+r"(now)
               : "r"(__float_as_uint(x))
               : "memory");
  return now;
}

__device__ __forceinline__ void write_stamp(unsigned begin, unsigned end, unsigned what, unsigned detail) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .u32 low, high, mask, has, next;\n.reg .u64 at;\n"
      "ld.shared.v4.u32 {low, high, mask, has}, [%0];\n"
      "setp.eq.u32 p, %1, 0;\n"  // lane 0 writes
      "setp.eq.and.u32 p, has, %6, p;\n"
      "mov.b64 at, {low, high};\n"
      "@p st.global.v4.u32 [at], {%2, %3, %4, %5};\n"
      "add.u32 next, low, 16;\n"
      "lop3.b32 next, next, low, mask, 0xe4;\n"  // next where mask has ones: round the ring
      "@p st.shared.u32 [%0], next;\n}" ::"r"(place_of_warp()),
      "r"(threadIdx.x % 32), "r"(begin), "r"(end), "r"(what), "r"(detail), "n"(kHasRing)
      : "memory");
}
__device__ __forceinline__ unsigned what(Noted kind, int more) {
  return static_cast<unsigned>(kind) | static_cast<unsigned>(more) << 8;
}
__device__ __forceinline__ unsigned in_16_bytes(const void* tensor) {
  return static_cast<unsigned>(reinterpret_cast<uint64_t>(tensor) >> 4);
}

class Timed {
 public:
  __device__ __forceinline__ explicit Timed(Noted kind, int barrier = 0)
      : what_(what(kind, 0)), detail_(static_cast<unsigned>(barrier)), begin_(sm_clock()) {
    if (kind == Noted::wait_copies || kind == Noted::wait_products) what_ = what(kind, barrier);  // how many may go on
  }
  __device__ __forceinline__ Timed(Noted kind, const void* tensor, const void* last = nullptr)
      : what_(what(kind, last ? static_cast<int>(
                                    (static_cast<const char*>(last) - static_cast<const char*>(tensor)) / kTensorUnit)
                              : 0)),
        detail_(in_16_bytes(tensor)),
        begin_(sm_clock()) {}
  __device__ __forceinline__ ~Timed() { write_stamp(begin_, sm_clock(), what_, detail_); }
  Timed(const Timed&) = delete;

 private:
  unsigned what_, detail_, begin_;
};

class TimedProduct {
 public:
  __device__ __forceinline__ explicit TimedProduct(const float& after) : after_(after), begin_(sm_clock()) {}
  __device__ __forceinline__ ~TimedProduct() {
    write_stamp(begin_, sm_clock_after(after_), what(Noted::product, 0), 0);
  }
  TimedProduct(const TimedProduct&) = delete;

 private:
  const float& after_;
  unsigned begin_;
};

__device__ __forceinline__ void note(Noted kind, const void* tensor = nullptr, int more = 0) {
  const unsigned now = sm_clock();
  write_stamp(now, now, what(kind, more), in_16_bytes(tensor));
}

__device__ __forceinline__ void note_begin_of_block() {
  if (threadIdx.x % 32 != 0) return;
  uint4 place{};
  if (rings.heads) {
    unsigned sm, warp, number = Rings::kRings;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    if (sm == 0) number = atomicAdd(rings.taken, 1u);
    const bool read = number < Rings::kRings;
    if (read) rings.heads[number] = {blockIdx.x, threadIdx.x / 32, static_cast<uint64_t>(clock64())};
    const auto ring =
        reinterpret_cast<uint64_t>(read ? rings.rings + number * Rings::kStamps
                                        : rings.unread + (sm * Rings::kWarpsOfSm + warp) * Rings::kUnreadStamps);
    place = {static_cast<unsigned>(ring), static_cast<unsigned>(ring >> 32),
             static_cast<unsigned>((read ? Rings::kStamps : Rings::kUnreadStamps) * sizeof(Timestamp) - 1), kHasRing};
  }
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(place_of_warp()), "r"(place.x), "r"(place.y),
               "r"(place.z), "r"(place.w)
               : "memory");
}

/// __syncthreads, timed.
__device__ __forceinline__ void timed_syncthreads() {
  const Timed timed(Noted::wait);
  __syncthreads();
}

}  // namespace ATTN_DEVICE
}  // namespace attention

#define __syncthreads() timed_syncthreads()
