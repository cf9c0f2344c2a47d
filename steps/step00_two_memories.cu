// step00  two memories                                                                     docs/00-two-memories.md
//
// No attention yet. A GPU has a large memory that is slow (HBM), and in each multiprocessor (SM) a small one that is
// fast (SRAM; CUDA says "shared memory"); a cache (L2) stands between them. How many bytes per second come from each,
// and how many products per second the SM makes of them, decides all that follows. Each kernel below does one thing
// only, and is timed.
//
//      HBM ──BW──▶ L2 ────▶ SRAM ────▶ registers ──R──▶ products
//      read_memory, copy_memory  read_sram        multiply_fp32, multiply_tensor_cores, multiply_tiles, multiply_warpgroups
//                                                 (step00_products.cu, step00_warpgroup_products.cu)
//
//   make step00 && ./step00
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "step00_measurement.h"

namespace attention::ATTN_DEVICE::step00 {

// ---- The memories ---------------------------------------------------------------------------------------------------

constexpr int kInFlight =
    8;  // loads of 16 bytes that a thread has under way at once: latency is long, so it takes many

/// Reads data[0 .. count) (count a power of two) round after round, past the L1. Eight blocks of 256 threads fill an
/// SM, and neighbouring threads read neighbouring vectors: a warp's 32 loads are 512 bytes in a row.
__global__ void read_memory(const float4* data, int64_t count, int64_t rounds, float* result) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  float4 sum = {};
  for (int64_t round = 0; round < rounds; ++round) {
    float4 x[kInFlight];
    ATTN_UNROLL for (int i = 0; i < kInFlight; ++i, n += threads) x[i] = load_past_l1(data + (n & (count - 1)), true);
    ATTN_UNROLL for (int i = 0; i < kInFlight; ++i) sum.x += x[i].x, sum.y += x[i].y, sum.z += x[i].z, sum.w += x[i].w;
  }
  if (sum.x + sum.y + sum.z + sum.w != 0)
    *result = sum.x;  // never: the data are zeros. Without it the compiler drops the loads
}

/// The simplest kernel there is: one thread, one vector.
__global__ void copy_memory(const float4* from, float4* to) {
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  to[n] = from[n];
}

constexpr int kSramVectors = 2048;  // 32 KiB

/// Each block reads its own SRAM. The 16-byte vectors of neighbouring threads are neighbours, so no two fall into the
/// same bank at the same time. Each round starts somewhere else, so that nothing can be kept in registers.
__global__ void read_sram(int64_t rounds, float* result) {
  __shared__ float4 sram[kSramVectors];
  for (int n = threadIdx.x; n < kSramVectors; n += kThreads) sram[n] = float4{};
  __syncthreads();  // the zeros are there
  float4 sum = {};
  for (int64_t round = 0; round < rounds; ++round) {
    const float4* from = sram + (threadIdx.x + 32 * round) % 1024;
    ATTN_UNROLL for (int i = 0; i < kInFlight; ++i) {
      const float4 x = from[128 * i];
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
  }
  if (sum.x + sum.y + sum.z + sum.w != 0) *result = sum.x;  // never
}

__global__ void do_nothing() {}

// ---- Measuring ------------------------------------------------------------------------------------------------------

constexpr int kRoundTrips = 200;

/// Bytes per second of reading the first `bytes` (a power of two) of the buffer again and again.
double read_rate(Measurement& m, int64_t bytes) {
  const int64_t blocks = m.full_grid(read_memory, kThreads, 0);
  const double seconds = m.seconds_per_round("read_memory", [&](int64_t rounds) {
    read_memory<<<static_cast<unsigned>(blocks), kThreads>>>(
        m.buffer, bytes / int64_t{sizeof(float4)}, rounds, m.result);
  });
  return static_cast<double>(blocks * kThreads * kInFlight * int64_t{sizeof(float4)}) / seconds;
}

/// The largest power of two up to `bytes`.
int64_t power_of_two_within(int64_t bytes) {
  int64_t power = 1;
  while (2 * power <= bytes) power *= 2;
  return power;
}

void measure_memories(Measurement& m, DeviceFigures& f) {
  for (int64_t bytes = int64_t{1} << 20; bytes <= m.buffer_bytes; bytes *= 2)
    f.working_sets.push_back({bytes, read_rate(m, bytes)});
  f.hbm_read = f.working_sets.back().bytes_per_second;
  // A quarter of the L2: a GPU whose L2 has two halves keeps what is read from both sides twice.
  f.l2_read = read_rate(m, power_of_two_within(std::max<int64_t>(m.properties.l2CacheSize / 4, 1 << 20)));

  const int64_t copied = m.buffer_bytes / 2, vectors = copied / int64_t{sizeof(float4)};
  f.hbm_copy = 2 * static_cast<double>(copied) / m.seconds_per_round("copy_memory", [&](int64_t rounds) {
    for (int64_t round = 0; round < rounds; ++round)
      copy_memory<<<static_cast<unsigned>(vectors / kThreads), kThreads>>>(m.buffer, m.buffer + vectors);
  });
  const int64_t blocks = m.full_grid(read_sram, kThreads, 0);
  f.sram_read = static_cast<double>(blocks * kThreads * kInFlight * int64_t{sizeof(float4)}) /
                m.seconds_per_round("read_sram", [&](int64_t rounds) {
                  read_sram<<<static_cast<unsigned>(blocks), kThreads>>>(rounds, m.result);
                });
}

void measure_launches(Measurement& m, DeviceFigures& f) {
  const double seconds = m.seconds_per_round("do_nothing", [](int64_t rounds) {
    for (int64_t round = 0; round < rounds; ++round) do_nothing<<<1, 32>>>();
  });
  f.launch_spacing_us = 1e6 * seconds;
  std::vector<double> round_trips_ms;
  for (int n = 0; n < kRoundTrips; ++n) {
    const auto start = std::chrono::steady_clock::now();
    do_nothing<<<1, 32>>>();
    cuda_check(cudaDeviceSynchronize(), "do_nothing");
    round_trips_ms.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  f.launch_round_trip_us = 1e3 * summarize(round_trips_ms, false).median_ms;
}

DeviceFigures measure(const std::function<void(const std::string&)>& stage) {
  stage("step00: starting the GPU");
  cuda_check(cudaSetDevice(0), "cudaSetDevice");
  Measurement m;
  DeviceFigures f;
  f.gpu = m.properties.name;
  f.compute_capability = m.compute_capability();
  f.sm_count = m.properties.multiProcessorCount;
  f.hbm_bytes = static_cast<int64_t>(m.properties.totalGlobalMem);
  f.l2_bytes = m.properties.l2CacheSize;
  f.sram_bytes_per_sm = static_cast<int64_t>(m.properties.sharedMemPerMultiprocessor);
  f.sram_bytes_per_block = static_cast<int64_t>(m.properties.sharedMemPerBlockOptin);
  int clock_khz = 0, bus_bits = 0;
  cuda_check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, 0), "cudaDeviceGetAttribute");
  cuda_check(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, 0), "cudaDeviceGetAttribute");
  if (clock_khz > 0 && bus_bits > 0)
    f.hbm_peak = 2.0 * clock_khz * 1e3 * bus_bits / 8;  // two transfers per clock and wire

  stage("step00: HBM, L2 and SRAM");
  measure_memories(m, f);
  stage("step00: fp32 and tensor-core products");
  measure_peaks(m, f);
  stage("step00: tile products");
  measure_tile_products(m, f);
  measure_warpgroup_products(m, f);
  stage("step00: launches");
  measure_launches(m, f);
  return f;
}

}  // namespace attention::ATTN_DEVICE::step00

namespace attention {
DeviceFigures measure_gpu(const std::function<void(const std::string&)>& stage) {
  DeviceFigures figures = step00::measure(stage);
  figures.driver_cuda = find_gpu().driver_cuda;
  return figures;
}
}  // namespace attention
