#include "common/harness/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "common/base/half.h"
#include "common/base/tensors.h"
#include "common/base/text.h"
#include "common/base/parallel.h"

namespace attention {
namespace {

/// The tally of a piece of the comparison; pieces add up.
struct Tally {
  double worst = 0, max_abs = 0;
  double error_squares = 0, reference_squares = 0, allowed_squares = 0;
  int64_t failures = 0;
  int64_t worst_at = -1;  // index into the reference

  void add(int64_t at, double actual, double reference, double allowed) {
    if (std::isinf(reference) && actual == reference) return;
    const double error = std::abs(actual - reference);
    if (!(error <= allowed)) ++failures;
    const bool finite = std::isfinite(error);
    const double ratio = !finite ? std::numeric_limits<double>::infinity() : error == 0 ? 0 : error / allowed;
    if (ratio > worst || worst_at < 0) {
      worst = ratio;
      worst_at = at;
    }
    max_abs = std::max(max_abs, finite ? error : std::numeric_limits<double>::infinity());
    error_squares += error * error;
    reference_squares += reference * reference;
    allowed_squares += allowed * allowed;
  }

  void add(const Tally& other) {
    if (other.worst_at >= 0 &&
        (worst_at < 0 || other.worst > worst || (other.worst == worst && other.worst_at < worst_at))) {
      worst = other.worst;
      worst_at = other.worst_at;
    }
    max_abs = std::max(max_abs, other.max_abs);
    error_squares += other.error_squares;
    reference_squares += other.reference_squares;
    allowed_squares += other.allowed_squares;
    failures += other.failures;
  }
};

double growth(const Problem& problem) {
  constexpr double kFlatUpTo = 4096;
  return std::sqrt(std::max(1.0, static_cast<double>(std::max(problem.seqlen_q, problem.seqlen_k)) / kFlatUpTo));
}

/// A relative L2 error says something where many terms average out. With two keys a gradient may cancel to a thousandth
/// of its terms in every row, and a correct fp32 result then exceeds the bound up to 50 times (20000 times at head_dim
/// 1); from these limits on it stayed below half of the bound on 3000 random problems.
bool enough_for_l2(const Problem& problem, int64_t rows) {
  constexpr int64_t kKeys = 16, kDims = 8, kElements = 1024;
  return problem.seqlen_k >= kKeys && problem.head_dim >= kDims && rows * problem.head_dim >= kElements;
}

}  // namespace

double tolerance(const Problem& problem) {
  return problem.dtype == Dtype::fp32 ? 1e-6 * growth(problem) : 2 * unit_roundoff(problem.dtype);
}

std::optional<double> l2_bound(const Problem& problem, const std::string& output) {
  if (problem.dtype != Dtype::fp32) return std::nullopt;
  return (output == "o" || output == "lse" ? 1e-6 : 2e-6) * growth(problem);
}

CheckResult check_output(const std::string& output, const Problem& problem, std::span<const float> actual,
                         const ReferenceTensor& reference, const Selection& selection, bool default_inputs,
                         bool stored_pairs, double factor) {
  const bool by_key = find_tensor(output)->of_keys;
  const int64_t rows_per_head = by_key ? problem.seqlen_k : problem.seqlen_q;
  const std::vector<HeadRow>& listed = by_key ? selection.keys : selection.queries;
  const int64_t cols = reference.cols;

  CheckResult result;
  result.output = output;
  result.sampled = !selection.full;
  result.elements = problem.heads_total() * rows_per_head * cols;
  result.checked = static_cast<int64_t>(reference.value.size());
  result.tolerance = factor * tolerance(problem);
  result.stored_pairs = stored_pairs && problem.dtype != Dtype::fp32;
  result.l2_bound = l2_bound(problem, output);
  if (result.l2_bound) *result.l2_bound *= factor;
  result.l2_judged = default_inputs && result.l2_bound && enough_for_l2(problem, result.checked / cols);
  if (result.checked == 0) {
    result.reason = output + ": nothing was compared";
    return result;
  }
  if (static_cast<int64_t>(actual.size()) != result.elements) {
    result.reason =
        output + ": has " + std::to_string(actual.size()) + " elements instead of " + std::to_string(result.elements);
    return result;
  }

  const auto head_row = [&](int64_t n) {  // of row n of the reference
    return selection.full ? HeadRow{n / rows_per_head, n % rows_per_head} : listed[n];
  };
  const bool rounded = problem.dtype != Dtype::fp32 && output != "lse";
  const double u = unit_roundoff(problem.dtype), least = smallest_subnormal(problem.dtype) / 2;
  const auto allowed = [&](int64_t n) {
    double sum = result.tolerance * reference.allowance[n];
    if (result.stored_pairs) sum += u * reference.stored[n];
    if (rounded) sum += std::max(u * std::abs(reference.value[n]), least);
    return sum;
  };
  Tally tally;
  std::mutex guard;
  constexpr int64_t kPiece = 1 << 14;  // elements, about
  parallel_for_pieces(result.checked / cols, std::max<int64_t>(1, kPiece / cols), [&](int64_t begin, int64_t end) {
    Tally piece;
    for (int64_t n = begin; n < end; ++n) {
      const HeadRow at = head_row(n);
      const float* row = actual.data() + (at.head * rows_per_head + at.row) * cols;
      for (int64_t c = 0; c < cols; ++c) {
        piece.add(n * cols + c, row[c], reference.value[n * cols + c], allowed(n * cols + c));
      }
    }
    const std::lock_guard lock(guard);
    tally.add(piece);
  });

  result.worst = tally.worst;
  result.max_abs = tally.max_abs;
  if (tally.worst_at >= 0) {
    const HeadRow at = head_row(tally.worst_at / cols);
    result.worst_index = {at.head / problem.heads, at.head % problem.heads, at.row, tally.worst_at % cols};
  }
  // float64 leaves about 1e-16 of the allowance, 1e-10 of what is allowed, where the true value is 0 by cancellation.
  constexpr double kZeroToRounding = 1e-6;
  const double reference_norm = std::sqrt(tally.reference_squares), error_norm = std::sqrt(tally.error_squares);
  if (!(reference_norm <= kZeroToRounding * std::sqrt(tally.allowed_squares))) {
    result.relative_l2 = error_norm / reference_norm;
  } else if (error_norm == 0) {
    result.relative_l2 = 0;
  }

  const bool l2_holds = !result.relative_l2 || *result.relative_l2 <= *result.l2_bound;
  if (tally.failures > 0) {
    const auto& at = result.worst_index;
    constexpr int kDigits = 9;  // as many as tell any two floats apart
    const double value = actual[((at[0] * problem.heads + at[1]) * rows_per_head + at[2]) * cols + at[3]];
    result.reason = fmt::format(
        "{}: {} of {} elements are off by more than {:.3g} of their allowance{}, worst at [{}, {}, {}, {}]: {:.{}g} "
        "instead of {:.{}g}",
        output, tally.failures, result.checked, result.tolerance, rounded ? " and their own rounding" : "", at[0],
        at[1], at[2], at[3], value, kDigits, reference.value[tally.worst_at], kDigits);
  } else if (result.l2_judged && !l2_holds) {
    result.reason =
        fmt::format("{}: relative L2 error {:.3g} exceeds {:.3g}", output, *result.relative_l2, *result.l2_bound);
  }
  result.pass = result.reason.empty();
  return result;
}

std::string describe_overflow(const std::string& output, const Problem& problem, const Reference& reference,
                              bool stored_pairs) {
  struct Kept {
    std::string name;
    double largest;
    Dtype dtype;
  };
  const Dtype pairs = stored_pairs ? problem.dtype : Dtype::fp32;
  std::vector<Kept> kept = {{"Q K^T", reference.largest_score / std::abs(problem.softmax_scale), Dtype::fp32},
                            {"S", reference.largest_score, pairs}};
  if (output == "dq" || output == "dk") {
    kept.push_back({"dP", reference.largest_dp, pairs});
    kept.push_back({"dS", reference.largest_ds, problem.dtype});
  }
  double largest = 0;
  for (const double value : reference.find(output).value)
    largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0);  // LSE may be -inf
  kept.push_back({output, largest, output == "lse" ? Dtype::fp32 : problem.dtype});
  for (const Kept& value : kept) {
    const double limit = largest_number(value.dtype);
    if (value.largest > limit)
      return fmt::format(
          "{} exceeds {}'s {:.6g}: up to {:.6g}", value.name, dtype_name(value.dtype), limit, value.largest);
  }
  return "";
}

std::string verdict(bool pass, Dtype dtype, const Reference& reference) {
  constexpr double kLargestClaimed = 64;
  if (!pass) return "FAIL";
  if (!(reference.largest_weight > kLargestClaimed)) return "PASS";
  return fmt::format(
      "PASS, {} not claimed: scores up to {:.3g}",
      dtype == Dtype::fp32 ? "1e-6" : std::string("2u of ") + dtype_name(dtype), reference.largest_score);
}

}  // namespace attention
