#include "common/device/cpu/executor.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "common/device/cpu/worker.h"

namespace attention::executor {

namespace {

// ---- the names of tensors ------------------------------------------------------------------------------------------

struct TensorNames {
  std::mutex mutex;
  std::vector<std::string> names;
};
TensorNames& tensor_names() {
  static TensorNames all;
  return all;
}

// ---- the OS threads -------------------------------------------------------------------------------------------------

/// Waits for grids from the first launch to the end of the program. A thread keeps its Worker, and so its fibers'
/// stacks.
class Pool {
 public:
  explicit Pool(int threads) : asked_(threads) {
    try {
      for (int n = 0; n < threads; ++n) threads_.emplace_back([this, n] { serve(n); });
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;  // else those that could be started do the work
    }
  }
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    work_arrived_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int asked() const { return asked_; }

  /// Returns when all blocks have ended or a finding has stopped them.
  void run(GridRun& run) {
    std::unique_lock lock(mutex_);
    run_ = &run;
    helpers_ = static_cast<int>(std::min<int64_t>(static_cast<int64_t>(threads_.size()), run.grid.blocks));
    busy_ = helpers_;
    ++generation_;
    work_arrived_.notify_all();
    work_done_.wait(lock, [this] { return busy_ == 0; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void serve(int number) {
    Worker worker;
    int64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      work_arrived_.wait(lock, [&] { return ending_ || generation_ != seen; });
      if (ending_) return;
      seen = generation_;
      if (number >= helpers_) continue;
      GridRun& run = *run_;
      lock.unlock();
      std::exception_ptr failure;
      try {
        worker.work_on(run);
      } catch (...) {  // no memory for a stack or for SRAM; what a kernel throws is a finding and does not come here
        failure = std::current_exception();
        run.stopped = true;
      }
      lock.lock();
      if (failure) failure_ = failure;
      if (--busy_ == 0) work_done_.notify_one();
    }
  }

  const int asked_;
  std::mutex mutex_;
  std::condition_variable work_arrived_, work_done_;
  GridRun* run_ = nullptr;
  int64_t generation_ = 0;
  int helpers_ = 0, busy_ = 0;
  bool ending_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

std::atomic<int64_t> launches_ended{0}, blocks_to_run{0};

struct Launches {
  std::mutex mutex;  // one grid at a time
  std::unique_ptr<Pool> pool;
  pid_t pool_of = 0;  // the process: a child that was forked has none of its parent's threads, and cannot wait for them
  bool recording = false;
  std::vector<LaunchRecord> records;
  int64_t films = 0;  // blocks of a launch that are filmed
  std::vector<FilmedLaunch> filmed;

  void leave_parents_pool() {
    if (pool_of != getpid()) static_cast<void>(pool.release());
  }
  ~Launches() { leave_parents_pool(); }
};
Launches& launches() {
  static Launches all;
  return all;
}

void refuse_what_a_gpu_would(const Grid& grid) {
  const std::string name = grid.kernel;
  constexpr int64_t most_blocks = (int64_t{1} << 31) - 1;
  if (grid.threads < 1 || grid.threads > kMaxThreads)
    throw DeviceFailure(name + ": " + std::to_string(grid.threads) + " threads per block, a block takes 1 to " +
                        std::to_string(kMaxThreads));
  if (grid.blocks < 1)
    throw DeviceFailure(name + ": a grid of " + std::to_string(grid.blocks) + " blocks, it takes at least 1");
  if (grid.blocks > most_blocks)
    throw Unsupported(name + ": a grid of " + std::to_string(grid.blocks) + " blocks, a launch takes at most " +
                      std::to_string(most_blocks));
  const int64_t limit = sram_limit();
  if (grid.sram_bytes < 0 || grid.sram_bytes > limit)
    throw DeviceFailure(name + ": " + std::to_string(grid.sram_bytes) + " bytes of SRAM asked, a block may have " +
                        std::to_string(limit));
}

/// The tensors that were touched, in alphabetical order.
std::vector<TensorBytes> by_name(const std::vector<Requested>& requested) {
  std::vector<TensorBytes> result;
  for (size_t id = 0; id < requested.size(); ++id)
    if (requested[id].load || requested[id].store)
      result.push_back({tensor_name(static_cast<int>(id)), requested[id].load, requested[id].store});
  std::sort(
      result.begin(), result.end(), [](const TensorBytes& a, const TensorBytes& b) { return a.tensor < b.tensor; });
  return result;
}

}  // namespace

int tensor_id(const char* name) {
  TensorNames& all = tensor_names();
  const std::lock_guard lock(all.mutex);
  const auto known = std::find(all.names.begin(), all.names.end(), name);
  if (known != all.names.end()) return static_cast<int>(known - all.names.begin());
  if (all.names.size() == kMaxTensors)
    throw std::length_error("more than " + std::to_string(kMaxTensors) + " names of tensors");
  all.names.push_back(name);
  return static_cast<int>(all.names.size()) - 1;
}

std::string tensor_name(int id) {
  TensorNames& all = tensor_names();
  const std::lock_guard lock(all.mutex);
  return all.names[static_cast<size_t>(id)];
}

void report_hbm_access(const HbmAccess& it, SourceLine place) {
  const std::string name = tensor_name(it.tensor), row = std::to_string(it.row), col = std::to_string(it.col);
  if (it.kind == HbmAccess::Kind::head)
    report(
        place, "head " + row + " of " + name + ", which has " + std::to_string(it.rows), __builtin_return_address(0));
  constexpr const char* kNames[] = {"head", "load", "store", "add", "copy"};
  std::string what = std::string(kNames[static_cast<size_t>(it.kind)]) + (it.elements == 4 ? "4" : "") + " of " + name +
                     " at row " + row + ", column " + col;
  const bool inside = it.row >= 0 && it.row < it.rows && it.col >= 0 && it.col + it.elements <= it.cols;
  if (!it.data) what += ": its address is null";
  else if (inside) what += ": not a multiple of 16 bytes, which an access to four elements needs";
  else what += ": outside of its head's " + std::to_string(it.rows) + " x " + std::to_string(it.cols);
  report(place, what, __builtin_return_address(0));
}

// ---- what the host calls --------------------------------------------------------------------------------------------

std::string Finding::text() const {
  return kernel + ": block " + std::to_string(block) + ", thread " + std::to_string(thread) + ", " + place + ": " +
         what;
}

KernelFindings::KernelFindings(std::vector<Finding> found)
    : CheckFailed(found.at(0).text() +
                  (found.size() > 1 ? " (blocks with findings: " + std::to_string(found.size()) + ")" : "")),
      findings(std::move(found)) {
  for (size_t n = 1; n < findings.size(); ++n) also.push_back(findings[n].text());
}

int64_t sram_limit() {
  constexpr int64_t kLimit = 227 * 1024;
  return lowered_sram_limit(kLimit);
}

int os_threads() {
  const int asked = executor_options().os_threads;
  return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void run_grid(const Grid& grid) {
  refuse_what_a_gpu_would(grid);
  if (Worker::running()) throw DeviceFailure(std::string(grid.kernel) + ": launched from inside a kernel");
  Launches& all = launches();
  const std::lock_guard lock(all.mutex);
  const auto start = std::chrono::steady_clock::now();
  all.leave_parents_pool();
  if (!all.pool || all.pool->asked() != os_threads()) {
    all.pool.reset();
    all.pool = std::make_unique<Pool>(os_threads());
    all.pool_of = getpid();
  }

  blocks_ended = 0;
  blocks_to_run = grid.blocks;
  GridRun run;
  run.grid = grid;
  run.options = executor_options();
  run.requested.resize(kMaxTensors);
  run.films = all.films;
  try {
    all.pool->run(run);
  } catch (const std::bad_alloc&) {
    throw DeviceFailure(std::string(grid.kernel) + ": out of memory for the blocks' SRAM and the threads' stacks");
  }

  blocks_to_run = 0;
  ++launches_ended;
  if (!run.findings.empty()) {
    std::sort(
        run.findings.begin(), run.findings.end(), [](const Finding& a, const Finding& b) { return a.block < b.block; });
    throw KernelFindings(std::move(run.findings));
  }
  if (all.films > 0) {
    std::sort(run.filmed.begin(), run.filmed.end(),
              [](const FilmedBlock& a, const FilmedBlock& b) { return a.block < b.block; });
    all.filmed.push_back(
        {grid.kernel, grid.blocks, grid.sram_bytes, grid.threads, by_name(run.requested), std::move(run.filmed)});
  }
  if (!all.recording) return;
  LaunchRecord record;
  record.kernel = grid.kernel;
  record.time_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  record.counted = by_name(run.requested);
  record.counted_flops = run.flops;
  record.printed = run.printed;
  all.records.push_back(std::move(record));
}

double launches_done() {
  const int64_t blocks = blocks_to_run;
  return static_cast<double>(launches_ended) +
         (blocks > 0 ? std::min(1.0, static_cast<double>(blocks_ended) / static_cast<double>(blocks)) : 0);
}

void start_recording() {
  Launches& all = launches();
  const std::lock_guard lock(all.mutex);
  all.recording = true;
  all.records.clear();
  launches_ended = 0;
}

std::vector<LaunchRecord> stop_recording() {
  Launches& all = launches();
  const std::lock_guard lock(all.mutex);
  all.recording = false;
  return std::exchange(all.records, {});
}

void start_film(int64_t most) {
  Launches& all = launches();
  const std::lock_guard lock(all.mutex);
  all.films = std::max<int64_t>(2, most);
  all.filmed.clear();
}

std::vector<FilmedLaunch> stop_film() {
  Launches& all = launches();
  const std::lock_guard lock(all.mutex);
  all.films = 0;
  return std::exchange(all.filmed, {});
}

}  // namespace attention::executor
