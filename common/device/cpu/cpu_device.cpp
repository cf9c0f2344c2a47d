// The Device that the harness sees when kernels run on the CPU executor.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "common/base/memory.h"
#include "common/device/cpu/executor.h"
#include "common/device/device_api.h"

namespace attention {
namespace {

class CpuDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override {
    const int threads = executor::os_threads();
    return "CPU executor (" + std::to_string(threads) + (threads == 1 ? " thread)" : " threads)");
  }
  int64_t free_bytes() const override { return available_memory(); }
  int64_t sram_limit() const override { return executor::sram_limit(); }
  int64_t l2_bytes() const override { return 0; }
  int multiprocessors() const override { return 132; }  // of a Hopper GPU, whose SRAM the executor's blocks have too
  int compute_capability() const override { return 0; }

  void* allocate(int64_t bytes) override {
    const int64_t free = available_memory();
    void* address = nullptr;
    const int64_t rounded = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes <= free) address = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
    if (!address)
      throw DeviceFailure(
          "out of memory: " + std::to_string(bytes) + " bytes needed, " + std::to_string(free) + " free");
    return address;
  }
  void release(void* address) override { std::free(address); }
  void copy_in(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void copy_out(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void fill_nan(void* device, int64_t bytes) override { std::memset(device, 0xff, static_cast<size_t>(bytes)); }

  // A launch returns when its grid has ended, each block starts with poisoned SRAM, and no cache is modelled.
  void poison_sram() override {}
  void flush_l2() override {}
  void synchronize() override {}

  double time_ms(const std::function<void()>& work) override {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

  std::vector<LaunchRecord> record(const std::function<void()>& work) override {
    executor::start_recording();
    try {
      work();
    } catch (...) {
      executor::stop_recording();
      throw;
    }
    return executor::stop_recording();
  }

  double launches_done() const override { return executor::launches_done(); }

 private:
  static constexpr int64_t kAlignment = 256;
};

}  // namespace

std::unique_ptr<Device> open_cpu(ExecutorOptions options) {
  executor_options() = options;
  executor::sram_limit();  // a bad ATTN_SMEM_LIMIT is found here rather than at the first launch
  return std::make_unique<CpuDevice>();
}

}  // namespace attention
