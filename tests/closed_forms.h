// Inputs whose attention is known in closed form (hard cases A2 to A10), for the reference and for every step.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/case.h"

namespace attention {

/// What elements of an output are: `digits` is how exactly the value is written here, `margin` what fp32 may be off by.
struct KnownValues {
  std::string output;
  std::map<int64_t, double> values;  // by index
  double digits, margin;
};

struct ClosedForm {
  std::string name;
  Case c;
  std::vector<KnownValues> known;
  bool backward = false;
};

/// The worst of |out - value| over `margin`; infinite for a NaN.
template <class T>
double worst_of(const std::vector<T>& out, const std::map<int64_t, double>& values, double margin) {
  double worst = 0;
  for (const auto& [at, value] : values) {
    const double off = std::abs(static_cast<double>(out.at(static_cast<size_t>(at))) - value);
    worst = std::max(worst, std::isnan(off) ? INFINITY : off / margin);
  }
  return worst;
}

/// Elements 0 to count - 1 by a function of their index.
template <class F>
std::map<int64_t, double> all_of(int64_t count, F&& value) {
  std::map<int64_t, double> values;
  for (int64_t n = 0; n < count; ++n) values[n] = value(n);
  return values;
}

/// One query, keys of one dimension: score j is scores[j], value j is values[j].
inline Case one_row(int64_t keys, float (*score)(int64_t), float (*value)(int64_t)) {
  Case c = make_case(1, 1, keys, 1);
  c.problem.softmax_scale = 1;
  c.q[0] = 1;
  for (int64_t j = 0; j < keys; ++j) c.k[j] = score(j), c.v[j] = value(j);
  return c;
}

/// Two keys: q = k_0 = 0.5 everywhere, k_1 = 0, V_0 = 1, V_1 = 0, dO = 1.
inline Case two_keys(int head_dim) {
  Case c = make_case(1, 1, 2, head_dim, false, "zeros");
  for (int x = 0; x < head_dim; ++x) c.q[x] = c.k[x] = 0.5f, c.v[x] = c.d_o[x] = 1;
  return c;
}

/// 65 keys of one score far below zero, one key past a tile of 64: O is the mean of V.
inline ClosedForm far_below_zero(float score, double lse, double lse_margin) {
  Case c = make_case(1, 1, 65, 64);
  c.problem.softmax_scale = 1;
  std::ranges::fill(c.q, 0.0f);
  std::ranges::fill(c.k, 0.0f);
  c.q[0] = 1;
  for (int j = 0; j < 65; ++j) c.at_key(c.k, 0, j, 0) = score;
  const auto mean = [&](int64_t x) {
    double sum = 0;
    for (int j = 0; j < 65; ++j) sum += c.at_key(c.v, 0, j, x);
    return sum / 65;
  };
  return {"A6: every score " + std::to_string(score),
          c,
          {{"lse", {{0, lse}}, 5e-5, lse_margin}, {"o", all_of(64, mean), 1e-9, 2e-6}}};
}

inline std::vector<ClosedForm> closed_forms() {
  const auto thousandth = [](int64_t j) { return static_cast<float>(j) / 1000; };
  const auto zero = [](int64_t) { return 0.0; };
  Case heads = make_case(6, 37, 45, 64);
  heads.problem.batch = 2;
  heads.problem.heads = 3;
  for (int64_t n = 0; n < heads.problem.Xk(); ++n) heads.v[n] = static_cast<float>(n / (45 * 64) + 1);
  const Case one_token = make_case(1, 1, 1, 16, false, "randn:3");
  std::vector<ClosedForm> forms = {
      // A triangle hung from the top left would give row 0 an LSE of 0. ln 701 and ln 1000.
      {"A2: causal is bottom-right",
       make_case(2, 300, 1000, 64, true, "zeros"),
       {{"lse", {{0, 6.552508}, {599, 6.907755}}, 5e-7, 2e-6}}},
      far_below_zero(-100000, -99995.8256, 0.02),
      far_below_zero(-300, -295.8256, 3e-4),
      {"A7: ramp_up",
       one_row(
           1000, [](int64_t j) { return 0.1f * static_cast<float>(j); }, thousandth),
       {{"o", {{0, 0.989492}}, 1e-6, 2e-6}, {"lse", {{0, 102.252168}}, 1e-5, 1e-4}}},
      {"A7: ramp_down",
       one_row(
           1000, [](int64_t j) { return 0.1f * static_cast<float>(999 - j); }, thousandth),
       {{"o", {{0, 0.009508}}, 1e-6, 2e-6}, {"lse", {{0, 102.252168}}, 1e-5, 1e-4}}},
      {"A7: sawtooth",
       one_row(
           512, [](int64_t j) { return j / 128 % 2 ? 0.f : 100.f; },
           [](int64_t j) { return j / 128 % 2 ? -1.f : 1.f; }),
       {{"o", {{0, 1}}, 1e-12, 2e-6}, {"lse", {{0, 105.545177}}, 5e-7, 1e-4}}},
      // Base 2 would be 9.965784.
      {"A9: LSE is the natural log", make_case(1, 1, 1000, 64, false, "zeros"), {{"lse", {{0, 6.907755}}, 5e-7, 2e-6}}},
      // Unscaled 1, scaled twice 0.562177, by 1/8 0.924142.
      {"A9: the scale is applied once",
       two_keys(80),
       {{"o", all_of(80, [](int64_t) { return 0.903442; }), 5e-7, 1e-6}, {"lse", {{0, 2.337611}}, 5e-7, 3e-6}}},
      // Scale forgotten 3.359795, applied twice 0.052497.
      {"A10: the scale in the backward",
       two_keys(64),
       {{"dq", all_of(64, [](int64_t) { return 0.419974; }), 5e-7, 1e-6},
        {"dk", all_of(128, [](int64_t n) { return n < 64 ? 0.419974 : -0.419974; }), 5e-7, 1e-6},
        {"dv", all_of(128, [](int64_t n) { return n < 64 ? 0.880797 : 0.119203; }), 5e-7, 1e-6}},
       true},
      // dQ and dK are 0 but for the rounding of dP - delta, two sums of about 100.
      {"A10: backward of one token",
       one_token,
       {{"dq", all_of(16, zero), 1e-13, 1e-3},
        {"dk", all_of(16, zero), 1e-13, 1e-3},
        {"dv", all_of(16, [&](int64_t x) { return double{one_token.d_o[x]}; }), 1e-30, 1e-30}},
       true}};
  for (const bool causal : {false, true})  // causal: the harmonic number H_64
    forms.push_back({causal ? "A10: backward of ones, causal" : "A10: backward of ones",
                     make_case(1, 64, 64, 64, causal, "ones"),
                     {{"dq", all_of(4096, zero), 1e-12, 1e-4},
                      {"dk", all_of(4096, zero), 1e-12, 1e-4},
                      {"dv", {{0, causal ? 4.743891 : 1}, {4095, causal ? 0.015625 : 1}}, 5e-7, causal ? 5e-6 : 1e-6}},
                     true});
  ClosedForm& own_v = forms.emplace_back(ClosedForm{"A9: each head reads its own V", heads, {}});
  for (int64_t head = 0; head < 6; ++head) {
    std::map<int64_t, double> of_head;
    for (int64_t n = 0; n < 37 * 64; ++n) of_head[head * 37 * 64 + n] = static_cast<double>(head + 1);
    own_v.known.push_back({"o", of_head, 1e-12, 1e-6 * static_cast<double>(head + 1)});
  }
  return forms;
}

}  // namespace attention
