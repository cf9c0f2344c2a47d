// How long a pass takes: DESIGN "Time" in code.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "common/device/device_api.h"

namespace attention {

/// Milliseconds over `runs` timed runs. Emulated: wall time of the CPU executor, which says nothing about a GPU.
struct TimeStats {
  double median_ms = 0, p10_ms = 0, p90_ms = 0;
  int runs = 0;
  bool emulated = false;
};

/// The quantiles of `ms` (at least one value), interpolated between neighbours.
TimeStats summarize(std::vector<double> ms, bool emulated);

/// Times `work`, which only enqueues. On a GPU each run starts with a cold L2 (flush_l2 also lets the host run ahead,
/// so that launch time does not fall into the figure), after warm-up runs that are not counted: two, or one that takes
/// a tenth of a second. `repeat` runs exactly, else until half a second has passed and at least 20. `before_run` and
/// `after_run` are called around each, outside of the time.
TimeStats measure(Device& device, const std::function<void()>& work, std::optional<int> repeat,
                  const std::function<void()>& before_run, const std::function<void()>& after_run);

/// One record per launch of `work` on a GPU, its time the median of several runs, each with a cold L2. Apart from the
/// runs of measure(), since events between launches cost time: five, or those that half a second allows and at least
/// three. What is one launch needs none of them, its time is that of `method`.
std::vector<LaunchRecord> record_launches(Device& device, const std::function<void()>& work, const TimeStats& method);

}  // namespace attention
