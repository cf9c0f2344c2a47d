// Inputs for tests: a problem with its four tensors, filled or read from tests/data.
#pragma once

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/half.h"
#include "common/base/npy.h"
#include "common/base/problem.h"
#include "common/harness/workload.h"
#include "common/reference/reference.h"

namespace attention {

#ifndef ATTN_TEST_DATA
#define ATTN_TEST_DATA \
  "tests/data"  // the tests run from the top of the repository unless the build says where the data is
#endif

struct Case {
  Problem problem;
  std::vector<float> q, k, v, d_o;

  HostInputs inputs() const { return {q, k, v, d_o}; }
  Reference reference(bool backward = true) const {
    return compute_reference_cpu(problem, inputs(), Selection{}, backward);
  }

  /// Element [head, row, col] of q or d_o; of k or v.
  float& at_query(std::vector<float>& x, int64_t head, int64_t row, int64_t col) {
    return x[(head * problem.seqlen_q + row) * problem.head_dim + col];
  }
  float& at_key(std::vector<float>& x, int64_t head, int64_t row, int64_t col) {
    return x[(head * problem.seqlen_k + row) * problem.head_dim + col];
  }
};

/// A case of these sizes (batch 1, scale 1/sqrt(head_dim)), filled by `init`.
inline Case make_case(int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int head_dim, bool causal = false,
                      const std::string& init = "randn", uint64_t seed = 1) {
  Case c;
  c.problem = {.heads = heads,
               .seqlen_q = seqlen_q,
               .seqlen_k = seqlen_k,
               .head_dim = head_dim,
               .causal = causal,
               .softmax_scale = 1 / std::sqrt(static_cast<float>(head_dim))};
  for (const auto& [values, tensor, elements] :
       {std::tuple{&c.q, InputTensor::q, c.problem.Xq()},
        {&c.k, InputTensor::k, c.problem.Xk()},
        {&c.v, InputTensor::v, c.problem.Xk()},
        {&c.d_o, InputTensor::d_o, c.problem.Xq()}}) {
    values->resize(elements);
    fill(*values, parse_init(init), tensor, head_dim, seed);
  }
  return c;
}

/// A case whose inputs are rounded to `dtype`.
inline Case in_half(Case c, Dtype dtype) {
  c.problem.dtype = dtype;
  for (std::vector<float>* tensor : {&c.q, &c.k, &c.v, &c.d_o}) round_all(dtype, *tensor);
  return c;
}

inline std::string golden_path(const std::string& name, const std::string& file) {
  return std::string(ATTN_TEST_DATA) + "/" + name + "/" + file;
}

/// A folder of tests/data: attention that PyTorch computed in float64 (README of that folder).
inline Case read_golden(const std::string& name) {
  Case c;
  const NpyArray<float> q = read_npy(golden_path(name, "q.npy"), 4), k = read_npy(golden_path(name, "k.npy"), 4);
  c.problem.batch = q.shape[0];
  c.problem.heads = q.shape[1];
  c.problem.seqlen_q = q.shape[2];
  c.problem.seqlen_k = k.shape[2];
  c.problem.head_dim = static_cast<int>(q.shape[3]);
  c.problem.dtype = q.was_half ? Dtype::fp16 : Dtype::fp32;
  c.problem.softmax_scale = 1 / std::sqrt(static_cast<float>(c.problem.head_dim));
  std::stringstream json;
  json << std::ifstream(golden_path(name, "case.json")).rdbuf();
  c.problem.causal = json.str().find("\"causal\": true") != std::string::npos;
  c.q = q.values;
  c.k = k.values;
  c.v = read_npy(golden_path(name, "v.npy"), 4).values;
  c.d_o = read_npy(golden_path(name, "do.npy"), 4).values;
  return c;
}

inline const std::vector<std::string>& golden_cases() {
  static const std::vector<std::string> names = {"one_token",  "ragged_causal", "ragged_d40",   "short_query",
                                                 "empty_rows", "rising_scores", "large_scores", "trained_head"};
  return names;
}
inline const std::vector<std::string>& half_golden_cases() {  // with float16 inputs
  static const std::vector<std::string> names = {"half_d64", "half_ragged"};
  return names;
}

}  // namespace attention
