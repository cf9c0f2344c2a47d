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
  throw BadArguments("--init " + text + ": " + why +
                     "; use randn, randn:sigma, abs, outlier, outlier:columns:factor, zeros, ones or const:x");
}

/// The number that text[begin, end) is. Read by from_chars: no locale, no leading blanks, nothing left over.
double number_in(const std::string& text, size_t begin, size_t end = std::string::npos) {
  double value = 0;
  const std::string digits = text.substr(begin, end - begin);
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || stop != digits.data() + digits.size()) refuse(text, "'" + digits + "' is not a number");
  if (!std::isfinite(static_cast<float>(value))) refuse(text, "the number is not finite in fp32");
  return value;
}

/// Four standard normal values from the four words of a block (Box and Muller 1958). The first uniform of each pair
/// lies in (0, 1], so that its logarithm is finite; the largest value that can come out is sqrt(2 ln 2^32) = 6.66.
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
    init.sigma = number_in(text, 6);
    if (init.sigma <= 0) refuse(text, "sigma must be positive");
    return init;
  }
  if (text == "abs") {
    init.kind = Init::Kind::abs;
    return init;
  }
  if (text == "outlier" || text.starts_with("outlier:")) {
    init.outlier_columns = 1, init.outlier_factor = 40;
    if (text == "outlier") return init;
    const size_t colon = text.find(':', 8);
    if (colon == std::string::npos) refuse(text, "outlier takes two numbers, columns:factor");
    const double columns = number_in(text, 8, colon);
    if (!(columns >= 1 && columns <= 1 << 20 && columns == std::floor(columns)))
      refuse(text, "columns must be a whole number from 1 on");
    init.outlier_columns = static_cast<int>(columns),
    init.outlier_factor = static_cast<float>(number_in(text, colon + 1));
    return init;
  }
  init.kind = Init::Kind::constant;
  if (text == "zeros") return init;
  if (text == "ones") {
    init.constant = 1;
    return init;
  }
  if (text.starts_with("const:")) {
    init.constant = static_cast<float>(number_in(text, 6));
    return init;
  }
  refuse(text, "unknown");
}

void fill(std::span<float> values, const Init& init, InputTensor tensor, int64_t head_dim, uint64_t seed) {
  if (init.outlier_columns > head_dim) refuse(init.text, "head_dim " + std::to_string(head_dim) + " has fewer columns");
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
        float value = static_cast<float>(mean + sigma * normal[e - n]);
        if (init.outlier_columns > 0 && e % head_dim < init.outlier_columns) {
          if (tensor == InputTensor::q) value += 4;
          if (tensor == InputTensor::k) value *= init.outlier_factor;
        }
        values[e] = init.kind == Init::Kind::abs ? std::abs(value) : value;
      }
    }
  });
}

}  // namespace attention
