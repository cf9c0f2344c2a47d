// step00's checks: what works on this machine, and what to do about what does not.
#pragma once

#include <string>
#include <vector>

#include "common/device/device_api.h"
#include "common/roofline/figures.h"

namespace attention {

/// One check. A problem leaves something unusable, a note is good to know; both say what to do next.
struct Finding {
  enum class State { ok, note, problem };
  std::string name;  // "driver", "counters", ...
  State state = State::ok;
  std::string text;
  std::string next;  // one action; "" when there is nothing to do
};

/// Whether this process may read the GPU's hardware counters; if not, why, and what to do.
struct CounterAccess {
  bool allowed = false;
  std::string reason, advice;
};

/// The GPU that the driver shows: usable or not, driver against toolkit, the architectures that this program was built
/// for.
std::vector<Finding> gpu_findings(const GpuPresence& gpu, const DeviceFigures* figures);

/// What each block may use, which dtypes have products here, the counters.
std::vector<Finding> ability_findings(const DeviceFigures& figures, const CounterAccess& counters);

/// What the CPU executor offers on this machine.
std::vector<Finding> executor_findings();

/// A line per finding, the next action below it.
std::string findings_text(const std::vector<Finding>& findings);

/// The figures as the tables that a person reads: memories, products, launches, working sets.
std::string figures_text(const DeviceFigures& figures);

/// step00's JSON: the figures (null without a GPU, with the reason) and the findings, with the versions of this build.
std::string step00_json(const DeviceFigures* figures, const std::string& reason_without,
                        const std::vector<Finding>& findings);

}  // namespace attention
