// step00's products: how many a second an SM makes of numbers in registers, and of tiles in SRAM   docs/00-two-memories.md
#include <algorithm>
#include <vector>

#include "common/tile/shapes.h"
#include "step00_measurement.h"

namespace attention::ATTN_DEVICE::step00 {

// ---- The products ---------------------------------------------------------------------------------------------------

constexpr int kChains =
    16;  // independent sums: a multiply-add takes some cycles, and the next one of its chain waits for it
constexpr int kSteps = 8;  // of each chain per round, so that the loop's own instructions do not count

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

/// Tensor-core products of 16x16 by 16x8 elements of type E with fp32 sums, all operands in registers. `one` has 1.0 in
/// both its halves; signs and low bits differ between lanes, since numbers that never change cost less power than real
/// ones.
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
    ATTN_UNROLL for (int i = 0; i < kProducts; ++i)
      tensor_multiply_add<E>(c[i][0], c[i][1], c[i][2], c[i][3], a, b[i][0], b[i][1]);
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
  for (int n = threadIdx.x; n < Rows * Cols; n += blockDim.x)
    tile.store(n / Cols, n % Cols, static_cast<float>(n * 7 % 31 - 15) / 16);
}
template <int Rows, int Cols>
__device__ void fill_tile(SplitTile<Rows, Cols>& tile) {
  fill_tile(tile.part);
  if (threadIdx.x == 0) tile.scale.store(0, 0, power_of_two_scale(1));
}

/// The products of the later steps, S = Q K^T and O += S V, on tiles that stay in SRAM: step04 without its loads, its
/// mask and its softmax. This is R, the most that a step made of these products can reach.
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
    multiply_ab(o, s, sram.p, sram.v);
    __syncwarp();  // the warp is done with its rows of sram.p
  }
  float sum = 0;
  ATTN_UNROLL for (int i = 0; i < o.kRows; ++i)
    ATTN_UNROLL for (int j = 0; j < o.kCols; ++j) sum += o(i, j);
  if (sum == 0.123456f) *result = sum;  // never, or once in a lifetime
}

// ---- Measuring ------------------------------------------------------------------------------------------------------

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
                m.seconds_per_round("multiply_fp32", [&](int64_t rounds) {
                  multiply_fp32<<<static_cast<unsigned>(blocks), kThreads>>>(rounds, 0.99f, 0.01f, m.result);
                });
  if (m.compute_capability() >= 75) f.mma_fp16 = tensor_core_rate<half>(m, 0x3c003c00u);
  if (m.compute_capability() >= 80) f.mma_bf16 = tensor_core_rate<bfloat16>(m, 0x3f803f80u);
}

/// The first tile that fits of each head_dim that tiles have.
void measure_tile_products(Measurement& m, Problem p, int64_t sram_bytes, std::vector<TileProductRate>& rates) {
  for (int head_dim = padded_head_dim(1); head_dim != 0; head_dim = padded_head_dim(head_dim + 1)) {
    p.head_dim = head_dim;
    const std::vector<TileChoice> choices =
        tile_choices(p, ForwardTiles{}, [](auto t) { return sizeof(ProductSram<decltype(t)>); });
    const auto best = std::find_if(
        choices.begin(), choices.end(), [&](const TileChoice& choice) { return choice.sram_bytes <= sram_bytes; });
    if (best == choices.end()) continue;
    p.tile = best->shape;
    with_tile(p, ForwardTiles{}, [&](auto tile) {
      using T = decltype(tile);
      constexpr int64_t kSram = sizeof(ProductSram<T>);
      cuda_check(
          cudaFuncSetAttribute(multiply_tiles<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSram)),
          "multiply_tiles");
      const int64_t blocks = m.full_grid(multiply_tiles<T>, T::kThreads, kSram);
      const double seconds = m.seconds_per_round("multiply_tiles", [&](int64_t rounds) {
        multiply_tiles<T><<<static_cast<unsigned>(blocks), T::kThreads, kSram>>>(rounds, m.result);
      });
      const double flops = static_cast<double>(blocks) * 2 * 2 * T::kBr * T::kBc * T::kHeadDim;  // two products
      rates.push_back(
          {p.dtype, head_dim, p.tile, static_cast<int>(blocks / m.properties.multiProcessorCount), flops / seconds});
    });
  }
}

void measure_tile_products(Measurement& m, DeviceFigures& f) {
  Problem p;
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    p.dtype = dtype;
    if (dtype != Dtype::bf16 || m.compute_capability() >= 80)
      measure_tile_products(m, p, f.sram_bytes_per_block, f.tile_products);
  }
  p.dtype = Dtype::fp32;
  p.on_tensor_cores = true;
  measure_tile_products(m, p, f.sram_bytes_per_block, f.split_products);
}

}  // namespace attention::ATTN_DEVICE::step00
