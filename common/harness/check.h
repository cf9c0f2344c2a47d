// The comparison of a step's output with the float64 reference: what PASS means. Derived in docs/exactness.md and, for
// the 16-bit types, docs/precision.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/problem.h"
#include "common/reference/reference.h"

namespace attention {

/// What became of one output.
struct CheckResult {
  std::string output;  // "o", "lse", "dq", "dk" or "dv"
  bool pass = false;
  bool sampled = false;  // only some rows were compared
  int64_t checked = 0;   // elements that were compared
  int64_t elements = 0;  // elements that the output has
  double tolerance =
      0;  // an element may be off by tolerance * its allowance, in half precision and by what rounding adds
  bool stored_pairs = false;  // half precision: the rounding of S, P, dP and dS in HBM is part of what is allowed
  double worst =
      0;  // the largest |error| / what is allowed: up to 1 passes; 0 for 0/0, infinite for a non-finite error
  std::array<int64_t, 4> worst_index{};  // batch, head, row, column (0 for lse) of it
  double max_abs = 0;                    // the largest |error|
  std::optional<double>
      relative_l2;  // ||error|| / ||reference||; none where the reference is zero to rounding (the gradients
                    // of q and k when each query sees one key), so that the quotient says nothing
  std::optional<double> l2_bound;  // none in half precision
  bool l2_judged =
      false;  // true for the default inputs from 16 keys, 8 dimensions and 1024 elements on; otherwise relative_l2 is only reported
  std::string reason;  // why it fails, one sentence; empty when it passes
};

/// tol. fp32: 1e-6 up to 4096 tokens, beyond that growing as sqrt(max(seqlen_q, seqlen_k) / 4096), because each key
/// tile rounds the accumulator once more. fp16, bf16: 2u for any length (u = 2^-11, 2^-8), since the accumulators are
/// fp32.
double tolerance(const Problem& problem);

/// The bound of the relative L2 error: 1e-6 for o and lse, 2e-6 for gradients, growing like the tolerance. None in half
/// precision, where the comparison with PyTorch's own error judges it (plots/measuring/compare_pytorch.py).
std::optional<double> l2_bound(const Problem& problem, const std::string& output);

/// Compares `actual`, the whole output ([batch, heads, rows, cols] as reference.cols says) with the rows that
/// `selection` names. An element passes when |actual - reference| <= tolerance * allowance (nothing is divided, so 0 <=
/// 0 passes and a NaN fails) or when both are the same infinity. In half precision max(u |reference|, half the smallest
/// subnormal) is allowed on top, the rounding of the output itself (not for lse, which is fp32), and with
/// `stored_pairs` u times the reference's `stored`. An empty comparison fails, and so does an `actual` of another size.
/// `default_inputs`: judge the relative L2 too, unless the problem is too small for it to mean anything (fewer than 16
/// keys, 8 dimensions or 1024 elements). `factor` multiplies the tolerance and the bound of the relative L2
/// (Step::fp32_tolerance_factor). Runs on all cores.
CheckResult check_output(const std::string& output, const Problem& problem, std::span<const float> actual,
                         const ReferenceTensor& reference, const Selection& selection, bool default_inputs,
                         bool stored_pairs = false, double factor = 1);

/// Why elements of `output` are infinite or no numbers, where the range of a type is the reason: "dP exceeds fp16's
/// 65504: up to 65536". Looks, in the order in which they are computed, at what the output is made of - Q K^T, S, dP
/// and dS, in HBM with `stored_pairs` and otherwise on chip - and at the output itself, with the reference's values.
/// Empty when none is too large.
std::string describe_overflow(const std::string& output, const Problem& problem, const Reference& reference,
                              bool stored_pairs);

/// "PASS", "FAIL", or "PASS, 1e-6 not claimed: scores up to 4.1e+09" (in half precision "2u of fp16 not claimed") where
/// a weight above 64 (scores, or the terms they are summed from, beyond 192) makes the allowance so wide that passing
/// no longer means those digits.
std::string verdict(bool pass, Dtype dtype, const Reference& reference);

}  // namespace attention
