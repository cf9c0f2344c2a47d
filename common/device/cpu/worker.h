// One OS thread of the executor: it runs the blocks it is given, one after another, each as a set of fibers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "common/device/cpu/executor.h"
#include "common/device/cpu/fiber.h"
#include "common/device/cpu/film.h"
#include "common/device/cpu/hopper_block.h"
#include "common/device/cpu/race_check.h"

namespace attention::executor {

/// "file.cu:12", without folders.
std::string to_string(SourceLine place);

/// The lines of the call that returns to `caller`, innermost first; `place` alone where they are not known.
std::string where(SourceLine place, const void* caller);

inline std::atomic<int64_t> blocks_ended{0};  // of the grid that runs

/// A grid on its way: what the OS threads share.
struct GridRun {
  Grid grid;
  ExecutorOptions options;
  std::atomic<int64_t> next{0};      // blocks handed out so far
  std::atomic<bool> stopped{false};  // a finding: no new block starts
  std::mutex mutex;                  // guards the rest
  std::vector<Finding> findings;
  std::vector<Requested> requested;  // by tensor_id
  int64_t flops = 0;
  int64_t films = 0;  // how many blocks are filmed: 0, or two at least
  std::vector<FilmedBlock> filmed;
  std::atomic<bool> printed{false};

  /// Which block the n-th one to start is.
  int64_t block_at(int64_t n) const;
  bool race_checked(int64_t block) const;
  bool is_filmed(int64_t block) const;
};

class Worker {
 public:
  /// Runs blocks of `run` until none is left, then adds this OS thread's counts to it.
  void work_on(GridRun& run);

  // The running kernel thread's requests; see executor.h.
  void wait_for_block(SourceLine place);
  void wait_for_warp(WarpOperation operation, void* deposit, SourceLine place);
  void start_copy(void* to, const void* from, SourceLine place, const void* caller);
  void commit_copies() { ++copies_[current_].open_group; }
  void wait_copies(int pending, SourceLine place, const void* caller);
  int print(const char* format, std::va_list values);
  void watch_sram(const void* address, int bytes, bool write, SourceLine place, const void* caller);
  BlockFilm& film() { return film_; }
  int current() const { return current_; }
  [[noreturn]] void give_up_block(SourceLine place, const std::string& what) {
    give_up_block(current_, to_string(place), what);
  }
  [[noreturn]] void give_up_block(SourceLine place, const void* caller, const std::string& what) {
    give_up_block(current_, where(place, caller), what);
  }

  /// Of this OS thread, null when it runs no kernel.
  static Worker* running();

  HopperBlock hopper{*this};

 private:
  friend class HopperBlock;
  enum class State : uint8_t { ready, waits_for_block, waits_for_warp, waits_for_unit, finished };
  struct KernelThread {
    Fiber* fiber = nullptr;  // null until it first runs
    State state = State::ready;
    SourceLine place;  // of the barrier that it waits at, or passed last
  };
  /// A barrier that is filling up: how many came, and where the first of them stands.
  struct Gathering {
    int arrived = 0;
    SourceLine place;
    int first_thread = 0;
  };
  struct Warp {
    Gathering gathering;
    WarpOperation operation = nullptr;  // null: __syncwarp
    void* deposits[kWarp];
    uint16_t order[kWarp];  // its threads in the order in which the block runs them
    int lanes = 0;
    uint32_t epoch = 0;  // __syncwarps since the last __syncthreads
  };
  /// An asynchronous copy that its thread has not waited for, and a thread's copies, the oldest first.
  struct Copy {
    void* to;
    const void* from;  // null: zeros
    int group;
    SourceLine place;
  };
  struct Copies {
    std::vector<Copy> on_their_way;
    int open_group = 0;  // the one that the next commit closes
  };
  struct FiberWithStack {
    explicit FiberWithStack(unsigned colour) : stack(colour) {}
    Fiber fiber;
    FiberStack stack;
  };

  void prepare(const GridRun& run);
  void run_block(int64_t block);
  void run_threads(Fiber& self);  // what each fiber does for ever
  void run_current();             // the current kernel thread, from its first line to its last
  static void fiber_main(Fiber& self) { running()->run_threads(self); }

  void order_threads(int64_t block);
  void release(const uint16_t* threads, int count);  // they are ready, to run in this order
  int take_next();                                   // the next ready thread
  void wait_for_unit(SourceLine place);              // until something of Hopper's releases the current thread
  Fiber& idle_fiber();
  void hand_over();  // the current thread waits, or lets those before it in the order go first
  bool arrive(Gathering& gathering, int expected, State waiting, SourceLine place);  // true for the last to arrive

  [[noreturn]] void give_up_block(int thread, const std::string& place, const std::string& what);
  [[noreturn]] void report_stuck();  // no thread can run, yet not all have finished
  std::string who_waits_for_what() const;
  [[noreturn]] void report_race(const ShadowSram::Race& race, bool write, SourceLine place, const void* caller);
  std::string what_it_does(int thread) const;
  std::string describe_byte(int64_t byte) const;  // "k, row 3 (SRAM byte 35776)"
  int site_of(const void* caller, SourceLine place);
  Access access_now(SourceLine place, const void* caller);

  GridRun* run_ = nullptr;
  int64_t block_ = 0;
  int threads_count_ = 0;
  int current_ = 0;
  int unfinished_ = 0;
  Fiber os_thread_;
  std::unique_ptr<KernelThread[]> threads_ = std::make_unique<KernelThread[]>(kMaxThreads);
  std::unique_ptr<Copies[]> copies_ = std::make_unique<Copies[]>(kMaxThreads);
  Warp warps_[kMaxThreads / kWarp];
  Gathering block_gathering_;

  // A stack of threads that can run. Those that a barrier releases go on top, so that a warp runs on while its data is
  // in the cache, and far ahead of the others: which also brings out missing barriers.
  uint16_t ready_[kMaxThreads];
  int ready_count_ = 0;
  uint16_t order_[kMaxThreads];

  std::vector<std::unique_ptr<FiberWithStack>> fibers_;  // kept from block to block and launch to launch
  std::vector<Fiber*> idle_;
  bool out_of_memory_ = false;  // for a stack, in a running kernel

  std::vector<unsigned char> sram_memory_;
  bool race_checked_ = false;
  BlockFilm film_;
  ShadowSram shadow_;
  uint32_t block_epoch_ = 1;
  std::vector<Site> sites_;  // a hash table: which line an access in the shadow came from
};

}  // namespace attention::executor
