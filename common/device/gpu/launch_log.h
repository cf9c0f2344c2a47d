// What happens around each <<<>>> on a GPU: errors are found before and after, and a recorded run keeps one
// LaunchRecord per launch. Written in launch_log.cu; launch() in kernel_language.h is its only caller.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "common/device/device_api.h"
#include "common/device/timestamps.h"

namespace attention::on_gpu {

class LaunchLog {
 public:
  /// Throws DeviceFailure for an error that earlier work left, Unsupported for a grid over 2^31-1 blocks, DeviceFailure
  /// when the device refuses `sram_bytes`; raises the kernel's dynamic SRAM limit; starts the record's clock when
  /// recording.
  void before(const char* name, const void* kernel, int64_t grid, int block, int64_t sram_bytes);
  /// The same for a call that launches a library's kernels: only errors and the clock.
  void before_call(const char* name, LaunchRecord about = {});
  /// Throws DeviceFailure naming the kernel when the launch was refused.
  void after(const char* name);

  void start_recording();
  std::vector<LaunchRecord> stop_recording();  // waits for the device

  /// From now on calls `before` and `after` around each launch; two empty functions end that. They may launch kernels,
  /// but not through this log.
  void watch(std::function<void()> before, std::function<void()> after);
  const char* last_kernel() const { return last_kernel_; }

  Rings rings;  // where the warps of a stepNN-timeline write

 private:
  void check_earlier_work(const char* name) const;
  struct Timed {
    LaunchRecord record;
    cudaEvent_t begin, end;
  };
  bool recording_ = false;
  const char* last_kernel_ = "(none)";
  std::vector<Timed> timed_;
  std::function<void()> before_launch_, after_launch_;
};

LaunchLog& launch_log();

}  // namespace attention::on_gpu
