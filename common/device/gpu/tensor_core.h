// The tensor core's two instructions on a GPU (PTX ISA, "Warp-level matrix instructions"); cpu/tensor_core.h has the
// executor's.
#pragma once

#include "common/device/gpu/kernel_language.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// Two neighbours as one register, the first in the low half.
template <class E>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  struct alignas(4) {
    E low, high;
  } both{from_float<E>(low), from_float<E>(high)};
  return reinterpret_cast<const uint32_t&>(both);
}

/// What pack made one register of.
template <class E>
__device__ __forceinline__ float2 unpack(uint32_t both) {
  struct alignas(4) Both {
    E low, high;
  };
  const Both& values = reinterpret_cast<const Both&>(both);
  return make_float2(to_float(values.low), to_float(values.high));
}

/// ldmatrix: four 8x8 matrices of 16-bit elements from SRAM. Lane l passes the address of row l % 8 of matrix l / 8 and
/// receives of each matrix the elements (l / 4, 2 (l % 4)) and their right-hand neighbours; transposed: (2 (l % 4), l /
/// 4) and the ones below.
template <bool Transposed, class E>
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], const E* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address));
}

/// mma.m16n8k16: c += A B for a 16x16 A (registers as load_matrices of its four quarters, upper before lower, left
/// before right), a 16x8 B and fp32 sums; lane l holds c at (l / 4, 2 (l % 4)), its right-hand neighbour, and both
/// eight rows below. sm_75 knows only k8, so there it is two instructions; it has no bf16 (the host refuses that by
/// name).
template <class E>
__device__ __forceinline__ void tensor_multiply_add(float& c0, float& c1, float& c2, float& c3, const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<E, half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  if constexpr (std::is_same_v<E, half>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[2]), "r"(a[3]), "r"(b1));
  } else {
    __trap();
  }
#endif
}

}  // namespace ATTN_DEVICE
}  // namespace attention
