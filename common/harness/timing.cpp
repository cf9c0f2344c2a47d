#include "common/harness/timing.h"

#include <algorithm>
#include <chrono>

namespace attention {

namespace {
constexpr int kWarmUpRuns = 2;
constexpr int kFewestRuns = 20;
constexpr double kShortestSeconds = 0.5;

double quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}
}  // namespace

TimeStats summarize(std::vector<double> ms, bool emulated) {
  std::sort(ms.begin(), ms.end());
  return {quantile(ms, 0.5), quantile(ms, 0.1), quantile(ms, 0.9), static_cast<int>(ms.size()), emulated};
}

TimeStats measure(Device& device, const std::function<void()>& work, std::optional<int> repeat, const std::function<void()>& before_run,
                  const std::function<void()>& after_run) {
  const bool gpu = device.kind() == DeviceKind::gpu;
  const auto run_once = [&] {
    device.flush_l2();
    return device.time_ms(work);
  };
  if (gpu)
    for (int n = 0; n < kWarmUpRuns; ++n) run_once();

  std::vector<double> ms;
  const auto start = std::chrono::steady_clock::now();
  const auto enough = [&] {
    const int runs = static_cast<int>(ms.size());
    if (repeat) return runs >= *repeat;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    return runs >= kFewestRuns && passed.count() >= kShortestSeconds;
  };
  while (!enough()) {
    before_run();
    ms.push_back(run_once());
    after_run();
  }
  return summarize(std::move(ms), !gpu);
}

}  // namespace attention
