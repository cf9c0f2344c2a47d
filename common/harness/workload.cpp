#include "common/harness/workload.h"

#include <array>
#include <charconv>
#include <cmath>
#include <numbers>

#include "common/base/error.h"
#include "common/base/parallel.h"
#include "common/base/random.h"

namespace attention {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw BadArguments("--init " + text + ": " + why + "; use randn, randn:sigma, abs, zeros, ones or const:x");
}

/// The number after the colon. Read by from_chars: no locale, no leading blanks, nothing left over.
double number_after(const std::string& text, size_t prefix) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + prefix, end, value);
  if (error != std::errc() || stop != end) refuse(text, "'" + text.substr(prefix) + "' is not a number");
  if (!std::isfinite(static_cast<float>(value))) refuse(text, "the number is not finite in fp32");
  return value;
}

/// Four standard normal values from the four words of a block (Box and Muller 1958). The first uniform of each pair lies in
/// (0, 1], so that its logarithm is finite; the largest value that can come out is sqrt(2 ln 2^32) = 6.66.
std::array<double, 4> four_normals(const std::array<uint32_t, 4>& word) {
  constexpr double kToUnit = 1.0 / 4294967296.0;  // 2^-32
  std::array<double, 4> normal;
  for (int pair = 0; pair < 4; pair += 2) {
    const double radius = std::sqrt(-2 * std::log((word[pair] + 1.0) * kToUnit));
    const double angle = 2 * std::numbers::pi * kToUnit * word[pair + 1];
    normal[pair] = radius * std::cos(angle);
    normal[pair + 1] = radius * std::sin(angle);
  }
  return normal;
}

}  // namespace

Init parse_init(const std::string& text) {
  Init init;
  init.text = text;
  if (text == "randn") return init;
  if (text.starts_with("randn:")) {
    init.sigma = number_after(text, 6);
    if (init.sigma <= 0) refuse(text, "sigma must be positive");
    return init;
  }
  if (text == "abs") {
    init.kind = Init::Kind::abs;
    return init;
  }
  init.kind = Init::Kind::constant;
  if (text == "zeros") return init;
  if (text == "ones") {
    init.constant = 1;
    return init;
  }
  if (text.starts_with("const:")) {
    init.constant = static_cast<float>(number_after(text, 6));
    return init;
  }
  refuse(text, "unknown");
}

void fill(std::span<float> values, const Init& init, InputTensor tensor, uint64_t seed) {
  const int64_t count = static_cast<int64_t>(values.size());
  constexpr int64_t kPiece = 1 << 16;  // a multiple of 4: a block of the generator never straddles two pieces
  const double sigma = init.sigma;
  const double mean = tensor == InputTensor::v ? 0.5 * sigma : 0;
  parallel_for_pieces(count, kPiece, [&](int64_t begin, int64_t end) {
    if (init.kind == Init::Kind::constant) {
      std::fill(values.begin() + begin, values.begin() + end, init.constant);
      return;
    }
    for (int64_t n = begin; n < end; n += 4) {
      const auto normal = four_normals(random_block(seed, static_cast<uint32_t>(tensor), static_cast<uint64_t>(n / 4)));
      for (int64_t e = n; e < std::min(end, n + 4); ++e) {
        const float value = static_cast<float>(mean + sigma * normal[e - n]);
        values[e] = init.kind == Init::Kind::abs ? std::abs(value) : value;
      }
    }
  });
}

}  // namespace attention
