#include "common/harness/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace attention {

std::string trace_row(const Problem& p, const HostInputs& inputs, int64_t row, float kernel_lse) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int64_t bc = p.tile.bc > 0 ? p.tile.bc : 64;  // 0: a library chose the tiles and does not say
  std::string text = fmt::format(
      "trace     row {} of head 0, key tiles of {}: the recurrence replayed on the host in float64, not read from the "
      "kernel\n",
      row, bc);
  text += fmt::format("  {:>8}  {:>15}  {:>16}  {:>16}  {:>12}\n", "key tile", "keys", "m", "l", "alpha");
  const float* q = inputs.q.data() + row * p.head_dim;
  double m = -kInfinity, l = 0;
  std::vector<double> s;
  for (int64_t begin = 0; begin < p.seqlen_k && p.visible(row, begin); begin += bc) {
    const int64_t end = std::min(begin + bc, p.seqlen_k);
    s.clear();
    for (int64_t j = begin; j < end && p.visible(row, j); ++j) {
      const float* k = inputs.k.data() + j * p.head_dim;
      double score = 0;
      for (int c = 0; c < p.head_dim; ++c) score += static_cast<double>(q[c]) * k[c];
      s.push_back(score * p.softmax_scale);
    }
    const double m_new = std::max(m, *std::max_element(s.begin(), s.end()));
    const double alpha = std::exp(m - m_new);
    l *= alpha;
    for (const double score : s) l += std::exp(score - m_new);
    m = m_new;
    text += fmt::format("  {:>8}  {:>15}  {:>16.9g}  {:>16.9g}  {:>12.6g}\n", begin / bc,
                        fmt::format("{}..{}", begin, begin + static_cast<int64_t>(s.size()) - 1), m, l, alpha);
  }
  const double lse = l > 0 ? m + std::log(l) : -kInfinity;
  return text + fmt::format("  LSE = m + ln l = {:.9g}; the kernel's LSE {:.9g}\n", lse, kernel_lse);
}

}  // namespace attention
