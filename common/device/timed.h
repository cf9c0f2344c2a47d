// For --timeline on a GPU: the functions of device/ and tile/ that move, multiply and wait say here what they do from
// where to where. In usual builds, and on the CPU executor, which sees for itself, that is nothing at all.
#pragma once

#include "common/device/timestamps.h"

#if defined(ATTN_TIMED)
#include "common/device/gpu/timed.h"
#else
namespace attention {
inline namespace ATTN_DEVICE {

/// From its beginning to the end of its scope. The tensor: an address in it. After: what must have been computed.
struct Timed {
  __device__ __forceinline__ explicit Timed(Noted, int /*barrier*/ = 0) {}
  __device__ __forceinline__ Timed(Noted, const void* /*tensor*/, const void* /*last tensor*/ = nullptr) {}
};
struct TimedProduct {
  __device__ __forceinline__ explicit TimedProduct(const float& /*after*/) {}
};
/// Now.
__device__ __forceinline__ void note(Noted, const void* /*tensor*/ = nullptr, int /*more*/ = 0) {}
__device__ __forceinline__ void note_begin_of_block() {}

}  // namespace ATTN_DEVICE
}  // namespace attention
#endif
