// What a block has of Hopper's units on the CPU executor: barriers with phases, copies on their way, running products,
// registers.
//
// A copy or a product becomes visible at the latest moment that the rules allow, or under a shuffled thread order at a
// random one. Until then the place where it goes holds NaN: SRAM, and a product's sums, which a thread keeps in an
// array of its own. Each misuse that would hang, corrupt or pass by luck on a GPU is a finding with the lines of both
// sides.
//
// In race-checked blocks every thread has a vector clock (Lamport 1978; Mattern 1989): how much it knows of each other
// thread's past, of each warp's finished products and of each barrier's ended phases. Arriving at a barrier hands on
// what a thread knows, waiting takes it over. Two accesses of SRAM are in order exactly when the later one's thread
// knows of the earlier one.
//
// What this cannot see: docs/hopper-without-gpu.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/device/cpu/acts.h"
#include "common/device/cpu/executor.h"
#include "common/device/cpu/random.h"

namespace attention::executor {

class Worker;

class HopperBlock {
 public:
  explicit HopperBlock(Worker& worker) : worker_(worker) {}

  /// Forgets all: at the start of a block. Seed 0: everything as late as possible.
  void start_block(uint64_t seed);
  bool used() const { return used_; }

  // What running threads ask for; see executor.h.
  void make_barrier(void* state, int arrivals, Site site);
  void arrive(void* state, int64_t bytes, Site site);
  void wait(const void* state, int parity, Site site);
  void fence(Site site);
  void named_barrier(int number, int threads, bool waits, Site site);
  void start_copy(void* to, const BulkCopy& from, void* barrier, Site site);
  void start_copy_back(const void* from, const BulkCopy& to, Site site);
  void commit_copies_back();
  void wait_copies_back(Site site);
  void fence_products();
  void start_product(float* sums, const WarpgroupOperands& operands, Site site);
  void commit_products();
  void wait_products(int pending, Site site);
  void use_registers(const void* first, const void* end, Site site);
  void set_registers(int count, bool takes, Site site);

  // What the worker tells.
  void block_barrier_passed();
  void warp_barrier_passed(int warp);
  void thread_ends(int thread);
  /// A copy arrives; false when none is on its way. Called when no thread can run, and now and then under a shuffled
  /// order.
  bool deliver();
  bool delivers_now() { return !copies_.empty() && seed_ != 0 && random_.below(8) == 0; }

  /// The current thread's clock, null when clocks do not run (no unit of Hopper's was used, or the block is not
  /// race-checked).
  const uint32_t* clock() const;
  /// An ordinary access of the current thread to SRAM.
  void check_access(int64_t first, int64_t end, bool write, Site site);

  /// What the thread waits for; "" when it waits for none of these units.
  std::string waits_for(int thread) const;

 private:
  using Clock = std::vector<uint32_t>;
  void tell(const Act& act) {
    if (block_view.filmed) [[unlikely]]
      tell_film(act);
  }
  void tell_film(const Act& act);  // of the current thread

  struct Barrier {
    void* state;
    int expected, missing;  // arrivals
    int64_t bytes = 0;      // announced and not yet brought
    uint32_t phase = 0;     // so many have ended
    Site made;
    int maker;
    uint32_t made_at;
    Clock gathered, released;
    std::vector<uint16_t> waiting;
  };
  struct NamedBarrier {
    int threads = 0, arrived = 0, round = 0;
    Site first;
    int first_thread = 0;
    Clock gathered;
    std::vector<uint16_t> waiting;
    std::vector<bool> here;
  };
  /// A copy from HBM that has not arrived.
  struct Copy {
    BulkCopy from;
    int64_t to;
    int barrier;
    uint32_t phase;
    int thread;
    Site site;
  };
  struct CopyBack {
    BulkCopy to;
    int64_t from;
    bool committed = false, done = false;
    Site site;
  };
  /// SRAM that the copy engine has written, or is writing.
  struct Written {
    int64_t first, end;
    int barrier;
    uint32_t phase;
    int thread;
    Site site;
  };
  /// SRAM that a warp's product reads, or that the copy engine reads for a thread.
  struct Read {
    int64_t first, end;
    bool product;
    int reader;  // warp, thread
    uint32_t
        completed;  // product: the warp must have waited for so many groups. Copy back: the thread's time when it had waited; 0: it has not
    Site site;
  };
  /// A product's sums, in the registers of a warp's lanes.
  struct Sums {
    float* lane[kWarp];
    int columns;
    uint32_t last_group;
    bool used = false;
    Site site;
    alignas(64) float value[256][16];  // by column and row
  };
  struct Product {
    WarpgroupOperands operands;
    const uint32_t* a_registers[kWarp];
    uint32_t a_values[kWarp][4];
    Sums* sums;
    uint32_t group;
    Site site;
    int lanes;
    bool done;
  };
  struct Range {
    int64_t first, end;
  };
  struct Warp {
    std::vector<Product> products;
    uint64_t first_product = 0;  // how many came before products[0]
    uint64_t started[kWarp];     // by lane
    uint32_t committed[kWarp];   // groups
    bool fenced[kWarp];
    std::vector<std::unique_ptr<Sums>> sums;
    int registers = 0, wanted = 0;  // of each thread; wanted: it waits for that many
  };
  struct Thread {
    int barrier = -1, parity = 0, named = -1;  // that it waits for
    bool registers = false;
    std::vector<CopyBack> copies_back;
    std::vector<uint32_t> fences;  // the times of its fences, in order
  };

  void use();  // some unit: from the first time on clocks run
  int me() const;
  [[noreturn]] void give_up(Site site, const std::string& what);
  uint32_t* clock_of(int thread) { return &clocks_[static_cast<size_t>(thread) * pitch_]; }
  const uint32_t* clock_of(int thread) const { return &clocks_[static_cast<size_t>(thread) * pitch_]; }
  uint32_t& time_of(int thread) { return clock_of(thread)[thread]; }
  static void join(uint32_t* into, const uint32_t* from, size_t count);
  void hand_on(Clock& into, int thread);
  void take_over(int thread, const Clock& from);
  void acquire(int thread, int barrier);

  int find_barrier(const void* state, Site site);
  std::string describe(const Barrier& barrier) const;
  void end_phase_if_complete(int barrier);
  void wake(std::vector<uint16_t>& threads);
  int64_t offset_in_sram(const void* address, int64_t bytes, const char* what, Site site);

  void move(const BulkCopy& copy, unsigned char* sram, bool to_sram);
  void run_copies_back(Thread& thread);

  int ranges_of(uint64_t descriptor, bool across, int length, Range (&ranges)[4]) const;
  void check_product_reads(const Range& range, Site site, bool first_lane, bool last_lane, uint32_t group);
  void check_written(int64_t first, int64_t end, const std::string& what, Site site);
  void check_not_read(int64_t first, int64_t end, const std::string& what, Site site);
  void check_ordinary(int64_t first, int64_t end, bool engine_writes, const std::string& what, Site site);
  void run_product(Product& product, int warp);
  void run_products(Warp& warp, int number, uint32_t groups);
  static void finish_products(void* const* lanes);
  static void change_registers(void* const* lanes);
  void grant_registers();

  Worker& worker_;
  uint64_t seed_ = 0;
  Random random_{0};
  bool used_ = false, clocks_run_ = false;
  int threads_count_ = 0, warps_count_ = 0;
  size_t pitch_ = 0;  // of clocks_: threads, then warps' groups of products, then barriers' phases
  Clock clocks_;
  std::vector<Barrier> barriers_;
  NamedBarrier named_[16];
  std::vector<Copy> copies_;
  std::vector<Written> written_;
  std::vector<Read> read_;
  std::vector<uint8_t> touched_;  // by 128 bytes of SRAM: whether threads have stored or loaded there
  std::vector<Warp> warps_;
  std::vector<Thread> threads_;
  int free_registers_ = 0;
};

}  // namespace attention::executor
