// Each tensor of attention: its names, its shape and its type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/problem.h"

namespace attention {

struct TensorInfo {
  enum class Kind {
    rows,
    row_scalars,
    pairs
  };                 // [batch, heads, N, head_dim]; [batch, heads, N], fp32; [batch, heads, seqlen_q, seqlen_k]
  const char* name;  // in formulas and reports: "dK"
  const char* file;  // in files and checks: "dk"
  Kind kind = Kind::rows;
  bool of_keys = false;  // N is seqlen_k

  std::vector<int64_t> shape(const Problem& p) const;
  int64_t elements(const Problem& p) const;
  Dtype dtype(const Problem& p) const { return kind == Kind::row_scalars ? Dtype::fp32 : p.dtype; }
  int64_t bytes(const Problem& p) const { return elements(p) * bytes_per_element(dtype(p)); }
};

/// By either name: Q K V O LSE dO dQ dK dV, and what a step may keep beside them, S P dP dS delta. Null for any other.
const TensorInfo* find_tensor(const std::string& name);

/// What a run allocates: Q K V O LSE and, with `backward`, dO dQ dK dV.
std::vector<const TensorInfo*> tensors_of_run(bool backward);

/// What a forward (O LSE) or a backward (dQ dK dV) writes.
std::vector<const TensorInfo*> outputs_of(bool backward);

}  // namespace attention
