// One run of a step, in one direction: options -> problem -> inputs -> step -> check -> measure. Prints nothing.
#pragma once

#include "common/harness/choose.h"
#include "common/harness/options.h"
#include "common/harness/progress.h"
#include "common/harness/result.h"

namespace attention {

/// Runs `step`, the chosen device's, as `options` says; with options.plan only the expected figures are filled in.
/// A wrong output, or counted bytes or FLOPs other than the expected ones, land in RunResult::failures.
/// Throws BadArguments, Unsupported, DeviceFailure (does not fit in memory, CUDA error) and CheckFailed (a finding of the CPU
/// executor, which ends the run at once).
RunResult run_step(Options options, const Step& step, ChosenDevice& chosen, Progress& progress);

}  // namespace attention
