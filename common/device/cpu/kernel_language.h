// The kernel language on a CPU: the names that gpu/kernel_language.h has from CUDA or defines, for the host compiler.
// docs/names.md lists them; keep the two files in step. The engine behind them is executor.h, which also says what the
// checks see and what they do not.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <type_traits>

#include "common/device/cpu/executor.h"
#include "common/device/cpu/half.h"
#include "common/device/cpu/layout_names.h"
#include "common/base/error.h"

// CUDA's keywords that mean nothing on one address space. (Not __noinline__: libstdc++ uses that word itself.)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// Of the OS thread, which runs a block's threads. Such a variable is neither NaN at the start nor watched, as
// dynamic_sram<Layout>() is.
#define __shared__ static thread_local
#define __grid_constant__

#define ATTN_UNROLL  // keeps arrays in registers on a GPU; here it would only make compiling slow
#define ATTN_UNROLL_1  // a host compiler unrolls no long loop by itself, and GCC takes the pragma for no loop without a condition
#define ATTN_PRODUCT \
  __attribute__((noinline))  // a tile product is a function of its own here: compiled once, not into every kernel
#if defined(__clang__)
#define ATTN_UNROLL_BOTH _Pragma("unroll")
#define ATTN_UNROLL_2 _Pragma("unroll 2")
#define ATTN_UNROLL_4 _Pragma("unroll 4")
#else
#define ATTN_UNROLL_BOTH _Pragma("GCC unroll 128")
#define ATTN_UNROLL_2 _Pragma("GCC unroll 2")
#define ATTN_UNROLL_4 _Pragma("GCC unroll 4")
#endif

// The caller's place in the source, as default arguments: evaluated where the call stands.
#define ATTN_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

#include "common/device/timed.h"

namespace attention {
inline namespace ATTN_DEVICE {

constexpr unsigned kAllLanes = 0xffffffffu;  // of a warp, as the mask of the _sync functions

using uint3 = executor::Index3;
using executor::blockDim;
using executor::blockIdx;
using executor::gridDim;
using executor::threadIdx;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline void __syncthreads(ATTN_CALLER) { executor::block_barrier({file, line}); }
inline void __syncwarp(unsigned mask = kAllLanes, ATTN_CALLER) {
  if (mask != kAllLanes) [[unlikely]]
    executor::report({file, line}, "__syncwarp for some of the lanes: the executor takes whole warps");
  executor::warp_barrier({file, line});
}

/// A view of one tensor in HBM, [heads, rows, cols], contiguous; head(h) is the view of one head's matrix. T is float,
/// half or bfloat16, const to read; values are fp32 on this side of the view. Each access is checked against rows and
/// cols and counted under the tensor's name. A view made on the device, from an address and two sizes, counts as
/// "(unnamed)".
template <class T>
struct Global {
  using E = std::remove_const_t<T>;
  using Kind = executor::HbmAccess::Kind;
  static constexpr int kVector = 16 / sizeof(E);
  T* data;
  int64_t rows;
  int64_t cols;

  Global(T* address, const char* tensor, int64_t heads, int64_t rows_, int64_t cols_)
      : data(address), rows(rows_), cols(cols_), heads_(heads), tensor_(executor::tensor_id(tensor)) {}
  Global(T* address, int64_t rows_, int64_t cols_) : Global(address, "(unnamed)", 1, rows_, cols_) {}

  Global head(int64_t h, ATTN_CALLER) const {
    if (static_cast<uint64_t>(h) >= static_cast<uint64_t>(heads_)) [[unlikely]]
      executor::report_hbm_access({Kind::head, tensor_, data, heads_, 1, h, 0, 1}, {file, line});
    Global one = *this;
    if (data) one.data += h * rows * cols;
    one.heads_ = 1;
    one.head_ = h;
    return one;
  }
  /// What lies below the first `row` rows of this head.
  Global rows_from(int64_t row) const {
    Global below = *this;
    below.data += row * cols;
    below.rows -= row;
    below.above_ += row;
    return below;
  }
  float load(int64_t row, int64_t col, ATTN_CALLER) const {
    const T* from = checked(Kind::load, 1, row, col, file, line);
    executor::block_view.requested[tensor_].load += sizeof(T);
    return to_float(*from);
  }
  /// kVector neighbours as they are in HBM, or zeros (and no access, no bytes) when `inside` is false.
  float4 load_vector_if(bool inside, int64_t row, int64_t col, ATTN_CALLER) const {
    return inside ? *reinterpret_cast<const float4*>(vector_to_load(row, col, file, line)) : float4{};
  }
  /// Where kVector neighbours lie that are about to be loaded: checked and counted.
  const T* vector_to_load(int64_t row, int64_t col, ATTN_CALLER) const {
    const T* from = checked(Kind::load, kVector, row, col, file, line);
    executor::block_view.requested[tensor_].load += sizeof(float4);
    return from;
  }
  void store(int64_t row, int64_t col, float value, ATTN_CALLER) const {
    T* to = checked(Kind::store, 1, row, col, file, line);
    executor::block_view.requested[tensor_].store += sizeof(T);
    *to = from_float<E>(value);
  }
  /// N neighbours in one access: one element or kVector of them.
  template <int N>
  void load_run(int64_t row, int64_t col, float (&values)[N], ATTN_CALLER) const {
    static_assert(N == 1 || N == kVector);
    const T* from = checked(Kind::load, N, row, col, file, line);
    executor::block_view.requested[tensor_].load += N * sizeof(T);
    for (int n = 0; n < N; ++n) values[n] = to_float(from[n]);
  }
  /// N neighbours in one access.
  template <int N>
  void store_run(int64_t row, int64_t col, const float* values, ATTN_CALLER) const {
    T* to = checked(Kind::store, N, row, col, file, line);
    executor::block_view.requested[tensor_].store += N * sizeof(T);
    for (int n = 0; n < N; ++n) to[n] = from_float<E>(values[n]);
  }
  /// atomicAdd: adds N neighbours to what is there (fp32 alone). Its bytes count as stored: what goes out is the
  /// numbers to add.
  template <int N>
  void add_run(int64_t row, int64_t col, const float* values, ATTN_CALLER) const {
    T* to = checked(Kind::add, N, row, col, file, line);
    executor::block_view.requested[tensor_].store += N * sizeof(T);
    for (int n = 0; n < N; ++n)
      std::atomic_ref(to[n]).fetch_add(values[n], std::memory_order_relaxed);  // other blocks' OS threads add here too
  }
  /// `count` neighbours for the copy engine, which counts their bytes.
  executor::BulkCopy run(int64_t row, int64_t col, int count, ATTN_CALLER) const {
    checked(Kind::copy, 1, row, col, file, line), checked(Kind::copy, 1, row, col + count - 1, file, line);
    return {.data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(data + row * cols + col)),
            .bytes = count * static_cast<int64_t>(sizeof(T)),
            .tensor = tensor_};
  }

 private:
  int64_t heads_;
  int64_t head_ = 0, above_ = 0;  // for the film: whose head's matrix this is, and how many of its rows lie above
  int tensor_;

  __forceinline__ T* checked(Kind access, int elements, int64_t row, int64_t col, const char* file, int line) const {
    T* address = data + row * cols + col;
    const bool inside = (row >= 0) & (row < rows) & (col >= 0) & (col + elements <= cols) & (data != nullptr);
    const bool aligned = reinterpret_cast<uintptr_t>(address) % (elements * sizeof(T)) == 0;
    if (!(inside & aligned & !executor::block_view.filmed)) [[unlikely]] {
      const executor::HbmAccess it{access, tensor_, data, rows, cols, row, col, elements};
      if (!(inside & aligned)) executor::report_hbm_access(it, {file, line});
      executor::film_access(it, head_, above_, elements * static_cast<int>(sizeof(T)));
    }
    return address;
  }
};

/// The block's dynamic SRAM, laid out as `Layout` (a struct of SRAM tiles), filled with NaN at the start of each block.
template <class Layout>
Layout& dynamic_sram(ATTN_CALLER) {
  const executor::BlockView& view = executor::block_view;
  if (sizeof(Layout) > view.sram_bytes) [[unlikely]]
    executor::report_layout(sizeof(Layout), {file, line});
  executor::block_view.name_of_byte = executor::name_of_byte<Layout>;
  return *reinterpret_cast<Layout*>(view.sram);
}

/// Says that `bytes` bytes of SRAM from `address` on are about to be read (written): SramTile calls these once per row.
/// In a block that is not race-checked all that happens is the bounds test here.
__forceinline__ void note_sram_read(const void* address, int bytes, ATTN_CALLER) {
  if (executor::block_view.watches(address, bytes)) [[unlikely]]
    executor::watch_sram(address, bytes, false, {file, line});
}
__forceinline__ void note_sram_write(const void* address, int bytes, ATTN_CALLER) {
  if (executor::block_view.watches(address, bytes)) [[unlikely]]
    executor::watch_sram(address, bytes, true, {file, line});
}

/// Adds to LaunchRecord::counted_flops.
__forceinline__ void count_flops(int64_t flops) {
  executor::block_view.flops += flops;
  if (executor::block_view.filmed) [[unlikely]]
    executor::film_product(flops);
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------
// The C library's fmaxf and expf are calls; these are inline and fit the compiler's vectors. Same results as CUDA's to
// the last digit or two: fmaxf ignores a NaN, expf and exp2f are within 2 ulp.

inline float fmaxf(float a, float b) { return b != b ? a : (a > b ? a : b); }
inline float fminf(float a, float b) { return b != b ? a : (a < b ? a : b); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

/// e^r * 2^n for |r| <= ln(2)/2. Polynomial: S. Moshier, Cephes library, expf.
inline float scaled_exp(float r, int n) {
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int half =
      n >> 1;  // 2^n in two factors: for results that underflow step by step, n passes the exponent's range
  const auto power = [](int e) { return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23); };
  return p * power(half) * power(n - half);
}
/// Rounds |x| < 2^22 to an integer, as float and as int: adding 1.5 * 2^23 leaves it in the last bits.
inline float round_to_int(float x, int& n) {
  constexpr float shift = 12582912.0f;
  const float shifted = x + shift;
  n = static_cast<int>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(shift)) & 0xfff;
  n = (n ^ 0x800) - 0x800;  // the low 12 bits with their sign: a NaN's bits stay in range too
  return shifted - shift;
}
inline float expf(float x) {
  x = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);  // 0 and infinity lie beyond; a NaN passes
  int n;
  const float whole = round_to_int(x * 1.44269504f, n);
  return scaled_exp(
      x - whole * 0.693359375f + whole * 2.12194440e-4f, n);  // ln 2 in two parts: the first product is exact
}
inline float exp2f(float x) {
  x = x < -151.0f ? -151.0f : (x > 129.0f ? 129.0f : x);
  int n;
  const float whole = round_to_int(x, n);
  return scaled_exp((x - whole) * 0.693147181f, n);
}

inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

/// A product rounded on its own: never fused with a sum that follows.
inline float __fmul_rn(float a, float b) {
  float product = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(product));
#else
  asm("" : "+m"(product));
#endif
  return product;
}

/// 2^x; results under 2^-126 become 0.
inline float exp2_or_zero(float x) { return x < -126.0f ? 0.0f : exp2f(x); }

/// Four floats that the compiler keeps in one register.
using Vector4 = float __attribute__((vector_size(16), may_alias));

template <int N>
struct VectorOf {
  typedef float type __attribute__((vector_size(4 * N)));
};
/// Four neighbouring columns of N rows, and the sums of their products with four numbers y: N sums of four terms each,
/// in the order of the columns. (Kept by column, so that the N sums are one vector.)
template <int N>
struct FourColumns {
  typename VectorOf<N>::type column[4];
  __forceinline__ void load(int row, const float* four) {
    for (int c = 0; c < 4; ++c) column[c][row] = four[c];
  }
};
template <int N>
__forceinline__ void multiply_add(float (&sums)[N], const FourColumns<N>& x, const float4& y) {
  typename VectorOf<N>::type sum;
  __builtin_memcpy(&sum, sums, sizeof sum);
  sum = x.column[3] * y.w + (x.column[2] * y.z + (x.column[1] * y.y + (x.column[0] * y.x + sum)));
  __builtin_memcpy(sums, &sum, sizeof sum);
}
__forceinline__ void multiply_add(float (&acc)[4], float a, const float4& b) {
  Vector4 sum;
  __builtin_memcpy(&sum, acc, sizeof sum);
  sum = a * reinterpret_cast<const Vector4&>(b) + sum;
  __builtin_memcpy(acc, &sum, sizeof sum);
}

/// Each thread's line as it comes, in the run of the first thread order alone: the others are silent.
__attribute__((format(printf, 1, 2))) inline int printf(const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int length = executor::print(format, values);
  va_end(values);
  return length;
}

// ---- a warp's collectives -------------------------------------------------------------------------------------------

/// For each group of `Lanes` neighbouring lanes: x[n] of each becomes the combination of all of them, combined in the
/// order that a GPU's shuffles do it in: with the lane Lanes / 2 away, then with the one half as far.
template <int Lanes, int N, class Combine>
void combine_lanes(void* const* lanes) {
  static_assert(Lanes >= 1 && executor::kWarp % Lanes == 0 && (Lanes & (Lanes - 1)) == 0);
  const auto x = [&](int lane, int n) -> float& { return static_cast<float*>(lanes[lane])[n]; };
  for (int step = Lanes / 2; step > 0; step /= 2)
    for (int lane = 0; lane < executor::kWarp; ++lane)
      if ((lane & step) == 0)
        for (int n = 0; n < N; ++n) x(lane, n) = x(lane + step, n) = Combine{}(x(lane, n), x(lane + step, n));
}
struct Maximum {
  float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  float operator()(float a, float b) const { return a + b; }
};

/// Each x[n] becomes the maximum (sum) over the `Lanes` neighbouring lanes that share it; all 32 lanes take part.
template <int Lanes, int N>
void lanes_max(float (&x)[N], ATTN_CALLER) {
  executor::warp_collective(combine_lanes<Lanes, N, Maximum>, x, {file, line});
  if (executor::block_view.filmed) [[unlikely]]
    executor::film_row_max(Lanes, N, x), executor::film_exchange({file, line});
}
template <int Lanes, int N>
void lanes_sum(float (&x)[N], ATTN_CALLER) {
  executor::warp_collective(combine_lanes<Lanes, N, Sum>, x, {file, line});
}
/// lanes_max<32> for numbers that are not negative.
template <int N>
void warp_max_of_magnitudes(float (&x)[N], ATTN_CALLER) {
  executor::warp_collective(combine_lanes<32, N, Maximum>, x, {file, line});
}

/// The first Count lanes of a warp by their sizes: next() is the smallest, then the next larger one, Count times, for
/// all 32 lanes alike. Sizes are not negative; those that agree in their first 18 bits keep the lanes' order. Each lane
/// comes once whatever its size, a NaN too.
struct LaneOrder {
  uint8_t lane[executor::kWarp] = {};
  int taken = 0;
  int next() { return lane[taken++ % executor::kWarp]; }
};
struct Sized {
  uint32_t key;
  LaneOrder order;
};
template <int Count>
void sort_lanes(void* const* lanes) {
  uint32_t keys[Count];
  for (int lane = 0; lane < Count; ++lane) keys[lane] = static_cast<const Sized*>(lanes[lane])->key;
  std::sort(keys, keys + Count);
  for (int lane = 0; lane < executor::kWarp; ++lane)
    for (int n = 0; n < Count; ++n) static_cast<Sized*>(lanes[lane])->order.lane[n] = keys[n] & 31;
}
template <int Count>
LaneOrder order_of_lanes(float size, ATTN_CALLER) {
  Sized mine{(__float_as_uint(size) & ~31u) | threadIdx.x % 32, {}};
  executor::warp_collective(sort_lanes<Count>, &mine, {file, line});
  return mine.order;
}

/// True for all lanes of a warp when it is for one of them. All 32 take part, as `mask` must say.
inline void any_of_lanes(void* const* lanes) {
  bool any = false;
  for (int lane = 0; lane < executor::kWarp; ++lane) any |= *static_cast<const bool*>(lanes[lane]);
  for (int lane = 0; lane < executor::kWarp; ++lane) *static_cast<bool*>(lanes[lane]) = any;
}
inline bool __any_sync(unsigned mask, bool predicate, ATTN_CALLER) {
  if (mask != kAllLanes) [[unlikely]]
    executor::report({file, line}, "__any_sync for some of the lanes: the executor takes whole warps");
  executor::warp_collective(any_of_lanes, &predicate, {file, line});
  if (executor::block_view.filmed) [[unlikely]]
    executor::film_exchange({file, line});
  return predicate;
}

/// What lane `from` of the warp passes. All 32 lanes take part, as the mask must say.
struct Shuffled {
  uint32_t value;
  int from;
};
inline void shuffle_lanes(void* const* lanes) {
  uint32_t values[executor::kWarp];
  for (int lane = 0; lane < executor::kWarp; ++lane) values[lane] = static_cast<const Shuffled*>(lanes[lane])->value;
  for (int lane = 0; lane < executor::kWarp; ++lane) {
    auto& it = *static_cast<Shuffled*>(lanes[lane]);
    it.value = values[it.from % executor::kWarp];
  }
}
template <class T>
T value_of_lane(unsigned mask, T value, int from, executor::SourceLine place) {
  static_assert(sizeof(T) == 4);
  if (mask != kAllLanes) [[unlikely]]
    executor::report(place, "a shuffle of some of the lanes: the executor takes whole warps");
  Shuffled deposit{std::bit_cast<uint32_t>(value), from};
  executor::warp_collective(shuffle_lanes, &deposit, place);
  if (executor::block_view.filmed) [[unlikely]]
    executor::film_exchange(place);
  return std::bit_cast<T>(deposit.value);
}
/// As CUDA has them: within groups of `width` lanes, and a lane whose source lies outside of its group keeps its own
/// value.
inline int lane_in_warp() { return static_cast<int>(threadIdx.x) % executor::kWarp; }
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = executor::kWarp, ATTN_CALLER) {
  return value_of_lane(mask, value, lane_in_warp() / width * width + (from & (width - 1)), {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = executor::kWarp, ATTN_CALLER) {
  const int lane = lane_in_warp(), from = lane ^ lane_mask;
  return value_of_lane(mask, value, from < (lane / width + 1) * width ? from : lane, {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = executor::kWarp, ATTN_CALLER) {
  const int lane = lane_in_warp(), from = lane - static_cast<int>(delta);
  return value_of_lane(mask, value, from >= lane / width * width ? from : lane, {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = executor::kWarp, ATTN_CALLER) {
  const int lane = lane_in_warp(), from = lane + static_cast<int>(delta);
  return value_of_lane(mask, value, from < (lane / width + 1) * width ? from : lane, {file, line});
}

/// Adds to a number in HBM, whichever blocks do so at the same time; what it was before.
template <class T>
T atomicAdd(T* at, T value) {
  return std::atomic_ref(*at).fetch_add(value, std::memory_order_relaxed);
}

/// Blocks that do something one after the other: `turn` counts those that have. Another block's OS thread passes it; a
/// block of its own does not, so `mine` must be of a block that has begun.
inline void wait_turn(unsigned* turn, unsigned mine, ATTN_CALLER) {
  constexpr auto kTooLong = std::chrono::seconds(60);
  if (threadIdx.x % executor::kWarp == 0) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::atomic_ref(*turn).load(std::memory_order_acquire) != mine) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() - begin > kTooLong)
        executor::report({file, line}, "waits for a turn that no block passes on");
    }
  }
  __syncwarp(kAllLanes, file, line);
}
inline void pass_turn(unsigned* turn, ATTN_CALLER) {
  __syncwarp(kAllLanes, file, line);
  if (threadIdx.x % executor::kWarp == 0) std::atomic_ref(*turn).fetch_add(1, std::memory_order_release);
}

/// kernel<<<grid, block, sram_bytes>>>(args...) on the executor; returns when the grid has ended.
/// Throws as executor::run_grid does, naming the kernel.
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), int64_t grid, int block, int64_t sram_bytes, Args... args) {
  const auto thread = [&] { kernel(args...); };
  executor::Grid work{name, grid, block, sram_bytes, nullptr, &thread};
  work.thread = [](const void* self) { (*static_cast<decltype(&thread)>(self))(); };
  executor::run_grid(work);
}

}  // namespace ATTN_DEVICE
}  // namespace attention

#undef ATTN_CALLER
