// The harness as main() calls it, within a test; and a step in plain host code, to be spoiled.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/half.h"
#include "common/harness/run.h"

namespace attention {

inline Options options_of(const Step& step, std::vector<const char*> flags) {
  flags.insert(flags.begin(), step.id.c_str());
  std::string help;
  return *parse_options(static_cast<int>(flags.size()), flags.data(), step, help);
}

inline RunResult run_with_flags(const Step& step, const std::vector<const char*>& flags) {
  const Options options = options_of(step, flags);
  ChosenDevice chosen = choose_device(options);
  Progress progress;
  return run_step(options, step, chosen, progress);
}

/// The tensor at `address`, whose elements have the problem's dtype.
inline std::vector<float> values_of(const Problem& p, const void* address, int64_t elements) {
  std::vector<float> values(elements);
  if (p.dtype == Dtype::fp32) std::copy_n(static_cast<const float*>(address), elements, values.begin());
  else widen(p.dtype, {static_cast<const uint16_t*>(address), static_cast<size_t>(elements)}, values);
  return values;
}

/// Attention in plain host code: on the CPU executor device memory is host memory, and no kernel is launched.
inline void plain_attention(const Problem& p, const Tensors& t) {
  const std::vector<float> q = values_of(p, t.q, p.Xq()), k = values_of(p, t.k, p.Xk()), v = values_of(p, t.v, p.Xk());
  std::vector<float> o(p.Xq());
  float* lse = static_cast<float*>(t.lse);
  for (int64_t head = 0; head < p.heads_total(); ++head) {
    for (int64_t i = 0; i < p.seqlen_q; ++i) {
      const float* qi = q.data() + (head * p.seqlen_q + i) * p.head_dim;
      std::vector<double> s(p.seqlen_k), sum(p.head_dim);
      double m = -INFINITY, l = 0;
      for (int64_t j = 0; j < p.seqlen_k; ++j) {
        for (int c = 0; c < p.head_dim; ++c) s[j] += double{qi[c]} * k[(head * p.seqlen_k + j) * p.head_dim + c];
        m = std::max(m, s[j] *= p.softmax_scale);
      }
      for (int64_t j = 0; j < p.seqlen_k; ++j) {
        l += s[j] = std::exp(s[j] - m);
        for (int c = 0; c < p.head_dim; ++c) sum[c] += s[j] * v[(head * p.seqlen_k + j) * p.head_dim + c];
      }
      for (int c = 0; c < p.head_dim; ++c) o[(head * p.seqlen_q + i) * p.head_dim + c] = static_cast<float>(sum[c] / l);
      lse[head * p.seqlen_q + i] = static_cast<float>(m + std::log(l));
    }
  }
  if (p.dtype == Dtype::fp32) std::copy(o.begin(), o.end(), static_cast<float*>(t.o));
  else std::ranges::copy(narrow(p.dtype, o), static_cast<uint16_t*>(t.o));
}

inline Step made_step(std::function<void(const Problem&, const Tensors&)> run) {
  Step step;
  step.id = "step99";
  step.title = "made for a test";
  step.largest_head_dim = 64;
  step.tiles = [](const Problem&) { return std::vector<TileChoice>{{{16, 16}, 1024}}; };
  step.methods = {
      {.name = "forward", .cost = [](const Problem&) { return std::vector<KernelCost>{}; }, .run = std::move(run)}};
  return step;
}

}  // namespace attention
