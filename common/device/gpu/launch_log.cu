#include "common/device/gpu/launch_log.h"

#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/device/gpu/cuda_check.h"

namespace attention::on_gpu {

namespace {
/// The dynamic SRAM that each kernel has been allowed so far: the opt-in is asked for once, not at every launch.
std::unordered_map<const void*, int64_t>& allowed_sram() {
  static std::unordered_map<const void*, int64_t> bytes;
  return bytes;
}
constexpr int64_t kSramWithoutOptIn = 48 * 1024;  // CUDA C++ Programming Guide, "Shared Memory": more must be asked for

/// What the runtime knows of a launch before it happens.
LaunchRecord describe(const char* name, const void* kernel, int block, int64_t sram_bytes) {
  cudaFuncAttributes attributes{};
  cuda_check(cudaFuncGetAttributes(&attributes, kernel), name);
  int blocks = 0;
  cuda_check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block, static_cast<size_t>(sram_bytes)), name);
  LaunchRecord record;
  record.local_bytes_per_thread = static_cast<int64_t>(attributes.localSizeBytes);
  record.registers_per_thread = attributes.numRegs;
  record.blocks_per_sm = blocks;
  return record;
}
}  // namespace

void LaunchLog::check_earlier_work(const char* name) const {
  cuda_check(cudaGetLastError(), std::string("work before ") + name + " (last kernel: " + last_kernel_ + ")");
}

void LaunchLog::before(const char* name, const void* kernel, int64_t grid, int block, int64_t sram_bytes) {
  check_earlier_work(name);
  if (grid > std::numeric_limits<int>::max())
    throw Unsupported(
        std::string(name) + " needs a grid of " + std::to_string(grid) + " blocks, a GPU takes 2147483647");
  int64_t& allowed = allowed_sram()[kernel];
  if (sram_bytes > kSramWithoutOptIn && sram_bytes > allowed) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sram_bytes)),
               std::string(name) + " asking for " + std::to_string(sram_bytes) + " bytes of SRAM");
    allowed = sram_bytes;
  }
  before_call(name, recording_ ? describe(name, kernel, block, sram_bytes) : LaunchRecord{});
}

void LaunchLog::before_call(const char* name, LaunchRecord about) {
  check_earlier_work(name);
  if (before_launch_) before_launch_();
  last_kernel_ = name;
  if (!recording_) return;
  Timed timed{.record = std::move(about)};
  timed.record.kernel = name;
  cuda_check(cudaEventCreate(&timed.begin), name);
  cuda_check(cudaEventCreate(&timed.end), name);
  cuda_check(cudaEventRecord(timed.begin), name);
  timed_.push_back(std::move(timed));
}

void LaunchLog::after(const char* name) {
  cuda_check(cudaGetLastError(), std::string("launch of ") + name);
  if (recording_) cuda_check(cudaEventRecord(timed_.back().end), name);
  if (after_launch_) after_launch_();
}

void LaunchLog::watch(std::function<void()> before, std::function<void()> after) {
  before_launch_ = std::move(before);
  after_launch_ = std::move(after);
}

void LaunchLog::start_recording() {
  timed_.clear();
  recording_ = true;
}

std::vector<LaunchRecord> LaunchLog::stop_recording() {
  recording_ = false;
  cuda_check(cudaDeviceSynchronize(), last_kernel_);
  std::vector<LaunchRecord> records;
  for (Timed& timed : timed_) {
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, timed.begin, timed.end), timed.record.kernel);
    cuda_check(cudaEventDestroy(timed.begin), timed.record.kernel);
    cuda_check(cudaEventDestroy(timed.end), timed.record.kernel);
    timed.record.time_ms = ms;
    records.push_back(std::move(timed.record));
  }
  timed_.clear();
  return records;
}

LaunchLog& launch_log() {
  static LaunchLog log;
  return log;
}

}  // namespace attention::on_gpu
