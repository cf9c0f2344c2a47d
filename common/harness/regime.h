// Where caches come between the formulas and the memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/problem.h"
#include "common/step/step.h"

namespace attention {

/// One line per reason why the HBM formula of these kernels does not describe a GPU with an L2 of `l2_bytes`: a matrix
/// that the formula sends through HBM fits the L2 and may stay there, or one head's re-read tensors, which the formula
/// counts once, do not fit it. Empty: the formula applies, or there is no L2 (l2_bytes 0).
std::vector<std::string> cache_regime(const Problem& problem, const std::vector<KernelCost>& expected,
                                      const std::vector<Scratch>& scratch, int64_t l2_bytes);

/// Bytes over time, and whether memory can be what served them.
struct HbmRate {
  double bytes_per_s = 0;
  bool measured = false;        // the bytes are the counters'; else the formula's
  bool cache_resident = false;  // above 1.05 times the peak: some of these bytes never crossed from or to memory
};

/// Empty without a time. `peak` in bytes per second; when it is not known, no rate is called cache-resident.
std::optional<HbmRate> hbm_rate(std::optional<int64_t> measured_bytes, int64_t expected_bytes, double time_ms,
                                std::optional<double> peak);

}  // namespace attention
