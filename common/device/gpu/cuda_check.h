// Every CUDA call's result is looked at; a failure becomes one line and exit code 4.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "common/base/error.h"

namespace attention {

/// Throws DeviceFailure "CUDA error <name> (<description>) at <what>" unless `result` is cudaSuccess. `what` names the
/// kernel or the call that the blame falls on.
inline void cuda_check(cudaError_t result, const std::string& what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // takes the error off the runtime, so that it is reported once
  throw DeviceFailure(
      std::string("CUDA error ") + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) + ") at " + what);
}

}  // namespace attention
