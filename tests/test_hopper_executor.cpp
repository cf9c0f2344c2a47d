// Hopper's units on the CPU executor: a kernel with a producer, a ring and two warpgroups that multiply is right under
// any order, and each
// mistake planted in it is found, by its name and with the lines of both sides.
#define ATTN_DEVICE_CPU

#include "common/base/half.h"
#include "common/tile/view.h"
#include "common/tile/warpgroup.h"
#include "tests/catch.h"
#include "tests/with_executor.h"

namespace attention {
inline namespace ATTN_DEVICE {
namespace {

// clang-format off
enum class Bug {
  none, no_init_fence, no_sync_after_init, never_initialised, no_wait_full, wrong_parity_full, no_wait_empty,
  too_many_expected, too_few_expected, extra_arrival, too_few_bytes, too_many_bytes, unannounced, no_begin,
  no_commit, no_wait, early_use, left_operand_changed, lanes_differ, no_named_sync, wrong_named_count,
  no_store_fence, no_syncwarp, no_commit_back, no_wait_back, overwritten_stage, budget, bad_descriptor, outside
};
// clang-format on

constexpr int kRows = 128, kKeys = 64, kDepth = 64;

struct Sram {
  SwizzledTile<half, kRows, kDepth> a;  // C takes its place
  SwizzledTile<half, kKeys, kDepth> b[2];
  Barrier a_full, full[2], empty[2];
};

/// C = the sum over `tiles` of A B_t^T, B_t being 64 rows of B.
template <Bug bug>
__global__ void pipeline(int tiles, const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                         const __grid_constant__ TensorMap C) {
  auto& sram = aligned_sram<Sram>();
  if (threadIdx.x == 0) {
    if (bug != Bug::never_initialised) sram.a_full.init(1);
    for (int i = 0; i < 2; ++i) {
      sram.full[i].init(1);
      sram.empty[i].init(bug == Bug::too_many_expected ? 9 : bug == Bug::too_few_expected ? 4 : 8);
    }
    if (bug != Bug::no_init_fence) barriers_are_ready();
  }
  if (bug != Bug::no_sync_after_init) __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<bug == Bug::budget ? 40 : 24>();
    if (threadIdx.x != 0) return;
    copy_tile(sram.a, A, 0, 0, sram.a_full);
    Ring<2> ring;
    for (int t = 0; t < tiles; ++t, ring.next()) {
      if (bug != Bug::no_wait_empty) sram.empty[ring.stage].wait(ring.parity ^ 1);
      constexpr int bytes = sram.b[0].kBytes;
      if (bug == Bug::unannounced) sram.full[ring.stage].arrive();
      else
        sram.full[ring.stage].arrive_and_expect(bug == Bug::too_few_bytes    ? bytes / 2
                                                : bug == Bug::too_many_bytes ? 2 * bytes
                                                                             : bytes);
      copy_box(bug == Bug::outside ? reinterpret_cast<unsigned char*>(&sram) + sizeof sram
                                   : reinterpret_cast<unsigned char*>(&sram.b[ring.stage]),
               B, t * kKeys, 0, sram.full[ring.stage]);
      if (bug == Bug::extra_arrival) sram.full[ring.stage].arrive();
    }
    return;
  }
  take_registers<240>();
  const int me = threadIdx.x / 128 - 1, warp_row = threadIdx.x / 32 * 16 - 64, lane = threadIdx.x % 32;
  float c[kKeys / 2] = {};
  sram.a_full.wait(0);
  Ring<2> ring;
  for (int t = 0; t < tiles; ++t, ring.next()) {
    if (bug != Bug::no_wait_full) sram.full[ring.stage].wait(ring.parity ^ (bug == Bug::wrong_parity_full));
    uint32_t left[4] = {};
    if (bug != Bug::no_begin) begin_products();
    const uint64_t a = tile_descriptor(sram_address(&sram.a) + me * 64 * kPanelRowBytes),
                   b = tile_descriptor(sram_address(&sram.b[ring.stage]));
    for (int step = 0; step < kDepth / 16; ++step) {
      const int other = bug == Bug::lanes_differ && lane == 7 ? (step + 1) % 4 : step;
      WarpgroupProduct<kKeys, half>::abt(
          c, bug == Bug::bad_descriptor ? a & ~(uint64_t{3} << 62) : a + along_rows(step, 0), b + along_rows(other, 0),
          t + step > 0);
    }
    if (bug == Bug::left_operand_changed) WarpgroupProduct<kKeys, half>::ab(c, left, b);
    if (bug != Bug::no_commit) commit_products();
    if (bug == Bug::left_operand_changed) left[1] = 1;
    if (bug == Bug::early_use) c[5] *= 2;
    if (bug != Bug::no_wait && bug != Bug::no_commit) wait_products<0>();
    fence_registers(c);
    if (lane == 0) sram.empty[ring.stage].arrive();
  }
  if (bug != Bug::no_named_sync) named_sync(1 + me, bug == Bug::wrong_named_count && lane == 3 ? 256 : 128);
  for (int n = 0; n < kKeys / 2; n += 2)
    *reinterpret_cast<uint32_t*>(sram.a.write(warp_row + sum_row(lane, n), sum_col(lane, n), 2)) =
        pack<half>(c[n], c[n + 1]);
  if (bug != Bug::no_store_fence) stores_visible_to_engines();
  if (bug != Bug::no_syncwarp) __syncwarp();
  if (lane == 0) {
    copy_box_back(C, sram.a.at(warp_row, 0), warp_row, 0, 0);
    if (bug != Bug::no_commit_back) commit_copies_back();
    if (bug == Bug::overwritten_stage) *reinterpret_cast<uint32_t*>(sram.a.write(warp_row, 0, 2)) = 0;
    if (bug != Bug::no_wait_back) wait_until_copies_back_have_read();
  }
}

/// Runs it on `tiles` tiles under an order, race checks in all blocks or in none. What the run is stopped for, or
/// "right", or "wrong".
template <Bug bug>
std::string run(int tiles, uint64_t order, ExecutorOptions::RaceCheck checks = ExecutorOptions::RaceCheck::all) {
  const WithExecutor options({checks, order, 1});
  const int rows = kKeys * tiles - 3;  // the last tile is ragged
  std::vector<uint16_t> a(kRows * kDepth), b(static_cast<size_t>(rows * kDepth)), c(kRows * kDepth);
  const auto small = [](size_t n) {
    return static_cast<float>(n * 2654435761u % 7) - 3;
  };  // so that all sums are exact
  for (size_t n = 0; n < a.size(); ++n) a[n] = to_fp16(small(n));
  for (size_t n = 0; n < b.size(); ++n) b[n] = to_fp16(small(n + 77));
  try {
    launch("pipeline", pipeline<bug>, 1, 384, sizeof(Sram), tiles,
           tensor_map<half>(a.data(), "A", 1, kRows, kDepth, kRows, 1),
           tensor_map<half>(b.data(), "B", 1, rows, kDepth, kKeys, 1),
           tensor_map<half>(c.data(), "C", 1, kRows, kDepth, 16, 1));
  } catch (const executor::KernelFindings& found) {
    CHECK(found.code == 1);
    return found.what();
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kKeys; ++j) {
      float sum = 0;
      for (int row = j; row < rows; row += kKeys)
        for (int k = 0; k < kDepth; ++k)
          sum += small(static_cast<size_t>(i * kDepth + k)) * small(static_cast<size_t>(row * kDepth + k) + 77);
      if (c[static_cast<size_t>(i * kKeys + j)] != to_fp16(sum)) return "wrong";
    }
  return "right";
}

/// `or_text`: what another order finds first.
template <Bug bug>
void expect(const char* text, const char* or_text = nullptr, int tiles = 5) {
  for (const uint64_t order : {0, 1, 2}) {
    const std::string found = run<bug>(tiles, order);
    INFO("bug " << static_cast<int>(bug) << ", order " << order << ": " << found);
    CHECK((found.find(text) != std::string::npos || (or_text && found.find(or_text) != std::string::npos)));
    CHECK(found.find("test_hopper_executor.cpp:") != std::string::npos);
    CHECK(found.find('\n') == std::string::npos);
  }
}

TEST_CASE("Hopper's units compute right and raise no false alarm under 100 orders", "[executor]") {
  for (uint64_t order = 0; order < 100; ++order) {
    INFO("order " << order);
    CHECK(run<Bug::none>(1 + static_cast<int>(order % 7), order) == "right");
  }
  for (const uint64_t order : {0, 1, 2}) CHECK(run<Bug::none>(4, order, ExecutorOptions::RaceCheck::none) == "right");
}

struct OneProductSram {
  SwizzledTile<half, 64, 64> a, b;
  Barrier full;
};

/// C = start + A B^T over 16 elements, in one product.
__global__ void one_product(float start, const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                            Global<float> C) {
  auto& sram = aligned_sram<OneProductSram>();
  if (threadIdx.x == 0) {
    sram.full.init(2);
    barriers_are_ready();
  }
  __syncthreads();
  if (threadIdx.x == 0) copy_tile(sram.a, A, 0, 0, sram.full), copy_tile(sram.b, B, 0, 0, sram.full);
  sram.full.wait(0);
  float c[32];
  for (float& x : c) x = start;
  begin_products();
  WarpgroupProduct<64, half>::abt(c, tile_descriptor(sram_address(&sram.a)), tile_descriptor(sram_address(&sram.b)), 1);
  commit_products();
  wait_products<0>();
  fence_registers(c);
  const int row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
  for (int n = 0; n < 32; ++n) C.store(row + sum_row(lane, n), sum_col(lane, n), c[n]);
}

TEST_CASE("a product's sums are cut off as Hopper's tensor cores do it", "[executor]") {
  constexpr float kUlp = 0x1p-23f;  // of 1
  struct Sum {
    float start, term;  // the product of the first `terms` elements
    int terms;
    float sum;
  };
  const Sum sums[] = {
      {1, 0.75f * kUlp, 1, 1},                // toward zero, not to the nearest
      {-1, -0.75f * kUlp, 1, -1},             // on both sides
      {1, 0x1p-25f, 16, 1 + 4 * kUlp},        // a quarter of the last digit is kept while 16 terms are added
      {1, 0x1p-26f, 16, 1},                   // an eighth is not: exactly, they are two digits
      {1, 1.5f * 0x1p-25f, 8, 1 + 2 * kUlp},  // nor what is beyond the quarter
      {1, -0x1p-25f, 1, 1 - kUlp / 2},
      {1, -0x1p-26f, 16, 1},
      {0, 1.5f * 0x1p-26f, 16, 1.5f * 0x1p-22f},  // the largest exponent counts, whatever it is
      {0x1p-30f, 1, 1, 1},
      {0, 0, 16, 0},
      {-1, 1, 1, 0},
  };
  for (const Sum& expected : sums) {
    std::vector<uint16_t> a(64 * 64), b(64 * 64);
    for (size_t row = 0; row < 64; ++row)
      for (size_t k = 0; k < static_cast<size_t>(expected.terms); ++k)
        a[row * 64 + k] = to_fp16(expected.term * 0x1p12f), b[row * 64 + k] = to_fp16(0x1p-12f);
    std::vector<float> c(64 * 64);
    launch("one", one_product, 1, 128, sizeof(OneProductSram), expected.start,
           tensor_map<half>(a.data(), "A", 1, 64, 64, 64, 1), tensor_map<half>(b.data(), "B", 1, 64, 64, 64, 1),
           Global<float>(c.data(), "C", 1, 64, 64));
    INFO(expected.terms << " times " << expected.term << " to " << expected.start);
    for (const float x : c) REQUIRE(x == expected.sum);
  }
}

TEST_CASE("mistakes with Hopper's barriers are found by name", "[executor]") {
  expect<Bug::no_init_fence>("is given a barrier that it may not see");
  expect<Bug::no_sync_after_init>(
      "nothing says that it has done so before", "does not exist: nobody has initialised it");
  expect<Bug::never_initialised>("does not exist");
  expect<Bug::no_wait_full>("without having waited for the copy that thread 0 started");
  expect<Bug::wrong_parity_full>("without having waited for the copy", "deadlock");
  expect<Bug::no_wait_empty>("one arrival too many at the barrier full");
  expect<Bug::too_many_expected>("phase 0 with 1 of 9 arrivals and 0 bytes to come");
  expect<Bug::too_few_expected>("may still read there", "it is complete when phase 1 ends");
  expect<Bug::extra_arrival>("one arrival too many");
  expect<Bug::too_few_bytes>("not announced");
  expect<Bug::too_many_bytes>("0 of 1 arrivals and 8192 bytes to come");
  expect<Bug::unannounced>("it is complete when phase 1 ends");
  expect<Bug::no_named_sync>("may still read there");
  expect<Bug::wrong_named_count>("named barrier 1 for 256 threads");
  expect<Bug::budget>("240 registers a thread: it has 168, and 256 of the block's are free");
  expect<Bug::outside>("the block has");
}

TEST_CASE("mistakes with warpgroup products are found by name", "[executor]") {
  expect<Bug::no_begin>("begin_products");
  expect<Bug::no_commit>("has not even been committed");
  expect<Bug::no_wait>("has not been waited for");
  expect<Bug::early_use>("touched before they were waited for");
  expect<Bug::left_operand_changed>("the left operand of this product was changed");
  expect<Bug::lanes_differ>("start different products");
  expect<Bug::bad_descriptor>("128-byte swizzle");
}

TEST_CASE("mistakes with stores that Hopper's engines read are found by name", "[executor]") {
  expect<Bug::no_store_fence>("without a fence of that thread");
  expect<Bug::no_syncwarp>("no barrier lies between", "may still read there");
  expect<Bug::no_commit_back>("never committed");
  expect<Bug::no_wait_back>("never waited for the copy back");
  expect<Bug::overwritten_stage>("while the copy back that thread");
}

TEST_CASE("without race checks a late copy and a late product still show as a wrong result or a deadlock",
          "[executor]") {
  const auto none = ExecutorOptions::RaceCheck::none;
  CHECK(run<Bug::no_wait_full>(5, 0, none) != "right");
  CHECK(run<Bug::no_wait_empty>(5, 0, none) != "right");
  CHECK(run<Bug::no_wait>(5, 0, none) != "right");
}

}  // namespace
}  // namespace ATTN_DEVICE
}  // namespace attention
