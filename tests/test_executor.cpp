// The CPU executor: it runs CUDA's thread model right, counts exactly, and catches each kind of mistake. For each kind
// a
// small kernel has the mistake planted (Bug = true); its twin without the mistake must pass.
#define ATTN_DEVICE_CPU
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include "common/device/cpu/film.h"
#include "common/device/cpu/race_check.h"
#include "common/device/device.h"
#include "common/tile/tile.h"
#include "tests/catch.h"
#include "tests/filmed_kernel.h"
#include "tests/programs.h"
#include "tests/with_executor.h"

namespace attention {
inline namespace ATTN_DEVICE {
namespace {

using RaceCheck = ExecutorOptions::RaceCheck;

/// A tensor in HBM, [heads, rows, cols], that starts as n = 0, 1, 2, ...
struct Tensor {
  int64_t heads, rows, cols;
  std::vector<float> memory;
  float* data;
  Tensor(int64_t h, int64_t r, int64_t c) : heads(h), rows(r), cols(c), memory(static_cast<size_t>(h * r * c + 4)) {
    data = memory.data();
    while (reinterpret_cast<uintptr_t>(data) % 16) ++data;
    for (int64_t n = 0; n < h * r * c; ++n) data[n] = static_cast<float>(n);
  }
  Global<float> out(const char* name) { return {data, name, heads, rows, cols}; }
  Global<const float> in(const char* name) const { return {data, name, heads, rows, cols}; }
};

/// What the run is stopped for; "" when nothing is found. Also runs a sound kernel afterwards: nothing may be left
/// over.
std::string finding_of(const std::function<void()>& run);

#define CHECK_CONTAINS(text, part) \
  do {                             \
    INFO(text);                    \
    CHECK(has(text, part));        \
  } while (false)

// ---- running -------------------------------------------------------------------------------------------------------

/// Reverses each block's piece of x through SRAM.
__global__ void reverse(Global<const float> X, Global<float> Y) {
  struct Layout {
    float x[1024];
  };
  Layout& sram = dynamic_sram<Layout>();
  const int64_t first = int64_t{blockIdx.x} * blockDim.x;
  const unsigned mirror = blockDim.x - 1 - threadIdx.x;
  note_sram_write(&sram.x[threadIdx.x], 4);
  sram.x[threadIdx.x] = X.load(0, first + threadIdx.x);
  __syncthreads();
  note_sram_read(&sram.x[mirror], 4);
  Y.store(0, first + threadIdx.x, sram.x[mirror]);
}

bool reverses(int blocks, int threads) {
  const int64_t n = int64_t{blocks} * threads;
  Tensor x(1, 1, n), y(1, 1, n);
  launch("reverse", reverse, blocks, threads, 4096, x.in("X"), y.out("Y"));
  for (int64_t i = 0; i < n; ++i)
    if (y.data[i] != x.data[i / threads * threads + threads - 1 - i % threads]) return false;
  return true;
}

std::string finding_of(const std::function<void()>& run) {
  std::string text;
  try {
    run();
  } catch (const executor::KernelFindings& found) {
    text = found.what();
    CHECK(found.code == 1);
    CHECK(text.find('\n') == std::string::npos);
  }
  CHECK(reverses(3, 96));
  return text;
}

TEST_CASE("executor runs every thread of every block once, in any order", "[executor]") {
  const int os_threads = GENERATE(1, 2, 5);
  for (uint64_t order : {0, 1, 2, 3}) {
    const WithExecutor options({RaceCheck::ends, order, os_threads});
    for (int blocks : {1, 2, 3, 4, 7, 64, 1000})
      for (int threads : {1, 31, 32, 33, 128, 1024}) {
        if (blocks * threads > 200000) continue;
        INFO(blocks << " blocks of " << threads << " threads, order " << order);
        REQUIRE(reverses(blocks, threads));
      }
  }
}

__global__ void order_of_blocks(Global<float> seen) {
  if (threadIdx.x == 0) seen.store(0, blockIdx.x, seen.load(0, blockIdx.x) + 1);
}

TEST_CASE("executor starts each block exactly once under every seed", "[executor]") {
  for (uint64_t order = 0; order < 40; ++order)
    for (int blocks : {1, 2, 3, 5, 12, 97}) {
      const WithExecutor options({RaceCheck::none, order, 2});
      Tensor seen(1, 1, blocks);
      launch("order_of_blocks", order_of_blocks, blocks, 32, 0, seen.out("seen"));
      for (int n = 0; n < blocks; ++n) REQUIRE(seen.data[n] == static_cast<float>(n + 1));
    }
}

template <int Lanes>
__global__ void combine(Global<float> maximum, Global<float> sum) {
  float x[2] = {static_cast<float>(threadIdx.x * 7 % 32), -static_cast<float>(threadIdx.x)}, y[2] = {x[0], x[1]};
  lanes_max<Lanes>(x);
  lanes_sum<Lanes>(y);
  for (int n = 0; n < 2; ++n) maximum.store(n, threadIdx.x, x[n]), sum.store(n, threadIdx.x, y[n]);
}

template <int Lanes>
void check_combine() {
  Tensor maximum(1, 2, 64), sum(1, 2, 64);
  launch("combine", combine<Lanes>, 1, 64, 0, maximum.out("max"), sum.out("sum"));
  for (int thread = 0; thread < 64; ++thread) {
    float largest = -1, total = 0, total_1 = 0;
    for (int n = thread / Lanes * Lanes; n < thread / Lanes * Lanes + Lanes; ++n) {
      largest = std::max(largest, static_cast<float>(n * 7 % 32));
      total += static_cast<float>(n * 7 % 32), total_1 -= static_cast<float>(n);
    }
    REQUIRE(maximum.data[thread] == largest);
    REQUIRE(maximum.data[64 + thread] == -static_cast<float>(thread / Lanes * Lanes));
    REQUIRE(sum.data[thread] == total);
    REQUIRE(sum.data[64 + thread] == total_1);
  }
}

TEST_CASE("lanes_max and lanes_sum combine neighbouring lanes", "[executor]") {
  for (uint64_t order : {0, 5}) {
    const WithExecutor options({RaceCheck::ends, order, 1});
    check_combine<1>(), check_combine<4>(), check_combine<8>(), check_combine<16>(), check_combine<32>();
  }
}

template <int Lanes>
__global__ void add_three(Global<float> sum) {
  float x[1] = {threadIdx.x == 0 ? 1e8f : threadIdx.x == Lanes / 2 ? -1e8f : threadIdx.x == 1 ? 3.0f : 0.0f};
  lanes_sum<Lanes>(x);
  sum.store(0, threadIdx.x, x[0]);
}
TEST_CASE("lanes_sum adds in the order of a GPU's shuffles", "[executor]") {
  Tensor sum(1, 1, 32);
  launch("add_three", add_three<8>, 1, 32, 0, sum.out("sum"));
  for (int thread = 0; thread < 8; ++thread)
    CHECK(sum.data[thread] == 3);  // first the lane 4 away: 1e8 - 1e8. In a chain 3 would be lost
}

template <int Count>
__global__ void sort_by_size(Global<const float> size, Global<float> order) {
  LaneOrder lanes = order_of_lanes<Count>(size.load(0, threadIdx.x));
  for (int n = 0; n < Count; ++n) order.store(threadIdx.x, n, static_cast<float>(lanes.next()));
}
template <int Count>
void check_order(float (*size)(int lane), const std::vector<int>& expected) {
  Tensor sizes(1, 1, 32), order(1, 32, Count);
  for (int lane = 0; lane < 32; ++lane) sizes.data[lane] = size(lane);
  launch("sort_by_size", sort_by_size<Count>, 1, 32, 0, sizes.in("sizes"), order.out("order"));
  for (int lane = 0; lane < 32; ++lane)
    for (int n = 0; n < Count; ++n) REQUIRE(order.data[lane * Count + n] == static_cast<float>(expected[n]));
}
TEST_CASE("order_of_lanes: every lane once, smallest first, whatever the sizes", "[executor]") {
  std::vector<int> up(32), down(32);
  for (int n = 0; n < 32; ++n) up[n] = n, down[n] = 31 - n;
  check_order<32>([](int lane) { return 100.0f - static_cast<float>(lane); }, down);
  check_order<32>([](int) { return 0.0f; }, up);
  check_order<32>([](int) { return INFINITY; }, up);
  check_order<32>([](int lane) { return lane == 0 ? NAN : 1e-40f; },
                  [&] {
                    std::vector<int> last(up.begin() + 1, up.end());
                    last.push_back(0);
                    return last;
                  }());
  check_order<16>([](int lane) { return lane < 16 ? static_cast<float>(lane * 7 % 16) : -1.0f; },
                  {0, 7, 14, 5, 12, 3, 10, 1, 8, 15, 6, 13, 4, 11, 2, 9});
}

TEST_CASE("expf, exp2f and fmaxf of the executor", "[executor]") {
  double worst = 0;
  for (double x = -87; x < 88; x += 0.00037) {
    const float arg = static_cast<float>(x);
    worst = std::max(worst, std::abs(expf(arg) / std::exp(double{arg}) - 1));
    worst = std::max(worst, std::abs(exp2f(arg) / std::exp2(double{arg}) - 1));
  }
  CHECK(worst < 2 * 1.2e-7);  // 2 ulp
  CHECK(expf(0) == 1);
  CHECK(expf(-INFINITY) == 0);
  CHECK(expf(-200) == 0);
  CHECK(expf(200) == INFINITY);
  CHECK(expf(-100) == Approx(std::exp(-100.0)).epsilon(0.05));  // subnormal: few bits are left
  CHECK(std::isnan(expf(NAN)));
  CHECK(exp2f(-INFINITY) == 0);
  CHECK(exp2f(10) == 1024);
  CHECK(exp2f(-149) == std::numeric_limits<float>::denorm_min());
  CHECK(exp2f(130) == INFINITY);
  CHECK(std::isnan(exp2f(-NAN)));
  CHECK(fmaxf(NAN, 1) == 1);
  CHECK(fmaxf(1, NAN) == 1);
  CHECK(fmaxf(-INFINITY, -2) == -2);
}

TEST_CASE("multiply_add sums the columns in their order, as a GPU does", "[executor]") {
  const float4 b = make_float4(5, 6, 7, 8);
  const float rows[2][4] = {{1e8f, 3, -1e8f, 5}, {-1e8f, 1e8f, 3, 5}};
  FourColumns<2> x;
  x.load(0, rows[0]), x.load(1, rows[1]);
  float sums[2] = {0, 7};
  multiply_add(sums, x, make_float4(1, 1, 1, 1));
  CHECK(sums[0] == 5);   // numbers near 1e8 lie 8 apart: 3 is lost
  CHECK(sums[1] == 16);  // 7 became 8
  float sum[5] = {9, 1, 2, 3, 4};
  multiply_add(reinterpret_cast<float(&)[4]>(sum[1]), 2, b);  // an address that is no multiple of 16
  CHECK((sum[0] == 9 && sum[1] == 11 && sum[2] == 14 && sum[3] == 17 && sum[4] == 20));
}

// ---- counting ------------------------------------------------------------------------------------------------------

__global__ void copy(Global<const float> X, Global<float> Y, Global<float> LSE) {
  const int64_t head = blockIdx.x;
  for (int64_t row = threadIdx.x; row < X.rows; row += blockDim.x) {
    for (int64_t col = 0; col + 4 <= X.cols; col += 4) {
      const float4 x = X.head(head).load_vector_if(true, row, col);
      Y.head(head).store_run<4>(row, col, &x.x);
    }
    for (int64_t col = X.cols / 4 * 4; col < X.cols; ++col) Y.head(head).store(row, col, X.head(head).load(row, col));
    if (row == 0) LSE.head(head).store(0, 0, X.head(head).load(row, 0));
    count_flops(3);
  }
}

TEST_CASE("executor counts bytes per tensor and FLOPs exactly", "[executor]") {
  const int os_threads = GENERATE(1, 2, 4);
  const WithExecutor options({RaceCheck::ends, 7, os_threads});
  const auto device = open_cpu(executor_options());
  Tensor x(37, 50, 8), y(37, 50, 8), lse(37, 1, 1);
  const auto records = device->record([&] {
    launch("copy", copy, 37, 32, 0, x.in("count X"), y.out("count Y"), lse.out("count LSE"));
    launch("empty handed", order_of_blocks, 1, 32, 0, lse.out("count LSE"));
  });
  REQUIRE(records.size() == 2);
  CHECK(records[0].kernel == "copy");
  CHECK(records[0].counted_flops == 3 * 37 * 50);
  CHECK(records[0].time_ms > 0);
  const std::vector<TensorBytes> expected = {
      {"count LSE", 0, 37 * 4}, {"count X", 37 * 50 * 8 * 4 + 37 * 4, 0}, {"count Y", 0, 37 * 50 * 8 * 4}};
  CHECK(records[0].counted == expected);
  CHECK(records[1].counted == std::vector<TensorBytes>{{"count LSE", 4, 4}});
  CHECK(records[1].counted_flops == 0);
  CHECK(std::equal(x.data, x.data + 37 * 50 * 8, y.data));
  CHECK(device->record([] {}).empty());
}

__global__ void load_by_address(const float* address) { Global<const float>(address, 1, 4).load(0, 3); }

TEST_CASE("a view made on the device is counted without a name", "[executor]") {
  const float x[4] = {};
  const auto records = open_cpu()->record([&] { launch("by address", load_by_address, 1, 2, 0, x); });
  CHECK(records.at(0).counted == std::vector<TensorBytes>{{"(unnamed)", 8, 0}});
}

TEST_CASE("a recorded run that throws leaves no recording behind", "[executor]") {
  const auto device = open_cpu();
  CHECK_THROWS_AS(device->record([]() -> void { throw Unsupported("no"); }), Unsupported);
  CHECK(device->record([] { reverses(1, 32); }).size() == 1);
}

// ---- (1) HBM -------------------------------------------------------------------------------------------------------

constexpr int kStoreLine = __LINE__ + 2;
__global__ void store_at(Global<float> O, int64_t head, int64_t row, int64_t col) {
  if (threadIdx.x == 5) O.head(head).store(row, col, 1);
}
__global__ void load4_at(Global<const float> K, bool inside, int64_t row, int64_t col) {
  K.head(0).load_vector_if(inside, row, col);
}
__global__ void store4_at(Global<float> O, int64_t row, int64_t col) {
  const float zeros[4] = {};
  O.head(0).store_run<4>(row, col, zeros);
}

TEST_CASE("executor catches accesses outside of a head", "[executor]") {
  Tensor t(2, 10, 8);
  const auto store = [&](int64_t head, int64_t row, int64_t col) {
    return finding_of([&] { launch("attention", store_at, 1, 32, 0, t.out("O"), head, row, col); });
  };
  CHECK(store(1, 9, 7) == "");
  const std::string one_past = store(0, 10, 0);  // inside of the tensor: head 1's first row
  CHECK_CONTAINS(one_past, "attention: block 0, thread 5, test_executor.cpp:" + std::to_string(kStoreLine) + ": ");
  CHECK_CONTAINS(one_past, "store of O at row 10, column 0: outside of its head's 10 x 8");
  CHECK(t.data[80] == 80);
  CHECK_CONTAINS(store(0, -1, 0), "row -1");
  CHECK_CONTAINS(store(0, 0, 8), "column 8");
  CHECK_CONTAINS(store(0, 3, -1), "column -1");
  CHECK_CONTAINS(store(0, int64_t{1} << 40, 0), "row 1099511627776");
  CHECK_CONTAINS(store(2, 0, 0), "head 2 of O, which has 2");
  CHECK_CONTAINS(store(-1, 0, 0), "head -1 of O");

  const auto load4 = [&](const Tensor& from, int64_t row, int64_t col, bool inside = true) {
    return finding_of([&] { launch("load4", load4_at, 1, 1, 0, from.in("K"), inside, row, col); });
  };
  CHECK(load4(t, 9, 4) == "");
  CHECK(load4(t, 10, 4, false) == "");  // not wanted, so not touched
  CHECK_CONTAINS(load4(t, 0, 6), "load4 of K at row 0, column 6: outside");
  CHECK_CONTAINS(load4(t, 0, 2), "not a multiple of 16 bytes");
  CHECK_CONTAINS(load4(Tensor(1, 4, 6), 1, 0), "not a multiple of 16 bytes");
  CHECK_CONTAINS(
      finding_of([&] { launch("store4", store4_at, 1, 1, 0, t.out("O"), int64_t{9}, int64_t{5}); }), "store4 of O");
  const Global<float> null(nullptr, "dQ", 2, 10, 8);
  CHECK_CONTAINS(finding_of([&] { launch("null", store4_at, 1, 1, 0, null, int64_t{0}, int64_t{0}); }),
                 "dQ at row 0, column 0: its address is null");
}

// ---- (2) the size of SRAM -------------------------------------------------------------------------------------------

__global__ void fill_sram(int words) {
  struct Layout {
    float x[64];
  };
  float* x = dynamic_sram<Layout>().x;
  for (int n = threadIdx.x; n < words; n += blockDim.x) {
    note_sram_write(x + n, 4);
    if (n < 64) x[n] = 1;
  }
}
__global__ void read_before_sram() {
  struct Layout {
    float4 x[4];
  };
  note_sram_read(reinterpret_cast<char*>(dynamic_sram<Layout>().x) - 8, 16);
}

TEST_CASE("executor catches overrun SRAM in every block, race-checked or not", "[executor]") {
  const WithExecutor options({GENERATE(RaceCheck::none, RaceCheck::all), 0, 2});
  CHECK(finding_of([] { launch("fill", fill_sram, 3, 32, 256, 64); }) == "");
  CHECK_CONTAINS(finding_of([] { launch("fill", fill_sram, 3, 32, 256, 65); }), "thread 0, test_executor.cpp");
  CHECK_CONTAINS(finding_of([] { launch("fill", fill_sram, 3, 32, 256, 65); }),
                 "write of SRAM bytes 256 to 259, the block has 256");
  CHECK_CONTAINS(finding_of([] { launch("fill", fill_sram, 3, 32, 252, 10); }),
                 "the SRAM layout needs 256 bytes, the launch asked for 252");
  CHECK_CONTAINS(finding_of([] { launch("before", read_before_sram, 1, 1, 64); }), "read of SRAM bytes -8 to 7");
}

// ---- (3) barriers that not all threads reach ------------------------------------------------------------------------

template <bool Bug>
__global__ void exits_early() {
  if (Bug && threadIdx.x == 40) return;
  __syncthreads();
}
template <bool Bug>
__global__ void two_barriers() {
  if (Bug && threadIdx.x < 32) __syncthreads();
  else if (Bug) __syncthreads();
  else __syncthreads();
}
template <bool Bug>
__global__ void two_barriers_on_two_lines() {
  if (threadIdx.x % 2 == 0 || !Bug) __syncthreads();
  else __syncthreads();
}
template <bool Bug>
__global__ void warp_waits_block_waits() {
  if (Bug && threadIdx.x == 3) __syncthreads();
  else __syncwarp();
  if (Bug && threadIdx.x != 3) __syncthreads();
}
template <bool Bug>
__global__ void lane_leaves_warp() {
  if (Bug && threadIdx.x == 33) return;
  __syncwarp();
}
template <bool Bug>
__global__ void two_collectives() {
  float x[1] = {1};
  if (threadIdx.x % 32 < 16 || !Bug) lanes_max<8>(x);
  else lanes_sum<8>(x);
}
template <bool Bug>
__global__ void two_collectives_on_one_line() {
  float x[1] = {1};
  (threadIdx.x % 32 < 16 || !Bug) ? lanes_max<8>(x) : lanes_sum<8>(x);
}
template <bool Bug>
__global__ void one_more_round() {
  const int rounds = Bug && threadIdx.x / 32 == 1 ? 4 : 3;
  for (int n = 0; n < rounds; ++n) __syncthreads();
}
__global__ void collective_of_all() {
  float x[1] = {1};
  lanes_sum<32>(x);
}

TEST_CASE("executor catches barriers that not all threads reach", "[executor]") {
  const uint64_t order = GENERATE(0, 1, 2);
  const WithExecutor options({RaceCheck::ends, order, 2});
  const auto run = [](void (*kernel)()) { return finding_of([&] { launch("kernel", kernel, 2, 64, 0); }); };
  for (auto kernel : {exits_early<false>, two_barriers<false>, two_barriers_on_two_lines<false>,
                      warp_waits_block_waits<false>, lane_leaves_warp<false>, two_collectives<false>,
                      two_collectives_on_one_line<false>, one_more_round<false>, collective_of_all})
    CHECK(run(kernel) == "");

  CHECK_CONTAINS(run(exits_early<true>),
                 "a barrier that not all threads reach: thread 0 waits at __syncthreads (test_executor.cpp:");
  CHECK_CONTAINS(run(exits_early<true>), "thread 40 has ended");
  CHECK_CONTAINS(run(two_barriers<true>), "waits at another one, test_executor.cpp:");
  CHECK_CONTAINS(run(two_barriers_on_two_lines<true>), "waits at another one, test_executor.cpp:");
  const std::string deadlock = finding_of([] { launch("kernel", warp_waits_block_waits<true>, 2, 32, 0); });
  CHECK_CONTAINS(deadlock, "thread 3 waits at __syncthreads (test_executor.cpp:");
  CHECK_CONTAINS(deadlock, "thread 0 waits at __syncwarp (test_executor.cpp:");
  CHECK_CONTAINS(run(lane_leaves_warp<true>), "thread 33 has ended");
  CHECK_CONTAINS(run(two_collectives<true>), "waits at another one, test_executor.cpp:");
  CHECK_CONTAINS(run(two_collectives_on_one_line<true>), "of the same warp waits here with another operation");
  CHECK_CONTAINS(run(one_more_round<true>), "has ended");
  CHECK_CONTAINS(finding_of([] { launch("part", collective_of_all, 1, 48, 0); }),
                 "a warp of 16 threads: all 32 lanes must take part");
}

// ---- (4) races on SRAM ----------------------------------------------------------------------------------------------

struct Row {
  float x[256];
};
__device__ float read(Row& row, unsigned n) {
  note_sram_read(&row.x[n], 4);
  return row.x[n];
}
__device__ void write(Row& row, unsigned n, float value) {
  note_sram_write(&row.x[n], 4);
  row.x[n] = value;
}

enum class Barrier { none, warp, collective, block };
void pass(Barrier which) {
  float x[1] = {0};
  if (which == Barrier::warp) __syncwarp();
  if (which == Barrier::collective) lanes_max<32>(x);
  if (which == Barrier::block) __syncthreads();
}

/// Reads what the neighbour (`distance` threads on) wrote.
__global__ void write_then_read(Barrier between, int distance) {
  Row& row = dynamic_sram<Row>();
  write(row, threadIdx.x, 1);
  pass(between);
  read(row, (threadIdx.x + distance) % blockDim.x);
}
/// Overwrites what the neighbour has read.
__global__ void read_then_write(Barrier between, int distance) {
  Row& row = dynamic_sram<Row>();
  write(row, threadIdx.x, 1);
  __syncthreads();
  read(row, threadIdx.x);
  pass(between);
  write(row, (threadIdx.x + distance) % blockDim.x, 2);
}
__global__ void write_then_write(Barrier between, int distance) {
  Row& row = dynamic_sram<Row>();
  write(row, threadIdx.x, 1);
  pass(between);
  write(row, (threadIdx.x + distance) % blockDim.x, 2);
}

TEST_CASE("executor catches accesses to SRAM that no barrier orders", "[executor]") {
  const uint64_t order = GENERATE(0, 1, 2);
  const WithExecutor options({RaceCheck::all, order, 2});
  for (auto kernel : {write_then_read, read_then_write, write_then_write}) {
    const auto run = [&](Barrier between, int distance) {
      return finding_of([&] { launch("race", kernel, 2, 64, sizeof(Row), between, distance); });
    };
    CHECK(run(Barrier::block, 1) == "");
    CHECK(run(Barrier::block, 32) == "");
    CHECK(run(Barrier::none, 0) == "");  // a thread is in order with itself
    CHECK_CONTAINS(run(Barrier::none, 32), "and no __syncthreads lies between");
    CHECK_CONTAINS(run(Barrier::warp, 32), "and no __syncthreads lies between");
    CHECK_CONTAINS(run(Barrier::warp, 1), "and no __syncthreads lies between");  // lane 31 meets the next warp
  }
  const auto one_warp = [](auto kernel, Barrier between) {
    return finding_of([&] { launch("race", kernel, 1, 32, sizeof(Row), between, 1); });
  };
  for (auto kernel : {write_then_read, read_then_write, write_then_write}) {
    CHECK(one_warp(kernel, Barrier::warp) == "");
    CHECK_CONTAINS(one_warp(kernel, Barrier::none), "no __syncwarp or __syncthreads lies between");
    CHECK_CONTAINS(one_warp(kernel, Barrier::collective), "no __syncwarp or __syncthreads lies between");
  }
}

template <class E>
struct Tiles {
  SramTile<E, 16, 16> q;
  SramTile<E, 8, 16> k[2];
  float l[4];
};
__global__ void store_twice(int from, int64_t byte) {
  auto& sram = dynamic_sram<Tiles<float>>();
  if (static_cast<int>(threadIdx.x) >= from) note_sram_write(reinterpret_cast<char*>(&sram) + byte, 4);
}

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
TEST_CASE("a race names the member of the block's SRAM and its row", "[executor]") {
  const WithExecutor options({RaceCheck::all, 0, 1});
  using T = Tiles<float>;
  constexpr int64_t pitch = sizeof(T{}.q.element[0]), k = offsetof(T, k), one = sizeof(SramTile<float, 8, 16>);
  for (const auto& [byte, name] :
       {std::pair{int64_t{0}, "q, row 0"},
        {3 * pitch + 8, "q, row 3"},
        {k + 7 * pitch, "k[0], row 7"},
        {k + one + pitch, "k[1], row 1"},
        {k + 2 * one + 4, "l[1]"}})
    CHECK_CONTAINS(finding_of([&] { launch("race", store_twice, 1, 64, sizeof(T), 0, byte); }),
                   "race on " + std::string(name) + " (SRAM byte " + std::to_string(byte) + "): thread 1 writes");
}
#endif

TEST_CASE("a forked child runs grids with threads of its own, and ends", "[executor]") {
  REQUIRE(reverses(4, 64));  // this process has its threads
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool right = reverses(4, 64);
    if (fork() == 0) std::exit(0);  // a child without a grid of its own ends too
    int status = 1;
    wait(&status);
    std::exit(right && status == 0 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

// ---- CUDA as it is typed by habit -----------------------------------------------------------------------------------

__global__ void by_habit(Global<float> Y) {
  __shared__ float sum[1];
  if (threadIdx.x == 0) sum[0] = 0;
  __syncthreads();
  float x = static_cast<float>(threadIdx.x);
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  __syncwarp(0xffffffffu);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, x);
  __syncthreads();
  if (threadIdx.x == 0) Y.store(0, blockIdx.x, sum[0]), printf("block %d: %g\n", static_cast<int>(blockIdx.x), sum[0]);
}
__global__ void shuffles(Global<float> Y) {
  const int lane = static_cast<int>(threadIdx.x);
  const int got[] = {__shfl_sync(0xffffffffu, lane, 3, 8), __shfl_up_sync(0xffffffffu, lane, 2),
                     __shfl_up_sync(0xffffffffu, lane, 2, 16), __shfl_down_sync(0xffffffffu, lane, 2),
                     __shfl_xor_sync(0xffffffffu, lane, 9, 8)};
  for (int n = 0; n < 5; ++n) Y.store(n, lane, static_cast<float>(got[n]));
}
__global__ void half_a_warp() { __syncwarp(0xffffu); }

TEST_CASE("__shared__, shuffles, atomicAdd, __syncwarp and printf work as in CUDA", "[executor]") {
  std::FILE* printed = std::tmpfile();
  Tensor y(1, 1, 3);
  {
    WithExecutor options({RaceCheck::ends, 0, 1});
    executor_options().prints = printed;
    launch("by_habit", by_habit, 3, 64, 0, y.out("Y"));
    executor_options().prints = nullptr;
    launch("by_habit", by_habit, 3, 64, 0, y.out("Y"));  // as in the other thread orders: silent
  }
  Tensor got(1, 5, 32);
  launch("shuffles", shuffles, 1, 32, 0, got.out("Y"));
  for (int lane = 0; lane < 32; ++lane) {  // CUDA C++ Programming Guide, warp shuffle functions
    const int expected[] = {lane / 8 * 8 + 3, lane < 2 ? lane : lane - 2, lane % 16 < 2 ? lane : lane - 2,
                            lane < 30 ? lane + 2 : lane, (lane ^ 9) < (lane / 8 + 1) * 8 ? lane ^ 9 : lane};
    for (int n = 0; n < 5; ++n) CHECK(got.data[n * 32 + lane] == expected[n]);
  }
  for (int block = 0; block < 3; ++block) CHECK(y.data[block] == 63 * 64 / 2);
  std::rewind(printed);
  std::set<std::string> lines;
  int count = 0;
  for (char line[64]; std::fgets(line, sizeof line, printed); ++count) lines.insert(line);
  std::fclose(printed);
  CHECK(count == 3);
  CHECK(lines.count("block 2: 2016\n") == 1);
  CHECK_CONTAINS(finding_of([] { launch("half_a_warp", half_a_warp, 1, 32, 0); }),
                 "__syncwarp for some of the lanes: the executor takes whole warps");
}

// ---- races, continued -----------------------------------------------------------------------------------------------

constexpr int kWriteLine = __LINE__ + 3, kReadLine = kWriteLine + 2;
__global__ void two_lines() {
  float* x = dynamic_sram<Row>().x;
  if (threadIdx.x == 0) note_sram_write(x + 3, 4);

  if (threadIdx.x == 32) note_sram_read(x + 2, 16);
}

TEST_CASE("a race names both threads and both lines", "[executor]") {
  const WithExecutor options({RaceCheck::ends, 0, 1});
  const std::string text = finding_of([] { launch("race", two_lines, 1, 64, sizeof(Row)); });
  CHECK_CONTAINS(text, "race: block 0, thread 32, test_executor.cpp:" + std::to_string(kReadLine) + ": ");
  CHECK_CONTAINS(text, "race on SRAM byte 12: thread 32 reads it, thread 0 wrote it at test_executor.cpp:" +
                           std::to_string(kWriteLine));
}

__global__ void races_in_block_1() {
  Row& row = dynamic_sram<Row>();
  if (blockIdx.x == 1) write(row, 0, 1);
}

// ---- asynchronous copies --------------------------------------------------------------------------------------------

enum class Late { nothing, the_wait, one_group, the_barrier, own_read, overwriting, last_wait, refill };

/// Each thread has a row of X copied to `a` and, if the thread is even, to `b`, in two groups; the next thread reads
/// both.
template <Late Mistake>
__global__ void copy_rows(Global<const float> X, Global<float> Y) {
  struct Layout {
    SramTile<float, 64, 4> a, b;
  };
  Layout& sram = dynamic_sram<Layout>();
  const int me = threadIdx.x, next = (me + 1) % blockDim.x;
  copy_async(sram.a.write(me, 0, 4), X, true, me, 0);
  commit_copies();
  copy_async(sram.b.write(me, 0, 4), X, me % 2 == 0, me, 0);
  commit_copies();
  if (Mistake != Late::the_wait) wait_copies<Mistake == Late::one_group ? 2 : 1>();
  if (Mistake == Late::own_read) Y.store(2, me, sram.b.load(me, 0));
  if (Mistake == Late::overwriting) sram.b.store(me, 0, 1);
  if (Mistake != Late::the_barrier) __syncthreads();
  Y.store(0, me, sram.a.load(next, 0));
  wait_copies<0>();
  __syncthreads();
  Y.store(1, me, sram.b.load(next, 3));
  if (Mistake == Late::last_wait) copy_async(sram.a.write(me, 0, 4), X, true, me, 0);
  if (Mistake == Late::refill) {
    copy_async(sram.b.write(me, 0, 4), X, true, me, 0);  // the thread before may still read b
    commit_copies();
    wait_copies<0>();
  }
}

template <Late Mistake>
std::string copied(Tensor& y) {
  const Tensor x(1, 64, 4);
  return finding_of([&] { launch("copy_rows", copy_rows<Mistake>, 1, 64, 2 * 64 * 32, x.in("X"), y.out("Y")); });
}

TEST_CASE("asynchronous copies arrive when their group is waited for, and are counted", "[executor]") {
  for (uint64_t order : {0, 1, 2}) {
    const WithExecutor options({RaceCheck::all, order});
    const Tensor x(1, 64, 4);
    Tensor y(1, 3, 64);
    executor::start_recording();
    launch("copy_rows", copy_rows<Late::nothing>, 1, 64, 2 * 64 * 32, x.in("X"), y.out("Y"));
    CHECK(executor::stop_recording().front().counted ==
          std::vector<TensorBytes>{{"X", 64 * 16 + 32 * 16, 0}, {"Y", 0, 2 * 64 * 4}});
    for (int n = 0; n < 64; ++n) {
      const int next = (n + 1) % 64;
      CHECK(y.data[n] == static_cast<float>(4 * next));
      CHECK(y.data[64 + n] == (next % 2 == 0 ? static_cast<float>(4 * next + 3) : 0));
    }
  }
}

TEST_CASE("executor catches copies that are not waited for, and what is too early beside them", "[executor]") {
  for (uint64_t order : {0, 1, 2}) {
    const WithExecutor options({RaceCheck::ends, order});
    Tensor y(1, 3, 64);
    CHECK_CONTAINS(copied<Late::the_wait>(y), "is on its way there: that thread has not waited for it");
    CHECK_CONTAINS(copied<Late::one_group>(y), "is on its way there: that thread has not waited for it");
    CHECK_CONTAINS(copied<Late::own_read>(y), "reads it while the copy that thread");
    CHECK_CONTAINS(copied<Late::overwriting>(y), "writes it while the copy that thread");
    CHECK_CONTAINS(copied<Late::the_barrier>(y), "no __sync");
    CHECK_CONTAINS(copied<Late::refill>(y), "no __sync");
    CHECK_CONTAINS(
        copied<Late::last_wait>(y), "the thread has ended and never waited for the copy that it started here");
  }
}

TEST_CASE("a block that is not race-checked reads NaN where a copy has not arrived", "[executor]") {
  const WithExecutor options({RaceCheck::none});
  Tensor y(1, 3, 64);
  CHECK(copied<Late::the_wait>(y) == "");
  CHECK(std::isnan(y.data[0]));  // read before the next thread's later wait
  CHECK(copied<Late::own_read>(y) == "");
  for (int n = 0; n < 64; ++n) CHECK(std::isnan(y.data[128 + n]));
}

template <unsigned Lanes>
__global__ void vote(Global<float> Y) {
  Y.store(0, threadIdx.x, __any_sync(Lanes, threadIdx.x == 40));
}

TEST_CASE("__any_sync asks the lanes of one warp, all of them", "[executor]") {
  Tensor y(1, 1, 64);
  launch("vote", vote<0xffffffffu>, 1, 64, 0, y.out("Y"));
  for (int n = 0; n < 64; ++n) CHECK(y.data[n] == (n < 32 ? 0 : 1));
  CHECK_CONTAINS(
      finding_of([&] { launch("vote", vote<1u>, 1, 64, 0, y.out("Y")); }), "__any_sync for some of the lanes");
}

TEST_CASE("the race check covers the blocks it is asked to cover", "[executor]") {
  const auto run = [](RaceCheck check, int blocks) {
    const WithExecutor options({check, 0, 1});
    return finding_of([&] { launch("race", races_in_block_1, blocks, 64, sizeof(Row)); });
  };
  CHECK(run(RaceCheck::all, 3) != "");
  CHECK(run(RaceCheck::ends, 2) != "");  // block 1 is the last
  CHECK(run(RaceCheck::ends, 3) == "");
  CHECK(run(RaceCheck::none, 2) == "");
}

/// The race check against its definition: all accesses kept, each new one compared with all before.
TEST_CASE("the shadow words miss no race and invent none", "[executor]") {
  struct Past {
    int word;
    bool write;
    int thread;
    uint32_t block_epoch, warp_epoch;
  };
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int races = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    executor::ShadowSram shadow;
    shadow.reset(8);
    std::vector<Past> all;
    uint32_t block_epoch = 1, warp_epoch[2] = {};
    const int write_share = 1 + below(8);
    for (int step = 0; step < 14; ++step) {
      const int what = below(12);
      if (what == 0) ++block_epoch;
      if (what == 1) ++warp_epoch[below(2)];
      if (what <= 1) continue;
      Past now{below(2), below(write_share) == 0, below(2) * 32 + below(3), block_epoch, 0};
      now.warp_epoch = warp_epoch[now.thread / 32];
      bool racy = false;
      for (const Past& past : all)
        racy |= past.word == now.word && past.thread != now.thread && (past.write || now.write) &&
                past.block_epoch == now.block_epoch &&
                (past.thread / 32 != now.thread / 32 || past.warp_epoch == now.warp_epoch);
      const executor::Access access(block_epoch, now.warp_epoch, now.thread, 0);
      const auto found = now.write ? shadow.write(now.word * 4, 4, access) : shadow.read(now.word * 4, 4, access);
      REQUIRE(found.found == racy);
      if (racy) {
        ++races;
        break;
      }
      all.push_back(now);
    }
  }
  CHECK(races > 1000);
  CHECK(races < 19000);
}

TEST_CASE("two threads may store neighbouring 16-bit elements of one 4-byte word", "[executor]") {
  executor::ShadowSram shadow;
  shadow.reset(7);  // an odd number of bytes: the last word is there too
  const executor::Access thread0(1, 0, 0, 0), thread1(1, 0, 1, 0);
  CHECK_FALSE(shadow.write(0, 2, thread0).found);
  CHECK_FALSE(shadow.write(2, 2, thread1).found);
  CHECK_FALSE(shadow.read(0, 2, thread0).found);
  CHECK(shadow.read(0, 4, thread0).byte == 2);
  CHECK(shadow.write(2, 2, thread0).found);
  CHECK_FALSE(shadow.write(6, 1, thread0).found);
}

// ---- (5) mistakes that show in the values ---------------------------------------------------------------------------

/// Thread 0 hands a number to all others; through a plain pointer, so that only the value can give the bug away.
template <bool Bug>
__global__ void broadcast(Global<float> Y) {
  volatile float* x = dynamic_sram<Row>().x;
  if (threadIdx.x == 0) x[0] = 1;
  if (!Bug) __syncthreads();
  Y.store(0, int64_t{blockIdx.x} * blockDim.x + threadIdx.x, x[0]);
}
__global__ void read_unwritten(Global<float> Y) { Y.store(0, threadIdx.x, dynamic_sram<Row>().x[threadIdx.x]); }

TEST_CASE("SRAM starts as NaN in every block, and shuffled orders bring out a missing barrier", "[executor]") {
  const auto all_ones = [](auto kernel, uint64_t order) {
    const WithExecutor options({RaceCheck::none, order, 1});
    Tensor y(1, 1, 4 * 64);
    launch("broadcast", kernel, 4, 64, sizeof(Row), y.out("Y"));
    return std::all_of(y.data, y.data + 256, [](float value) { return value == 1; });
  };
  for (uint64_t order : {0, 1, 2}) CHECK(all_ones(broadcast<false>, order));
  CHECK(all_ones(broadcast<true>, 0));  // index order hides it
  CHECK_FALSE(all_ones(broadcast<true>, 1));
  CHECK_FALSE(all_ones(broadcast<true>, 2));

  const WithExecutor options({RaceCheck::none, 0, 1});
  reverses(1, 128);  // leaves numbers in SRAM
  Tensor y(1, 1, 64);
  launch("read_unwritten", read_unwritten, 1, 64, sizeof(Row), y.out("Y"));
  CHECK(std::all_of(y.data, y.data + 64, [](float value) { return std::isnan(value); }));
}

TEST_CASE("one seed gives one order", "[executor]") {
  const auto run = [](uint64_t order) {
    const WithExecutor options({RaceCheck::none, order, 1});
    Tensor y(1, 1, 4 * 64);
    launch("broadcast", broadcast<true>, 4, 64, sizeof(Row), y.out("Y"));
    return std::vector<float>(y.data, y.data + 256);
  };
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;  // NaNs too
  };
  CHECK(same(run(3), run(3)));
  CHECK_FALSE(same(run(3), run(4)));
}

// ---- (6) launches that a GPU refuses --------------------------------------------------------------------------------

__global__ void nothing() {}

template <class Error>
std::string refusal(int64_t grid, int block, int64_t sram) {
  try {
    launch("attention", nothing, grid, block, sram);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("executor refuses the launches that a GPU refuses", "[executor]") {
  CHECK(refusal<DeviceFailure>(1, 1500, 0) == "attention: 1500 threads per block, a block takes 1 to 1024");
  CHECK(refusal<DeviceFailure>(1, 0, 0) != "");
  CHECK(refusal<DeviceFailure>(0, 32, 0) != "");
  CHECK(refusal<Unsupported>(int64_t{1} << 31, 32, 0) ==
        "attention: a grid of 2147483648 blocks, a launch takes at most 2147483647");
  CHECK(refusal<DeviceFailure>(1, 32, 232449) == "attention: 232449 bytes of SRAM asked, a block may have 232448");
  CHECK(refusal<DeviceFailure>(1, 32, 232448) == "");
  CHECK(refusal<DeviceFailure>(1, 32, -1) != "");
}

TEST_CASE("ATTN_SMEM_LIMIT lowers the SRAM of a block", "[executor]") {
  const auto device = open_cpu();
  CHECK(device->sram_limit() == 232448);
  const Environment limit("ATTN_SMEM_LIMIT", "101376");
  CHECK(device->sram_limit() == 101376);
  CHECK(refusal<DeviceFailure>(1, 32, 101377) == "attention: 101377 bytes of SRAM asked, a block may have 101376");
  CHECK(refusal<DeviceFailure>(1, 32, 101376) == "");
  limit.set("999999999");
  CHECK(device->sram_limit() == 232448);
  for (const char* bad : {"", "a", "12k", "0", "-5"}) {
    limit.set(bad);
    CHECK_THROWS_AS(open_cpu(), BadArguments);
  }
}

// ---- (7) exceptions, and what a stopped grid leaves behind ----------------------------------------------------------

__global__ void throws(bool with_barrier) {
  if (blockIdx.x == 2 && threadIdx.x == 9) throw std::runtime_error("out of cheese");
  if (with_barrier) __syncthreads();
}

TEST_CASE("an exception in a kernel is reported", "[executor]") {
  for (bool with_barrier : {false, true}) {
    const std::string text = finding_of([&] { launch("throws", throws, 3, 64, 0, with_barrier); });
    CHECK(text == "throws: block 2, thread 9, after its start: the kernel threw: out of cheese");
  }
}

TEST_CASE("findings stop the grid and the lowest block is named first", "[executor]") {
  const WithExecutor options({RaceCheck::all, 0, 4});
  try {
    launch("race", write_then_read, 1000, 64, sizeof(Row), Barrier::none, 1);
    FAIL("not found");
  } catch (const executor::KernelFindings& found) {
    CHECK(found.findings.size() <= 4);
    for (size_t n = 1; n < found.findings.size(); ++n) CHECK(found.findings[n - 1].block < found.findings[n].block);
    CHECK(found.findings[0].kernel == "race");
  }
}

TEST_CASE("hooks outside of a kernel are an error, not a crash", "[executor]") {
  CHECK_THROWS_AS(__syncthreads(), CheckFailed);
  CHECK_THROWS_AS(__syncwarp(), CheckFailed);
  Tensor t(1, 2, 4);
  CHECK_THROWS_AS(t.out("O").store(2, 0, 1), CheckFailed);
}

// ---- the device -----------------------------------------------------------------------------------------------------

TEST_CASE("a film tells the callers of one function apart", "[executor]") {
  constexpr int kThreads = 64;
  Tensor X(1, 2, kThreads), Y(1, 1, kThreads);
  int line = 0;
  executor::start_film(2);
  launch("sums", sums_of_rows, 1, kThreads, 0, X.in("X"), Y.out("Y"), &line);
  const std::vector<executor::FilmedLaunch> films = executor::stop_film();
  CHECK(Y.data[1] == 4 * (X.data[1] + X.data[kThreads + 1]));
  REQUIRE(films.size() == 1);
  REQUIRE(films[0].filmed.size() == 1);
  const std::vector<executor::FilmEvent>& events = films[0].filmed[0].events;
  REQUIRE(events.size() == 3);
  for (int row = 0; row < 2; ++row) {
    const executor::FilmEvent& event = events[static_cast<size_t>(row)];
    INFO(event.place);
    CHECK(event.place == "filmed_kernel.h:" + std::to_string(line + row));
    CHECK(event.tensor == "X");
    CHECK((event.part.first_row == row && event.part.last_row == row && event.part.last_col == kThreads - 1));
    CHECK(event.accesses == 4 * kThreads);
    CHECK(event.bytes == 4 * kThreads * 4);
    CHECK(event.first_warp.size() == 32);
  }
  CHECK((events[2].kind == executor::FilmEvent::Kind::store && events[2].accesses == kThreads));
}

TEST_CASE("the CPU device", "[executor]") {
  const auto device = open_cpu({RaceCheck::ends, 0, 2});
  CHECK(device->kind() == DeviceKind::cpu);
  CHECK(device->name() == "CPU executor (2 threads)");
  CHECK(device->l2_bytes() == 0);
  CHECK(device->free_bytes() > 0);

  auto* memory = static_cast<float*>(device->allocate(1000));
  CHECK(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
  device->fill_nan(memory, 1000);
  CHECK(std::all_of(memory, memory + 250, [](float value) { return std::isnan(value); }));
  const float in[2] = {1, 2};
  float out[2];
  device->copy_in(memory, in, sizeof in);
  device->copy_out(out, memory, sizeof out);
  CHECK((out[0] == 1 && out[1] == 2));
  device->release(memory);
  device->release(device->allocate(0));
  CHECK(device->time_ms([] {}) >= 0);

  try {
    device->allocate(int64_t{1} << 40);
    FAIL("a tebibyte was allocated");
  } catch (const DeviceFailure& failure) {
    CHECK_CONTAINS(failure.what(), "1099511627776 bytes needed, ");
    CHECK_CONTAINS(failure.what(), " free");
  }
  executor_options() = {};
}

}  // namespace
}  // namespace ATTN_DEVICE
}  // namespace attention
