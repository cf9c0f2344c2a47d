// fp16 and bf16 on the host: every bit pattern, and what lies between them.
#include "common/base/half.h"

#include <bit>
#include <cmath>
#include <limits>

#include "tests/catch.h"

using namespace attention;

namespace {

struct Type {
  Dtype dtype;
  uint16_t (*to)(float);
  float (*from)(uint16_t);
  int mantissa_bits, bias;
  uint16_t infinity;
};
const Type kTypes[] = {
    {Dtype::fp16, to_fp16, from_fp16, 10, 15, 0x7c00}, {Dtype::bf16, to_bf16, from_bf16, 7, 127, 0x7f80}};

/// The value of the bits by the definition of the format.
double defined_value(const Type& type, uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> type.mantissa_bits, mantissa = bits & ((1 << type.mantissa_bits) - 1);
  const double size =
      exponent == 0 ? std::ldexp(mantissa, 1 - type.bias - type.mantissa_bits)
                    : std::ldexp((1 << type.mantissa_bits) + mantissa, exponent - type.bias - type.mantissa_bits);
  return bits & 0x8000 ? -size : size;
}

bool same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

}  // namespace

TEST_CASE("all 65536 patterns to float and back", "[half]") {
  for (const Type& type : kTypes) {
    int wrong_values = 0, wrong_bits = 0, nans = 0;
    for (int n = 0; n < 65536; ++n) {
      const auto bits = static_cast<uint16_t>(n);
      const float value = type.from(bits);
      wrong_bits += type.to(value) != bits;
      const uint16_t magnitude = bits & 0x7fff;
      if (magnitude > type.infinity) nans += std::isnan(value);
      else if (magnitude == type.infinity) wrong_values += !same(value, bits & 0x8000 ? -INFINITY : INFINITY);
      else wrong_values += !same(value, static_cast<float>(defined_value(type, bits)));
    }
    CHECK(wrong_values == 0);
    CHECK(wrong_bits == 0);
    CHECK(nans == 2 * (0x7fff - type.infinity));
  }
}

TEST_CASE("between two neighbours: the nearer one, at a tie the even one", "[half]") {
  // A float has bits enough for the exact middle of two 16-bit numbers, except of bf16's subnormals' lower half, all of
  // which fit too.
  for (const Type& type : kTypes) {
    int wrong = 0;
    for (uint16_t low = 0; low + 1 < type.infinity; ++low) {
      const auto high = static_cast<uint16_t>(low + 1);
      const float middle = static_cast<float>((defined_value(type, low) + defined_value(type, high)) / 2);
      const uint16_t even = low & 1 ? high : low;
      for (const float sign : {1.0f, -1.0f}) {
        const uint16_t sign_bit = sign < 0 ? 0x8000 : 0;
        wrong += type.to(sign * middle) != (even | sign_bit);
        wrong += type.to(sign * std::nextafter(middle, 0.0f)) != (low | sign_bit);
        wrong += type.to(sign * std::nextafter(middle, INFINITY)) != (high | sign_bit);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("overflow, underflow and NaN", "[half]") {
  CHECK(to_fp16(65504) == 0x7bff);
  CHECK(to_fp16(65519.996f) == 0x7bff);
  CHECK(to_fp16(65520) == 0x7c00);
  CHECK(to_fp16(-65520) == 0xfc00);
  CHECK(to_fp16(std::numeric_limits<float>::max()) == 0x7c00);
  CHECK(to_fp16(0x1p-25f) == 0);  // a tie between 0 and the smallest subnormal
  CHECK(to_fp16(-0x1p-25f) == 0x8000);
  CHECK(to_fp16(std::nextafter(0x1p-25f, 1.0f)) == 1);
  CHECK(to_fp16(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(to_bf16(0x1.fep127f) == 0x7f7f);
  CHECK(to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(to_bf16(-std::numeric_limits<float>::max()) == 0xff80);
  CHECK(to_bf16(1 + 0x1p-8f) == 0x3f80);  // a tie: to even
  CHECK(to_bf16(1 + 0x1.8p-7f) == 0x3f82);
  for (const uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu}) {
    const float nan = std::bit_cast<float>(bits);  // the payload of 0x7f800001 has no bit that the 16-bit types keep
    CHECK(std::isnan(from_fp16(to_fp16(nan))));
    CHECK(std::isnan(from_bf16(to_bf16(nan))));
    CHECK(std::signbit(from_fp16(to_fp16(nan))) == std::signbit(nan));
    CHECK(std::signbit(from_bf16(to_bf16(nan))) == std::signbit(nan));
  }
}

TEST_CASE("unit roundoff and smallest subnormal are the types'", "[half]") {
  for (const Type& type : kTypes) {
    const auto one = type.to(1.0f);
    CHECK(unit_roundoff(type.dtype) == (type.from(one + 1) - 1.0) / 2);
    CHECK(smallest_subnormal(type.dtype) == type.from(1));
  }
  CHECK(unit_roundoff(Dtype::fp32) == std::numeric_limits<float>::epsilon() / 2.0);
  CHECK(smallest_subnormal(Dtype::fp32) == std::numeric_limits<float>::denorm_min());
}

TEST_CASE("whole tensors", "[half]") {
  std::vector<float> values(300000);
  for (size_t n = 0; n < values.size(); ++n) values[n] = std::sin(static_cast<float>(n)) * 100;
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    std::vector<float> rounded = values, back(values.size());
    CHECK(round_all(dtype, rounded) == -1);
    widen(dtype, narrow(dtype, values), back);
    CHECK(rounded == back);
    CHECK(rounded[299999] == round_to(dtype, values[299999]));
    CHECK(rounded != values);
  }
  std::vector<float> as_they_are = values;
  CHECK(round_all(Dtype::fp32, as_they_are) == -1);
  CHECK(as_they_are == values);
  as_they_are[70000] = as_they_are[290000] = 70000;
  as_they_are[3] = INFINITY;  // was infinite before
  CHECK(round_all(Dtype::fp16, as_they_are) == 70000);
  CHECK(std::isinf(as_they_are[290000]));
}
