#include "common/harness/split_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/base/error.h"

namespace attention {

namespace {

// A tile is scaled so that its largest number is about 2^14. hi + lo then has 22 bits down to 2^-2, below which lo runs
// into fp16's smallest number, 2^-24: what is 2^16 times smaller than the largest has fewer.
constexpr float kSmallestPart = 0x1p-16f;
// A product of tiles is divided by both scales at once; between these powers of two neither that factor nor the product
// overflows or vanishes.
constexpr int kLargestExponent = 126, kSmallestExponent = -100;
// Outlier columns: a score loses about 2^-22 of its largest term (lo lo', the 24th bit, what the sum cuts off). That
// shows where a term is large in a score; up to 6 times the usual one it stays within 0.8 of what is allowed.
constexpr float kLargeTerm = 16, kOutlier = 6;

[[noreturn]] void refuse(const std::string& what) {
  throw Unsupported(fmt::format(
      "{}; fp32 on tensor cores cannot hold that, fp32 on CUDA cores can (./step04 --product cuda-cores)", what));
}

struct Tensor {
  const char* name;
  std::span<const float> values;
  int64_t rows;      // of a head
  bool left, right;  // in a product that is judged element by element: the factor that gives the rows, or the columns
};

struct Largest {
  std::vector<float> of_rows, of_columns;
  float of_all = 0;
};

Largest find_largest(const Tensor& t, const float* head, int columns) {
  Largest largest{std::vector<float>(static_cast<size_t>(t.rows)), std::vector<float>(static_cast<size_t>(columns))};
  for (int64_t row = 0; row < t.rows; ++row)
    for (int column = 0; column < columns; ++column) {
      const float x = std::abs(head[row * columns + column]);
      if (!std::isfinite(x)) refuse(fmt::format("{} holds {}", t.name, std::isnan(x) ? "NaN" : "inf"));
      largest.of_rows[static_cast<size_t>(row)] = std::max(largest.of_rows[static_cast<size_t>(row)], x);
      largest.of_columns[static_cast<size_t>(column)] = std::max(largest.of_columns[static_cast<size_t>(column)], x);
    }
  largest.of_all = *std::max_element(largest.of_columns.begin(), largest.of_columns.end());
  return largest;
}

void refuse_lost_digits(const Tensor& t, int64_t head, const char* what, const std::vector<float>& largest,
                        float of_all) {
  for (size_t n = 0; n < largest.size(); ++n)
    if (largest[n] > 0 && largest[n] < kSmallestPart * of_all)
      refuse(fmt::format("{}, head {}: the largest number of {} {} is {:g}, of the whole {:g}", t.name, head, what, n,
                         largest[n], of_all));
}

/// `a` and `b`: the largest numbers of the two factors.
void refuse_exponent(const char* what, float a, float b, bool smallest_matters) {
  if (a == 0 || b == 0) return;
  const int exponent = std::ilogb(a) + std::ilogb(b);
  if (exponent > kLargestExponent || (smallest_matters && exponent < kSmallestExponent))
    refuse(fmt::format("products of {} reach 2^{}", what, exponent));
}

/// `a` and `b`: the largest numbers of each column of q and of k.
void refuse_outliers(int64_t head, std::vector<float> a, const std::vector<float>& b, float softmax_scale) {
  for (size_t x = 0; x < a.size(); ++x) a[x] *= b[x];
  const auto largest = std::max_element(a.begin(), a.end());
  const float term = *largest;
  const auto column = largest - a.begin();
  std::erase(a, 0.0f);
  if (a.empty()) return;
  const auto middle = a.begin() + static_cast<std::ptrdiff_t>(a.size() / 2);
  std::nth_element(a.begin(), middle, a.end());
  if (std::abs(softmax_scale) * term > kLargeTerm && term > kOutlier * *middle)
    refuse(fmt::format("q and k, head {}: column {} gives a score terms up to {:.3g}, the median column up to {:.3g}",
                       head, column, std::abs(softmax_scale) * term, std::abs(softmax_scale) * *middle));
}

}  // namespace

void refuse_what_cannot_be_split(const HostInputs& inputs, const Problem& p) {
  // O = P V; dV = P^T dO, dP = dO V^T, dQ = dS K, dK = dS^T Q. Scores need no row's digits: e^s knows their absolute
  // error alone.
  const bool backward = !inputs.d_o.empty();
  const Tensor tensors[] = {
      {"q", inputs.q, p.seqlen_q, false, backward},
      {"k", inputs.k, p.seqlen_k, false, backward},
      {"v", inputs.v, p.seqlen_k, backward, true},
      {"do", inputs.d_o, p.seqlen_q, backward, backward}};
  for (int64_t head = 0; head < p.heads_total(); ++head) {
    float of_all[4] = {};
    std::vector<float> of_columns[4];
    for (int n = 0; n < (backward ? 4 : 3); ++n) {
      const Tensor& t = tensors[n];
      const Largest largest = find_largest(t, t.values.data() + head * t.rows * p.head_dim, p.head_dim);
      if (t.left) refuse_lost_digits(t, head, "row", largest.of_rows, largest.of_all);
      if (t.right) refuse_lost_digits(t, head, "column", largest.of_columns, largest.of_all);
      of_all[n] = largest.of_all;
      of_columns[n] = largest.of_columns;
    }
    refuse_exponent("q and k", of_all[0], of_all[1], false);
    refuse_outliers(head, of_columns[0], of_columns[1], p.softmax_scale);
    if (backward) refuse_exponent("do and v", of_all[3], of_all[2], true);
  }
}

}  // namespace attention
