#include "common/harness/timing.h"

#include <algorithm>
#include <chrono>

namespace attention {

namespace {
constexpr int kWarmUpRuns = 2;
constexpr double kWarmUpMs = 100;  // long enough for the clocks to rise
constexpr int kFewestRuns = 20;
constexpr double kShortestSeconds = 0.5;
constexpr int kFewestRecordedRuns = 3, kMostRecordedRuns = 5;

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

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

TimeStats measure(Device& device, const std::function<void()>& work, std::optional<int> repeat,
                  const std::function<void()>& before_run, const std::function<void()>& after_run) {
  const bool gpu = device.kind() == DeviceKind::gpu;
  const auto run_once = [&] {
    device.flush_l2();
    return device.time_ms(work);
  };
  if (gpu) {
    double warm_ms = 0;
    for (int n = 0; n < kWarmUpRuns && warm_ms < kWarmUpMs; ++n) warm_ms += run_once();
  }

  std::vector<double> ms;
  const Stopwatch passed;
  const auto enough = [&] {
    const int runs = static_cast<int>(ms.size());
    return repeat ? runs >= *repeat : runs >= kFewestRuns && passed.seconds() >= kShortestSeconds;
  };
  while (!enough()) {
    before_run();
    ms.push_back(run_once());
    after_run();
  }
  return summarize(std::move(ms), !gpu);
}

std::vector<LaunchRecord> record_launches(Device& device, const std::function<void()>& work, const TimeStats& method) {
  std::vector<LaunchRecord> launches;
  std::vector<std::vector<double>> ms;
  const Stopwatch passed;
  for (int n = 0; n < kFewestRecordedRuns || (n < kMostRecordedRuns && passed.seconds() < kShortestSeconds); ++n) {
    device.flush_l2();
    launches = device.record(work);
    if (launches.size() == 1) {
      launches.front().time_ms = method.median_ms;
      return launches;
    }
    ms.resize(launches.size());
    for (size_t launch = 0; launch < ms.size(); ++launch) ms[launch].push_back(launches[launch].time_ms);
  }
  for (size_t launch = 0; launch < ms.size(); ++launch)
    launches[launch].time_ms = summarize(ms[launch], false).median_ms;
  return launches;
}

}  // namespace attention
