// fp32 on tensor cores (--product tensor-cores): numbers far outside of fp16's range, and the parts that the product is
// made
// of. Sizes, inputs of one sign, races and PyTorch's cases are test_steps', for both products.
#define ATTN_DEVICE_CPU
#include <cmath>

#include "common/device/device.h"
#include "common/base/error.h"
#include "common/harness/split_range.h"
#include "common/tile/split_product.h"
#include "tests/run_method.h"

using namespace attention;

namespace {

Case split_case(int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int head_dim, bool causal = false,
                const std::string& init = "randn") {
  Case c = make_case(heads, seqlen_q, seqlen_k, head_dim, causal, init);
  c.problem.on_tensor_cores = true;
  return c;
}

void scale(std::vector<float>& values, float factor) {
  for (float& x : values) x *= factor;
}

/// Far outside of fp16, in which every factor is held: each tile has a power of two of its own.
void ranges(Device& device) {
  struct Factors {
    const char* name;
    float q, k, v, d_o;
  };
  for (const Factors& f :
       {Factors{"V 2^-20", 1, 1, 0x1p-20f, 1},
        {"V 2^-90", 1, 1, 0x1p-90f, 1},
        {"q 1e5, k 1e-5", 1e5f, 1e-5f, 1, 1},
        {"q 1e-30, k 1e30", 1e-30f, 1e30f, 1, 1},
        {"subnormal numbers in q", 1e-37f, 1e37f, 1, 1},
        {"V 65504 and above", 1, 1, 65504, 1},
        {"V 1e30, dO 1e-20", 1, 1, 1e30f, 1e-20f},
        {"dO 1e-8", 1, 1, 1, 1e-8f},
        {"dO 1e20", 1, 1, 1, 1e20f}}) {
    INFO(f.name);
    for (const int d : {64, 63}) {
      Case c = split_case(1, 100, 150, d);
      scale(c.q, f.q), scale(c.k, f.k), scale(c.v, f.v), scale(c.d_o, f.d_o);
      check_all_methods(device, c, false, device.kind() == DeviceKind::gpu ? Tiles::all : Tiles::best);
    }
  }
}

/// Tiles, and rows of one tile, that differ in size by more than fp16's range.
void ranges_within_a_tensor(Device& device) {
  Case c = split_case(1, 200, 300, 64);
  for (int64_t j = 0; j < 300; ++j)
    for (int x = 0; x < 64; ++x)
      c.at_key(c.v, 0, j, x) *= std::ldexp(1.0f, static_cast<int>(j / 64) * 25 - 50),
          c.at_key(c.k, 0, j, x) *= j % 2 ? 1 : 0x1p-18f;
  for (int64_t i = 0; i < 200; ++i)
    for (int x = 0; x < 64; ++x)
      c.at_query(c.d_o, 0, i, x) *= std::ldexp(1.0f, static_cast<int>(i / 64) * 20 - 40),
          c.at_query(c.q, 0, i, x) *= i % 2 ? 1 : 0x1p-18f;
  check_all_methods(device, c);
}

/// The largest columns that are not refused.
void large_columns(Device& device) {
  for (const char* init : {"outlier:1:2", "outlier:4:2"})
    for (const int d : {64, 128}) {
      const Case c = split_case(1, 200, 300, d, true, init);
      refuse_what_cannot_be_split(c.inputs(), c.problem);  // throws where it does
      check_all_methods(device, c);
    }
}

std::string refusal(const Case& c) {
  try {
    refuse_what_cannot_be_split(c.inputs(), c.problem);
    return "";
  } catch (const Unsupported& refused) {
    CHECK(std::string(refused.what()).find("--product cuda-cores") != std::string::npos);
    return refused.what();
  }
}

// ---- one warp's product, apart from any step ------------------------------------------------------------------------

constexpr int kKeys = 16384, kTile = 64;

struct OneWarpSram {
  SplitTile<kTile, 64> v;
};

/// O = sum of the rows of V: weights of 1. In place: as the 16-bit types do it, in the accumulators of O itself.
__global__ void sum_of_rows(Global<const float> V, Global<float> O, bool in_place) {
  auto& sram = dynamic_sram<OneWarpSram>();
  Fragment<16, 64, 4, 2> o(0), ones(0);
  Fragment<16, 64, 4, 2> cross(0);
  for (float(&row)[16] : ones.value)
    for (float& x : row) x = 1;
  AtMostOne weights;
  for (int64_t k0 = 0; k0 < V.rows; k0 += kTile) {
    __syncthreads();
    load_tile<32>(sram.v, V, k0);
    __syncthreads();
    if (!in_place) {
      multiply_ab(o, ones, weights, sram.v);
      continue;
    }
    for (int key = 0; key < kTile; key += 16) {
      uint32_t x[1][4];
      left_operand<half>(x[0], ones, 0, key / 4);
      for (int n = 0; n < 8; n += 2) {
        uint32_t y_hi[4], y_lo[4];
        const int row = key + threadIdx.x % 32 % 16, col = 8 * n + threadIdx.x % 32 / 16 * 8;
        load_matrices<true>(y_hi, sram.v.part.read(row, col, 8));
        load_matrices<true>(y_lo, sram.v.part.read(row, 64 + col, 8));
        multiply_add_blocks<half>(o, x, n, y_hi);
        multiply_add_blocks<half>(cross, x, n, y_lo);
      }
    }
  }
  if (in_place)
    for (int i = 0; i < o.kRows; ++i)
      for (int j = 0; j < o.kCols; ++j) o(i, j) = (o(i, j) + cross(i, j)) * sram.v.unscale();
  store_tile(O, o, 0);
}

/// The worst relative error of O for V in [1, 2): all tiles have one scale, so that the sum in place has one too.
double worst_error(bool in_place) {
  const auto device = open_plain_cpu();
  Case c = make_case(1, 16, kKeys, 64, false, "abs");
  for (float& x : c.v) x = 1 + x - std::floor(x);
  std::vector<float> o(16 * 64);
  launch("sum", sum_of_rows, 1, 32, sizeof(OneWarpSram), Global<const float>(c.v.data(), "V", 1, kKeys, 64),
         Global<float>(o.data(), "O", 1, 16, 64), in_place);
  double worst = 0;
  for (int x = 0; x < 64; ++x) {
    double sum = 0;
    for (int64_t j = 0; j < kKeys; ++j) sum += c.at_key(c.v, 0, j, x);
    for (int i = 0; i < 16; ++i) worst = std::max(worst, std::abs(o[i * 64 + x] - sum) / sum);
  }
  return worst;
}

}  // namespace

TEST_ON_EACH_DEVICE("split product: exact far outside of fp16's range", ranges)
TEST_ON_EACH_DEVICE("split product: exact where the parts of a tensor differ in size", ranges_within_a_tensor)
TEST_ON_EACH_DEVICE("split product: exact beside columns that are larger than the others", large_columns)

TEST_CASE("split product: hi and lo hold 22 bits, and scales are exact powers of two") {
  for (const float x :
       {1.0f, 1.0f / 3, 3.14159265f, 16383.99f, 32767.99f, 1.9999999f, 0.25f * 1.2345678f, -0.7654321f}) {
    uint32_t hi, lo;
    split(hi, lo, x, -x);
    const float2 high = unpack<half>(hi), low = unpack<half>(lo);
    CHECK(std::abs(double{high.x} + double{low.x} - x) <= std::ldexp(std::abs(x), -22));
    CHECK(high.y == -high.x);
    CHECK(low.y == -low.x);
  }
  for (int exponent = -149; exponent <= 127; ++exponent) {
    const float x = std::ldexp(1.0f, exponent), scale = power_of_two_scale(x);
    int none;
    CHECK(std::frexp(scale, &none) == 0.5f);
    CHECK(scale * inverse_power(scale) == 1);
    CHECK(scale * x == (exponent >= -112 ? 16384 : std::ldexp(1.0f, exponent + 126)));
    CHECK(power_of_two_scale(std::nextafter(x, 0.0f)) >= scale);
  }
  CHECK(power_of_two_scale(0) * 0 == 0);
  CHECK(std::isfinite(inverse_power(power_of_two_scale(0))));
}

TEST_CASE("split product: a sum of 16384 keys loses digits in the accumulators of a tensor core, and not outside") {
  const double outside = worst_error(false), in_place = worst_error(true);
  std::printf(
      "sum of %d keys, worst relative error: added outside per tile %.1e, in place %.1e\n", kKeys, outside, in_place);
  CHECK(outside < 1e-6);
  CHECK(in_place > 2e-6);  // the allowance at 16384 keys
}

TEST_CASE("split product: what cannot be held is refused by name") {
  CHECK(refusal(split_case(2, 40, 50, 64)).empty());
  CHECK(refusal(split_case(2, 40, 50, 64, false, "zeros")).empty());
  Case c = split_case(2, 40, 50, 64);
  c.k[77] = INFINITY;
  CHECK(refusal(c).find("k holds inf") == 0);
  c.k[77] = NAN;
  CHECK(refusal(c).find("k holds NaN") == 0);
  c = split_case(2, 40, 50, 64);
  scale(c.q, 1e20f), scale(c.k, 1e20f);
  CHECK(refusal(c).find("products of q and k reach 2^13") == 0);
  c = split_case(2, 40, 50, 64);
  scale(c.d_o, 1e-20f), scale(c.v, 1e-20f);
  CHECK(refusal(c).find("products of do and v reach 2^-13") == 0);
  c.d_o.clear();  // without a backward nothing multiplies the two
  CHECK(refusal(c).empty());

  c = split_case(2, 40, 50, 64);
  for (int64_t j = 0; j < 50; ++j) c.at_key(c.v, 1, j, 5) *= 1e-10f;
  CHECK(refusal(c).find("v, head 1: the largest number of column 5") == 0);
  for (int64_t j = 0; j < 50; ++j) c.at_key(c.v, 1, j, 5) = 0;
  CHECK(refusal(c).empty());
  for (int x = 0; x < 64; ++x) c.at_query(c.d_o, 0, 7, x) *= 1e-10f;
  CHECK(refusal(c).find("do, head 0: the largest number of row 7") == 0);
  c.d_o.clear();
  CHECK(refusal(c).empty());
}

TEST_CASE("split product: outlier columns are refused by name") {
  for (const int d : {64, 128}) {
    for (const char* init : {"randn", "abs", "randn:4", "outlier:1:2", "outlier:4:2"})
      CHECK(refusal(split_case(1, 300, 300, d, false, init)) == "");
    for (const char* init : {"outlier", "outlier:2:20", "outlier:4:12"})
      CHECK(refusal(split_case(1, 300, 300, d, false, init)).find("q and k, head 0: column ") == 0);
  }
  Case c = split_case(2, 40, 50, 64);
  for (int64_t j = 0; j < 50; ++j) c.at_key(c.k, 1, j, 9) *= 100;
  CHECK(refusal(c).find("q and k, head 1: column 9 gives") == 0);
  for (int64_t j = 0; j < 50; ++j) c.at_key(c.k, 1, j, 9) *= 0.01f;
  for (int64_t i = 0; i < 40; ++i) c.at_query(c.q, 1, i, 9) *= 100;
  CHECK(refusal(c).find("q and k, head 1: column 9 gives") == 0);
  scale(c.k, 1e-3f);  // no term is large in a score
  CHECK(refusal(c).empty());
}
