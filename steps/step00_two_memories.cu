// step00  two memories                                                                     docs/00-two-memories.md
//
// No attention yet. A GPU has a large memory that is slow (HBM), and in each multiprocessor (SM) a small one that is fast (SRAM;
// CUDA says "shared memory"); a cache (L2) stands between them. How many bytes per second come from each, and how many products
// per second the SM makes of them, decides all that follows. Each kernel below does one thing only, and is timed.
//
//      HBM ──BW──▶ L2 ────▶ SRAM ────▶ registers ──R──▶ products
//      read_memory, copy_memory  read_sram        multiply_fp32, multiply_tensor_cores, multiply_tiles
//
//   make step00 && ./step00
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/device/gpu/cuda_check.h"
#include "common/harness/timing.h"
#include "common/roofline/measure.h"
#include "common/tile/shapes.h"

namespace attention::ATTN_DEVICE::step00 {

// ---- The memories ---------------------------------------------------------------------------------------------------------

constexpr int kThreads = 256;  // per block
constexpr int kInFlight = 8;   // loads of 16 bytes that a thread has under way at once: latency is long, so it takes many

/// Reads data[0 .. count) (count a power of two) round after round, past the L1. Eight blocks of 256 threads fill an SM, and
/// neighbouring threads read neighbouring vectors: a warp's 32 loads are 512 bytes in a row.
__global__ void read_memory(const float4* data, int64_t count, int64_t rounds, float* result) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  float4 sum = {};
  for (int64_t round = 0; round < rounds; ++round) {
    float4 x[kInFlight];
    ATTN_UNROLL for (int i = 0; i < kInFlight; ++i, n += threads) x[i] = load_past_l1(data + (n & (count - 1)), true);
    ATTN_UNROLL for (int i = 0; i < kInFlight; ++i) sum.x += x[i].x, sum.y += x[i].y, sum.z += x[i].z, sum.w += x[i].w;
  }
  if (sum.x + sum.y + sum.z + sum.w != 0) *result = sum.x;  // never: the data are zeros. Without it the compiler drops the loads
}

/// The simplest kernel there is: one thread, one vector.
__global__ void copy_memory(const float4* from, float4* to) {
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  to[n] = from[n];
}

constexpr int kSramVectors = 2048;  // 32 KiB

/// Each block reads its own SRAM. The 16-byte vectors of neighbouring threads are neighbours, so no two fall into the same bank
/// at the same time. Each round starts somewhere else, so that nothing can be kept in registers.
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

// ---- The products ---------------------------------------------------------------------------------------------------------

constexpr int kChains = 16;  // independent sums: a multiply-add takes some cycles, and the next one of its chain waits for it
constexpr int kSteps = 8;    // of each chain per round, so that the loop's own instructions do not count

/// fp32 multiply-adds (FFMA) on the CUDA cores, all operands in registers: the most that fp32 arithmetic can give.
__global__ void multiply_fp32(int64_t rounds, float a, float b, float* result) {
  float x[kChains];
  ATTN_UNROLL for (int i = 0; i < kChains; ++i) x[i] = static_cast<float>(threadIdx.x + i);
  for (int64_t round = 0; round < rounds; ++round)
    ATTN_UNROLL for (int step = 0; step < kSteps; ++step)
      ATTN_UNROLL for (int i = 0; i < kChains; ++i) x[i] = fmaf(x[i], a, b);
  float sum = 0;
  ATTN_UNROLL for (int i = 0; i < kChains; ++i) sum += x[i];
  if (sum == a) *result = sum;  // never
}

constexpr int kProducts = 8;  // independent 16x8 sums of a warp

/// Tensor-core products of 16x16 by 16x8 elements of type E with fp32 sums, all operands in registers. `one` has 1.0 in both its
/// halves; signs and low bits differ between lanes, since numbers that never change cost less power than real ones.
template <class E>
__global__ void multiply_tensor_cores(int64_t rounds, uint32_t one, float* result) {
  uint32_t bits = threadIdx.x * 2654435761u;
  auto number = [&] {
    bits = bits * 1664525u + 1013904223u;  // Numerical Recipes' generator
    return one | (bits >> 9 & 0x007f007fu) | (bits & 0x80008000u);
  };
  uint32_t a[4], b[kProducts][2];
  ATTN_UNROLL for (int i = 0; i < 4; ++i) a[i] = number();
  ATTN_UNROLL for (int i = 0; i < kProducts; ++i) b[i][0] = number(), b[i][1] = number();
  float c[kProducts][4] = {};
  for (int64_t round = 0; round < rounds; ++round)
    ATTN_UNROLL for (int i = 0; i < kProducts; ++i) tensor_multiply_add<E>(c[i][0], c[i][1], c[i][2], c[i][3], a, b[i][0], b[i][1]);
  float sum = 0;
  ATTN_UNROLL for (int i = 0; i < kProducts; ++i) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
  if (sum == 0.123456f) *result = sum;  // never, or once in a lifetime
}

template <class T>
struct ProductSram {
  typename T::Own q;
  typename T::Loop k, v;
  typename T::Staging p;
};

template <class E, int Rows, int Cols>
__device__ void fill_tile(SramTile<E, Rows, Cols>& tile) {
  for (int n = threadIdx.x; n < Rows * Cols; n += blockDim.x) tile.store(n / Cols, n % Cols, static_cast<float>(n * 7 % 31 - 15) / 16);
}
template <int Rows, int Cols>
__device__ void fill_tile(SplitTile<Rows, Cols>& tile) {
  fill_tile(tile.part);
  if (threadIdx.x == 0) tile.scale.store(0, 0, scale_for(1));
}

/// The products of the later steps, S = Q K^T and O += S V, on tiles that stay in SRAM: step04 without its loads, its mask and its
/// softmax. This is R, the most that a step made of these products can reach.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) multiply_tiles(int64_t rounds, float* result) {
  auto& sram = dynamic_sram<ProductSram<T>>();
  const int warp_row0 = threadIdx.x / 32 * T::kWarpRows;
  fill_tile(sram.q);
  fill_tile(sram.k);
  fill_tile(sram.v);
  __syncthreads();  // the tiles are complete
  typename T::Output o(warp_row0);
  for (int64_t round = 0; round < rounds; ++round) {
    typename T::Scores s(warp_row0);
    multiply_abt(s, sram.q, sram.k);
    fold(o, s, sram.p, sram.v);
    __syncwarp();  // the warp is done with its rows of sram.p
  }
  float sum = 0;
  ATTN_UNROLL for (int i = 0; i < o.kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < o.kCols; ++j) sum += o(i, j);
  if (sum == 0.123456f) *result = sum;  // never, or once in a lifetime
}

__global__ void do_nothing() {}

// ---- Measuring ------------------------------------------------------------------------------------------------------------

constexpr double kLeastMs = 5;
constexpr int kRuns = 7, kRoundTrips = 200;

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
      throw DeviceFailure("out of GPU memory: step00 needs " + std::to_string(buffer_bytes) + " bytes, " + std::to_string(free) +
                          " are free; nvidia-smi shows who uses the rest");
    cuda_check(cudaMalloc(&buffer, static_cast<size_t>(buffer_bytes)), "cudaMalloc of " + std::to_string(buffer_bytes) + " bytes");
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

  /// Seconds per round of work(rounds), which enqueues one or more launches of `kernel`. The rounds are doubled until they take
  /// 5 ms, which also wakes up a GPU that idled at a low clock; then the median of seven runs.
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
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, static_cast<size_t>(sram_bytes)), "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
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

/// Bytes per second of reading the first `bytes` (a power of two) of the buffer again and again.
double read_rate(Measurement& m, int64_t bytes) {
  const int64_t blocks = m.full_grid(read_memory, kThreads, 0);
  const double seconds = m.seconds_per_round("read_memory", [&](int64_t rounds) {
    read_memory<<<static_cast<unsigned>(blocks), kThreads>>>(m.buffer, bytes / int64_t{sizeof(float4)}, rounds, m.result);
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
  for (int64_t bytes = int64_t{1} << 20; bytes <= m.buffer_bytes; bytes *= 2) f.working_sets.push_back({bytes, read_rate(m, bytes)});
  f.hbm_read = f.working_sets.back().bytes_per_second;
  // A quarter of the L2: a GPU whose L2 has two halves keeps what is read from both sides twice.
  f.l2_read = read_rate(m, power_of_two_within(std::max<int64_t>(m.properties.l2CacheSize / 4, 1 << 20)));

  const int64_t half = m.buffer_bytes / 2, vectors = half / int64_t{sizeof(float4)};
  f.hbm_copy = 2 * static_cast<double>(half) / m.seconds_per_round("copy_memory", [&](int64_t rounds) {
    for (int64_t round = 0; round < rounds; ++round) copy_memory<<<static_cast<unsigned>(vectors / kThreads), kThreads>>>(m.buffer, m.buffer + vectors);
  });
  const int64_t blocks = m.full_grid(read_sram, kThreads, 0);
  f.sram_read = static_cast<double>(blocks * kThreads * kInFlight * int64_t{sizeof(float4)}) /
                m.seconds_per_round("read_sram", [&](int64_t rounds) { read_sram<<<static_cast<unsigned>(blocks), kThreads>>>(rounds, m.result); });
}

template <class E>
double tensor_core_rate(Measurement& m, uint32_t one) {
  const int64_t blocks = m.full_grid(multiply_tensor_cores<E>, kThreads, 0);
  const double seconds = m.seconds_per_round("multiply_tensor_cores", [&](int64_t rounds) {
    multiply_tensor_cores<E><<<static_cast<unsigned>(blocks), kThreads>>>(rounds, one, m.result);
  });
  return static_cast<double>(blocks * kThreads / 32 * kProducts * 2 * 16 * 8 * 16) / seconds;
}

void measure_peaks(Measurement& m, DeviceFigures& f) {
  const int64_t blocks = m.full_grid(multiply_fp32, kThreads, 0);
  f.ffma_fp32 = static_cast<double>(blocks * kThreads * kSteps * kChains * 2) /
                m.seconds_per_round("multiply_fp32", [&](int64_t rounds) { multiply_fp32<<<static_cast<unsigned>(blocks), kThreads>>>(rounds, 0.99f, 0.01f, m.result); });
  if (m.compute_capability() >= 75) f.mma_fp16 = tensor_core_rate<half>(m, 0x3c003c00u);
  if (m.compute_capability() >= 80) f.mma_bf16 = tensor_core_rate<bfloat16>(m, 0x3f803f80u);
}

constexpr int kTileHeadDims[] = {64, 128, 256};  // of the tiles in common/tile/shapes.h

/// The first tile that fits of each head_dim.
void measure_tile_products(Measurement& m, Problem p, int64_t sram_bytes, std::vector<TileProductRate>& rates) {
  for (const int head_dim : kTileHeadDims) {
    p.head_dim = head_dim;
    const std::vector<TileChoice> choices = tile_choices(p, ForwardTiles{}, [](auto t) { return sizeof(ProductSram<decltype(t)>); });
    const auto best = std::find_if(choices.begin(), choices.end(), [&](const TileChoice& choice) { return choice.sram_bytes <= sram_bytes; });
    if (best == choices.end()) continue;
    p.tile = best->shape;
    with_tile(p, ForwardTiles{}, [&](auto tile) {
      using T = decltype(tile);
      constexpr int64_t kSram = sizeof(ProductSram<T>);
      cuda_check(cudaFuncSetAttribute(multiply_tiles<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSram)), "multiply_tiles");
      const int64_t blocks = m.full_grid(multiply_tiles<T>, T::kThreads, kSram);
      const double seconds = m.seconds_per_round("multiply_tiles", [&](int64_t rounds) {
        multiply_tiles<T><<<static_cast<unsigned>(blocks), T::kThreads, kSram>>>(rounds, m.result);
      });
      const double flops = static_cast<double>(blocks) * 2 * 2 * T::kBr * T::kBc * T::kHeadDim;  // two products
      rates.push_back({p.dtype, head_dim, p.tile, static_cast<int>(blocks / m.properties.multiProcessorCount), flops / seconds});
    });
  }
}

void measure_tile_products(Measurement& m, DeviceFigures& f) {
  Problem p;
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    p.dtype = dtype;
    if (dtype != Dtype::bf16 || m.compute_capability() >= 80) measure_tile_products(m, p, f.sram_bytes_per_block, f.tile_products);
  }
  p.dtype = Dtype::fp32;
  p.on_tensor_cores = true;
  measure_tile_products(m, p, f.sram_bytes_per_block, f.split_products);
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
    round_trips_ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
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
  if (clock_khz > 0 && bus_bits > 0) f.hbm_peak = 2.0 * clock_khz * 1e3 * bus_bits / 8;  // two transfers per clock and wire

  stage("step00: HBM, L2 and SRAM");
  measure_memories(m, f);
  stage("step00: fp32 and tensor-core products");
  measure_peaks(m, f);
  stage("step00: tile products");
  measure_tile_products(m, f);
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
