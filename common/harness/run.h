// One run of a step, in one direction: options -> problem -> inputs -> step -> check -> measure. Prints nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "common/harness/choose.h"
#include "common/harness/inputs.h"
#include "common/harness/options.h"
#include "common/harness/progress.h"
#include "common/harness/result.h"
#include "common/reference/reference.h"

namespace attention {

/// What all runs of a problem share.
struct ProblemData {
  InputTensors inputs;
  Selection selection;                   // the rows that are checked
  std::unique_ptr<Reference> reference;  // null until a run has checked something
};

/// Runs of one problem that differ in the tile. What does not depend on the tile is there once: inputs, float64
/// reference, and the memory that was free at the start.
class ProblemRuns {
 public:
  /// Reads --load's files, whose sizes go into options(). Throws BadArguments and Unsupported.
  ProblemRuns(Options options, const Step& step, ChosenDevice& chosen, Progress& progress);

  const Options& options() const { return options_; }
  const Problem& problem() const { return problem_; }  // its tile is not chosen

  /// What is expected of that tile; nothing runs.
  RunResult expected(TileShape tile) const;

  /// Runs it as `options` says: options() with another --check, --repeat or --traffic. Otherwise as run_step.
  RunResult run(const Options& options, TileShape tile);

 private:
  bool has_backward() const;

  Options options_;
  const Step& step_;
  ChosenDevice& chosen_;
  Progress& progress_;
  const int64_t free_bytes_;
  bool has_inputs_ = false;
  ProblemData data_;
  Problem problem_;
};

/// Runs `step`, the chosen device's, as `options` says; with options.plan only the expected figures are filled in.
/// A wrong output, or counted bytes or FLOPs other than the expected ones, land in RunResult::failures.
/// Throws BadArguments, Unsupported, DeviceFailure (does not fit in memory, CUDA error) and CheckFailed (a finding of
/// the CPU executor, which ends the run at once).
RunResult run_step(Options options, const Step& step, ChosenDevice& chosen, Progress& progress);

}  // namespace attention
