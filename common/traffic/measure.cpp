#include "common/traffic/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace attention {

namespace {

// The ranges of a session: the pusher alone, all launches, then each launch.
constexpr int kPusher = 0, kTogether = 1, kFirstLaunch = 2;
// How far the counters may be off on the pusher, whose bytes are known. Others' traffic on the GPU lands in the HBM
// counters.
constexpr double kTolerance = 0.1;

void throw_injected_error() {
  const char* text = std::getenv("ATTN_CUPTI_FAKE_ERROR");
  const int code = text == nullptr ? 0 : std::atoi(text);
  if (code != 0) throw explain_cupti_error(code, "ATTN_CUPTI_FAKE_ERROR");
}

/// Every range once. What a range leaves dirty in the L2 would reach memory after it and not be counted: the pusher
/// drives it out inside. Both ends wait for the device, so that the range holds this work and no other. A method of one
/// launch needs no range for it: it is the whole.
void run_ranges(MeasurableDevice& device, CounterSession& session, const std::function<void()>& work, int launches) {
  const auto begin = [&](int range) {
    device.flush_l2();
    device.synchronize();
    session.begin_range(range);
  };
  const auto end = [&] {
    device.push_out_l2();
    device.synchronize();
    session.end_range();
  };
  begin(kPusher);
  end();
  begin(kTogether);
  work();
  end();
  if (launches == 1) return;
  int launch = 0;
  device.around_launches(
      work,
      [&] {
        if (launch == launches)
          throw CountersUnavailable(fmt::format("more than the {} launches that were timed", launches), "");
        begin(kFirstLaunch + launch++);
      },
      end);
}

/// Bytes of a range without the pusher's. Below 0 only by the counters' noise.
CounterBytes without_pusher(const CounterBytes& range, const CounterBytes& pusher) {
  CounterBytes bytes;
  for (size_t n = 0; n < kCounters; ++n)
    if (range.values[n] && pusher.values[n])
      bytes.values[n] = std::max<int64_t>(0, *range.values[n] - *pusher.values[n]);
  return bytes;
}

/// The counter that vouches for each, by Counter: what the pusher reads is known, and it stores nothing and spills
/// nothing.
constexpr Counter kVouching[kCounters] = {
    Counter::hbm_read,       Counter::hbm_read,       Counter::l2_to_sm,      Counter::requested_load,
    Counter::requested_load, Counter::requested_load, Counter::requested_load};

/// Why `counter` cannot be trusted, given what it said of the pusher; "" when it can.
std::string distrust(const CounterBytes& pusher, Counter counter, int64_t pushed) {
  const std::optional<int64_t>& counted = pusher[counter];
  if (!counted) return "this chip has no such counter";
  const bool reads = kVouching[static_cast<size_t>(counter)] == counter;
  if (!reads || std::abs(static_cast<double>(*counted - pushed)) <= kTolerance * static_cast<double>(pushed)) return "";
  return fmt::format(
      "the counter said {} bytes of a kernel that reads {}: other work on this GPU, or the counter does not work here",
      *counted, pushed);
}

std::array<std::string, kCounters> judge(const CounterBytes& pusher, int64_t pushed) {
  std::array<std::string, kCounters> why_not;
  for (size_t n = 0; n < kCounters; ++n) {
    why_not[n] = distrust(pusher, static_cast<Counter>(n), pushed);
    if (why_not[n].empty()) why_not[n] = distrust(pusher, kVouching[n], pushed);
  }
  return why_not;
}

MeasuredTraffic measure(MeasurableDevice& device, const std::function<void()>& work, int launches,
                        const OpenCounters& open) {
  device.prepare_to_measure();
  const std::unique_ptr<CounterSession> session = open(kFirstLaunch + (launches == 1 ? 0 : launches));
  bool last = false;
  while (!last) {
    session->begin_pass();
    run_ranges(device, *session, work, launches);
    last = session->end_pass();
  }
  const std::vector<CounterBytes> ranges = session->read();

  MeasuredTraffic result;
  result.why_not = judge(ranges[kPusher], device.pushed_bytes());
  if (std::none_of(result.why_not.begin(), result.why_not.end(), [](const std::string& why) { return why.empty(); }))
    throw CountersUnavailable(result.why_not.front(), "");
  const auto bytes_of = [&](int range) {
    CounterBytes bytes = without_pusher(ranges[static_cast<size_t>(range)], ranges[kPusher]);
    for (size_t n = 0; n < kCounters; ++n)
      if (!result.why_not[n].empty()) bytes.values[n].reset();
    return bytes;
  };
  result.together = bytes_of(kTogether);
  for (int launch = 0; launch < launches; ++launch)
    result.kernels.push_back(launches == 1 ? result.together : bytes_of(kFirstLaunch + launch));
  return result;
}

}  // namespace

MeasuredTraffic measure_traffic(MeasurableDevice* device, const std::function<void()>& work, int launches,
                                const OpenCounters& open) {
  try {
    throw_injected_error();
    if (device == nullptr) throw CountersUnavailable("the CPU executor has no HBM", "");
    return measure(*device, work, launches, open);
  } catch (const CountersUnavailable& why) {
    MeasuredTraffic nothing;
    nothing.reason = why.what();
    nothing.advice = why.advice;
    return nothing;
  }
}

}  // namespace attention
