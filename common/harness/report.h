// The person's view of a run.
#pragma once

#include <string>

#include "common/harness/result.h"
#include "common/harness/sweep.h"

namespace attention {

/// Several lines: what ran, exactness, traffic, time, memory. What was not measured reads n/a, with the reason below.
std::string report_text(const RunResult& result);

/// The same for --sweep-tiles: a line per tile, the best, and the article's beside it.
std::string sweep_text(const Sweep& sweep);

/// Why this method's traffic was not measured; "" when it was.
std::string not_measured_reason(const RunResult& result, const MethodResult& method);

/// Why the occupancy of this tile is not known; "" when it is.
std::string no_occupancy_reason(const SweptTile& swept);

}  // namespace attention
