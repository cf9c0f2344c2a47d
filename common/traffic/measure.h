// Measured traffic: what the counters say of each kernel of a method, beside what its formula expects.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/traffic/counters.h"

namespace attention {

/// What measuring asks of a GPU (device/gpu/gpu_device.cu; made-up in the tests).
class MeasurableDevice {
 public:
  virtual ~MeasurableDevice() = default;
  /// Takes the memory that push_out_l2 reads; throws CountersUnavailable when there is none left.
  virtual void prepare_to_measure() = 0;
  /// Enqueues reads that leave nothing of the method's in the L2, and no dirty line.
  virtual void flush_l2() = 0;
  /// Enqueues a kernel that reads pushed_bytes() bytes, each once and from memory: several times the L2, so that every
  /// dirty line that it holds is written back to memory.
  virtual void push_out_l2() = 0;
  virtual int64_t pushed_bytes() const = 0;
  virtual void synchronize() = 0;
  /// Runs `work` and calls `before` and `after` around each of its launches.
  virtual void around_launches(const std::function<void()>& work, const std::function<void()>& before,
                               const std::function<void()>& after) = 0;
};

/// What the counters said, or why they said nothing.
struct MeasuredTraffic {
  std::string reason, advice;         // reason "": measured. Both one line; advice may be ""
  std::vector<CounterBytes> kernels;  // by launch, each alone from a cold L2
  CounterBytes together;              // all launches as they follow each other, from a cold L2 on
  std::array<std::string, kCounters>
      why_not;  // by Counter: why its bytes are missing although the rest was measured; "" = they are there

  bool measured() const { return reason.empty(); }
};

/// Measures `work`, which enqueues `launches` kernels and gives the same result each time it runs; it runs twice per
/// pass of the profiler, and no time of these runs means anything. `device` is null on the CPU executor. Never throws
/// for want of counters; throws what `work` throws. ATTN_CUPTI_FAKE_ERROR=n in the environment answers as if CUPTI had
/// returned error n.
MeasuredTraffic measure_traffic(MeasurableDevice* device, const std::function<void()>& work, int launches,
                                const OpenCounters& open);

}  // namespace attention
