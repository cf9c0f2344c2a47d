// What step00 measures with, and the part of it that stands in step00_products.cu.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/device/gpu/cuda_check.h"
#include "common/harness/timing.h"
#include "common/roofline/measure.h"

namespace attention::ATTN_DEVICE::step00 {

constexpr int kThreads = 256;  // per block
constexpr double kLeastMs = 5;
constexpr int kRuns = 7;

/// A GPU, a buffer of zeros and a clock.
class Measurement {
 public:
  Measurement() {
    cuda_check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    cuda_check(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda_check(cudaEventCreate(&end_), "cudaEventCreate");
    cuda_check(cudaMalloc(&result, sizeof(float)), "cudaMalloc");
    // 16 times the L2 (a power of two, at least 256 MiB), so that what an earlier round left there does not help.
    while (buffer_bytes < 16 * int64_t{properties.l2CacheSize}) buffer_bytes *= 2;
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (static_cast<int64_t>(free) < buffer_bytes)
      throw DeviceFailure("out of GPU memory: step00 needs " + std::to_string(buffer_bytes) + " bytes, " +
                          std::to_string(free) + " are free; nvidia-smi shows who uses the rest");
    cuda_check(cudaMalloc(&buffer, static_cast<size_t>(buffer_bytes)),
               "cudaMalloc of " + std::to_string(buffer_bytes) + " bytes");
    cuda_check(cudaMemset(buffer, 0, static_cast<size_t>(buffer_bytes)), "fill with zeros");
  }
  ~Measurement() {  // errors are not looked at: the figures are out, and a destructor must not throw
    cudaFree(buffer);
    cudaFree(result);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  /// Seconds per round of work(rounds), which enqueues one or more launches of `kernel`. The rounds are doubled until
  /// they take 5 ms, which also wakes up a GPU that idled at a low clock; then the median of seven runs.
  double seconds_per_round(const char* kernel, const std::function<void(int64_t rounds)>& work) {
    const auto run_ms = [&](int64_t rounds) {
      cuda_check(cudaEventRecord(begin_), "cudaEventRecord");
      work(rounds);
      cuda_check(cudaGetLastError(), std::string("launch of ") + kernel);
      cuda_check(cudaEventRecord(end_), "cudaEventRecord");
      cuda_check(cudaEventSynchronize(end_), kernel);
      float ms = 0;
      cuda_check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
      return static_cast<double>(ms);
    };
    int64_t rounds = 1;
    while (run_ms(rounds) < kLeastMs) rounds *= 2;
    std::vector<double> ms;
    for (int run = 0; run < kRuns; ++run) ms.push_back(run_ms(rounds));
    return 1e-3 * summarize(ms, false).median_ms / static_cast<double>(rounds);
  }

  /// As many blocks as fit all SMs at once.
  template <class... Params>
  int64_t full_grid(void (*kernel)(Params...), int threads, int64_t sram_bytes) const {
    int blocks = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, static_cast<size_t>(sram_bytes)),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return int64_t{std::max(blocks, 1)} * properties.multiProcessorCount;
  }

  int compute_capability() const { return 10 * properties.major + properties.minor; }

  cudaDeviceProp properties{};
  float4* buffer = nullptr;
  float* result = nullptr;  // where kernels would write what they never write
  int64_t buffer_bytes = int64_t{256} << 20;

 private:
  cudaEvent_t begin_{}, end_{};
};

/// FLOP per second of products whose operands are in registers: ffma_fp32, mma_fp16 and mma_bf16.
void measure_peaks(Measurement& m, DeviceFigures& f);

/// R, FLOP per second of products of tiles in SRAM: tile_products and split_products.
void measure_tile_products(Measurement& m, DeviceFigures& f);

/// FLOP per second of Hopper's warpgroup products of tiles in SRAM: wgmma_fp16 and wgmma_bf16. Elsewhere there are
/// none.
void measure_warpgroup_products(Measurement& m, DeviceFigures& f);

}  // namespace attention::ATTN_DEVICE::step00
