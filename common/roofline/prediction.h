// The two-term prediction: what a kernel should take on this GPU if it did nothing but multiply and move.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/known.h"
#include "common/roofline/figures.h"
#include "common/traffic/cost.h"

namespace attention {

/// time = sum over kernels of (executed FLOPs / R + HBM bytes / BW). A sum, because a block of these kernels loads a
/// tile, waits, and multiplies; what several blocks per SM overlap, softmax and launches give back. (The roofline of
/// Williams, Waterman and Patterson 2009 takes the larger of the two: the time of a kernel that overlaps them
/// perfectly.)
struct Prediction {
  double flops_ms = 0, bytes_ms = 0;
  bool at_least = false;                              // a kernel moves more than its formula says
  double flops_per_second = 0, bytes_per_second = 0;  // R and BW
  double total_ms() const { return flops_ms + bytes_ms; }
};

/// `flops_per_second` is R, `bytes_per_second` BW; both positive.
Prediction predict(const std::vector<KernelCost>& kernels, double flops_per_second, double bytes_per_second);

/// The prediction of kernels of this dtype and head_dim.
Known<Prediction> predict(const std::vector<KernelCost>& kernels, const Problem& problem,
                          const Known<DeviceFigures>& kept);

/// "predicted 1.4 ms = FLOPs 1.36 + bytes 0.02", "predicted n/a (step00 has not measured this GPU: run ./step00 once)".
std::string prediction_text(const Known<Prediction>& prediction);

/// Executed FLOPs and expected HBM bytes of some kernels together, and their quotient (0 without bytes).
struct Intensity {
  int64_t flops = 0, bytes = 0;
  double flops_per_byte() const { return bytes == 0 ? 0 : static_cast<double>(flops) / static_cast<double>(bytes); }
};
Intensity intensity(const std::vector<KernelCost>& kernels);

/// The R/BW (FLOPs per byte) above which `recompute`, which multiplies more and moves less than `standard`, is
/// predicted to be the faster one: extra FLOPs / bytes saved. Empty when it does not trade the one for the other.
std::optional<double> break_even(const std::vector<KernelCost>& standard, const std::vector<KernelCost>& recompute);

}  // namespace attention
