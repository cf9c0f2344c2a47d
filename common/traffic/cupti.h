// The hardware counters of an NVIDIA GPU, read inside this process by CUPTI's Range Profiler (CUDA 12.6 or newer, GPUs
// from sm_75 on). libcupti is opened at run time: the build needs its headers at most, and a program starts where it is
// missing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/traffic/counters.h"

namespace attention {

/// A session on the GPU whose context is current on this thread. Throws CountersUnavailable: built without CUPTI,
/// libcupti not found or too old, no permission, another profiler, a virtual GPU or MIG instance, no counters for this
/// chip. ATTN_CUPTI_LIBRARY in the environment names the libcupti to open, instead of the one found.
std::unique_ptr<CounterSession> open_cupti(int ranges);

/// The metrics that a session on `chip` ("GH100", "GB202") reads, in the order of Counter, "" where the chip has none.
/// Needs libcupti and no GPU. Throws CountersUnavailable.
std::vector<std::string> cupti_metrics(const std::string& chip);

}  // namespace attention
