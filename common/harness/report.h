// The person's view of a run.
#pragma once

#include <string>

#include "common/harness/result.h"

namespace attention {

/// Several lines: what ran, exactness, traffic, time, memory. What was not measured reads n/a, with the reason below.
std::string report_text(const RunResult& result);

/// Why this method's traffic was not measured; "" when it was.
std::string not_measured_reason(const RunResult& result, const MethodResult& method);

/// "67.4 MB", "1.1 GB" (powers of 1000).
std::string human_bytes(int64_t bytes);

}  // namespace attention
