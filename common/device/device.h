// One way to write a kernel, two ways to run it. Steps and tile/ include this and nothing else of device/.
//
// Compiled by nvcc, a kernel is CUDA. Compiled by the host compiler with ATTN_DEVICE_CPU, the same text runs on the CPU
// executor. The two worlds live in one program, so each has its own namespace (attention::on_gpu, attention::on_cpu);
// ATTN_DEVICE names the one being compiled. docs/names.md shows each name beside the CUDA line it stands for.
#pragma once

#if defined(ATTN_DEVICE_CPU)
#define ATTN_DEVICE on_cpu
#elif defined(ATTN_TIMED)  // the GPU's, with times noted (timed.h): beside the others in stepNN-timeline
#define ATTN_DEVICE on_gpu_timed
#else
#define ATTN_DEVICE on_gpu
#endif

namespace attention {
inline namespace ATTN_DEVICE {}
}  // namespace attention

#if defined(ATTN_DEVICE_CPU)
#include "common/device/cpu/async_copy.h"
#include "common/device/cpu/kernel_language.h"
#include "common/device/cpu/tensor_core.h"
#else
#include "common/device/gpu/async_copy.h"
#include "common/device/gpu/kernel_language.h"
#include "common/device/gpu/tensor_core.h"
#endif
