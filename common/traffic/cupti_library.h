// libcupti, opened at run time: its functions under their own names, and how they are called. Included by CUPTI's own
// sources alone, since it needs CUPTI's headers.
#pragma once

#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

#include "common/traffic/counters.h"

namespace attention {

#define ATTN_CUPTI_FUNCTIONS(X)                                                                                        \
  X(cuptiProfilerInitialize)                                                                                           \
  X(cuptiProfilerGetCounterAvailability) X(cuptiDeviceGetChipName) X(cuptiProfilerHostInitialize)                      \
      X(cuptiProfilerHostDeinitialize) X(cuptiProfilerHostGetMetricProperties) X(cuptiProfilerHostConfigAddMetrics)    \
          X(cuptiProfilerHostGetConfigImageSize) X(cuptiProfilerHostGetConfigImage) X(cuptiProfilerHostGetNumOfPasses) \
              X(cuptiProfilerHostEvaluateToGpuValues) X(cuptiRangeProfilerEnable) X(cuptiRangeProfilerDisable)         \
                  X(cuptiRangeProfilerGetCounterDataSize) X(cuptiRangeProfilerCounterDataImageInitialize)              \
                      X(cuptiRangeProfilerSetConfig) X(cuptiRangeProfilerStart) X(cuptiRangeProfilerStop)              \
                          X(cuptiRangeProfilerPushRange) X(cuptiRangeProfilerPopRange) X(cuptiRangeProfilerDecodeData) \
                              X(cuptiRangeProfilerGetCounterDataInfo) X(cuptiRangeProfilerCounterDataGetRangeInfo)

/// libcupti's functions, by their own names.
struct Cupti {
#define ATTN_DECLARE(name) decltype(&::name) name = nullptr;
  ATTN_CUPTI_FUNCTIONS(ATTN_DECLARE)
#undef ATTN_DECLARE
};

/// Opened at the first call, once per process. Throws CountersUnavailable: not found, or too old.
const Cupti& cupti_library();

/// function(&params); throws CountersUnavailable with the reason of a result other than success.
template <class Params>
void check_call(CUptiResult (*function)(Params*), Params& params, const char* name) {
  const CUptiResult result = function(&params);
  if (result != CUPTI_SUCCESS) throw explain_cupti_error(result, name);
}
#define ATTN_CUPTI_CALL(cupti, name, params) check_call((cupti).name, params, #name)

}  // namespace attention
