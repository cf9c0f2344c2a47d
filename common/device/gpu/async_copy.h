// Copies from HBM to SRAM that a thread starts and does not wait for (PTX ISA, "cp.async"; sm_80 and newer);
// cpu/async_copy.h has the executor's.
#pragma once

#include "common/device/gpu/kernel_language.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// cp.async: kVector neighbours at (row, col) travel past L1 and registers to `to` in SRAM, or zeros (and no access)
/// when `inside` is false. GPUs before sm_80 have no such instruction (the host refuses them by name).
template <class E>
__device__ __forceinline__ void copy_async(E* to, Global<const E> from, bool inside, int64_t row, int64_t col) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from.data + row * from.cols + col), "r"(inside ? 16 : 0)
      : "memory");
#else
  __trap();
#endif
}

/// cp.async.commit_group: the copies that this thread has started since the last one are a group.
__device__ __forceinline__ void commit_copies() {
  note(Noted::commit_copies);
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// cp.async.wait_group: waits until all of this thread's groups but the `Pending` youngest have arrived. Other threads'
/// copies are there after a __syncthreads that follows.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  const Timed timed(Noted::wait_copies, Pending);
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

}  // namespace ATTN_DEVICE
}  // namespace attention
