// What a correct attention in half precision gives: products of 16-bit numbers summed in fp32, softmax in fp32, and a
// rounding to the
// type at each place where the steps have one; in fp32 nothing is rounded. Plain host code, for tests of the
// comparison.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/base/half.h"
#include "common/base/parallel.h"
#include "tests/case.h"

namespace attention {

/// Where P, S, dP and dS are: on chip (steps 03, 04 and the recompute backward), where P and dS are rounded on their
/// way into a
/// product; or in HBM (steps 01, 02 and the standard backward), where S and dP are rounded as well.
enum class Pairs { on_chip, stored };

struct HalfOutputs {
  std::vector<float> o, lse, dq, dk, dv;
};

/// Sums are taken in fp32 in pieces of 16, as the tensor cores' m16n8k16 does. `backward` false leaves the gradients
/// empty.
inline HalfOutputs half_attention(const Case& c, Pairs pairs, bool backward = true) {
  const Problem& p = c.problem;
  const int64_t d = p.head_dim, nq = p.seqlen_q, nk = p.seqlen_k;
  const bool stored = pairs == Pairs::stored;
  const auto rounded = [&](float x) { return round_to(p.dtype, x); };
  const auto dot = [d](const float* a, const float* b) {
    float sum = 0;
    for (int64_t x0 = 0; x0 < d; x0 += 16) {
      float piece = 0;
      for (int64_t x = x0; x < std::min(d, x0 + 16); ++x) piece += a[x] * b[x];
      sum += piece;
    }
    return sum;
  };
  /// out[x] = sum over n of weight[n] * rows[n][x]
  const auto weighted_sum = [d](const std::vector<float>& weight, const float* rows, std::vector<float>& out) {
    std::vector<float> piece(d);
    std::fill(out.begin(), out.end(), 0.0f);
    for (int64_t n0 = 0; n0 < static_cast<int64_t>(weight.size()); n0 += 16) {
      std::fill(piece.begin(), piece.end(), 0.0f);
      for (int64_t n = n0; n < std::min<int64_t>(weight.size(), n0 + 16); ++n)
        for (int64_t x = 0; x < d; ++x) piece[x] += weight[n] * rows[n * d + x];
      for (int64_t x = 0; x < d; ++x) out[x] += piece[x];
    }
  };

  HalfOutputs out;
  out.o.resize(p.Xq());
  out.lse.resize(p.L(), -std::numeric_limits<float>::infinity());
  if (backward) out.dq.resize(p.Xq());
  std::vector<float> largest(p.L()), total(p.L()), delta(p.L());
  // The two roundings of a pair, from its fp32 score: what multiplies V or dO, and what multiplies K or Q.
  const auto score = [&](int64_t row, const float* k) {
    const float s = p.softmax_scale * dot(&c.q[row * d], k);
    return stored ? rounded(s) : s;
  };
  const auto probability = [&](int64_t row, float s) {
    return stored ? rounded(std::exp(s - largest[row]) / total[row]) : std::exp(s - out.lse[row]);
  };
  const auto d_probability = [&](int64_t row, const float* v) {
    const float dp = dot(&c.d_o[row * d], v);
    return stored ? rounded(dp) : dp;
  };

  parallel_for(p.L(), [&](int64_t row) {
    const int64_t head = row / nq, seen = visible_keys(p, row % nq);
    if (seen == 0) return;
    const float *k = &c.k[head * nk * d], *v = &c.v[head * nk * d];
    std::vector<float> s(seen), weight(seen), sum(d);
    for (int64_t j = 0; j < seen; ++j) s[j] = score(row, k + j * d);
    largest[row] = *std::max_element(s.begin(), s.end());
    double l = 0;  // a sum in pieces, so as good as exact
    for (const float x : s) l += std::exp(x - largest[row]);
    total[row] = static_cast<float>(l);
    out.lse[row] = largest[row] + std::log(total[row]);
    for (int64_t j = 0; j < seen; ++j)
      weight[j] = stored ? probability(row, s[j]) : rounded(std::exp(s[j] - largest[row]));
    weighted_sum(weight, v, sum);
    for (int64_t x = 0; x < d; ++x) out.o[row * d + x] = rounded(stored ? sum[x] : sum[x] / total[row]);
    if (!backward) return;

    std::vector<float> dp(seen);
    for (int64_t j = 0; j < seen; ++j) dp[j] = d_probability(row, v + j * d);
    double row_delta = 0;
    if (stored)
      for (int64_t j = 0; j < seen; ++j) row_delta += weight[j] * dp[j];
    else
      for (int64_t x = 0; x < d; ++x) row_delta += out.o[row * d + x] * c.d_o[row * d + x];
    delta[row] = static_cast<float>(row_delta);
    for (int64_t j = 0; j < seen; ++j)
      weight[j] = rounded(p.softmax_scale * probability(row, s[j]) * (dp[j] - delta[row]));
    weighted_sum(weight, k, sum);
    for (int64_t x = 0; x < d; ++x) out.dq[row * d + x] = rounded(sum[x]);
  });
  if (!backward) return out;

  out.dk.resize(p.Xk());
  out.dv.resize(p.Xk());
  parallel_for(p.heads_total() * nk, [&](int64_t row) {  // row of K
    const int64_t head = row / nk;
    std::vector<float> weight(nq), ds(nq), sum(d);
    for (int64_t i = 0; i < nq; ++i) {
      const int64_t query = head * nq + i;
      if (!p.visible(i, row % nk)) continue;
      const float prob = probability(query, score(query, &c.k[row * d]));
      weight[i] = rounded(prob);
      ds[i] = rounded(p.softmax_scale * prob * (d_probability(query, &c.v[row * d]) - delta[query]));
    }
    weighted_sum(weight, &c.d_o[head * nq * d], sum);
    for (int64_t x = 0; x < d; ++x) out.dv[row * d + x] = rounded(sum[x]);
    weighted_sum(ds, &c.q[head * nq * d], sum);
    for (int64_t x = 0; x < d; ++x) out.dk[row * d + x] = rounded(sum[x]);
  });
  return out;
}

}  // namespace attention
