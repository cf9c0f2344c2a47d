#include "common/harness/workload.h"

#include <cmath>
#include <vector>

#include "common/base/error.h"
#include "common/base/random.h"
#include "tests/catch.h"

using namespace attention;

TEST_CASE("philox known answers", "[workload]") {
  // The test vectors that the paper's authors publish with their Random123 library (kat_vectors, philox4x32 10).
  using Words = std::array<uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

namespace {

std::vector<float> filled(const std::string& init, InputTensor tensor, uint64_t seed, size_t count) {
  std::vector<float> values(count, NAN);
  fill(values, parse_init(init), tensor, 64, seed);
  return values;
}

struct Moments {
  double mean = 0, variance = 0, fourth = 0;
};
Moments moments(const std::vector<float>& x) {
  Moments m;
  for (const float value : x) m.mean += value / static_cast<double>(x.size());
  for (const float value : x) {
    const double off = value - m.mean;
    m.variance += off * off / static_cast<double>(x.size());
    m.fourth += off * off * off * off / static_cast<double>(x.size());
  }
  return m;
}

}  // namespace

TEST_CASE("randn has the moments of a normal distribution", "[workload]") {
  const size_t count = 1'000'003;  // not a multiple of 4
  for (const auto& [init, sigma] : {std::pair{"randn", 1.0}, std::pair{"randn:3", 3.0}}) {
    for (const auto tensor : {InputTensor::q, InputTensor::k, InputTensor::v, InputTensor::d_o}) {
      const Moments m = moments(filled(init, tensor, 7, count));
      const double mean = tensor == InputTensor::v ? 0.5 * sigma : 0;
      CHECK(std::abs(m.mean - mean) < 5 * sigma / std::sqrt(count));  // five standard errors
      CHECK(m.variance == Approx(sigma * sigma).epsilon(5 * std::sqrt(2.0 / count)));
      CHECK(m.fourth == Approx(3 * std::pow(sigma, 4)).epsilon(5 * std::sqrt(96.0 / 9 / count)));
    }
  }
}

TEST_CASE("an element depends on seed, tensor and index alone", "[workload]") {
  const auto long_q = filled("randn", InputTensor::q, 1, 300'001), short_q = filled("randn", InputTensor::q, 1, 70'003);
  CHECK(std::equal(short_q.begin(), short_q.end(), long_q.begin()));
  CHECK(filled("randn", InputTensor::q, 1, 300'001) == long_q);
  CHECK(filled("randn", InputTensor::k, 1, 300'001) != long_q);
  CHECK(filled("randn", InputTensor::q, 2, 300'001) != long_q);
  CHECK(filled("randn", InputTensor::q, 1 + (uint64_t{1} << 32), 300'001) != long_q);  // all 64 bits of the seed count
}

TEST_CASE("abs, zeros, ones and const", "[workload]") {
  for (const auto tensor : {InputTensor::q, InputTensor::k, InputTensor::v, InputTensor::d_o}) {
    auto randn = filled("randn", tensor, 3, 10'001);
    for (float& value : randn) value = std::abs(value);
    CHECK(filled("abs", tensor, 3, 10'001) == randn);
    CHECK(filled("zeros", tensor, 3, 5) == std::vector<float>(5, 0.0f));
    CHECK(filled("ones", tensor, 3, 5) == std::vector<float>(5, 1.0f));
    CHECK(filled("const:133120", tensor, 3, 5) == std::vector<float>(5, 133120.0f));
    CHECK(filled("const:-1e-3", tensor, 3, 5) == std::vector<float>(5, -1e-3f));
  }
  CHECK(parse_init("randn").is_default());
  CHECK(parse_init("randn:1").is_default());
  CHECK_FALSE(parse_init("randn:3").is_default());
  CHECK_FALSE(parse_init("abs").is_default());
}

TEST_CASE("outlier: the first columns of q and k, as randn elsewhere", "[workload]") {
  for (const auto& [init, columns, factor] : {std::tuple{"outlier", 1, 40.0f}, {"outlier:3:0.5", 3, 0.5f}}) {
    for (const auto tensor : {InputTensor::q, InputTensor::k, InputTensor::v, InputTensor::d_o}) {
      auto expected = filled("randn", tensor, 3, 10 * 64);
      for (size_t n = 0; n < expected.size(); ++n) {
        if (n % 64 >= static_cast<size_t>(columns)) continue;
        if (tensor == InputTensor::q) expected[n] += 4;
        if (tensor == InputTensor::k) expected[n] *= factor;
      }
      CHECK(filled(init, tensor, 3, 10 * 64) == expected);
    }
  }
  std::vector<float> values(130);
  fill(values, parse_init("outlier:2:10"), InputTensor::k, 13,
       1);  // rows of 13, and pieces of the generator that begin anywhere in them
  auto expected = filled("randn", InputTensor::k, 1, 130);
  for (size_t n = 0; n < expected.size(); ++n) expected[n] *= n % 13 < 2 ? 10.0f : 1.0f;
  CHECK(values == expected);
  CHECK_FALSE(parse_init("outlier").is_default());
  CHECK_THROWS_AS(fill(values, parse_init("outlier:14:10"), InputTensor::q, 13, 1), BadArguments);
}

TEST_CASE("parse_init refuses what it does not know", "[workload]") {
  for (const std::string bad :
       {"",           "rand",        "randn:",         "randn:x",        "randn:0",
        "randn:-1",   "randn:1x",    "randn:nan",      "randn:1e39",     "const",
        "const:",     "const:inf",   "const:1,5",      "Ones",           "outliers",
        "outlier:",   "outlier:2",   "outlier:0:40",   "outlier:1.5:40", "outlier:x:40",
        "outlier:1:", "outlier:1:x", "outlier:1:40:1", "outlier:-1:40",  "outlier:1:inf"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_init(bad), BadArguments);
    try {
      parse_init(bad);
    } catch (const BadArguments& error) {
      CHECK(error.code == 2);
      CHECK(std::string(error.what()).find("--init " + bad) == 0);
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}
