// The Device of the harness on a CUDA GPU (the first that the driver shows; CUDA_VISIBLE_DEVICES chooses another).
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/device/device_api.h"
#include "common/device/gpu/cuda_check.h"
#include "common/device/gpu/launch_log.h"
#include "common/traffic/measure.h"

namespace attention {

namespace {

/// Fills the block's dynamic SRAM with NaN (every byte 0xff).
__global__ void poison_sram_kernel(int words) {
  extern __shared__ unsigned sram_words[];
  volatile unsigned* words_of_sram = sram_words;  // volatile: nobody reads them, and they must be written all the same
  for (int n = threadIdx.x; n < words; n += blockDim.x) words_of_sram[n] = 0xffffffffu;
}

/// Reads `count` vectors, so that the L2 holds them and nothing of the step's. Reads leave clean lines; a fill would
/// leave dirty ones, whose write-back would fall into the timed run.
__global__ void read_through_l2_kernel(const uint4* data, int64_t count, unsigned* never_written) {
  unsigned sum = 0;
  for (int64_t n = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; n < count; n += int64_t{gridDim.x} * blockDim.x)
    sum += __ldcg(data + n).x;
  if (sum == 1) *never_written = sum;  // the buffer holds zeros: keeps the loads, never stores
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

class GpuDevice final : public Device, public MeasurableDevice {
 public:
  GpuDevice() {
    cuda_check(cudaSetDevice(0), "cudaSetDevice");
    cuda_check(cudaGetDeviceProperties(&properties_, 0), "cudaGetDeviceProperties");
    sram_limit_ = lowered_sram_limit(static_cast<int64_t>(properties_.sharedMemPerBlockOptin));
    cuda_check(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda_check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~GpuDevice() override {  // errors are not looked at: the results are out, and a destructor must not throw
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaFree(flush_buffer_);
    cudaFree(push_buffer_);
    cudaFree(rings_memory_);
  }

  DeviceKind kind() const override { return DeviceKind::gpu; }
  std::string name() const override { return properties_.name; }
  int64_t sram_limit() const override { return sram_limit_; }
  int64_t l2_bytes() const override { return properties_.l2CacheSize; }
  int multiprocessors() const override { return properties_.multiProcessorCount; }
  int compute_capability() const override { return 10 * properties_.major + properties_.minor; }

  int64_t free_bytes() const override {
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
  }

  void* allocate(int64_t bytes) override {
    void* address = nullptr;
    const cudaError_t result = cudaMalloc(&address, static_cast<size_t>(bytes));
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw DeviceFailure("out of GPU memory: " + std::to_string(bytes) + " bytes needed, " +
                          std::to_string(free_bytes()) + " are free");
    }
    cuda_check(result, "cudaMalloc of " + std::to_string(bytes) + " bytes");
    return address;
  }
  void release(void* address) override { cuda_check(cudaFree(address), blame("cudaFree")); }
  void copy_in(void* device, const void* host, int64_t bytes) override {
    cuda_check(cudaMemcpy(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), blame("copy to the GPU"));
  }
  void copy_out(void* host, const void* device, int64_t bytes) override {
    cuda_check(
        cudaMemcpy(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost), blame("copy from the GPU"));
  }
  void fill_nan(void* device, int64_t bytes) override {
    cuda_check(cudaMemset(device, 0xff, static_cast<size_t>(bytes)), blame("fill with NaN"));
  }

  void poison_sram() override {
    // A block that asks for all of an SM's SRAM has the SM to itself, so as many blocks as SMs reach each of them.
    const int bytes = static_cast<int>(properties_.sharedMemPerBlockOptin);
    cuda_check(cudaFuncSetAttribute(poison_sram_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "poison_sram_kernel");
    poison_sram_kernel<<<properties_.multiProcessorCount, 256, bytes>>>(bytes / 4);
    cuda_check(cudaGetLastError(), "launch of poison_sram_kernel");
  }

  void flush_l2() override {
    if (flush_buffer_ == nullptr) prepare_flush();
    for (int n = 0; n < flush_passes_; ++n) enqueue_read(flush_buffer_);
  }

  void synchronize() override { cuda_check(cudaDeviceSynchronize(), blame("cudaDeviceSynchronize")); }

  double time_ms(const std::function<void()>& work) override {
    cuda_check(cudaEventRecord(begin_), "cudaEventRecord");
    work();
    cuda_check(cudaEventRecord(end_), "cudaEventRecord");
    cuda_check(cudaEventSynchronize(end_), blame("cudaEventSynchronize"));
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return ms;
  }

  std::vector<LaunchRecord> record(const std::function<void()>& work) override {
    on_gpu::launch_log().start_recording();
    try {
      work();
    } catch (...) {
      on_gpu::launch_log().stop_recording();
      throw;
    }
    return on_gpu::launch_log().stop_recording();
  }

  void start_timestamps() override {
    Rings& rings = on_gpu::launch_log().rings;
    const int64_t unread = int64_t{properties_.multiProcessorCount} * Rings::kWarpsOfSm * Rings::kUnreadStamps,
                  ring_bytes = Rings::kStamps * static_cast<int64_t>(sizeof(Timestamp));
    // Rings lie at multiples of their size; the smaller unread ones behind them.
    char* memory = static_cast<char*>(allocate((Rings::kRings + 2) * ring_bytes + unread * sizeof(Timestamp)));
    rings_memory_ = memory;
    rings.taken = reinterpret_cast<uint32_t*>(memory);
    rings.heads = reinterpret_cast<Rings::Head*>(memory + 256);
    memory += ring_bytes - static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) % ring_bytes);
    if (memory < reinterpret_cast<char*>(rings.heads + Rings::kRings)) memory += ring_bytes;
    rings.rings = reinterpret_cast<Timestamp*>(memory);
    rings.unread = rings.rings + Rings::kRings * Rings::kStamps;
    clear_rings();
  }

  std::vector<NotedLaunch> take_timestamps(const std::function<void()>& work) override {
    std::vector<NotedLaunch> launches;
    flush_l2();
    around_launches(work, [&] { clear_rings(); }, [&] { launches.push_back(read_rings()); });
    on_gpu::launch_log().rings = {};
    release(std::exchange(rings_memory_, nullptr));
    return launches;
  }

  MeasurableDevice* measurable() override { return this; }

  /// The memory's clock and width as the driver states them; two transfers per clock.
  std::optional<double> hbm_peak() const override {
    int clock_khz = 0, width_bits = 0;
    cuda_check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, 0), "cudaDeviceGetAttribute");
    cuda_check(cudaDeviceGetAttribute(&width_bits, cudaDevAttrGlobalMemoryBusWidth, 0), "cudaDeviceGetAttribute");
    if (clock_khz <= 0 || width_bits <= 0) return std::nullopt;
    return 2.0 * clock_khz * 1e3 * width_bits / 8;
  }

  void prepare_to_measure() override {
    if (push_buffer_ != nullptr) return;
    if (free_bytes() < pushed_bytes() + (int64_t{64} << 20))  // some room for the profiler's own
      throw CountersUnavailable(
          "out of GPU memory: " + std::to_string(pushed_bytes()) + " bytes needed to drive writes out of the L2, " +
              std::to_string(free_bytes()) + " are free",
          "choose a smaller --seqlen, --heads or --batch");
    push_buffer_ = allocate(pushed_bytes());
    cuda_check(
        cudaMemset(push_buffer_, 0, static_cast<size_t>(pushed_bytes())), "fill of the buffer that drives out the L2");
  }
  void push_out_l2() override { enqueue_read(push_buffer_); }
  int64_t pushed_bytes() const override { return through_l2_bytes(); }

  void around_launches(const std::function<void()>& work, const std::function<void()>& before,
                       const std::function<void()>& after) override {
    on_gpu::launch_log().watch(before, after);
    try {
      work();
    } catch (...) {
      on_gpu::launch_log().watch({}, {});
      throw;
    }
    on_gpu::launch_log().watch({}, {});
  }

 private:
  /// An error of a kernel shows at the next call that waits for it: the line names both.
  static std::string blame(const char* call) {
    return std::string(call) + ", last kernel " + on_gpu::launch_log().last_kernel();
  }

  void clear_rings() {
    const Rings& rings = on_gpu::launch_log().rings;
    cuda_check(cudaMemset(rings.taken, 0, sizeof *rings.taken), blame("clearing timestamps"));
    cuda_check(cudaMemset(rings.rings, 0, sizeof(Timestamp) * Rings::kRings * Rings::kStamps), "clearing timestamps");
  }
  NotedLaunch read_rings() {
    const Rings& rings = on_gpu::launch_log().rings;
    synchronize();
    uint32_t taken = 0;
    copy_out(&taken, rings.taken, sizeof taken);
    std::vector<Rings::Head> heads(std::min<size_t>(taken, Rings::kRings));
    std::vector<Timestamp> stamps(heads.size() * Rings::kStamps);
    if (taken > 0) {
      copy_out(heads.data(), rings.heads, static_cast<int64_t>(heads.size() * sizeof heads[0]));
      copy_out(stamps.data(), rings.rings, static_cast<int64_t>(stamps.size() * sizeof stamps[0]));
    }
    NotedLaunch launch{on_gpu::launch_log().last_kernel(), {}, {}};
    for (size_t n = 0; n < heads.size(); ++n)
      launch.warps.push_back({heads[n].block, static_cast<int>(heads[n].warp), static_cast<int64_t>(heads[n].begun),
                              in_order(&stamps[n * Rings::kStamps], Rings::kStamps)});
    return launch;
  }

  /// Four times the L2, so that no replacement policy keeps the step's lines.
  int64_t through_l2_bytes() const { return std::max<int64_t>(4 * l2_bytes(), int64_t{64} << 20); }

  void enqueue_read(void* buffer) {
    const int64_t vectors = through_l2_bytes() / static_cast<int64_t>(sizeof(uint4));
    read_through_l2_kernel<<<properties_.multiProcessorCount * 8, 256>>>(
        static_cast<const uint4*>(buffer), vectors, static_cast<unsigned*>(buffer));
    cuda_check(cudaGetLastError(), "launch of read_through_l2_kernel");
  }

  /// As many passes as keep the GPU busy for 0.3 ms, in which the host enqueues the step's launches (about 5 us each).
  void prepare_flush() {
    flush_buffer_ = allocate(through_l2_bytes());
    cuda_check(cudaMemset(flush_buffer_, 0, static_cast<size_t>(through_l2_bytes())), "fill of the L2 flush buffer");
    enqueue_read(flush_buffer_);
    const double pass_ms = time_ms([this] { enqueue_read(flush_buffer_); });
    flush_passes_ = std::clamp(static_cast<int>(0.3 / std::max(pass_ms, 1e-3)) + 1, 1, 50);
  }

  cudaDeviceProp properties_{};
  int64_t sram_limit_ = 0;
  cudaEvent_t begin_{}, end_{};
  void* flush_buffer_ = nullptr;
  void* rings_memory_ = nullptr;
  void* push_buffer_ = nullptr;  // another one, so that none of it is in the L2 after a flush
  int flush_passes_ = 1;
};

}  // namespace

GpuPresence find_gpu() {
  GpuPresence presence;
  presence.compiled_in = true;
  int driver = 0, runtime = 0;
  cuda_check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (driver > 0) presence.driver_cuda = version_text(driver);
  const cudaError_t result = cudaGetDeviceCount(&presence.count);
  cudaGetLastError();
  if (result == cudaErrorNoDevice ||
      (result == cudaErrorInsufficientDriver && driver == 0)) {  // no GPU; no driver at all
    presence.count = 0;
    if (driver == 0 && access("/dev/nvidia0", F_OK) == 0) {
      presence.count = 1;
      presence.trouble = "a GPU is present (/dev/nvidia0), but its driver library libcuda.so.1 is not found";
    }
    return presence;
  }
  if (result == cudaErrorInsufficientDriver) {
    presence.count = 1;
    presence.trouble =
        "the GPU's driver supports CUDA " + version_text(driver) + ", this program was built with CUDA " +
        version_text(runtime) + ": update the driver or build with an older toolkit";
    return presence;
  }
  if (result != cudaSuccess) {
    presence.count = 1;
    presence.trouble = std::string("the GPU cannot be used: CUDA error ") + cudaGetErrorName(result) + " (" +
                       cudaGetErrorString(result) + ")";
    return presence;
  }
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess)
    presence.compute_capability = 10 * major + minor;
  // A kernel of this program that has no code for this GPU shows here, before any work.
  cudaFuncAttributes attributes{};
  const cudaError_t image = cudaFuncGetAttributes(&attributes, poison_sram_kernel);
  cudaGetLastError();
  if (image == cudaSuccess) return presence;
  cudaDeviceProp properties{};
  const bool known = cudaGetDeviceProperties(&properties, 0) == cudaSuccess;
  const std::string arch = known ? std::to_string(properties.major) + std::to_string(properties.minor) : "native";
  if (image == cudaErrorNoKernelImageForDevice || image == cudaErrorInvalidDeviceFunction)
    presence.trouble = "this program has no code for the GPU (" + std::string(known ? properties.name : "unknown") +
                       ", sm_" + arch + "): configure again with -DCMAKE_CUDA_ARCHITECTURES=" + arch;
  else
    presence.trouble = std::string("the GPU cannot be used: CUDA error ") + cudaGetErrorName(image) + " (" +
                       cudaGetErrorString(image) + ")";
  return presence;
}

std::unique_ptr<Device> open_gpu() {
  const GpuPresence presence = find_gpu();
  if (presence.count == 0)
    throw Unsupported("--device gpu: no GPU found; --device cpu runs the same kernels on the CPU executor");
  if (!presence.trouble.empty()) throw DeviceFailure(presence.trouble);
  return std::make_unique<GpuDevice>();
}

}  // namespace attention
