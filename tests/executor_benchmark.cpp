// What the CPU executor costs: the time of a fiber switch with the barrier around it, of a hook, and of a tiled kernel.
// A benchmark, not a test: it prints figures and judges nothing.
//
//   ./executor_benchmark [os_threads]
#define ATTN_DEVICE_CPU
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/device/cpu/fiber.h"
#include "common/device/device.h"

namespace attention {
inline namespace ATTN_DEVICE {
namespace {

constexpr int kThreads = 128;

__global__ void wait_for_each_other(int rounds) {
  for (int n = 0; n < rounds; ++n) __syncthreads();
}

__global__ void combine(int rounds) {
  float x[8] = {static_cast<float>(threadIdx.x)};
  for (int n = 0; n < rounds; ++n) lanes_max<8>(x);
}

__global__ void nothing(Global<const float>) {}

/// The shape of step04 with a 128x64 tile at head_dim 64: per key tile two products of 128x64x64, three collectives and
/// three barriers. The arithmetic has no meaning beyond its amount.
constexpr int kRows = 128, kKeys = 64, kDim = 64, kPitch = kDim + 4;
struct Layout {
  alignas(16) float q[kRows][kPitch], k[kKeys][kPitch], v[kKeys][kPitch];
};

template <int Rows>
__device__ void load(float (&to)[Rows][kPitch], Global<const float> from, int64_t row0) {
  for (int n = threadIdx.x; n < Rows * kDim / 4; n += blockDim.x) {
    const int row = n / (kDim / 4), col = n % (kDim / 4) * 4;
    note_sram_write(&to[row][col], 16);
    *reinterpret_cast<float4*>(&to[row][col]) = from.load_vector_if(true, row0 + row, col);
  }
}

__global__ void tiled(Global<const float> Q, Global<const float> K, Global<const float> V, Global<float> O) {
  Layout& sram = dynamic_sram<Layout>();
  const int thread = threadIdx.x, lane = thread % 32, row0 = thread / 32 * 32 + lane / 8, col0 = lane % 8;
  load(sram.q, Q, int64_t{blockIdx.x} * kRows);
  float out[8][2][4] = {};
  for (int64_t tile = 0; tile < K.rows / kKeys; ++tile) {
    __syncthreads();
    load(sram.k, K, tile * kKeys);
    load(sram.v, V, tile * kKeys);
    __syncthreads();
    float s[8][8] = {};  // columns of s, as the product keeps them
    for (int c = 0; c < kDim; c += 32) {
      const float *q[8], *k[8];
      ATTN_UNROLL for (int i = 0; i < 8; ++i) note_sram_read(q[i] = &sram.q[row0 + 4 * i][c], 128);
      ATTN_UNROLL for (int j = 0; j < 8; ++j) note_sram_read(k[j] = &sram.k[col0 + 8 * j][c], 128);
      for (int n = 0; n < 32; n += 4) {
        FourColumns<8> x;
        ATTN_UNROLL_BOTH for (int i = 0; i < 8; ++i) x.load(i, q[i] + n);
        ATTN_UNROLL_BOTH for (int j = 0; j < 8; ++j) multiply_add(s[j], x, *reinterpret_cast<const float4*>(k[j] + n));
      }
    }
    float p[8][8], m[8];
    ATTN_UNROLL for (int i = 0; i < 8; ++i) {
      ATTN_UNROLL for (int j = 0; j < 8; ++j) p[i][j] = s[j][i];
      m[i] = p[i][0];
      ATTN_UNROLL for (int j = 1; j < 8; ++j) m[i] = fmaxf(m[i], p[i][j]);
    }
    lanes_max<8>(m);
    ATTN_UNROLL for (int i = 0; i < 8; ++i)
      ATTN_UNROLL for (int j = 0; j < 8; ++j) p[i][j] = expf(p[i][j] - m[i]);
    lanes_sum<8>(m);
    __syncwarp();
    ATTN_UNROLL for (int j = 0; j < 8; ++j)
      for (int half = 0; half < 2; ++half) {
        const float* v = &sram.v[col0 + 8 * j][half * 32 + col0 * 4];
        note_sram_read(v, 16);
        for (int repeat = 0; repeat < 8; ++repeat)
          ATTN_UNROLL for (int i = 0; i < 8; ++i) multiply_add(out[i][half], p[i][j], *reinterpret_cast<const float4*>(v));
      }
    count_flops(2 * 2 * 64 * 64);
  }
  ATTN_UNROLL for (int i = 0; i < 8; ++i)
    ATTN_UNROLL for (int half = 0; half < 2; ++half)
      O.store_run<4>(int64_t{blockIdx.x} * kRows + row0 + 4 * i, half * 32 + col0 * 4, out[i][half]);
}

/// The best of several runs, in ms: what the code costs when nothing else uses the machine.
template <class Work>
double best_ms(Work work) {
  double best = 1e30;
  for (int n = 0; n < 7; ++n) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void measure() {
  using RaceCheck = ExecutorOptions::RaceCheck;
  ExecutorOptions& options = executor_options();
  std::printf("fibers by %s, %d OS threads\n", executor::fiber_mechanism(), executor::os_threads());

  constexpr int rounds = 2000;
  const double per_switch = 1e6 / rounds / kThreads;  // ms of one block -> ns
  std::printf("__syncthreads  %6.1f ns per thread\n", per_switch * best_ms([] { launch("wait_for_each_other", wait_for_each_other, 1, kThreads, 0, rounds); }));
  std::printf("lanes_max<8>   %6.1f ns per thread, 8 values each\n", per_switch * best_ms([] { launch("combine", combine, 1, kThreads, 0, rounds); }));

  const int64_t n = 1024;
  std::vector<float> data(static_cast<size_t>(4 * n * kDim + 4), 0.01f);
  float* aligned = data.data();
  while (reinterpret_cast<uintptr_t>(aligned) % 16) ++aligned;
  const auto input = [&](const char* name, int which) { return Global<const float>(aligned + which * n * kDim, name, 1, n, kDim); };
  std::printf("an empty launch %5.3f ms\n", best_ms([&] { launch("nothing", nothing, 1, kThreads, 0, input("Q", 0)); }));
  std::printf("10000 empty blocks of %d threads %.2f ms\n", kThreads, best_ms([&] { launch("nothing", nothing, 10000, kThreads, 0, input("Q", 0)); }));
  const auto run = [&] {
    launch("tiled", tiled, n / kRows, kThreads, sizeof(Layout), input("Q", 0), input("K", 1), input("V", 2),
           Global<float>(aligned + 3 * n * kDim, "O", 1, n, kDim));
  };
  for (auto [check, name] : {std::pair{RaceCheck::none, "none"}, {RaceCheck::ends, "first and last block"}, {RaceCheck::all, "all blocks"}}) {
    options.race_check = check;
    std::printf("tiled, N=%lld d=%d, race check of %-20s %8.2f ms\n", static_cast<long long>(n), kDim, name, best_ms(run));
  }
}

}  // namespace
}  // namespace ATTN_DEVICE
}  // namespace attention

int main(int argc, char** argv) {
  if (argc > 1) attention::executor_options().os_threads = std::atoi(argv[1]);
  attention::measure();
}
