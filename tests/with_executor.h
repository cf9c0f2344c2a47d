// Options of the CPU executor for a part of a test.
#pragma once

#include "common/device/device_api.h"

namespace attention {

/// Sets the executor's options for the length of a scope.
struct WithExecutor {
  ExecutorOptions before = executor_options();
  explicit WithExecutor(const ExecutorOptions& options) { executor_options() = options; }
  ~WithExecutor() { executor_options() = before; }
};

}  // namespace attention
