// Mistakes on purpose, on a GPU: ATTN_LEAVE_OUT_BARRIER and ATTN_OFF_BY_ONE as the CPU executor knows them
// (cpu/worker.cpp). What a barrier, wait, arrival or fence asks before it does its work is here. In a usual build it
// asks nothing, and no instruction comes of it.
//   -DATTN_GPU_MISTAKES=ON       the environment names the mistake, as on the executor
//   -DATTN_GPU_MISTAKES=step07_hopper_twin_blocks.cu:76
//                                the line that is left out, or with +1 or -1 behind it is one off. begin_products,
//                                commit_products and wait_products take no other: where one might be missing at run
//                                time, ptxas starts no product before the last one's end
// tests/mutants/gpu_barriers.py tries them all.
#pragma once

#include <cstdint>

namespace attention {
inline namespace ATTN_DEVICE {

#if defined(ATTN_GPU_MISTAKES) && !defined(ATTN_TIMED)

/// A line of the sources as one number: FNV-1a of its file's name, without folders, then the line's number.
constexpr uint32_t number_of_line(const char* file, int line) {
  constexpr uint32_t kStart = 2166136261u, kPrime = 16777619u;
  uint32_t hash = kStart;
  for (const char* c = file; *c && *c != ':'; ++c)
    hash = *c == '/' ? kStart : (hash ^ static_cast<uint8_t>(*c)) * kPrime;
  return (hash ^ static_cast<uint32_t>(line)) * kPrime;
}

/// The line that calls.
struct Caller {
  uint32_t number;
  static consteval Caller here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {number_of_line(file, line)};
  }
};

/// The one mistake of a run: the line that is left out, or that is told a number which is `by` off.
struct Mistake {
  uint32_t left_out = 0, off = 0;
  int by = 0;
};
/// "step07_hopper_twin_blocks.cu:76" is left out; with +1 or -1 behind it, it is one off.
constexpr Mistake mistake_of(const char* place) {
  const char* c = place;
  while (*c && *c != ':') ++c;
  int line = 0;
  for (c += *c == ':'; *c >= '0' && *c <= '9'; ++c) line = 10 * line + *c - '0';
  const uint32_t number = number_of_line(place, line);
  if (!*c) return {.left_out = number};
  return {.off = number, .by = *c == '-' ? -1 : 1};
}

#if defined(ATTN_COMPILED_MISTAKE)
constexpr Mistake kCompiled = mistake_of(ATTN_COMPILED_MISTAKE);
#else
constexpr Mistake kCompiled{};
#endif
__device__ __forceinline__ bool compiled_out(Caller caller) { return caller.number == kCompiled.left_out; }
__device__ __forceinline__ int compiled_off(Caller caller) { return caller.number == kCompiled.off ? kCompiled.by : 0; }

#if defined(ATTN_COMPILED_MISTAKE)
__device__ __forceinline__ bool left_out(Caller caller) { return compiled_out(caller); }
__device__ __forceinline__ int off_by_one(Caller caller) { return compiled_off(caller); }
#else
static __constant__ Mistake mistake;  // one for each source file, and whether it has been made
static __device__ unsigned mistake_made;
/// Tells mistakes.cu where they are.
bool know_mistake(const void* mistake, const void* made);
static const bool mistake_known = know_mistake(&mistake, &mistake_made);

__device__ __forceinline__ bool left_out(Caller caller) {
  if (caller.number != mistake.left_out) return false;
  mistake_made = 1;
  return true;
}
__device__ __forceinline__ int off_by_one(Caller caller) {
  if (caller.number != mistake.off) return 0;
  mistake_made = 1;
  return mistake.by;
}
#endif

#else
struct Caller {
  static consteval Caller here() { return {}; }
};
__device__ constexpr bool left_out(Caller) { return false; }
__device__ constexpr int off_by_one(Caller) { return 0; }
__device__ constexpr bool compiled_out(Caller) { return false; }
__device__ constexpr int compiled_off(Caller) { return 0; }
#endif

}  // namespace ATTN_DEVICE
}  // namespace attention

#if defined(ATTN_GPU_MISTAKES) && !defined(ATTN_TIMED)
// CUDA's own two, as the steps call them.
namespace attention {
inline namespace ATTN_DEVICE {
__device__ __forceinline__ void sync_threads(Caller caller = Caller::here()) {
  if (!left_out(caller)) __syncthreads();
}
__device__ __forceinline__ void sync_warp(Caller caller = Caller::here()) {
  if (!left_out(caller)) __syncwarp();
}
}  // namespace ATTN_DEVICE
}  // namespace attention
#define __syncthreads() attention::ATTN_DEVICE::sync_threads()
#define __syncwarp() attention::ATTN_DEVICE::sync_warp()
#endif
