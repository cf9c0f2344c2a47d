// What the harness asks of a device. Two implementations: gpu/ (CUDA) and cpu/ (the executor). No kernels here.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/device/timestamps.h"
#include "common/step/step.h"

namespace attention {

class MeasurableDevice;  // traffic/measure.h

/// What is known of one launch after a measured or counted run.
struct LaunchRecord {
  std::string kernel;
  double time_ms = 0;                  // GPU: events around it. CPU: emulated wall time
  std::vector<TensorBytes> counted;    // CPU executor only: requested bytes, exact
  bool printed = false;                // CPU executor only: the kernel has called printf
  int64_t counted_flops = 0;           // CPU executor only: executed FLOPs, as KernelCost defines them
  int64_t local_bytes_per_thread = 0;  // GPU only: cudaFuncAttributes::localSizeBytes (spills)
  // GPU only, and not of a library's kernels.
  std::optional<int> registers_per_thread;  // cudaFuncAttributes::numRegs
  std::optional<int>
      blocks_per_sm;  // how many blocks of this launch an SM holds at a time, as the CUDA runtime works it out
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;  // "NVIDIA H200", "CPU executor (2 threads)"
  virtual int64_t free_bytes() const = 0;
  virtual int64_t sram_limit()
      const = 0;                         // bytes per block (opt-in limit); ATTN_SMEM_LIMIT in the environment lowers it
  virtual int64_t l2_bytes() const = 0;  // 0 where there is none (CPU)
  virtual int multiprocessors()
      const = 0;  // SMs; on the CPU those of the GPU whose SRAM it has too, so that it plans as that does
  virtual int compute_capability()
      const = 0;  // 10 * major + minor: 75 for 7.5; 0 on the CPU, which runs what any GPU can

  virtual void* allocate(int64_t bytes) = 0;  // 256-byte aligned; throws DeviceFailure when it does not fit
  virtual void release(void* address) = 0;
  virtual void copy_in(void* device, const void* host, int64_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, int64_t bytes) = 0;
  virtual void fill_nan(void* device, int64_t bytes) = 0;  // every byte 0xff: a NaN in fp32, fp16 and bf16
  virtual void
  poison_sram() = 0;  // GPU: a kernel fills the SRAM of every SM with NaN. CPU: each block starts poisoned anyway
  virtual void flush_l2() = 0;     // GPU: enqueues enough memory traffic to evict the L2 and to let the host run ahead
  virtual void synchronize() = 0;  // throws DeviceFailure naming the kernel

  /// Time of `work` (which only enqueues) between two events, in ms; wall time on the CPU.
  virtual double time_ms(const std::function<void()>& work) = 0;

  /// Runs `work` and returns one record per launch in order.
  virtual std::vector<LaunchRecord> record(const std::function<void()>& work) = 0;

  /// From here on warps of gpu_timed kernels note what they do when, in memory of the device's own; take_timestamps runs
  /// `work` once more and returns what SM 0's noted in each launch, then that memory is given back (GPU only).
  virtual void start_timestamps() {}
  virtual std::vector<NotedLaunch> take_timestamps(const std::function<void()>& /*work*/) { return {}; }

  /// The device as its hardware counters are read; null where there are none (CPU).
  virtual MeasurableDevice* measurable() { return nullptr; }

  /// While record() runs: the launches that have ended and the share of the one that runs, 1.25 for a quarter of the
  /// second. May be asked from another thread.
  virtual double launches_done() const { return 0; }

  /// Bytes per second that the HBM can move at most; empty where that is not known. A rate above it went through a
  /// cache.
  virtual std::optional<double> hbm_peak() const { return std::nullopt; }
};

/// How many GPUs the driver shows, and if the GPU cannot be used although one is present, why ("" = fine).
struct GpuPresence {
  int count = 0;
  bool compiled_in = false;  // false: built without nvcc
  std::string trouble;
  int compute_capability = 0;  // of the first, 90 for sm_90; 0: not known
  std::string driver_cuda;     // the newest CUDA that the driver supports ("13.0"); "" without a driver
};
GpuPresence find_gpu();
std::unique_ptr<Device> open_gpu();  // throws Unsupported (none) or DeviceFailure (present but unusable)

/// `limit`, the bytes of SRAM that a block may ask for on a device, or ATTN_SMEM_LIMIT of the environment where that is
/// less: one device stands in for others. Throws BadArguments when ATTN_SMEM_LIMIT is not a positive number.
int64_t lowered_sram_limit(int64_t limit);

/// How the CPU executor runs a grid.
struct ExecutorOptions {
  enum class RaceCheck { none, ends, all };
  RaceCheck race_check = RaceCheck::ends;  // which blocks are race-checked: none, the first and the last, all
  uint64_t thread_order = 0;               // 0: threads in index order; otherwise the seed of a shuffle
  int os_threads = 0;                      // 0: as many as the machine has cores
  std::FILE* prints = stdout;              // where a kernel's printf goes; null: nowhere
};
std::unique_ptr<Device> open_cpu(ExecutorOptions options = {});
ExecutorOptions& executor_options();  // of this process; may be changed between runs

}  // namespace attention
