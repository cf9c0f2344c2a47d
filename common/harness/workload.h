// What q, k, v and dO hold: the --init option.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace attention {

enum class InputTensor : uint32_t { q = 0, k = 1, v = 2, d_o = 3 };  // the number is the tensor's random stream

/// How inputs are filled.
///   randn[:sigma]  q, k, dO ~ N(0, sigma^2), v ~ N(sigma/2, sigma^2). v has a mean because with mean 0 the outputs shrink as
///                  1/sqrt(N) and hide errors.
///   abs            the absolute values of what randn gives: sums of one sign, where rounding errors pile up
///   outlier[:columns:factor]  what randn gives, then in the first `columns` columns of each head q + 4 and k * factor (1 and 40 unless
///                  given): trained models have a few channels far larger than the others
///   zeros, ones, const:x   every element of all four
struct Init {
  enum class Kind { randn, abs, constant };
  Kind kind = Kind::randn;
  double sigma = 1;         // randn only, > 0
  int outlier_columns = 0;  // randn only; 0: none
  float outlier_factor = 1;
  float constant = 0;  // constant only, finite
  std::string text = "randn";

  /// The inputs for which the relative L2 bounds are judged.
  bool is_default() const { return kind == Kind::randn && sigma == 1 && outlier_columns == 0; }
};

/// Parses the value of --init. Throws BadArguments with one line that lists what is accepted.
Init parse_init(const std::string& text);

/// Fills `values` (the flat tensor, C order, head_dim columns) on all cores. Element n depends only on (seed, tensor,
/// n, head_dim): Philox4x32-10 (random.h), then Box-Muller in double, rounded to float. Throws BadArguments for more
/// outlier columns than head_dim.
void fill(std::span<float> values, const Init& init, InputTensor tensor, int64_t head_dim, uint64_t seed);

}  // namespace attention
