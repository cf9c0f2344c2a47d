#include "common/device/cpu/worker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <utility>

#include "common/device/cpu/random.h"
#include "common/device/cpu/source_lines.h"

namespace attention::executor {

constinit thread_local Index3 threadIdx;
constinit thread_local Index3 blockIdx;
constinit thread_local Index3 blockDim;
constinit thread_local Index3 gridDim;
constinit thread_local BlockView block_view;

namespace {

constinit thread_local Worker* running_worker = nullptr;

constexpr int kNanByte = 0xff;  // four of them are a NaN in fp32, two in fp16 and bf16

bool same(SourceLine a, SourceLine b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace

std::string to_string(SourceLine place) {
  if (!place.file) return "its start";  // a thread that has met no barrier yet
  const std::string path = place.file;
  return path.substr(path.rfind('/') + 1) + ":" + std::to_string(place.line);
}

std::string where(SourceLine place, const void* caller) {
  const std::string lines = source_lines(caller);
  return lines.empty() ? to_string(place) : lines;
}

// ---- which block, in which order -----------------------------------------------------------------------------------

bool GridRun::race_checked(int64_t block) const {
  if (options.race_check == ExecutorOptions::RaceCheck::ends) return block == 0 || block == grid.blocks - 1;
  return options.race_check == ExecutorOptions::RaceCheck::all;
}

// Evenly spread, the first and the last among them.
bool GridRun::is_filmed(int64_t block) const {
  if (films == 0 || films >= grid.blocks) return films > 0;
  const int64_t nth =
      (block * (films - 1) + grid.blocks - 2) / (grid.blocks - 1);  // the first that lies at `block` or behind it
  return nth * (grid.blocks - 1) / (films - 1) == block;
}

// The last block comes second: when only the ends are race-checked they take longest, and so overlap. The others follow
// in order, or spread by a step that has no common divisor with their number and so visits each of them once.
int64_t GridRun::block_at(int64_t n) const {
  if (n == 0) return 0;
  if (n == 1) return grid.blocks - 1;
  const int64_t between = grid.blocks - 2;
  if (options.thread_order == 0) return n - 1;
  Random random{options.thread_order};
  int64_t step = 1 + static_cast<int64_t>(random.next() % static_cast<uint64_t>(between));
  while (std::gcd(step, between) != 1) ++step;
  return 1 + (n - 2) * step % between;
}

void Worker::order_threads(int64_t block) {
  for (int n = 0; n < threads_count_; ++n) order_[n] = static_cast<uint16_t>(n);
  if (run_->options.thread_order != 0) {
    Random random{run_->options.thread_order + static_cast<uint64_t>(block) * 0x9e3779b97f4a7c15u};
    for (int n = threads_count_ - 1; n > 0; --n) std::swap(order_[n], order_[random.below(n + 1)]);
  }
  int filled[kMaxThreads / kWarp] = {};
  for (int n = 0; n < threads_count_; ++n) {
    const int warp = order_[n] / kWarp;
    warps_[warp].order[filled[warp]++] = order_[n];
  }
}

// ---- running -------------------------------------------------------------------------------------------------------

Worker* Worker::running() { return running_worker; }

void Worker::work_on(GridRun& run) {
  run_ = &run;
  running_worker = this;
  prepare(run);
  for (int64_t n; !run.stopped && (n = run.next++) < run.grid.blocks; ++blocks_ended) run_block(run.block_at(n));
  running_worker = nullptr;

  const std::lock_guard lock(run.mutex);
  run.flops += block_view.flops;
  for (size_t tensor = 0; tensor < run.requested.size(); ++tensor) {
    run.requested[tensor].load += block_view.requested[tensor].load;
    run.requested[tensor].store += block_view.requested[tensor].store;
  }
}

void Worker::prepare(const GridRun& run) {
  constexpr size_t alignment = 1024;  // a swizzled tile's
  threads_count_ = run.grid.threads;
  const size_t bytes = static_cast<size_t>(run.grid.sram_bytes);
  if (sram_memory_.size() < bytes + alignment) sram_memory_.resize(bytes + alignment);
  block_view = {};
  block_view.sram = sram_memory_.data() + (alignment - reinterpret_cast<uintptr_t>(sram_memory_.data()) % alignment);
  block_view.sram_bytes = bytes;
  blockDim = {static_cast<unsigned>(run.grid.threads), 1, 1};
  gridDim = {static_cast<unsigned>(run.grid.blocks), 1, 1};
}

void Worker::run_block(int64_t block) {
  block_ = block;
  blockIdx = {static_cast<unsigned>(block), 0, 0};
  std::memset(block_view.sram, kNanByte, block_view.sram_bytes);
  race_checked_ = run_->race_checked(block);
  block_view.filmed = run_->is_filmed(block);
  block_view.unwatched_bytes = race_checked_ || block_view.filmed ? 0 : block_view.sram_bytes;
  if (block_view.filmed) film_.start(block, threads_count_);
  block_epoch_ = 1;
  if (race_checked_) shadow_.reset(run_->grid.sram_bytes);

  order_threads(block);
  hopper.start_block(run_->options.thread_order == 0
                         ? 0
                         : run_->options.thread_order + static_cast<uint64_t>(block) * 0x9e3779b97f4a7c15u);
  for (int n = 0; n < threads_count_; ++n) threads_[n] = {}, copies_[n].on_their_way.clear(), copies_[n].open_group = 0;
  for (int warp = 0; warp * kWarp < threads_count_; ++warp) {
    warps_[warp].gathering = {};
    warps_[warp].lanes = std::min(kWarp, threads_count_ - warp * kWarp);
    warps_[warp].epoch = 0;
  }
  block_gathering_ = {};
  unfinished_ = threads_count_;
  ready_count_ = 0;
  release(order_, threads_count_);

  current_ = take_next();
  os_thread_.switch_to(idle_fiber());
  if (block_view.filmed) {
    const std::lock_guard lock(run_->mutex);
    run_->filmed.push_back(film_.finish());
  }
  if (unfinished_ != 0) {  // given up: the fibers that still stand in the kernel start afresh
    idle_.clear();
    for (auto& one : fibers_) {
      one->fiber.start(one->stack.top(), one->stack.bytes(), fiber_main);
      idle_.push_back(&one->fiber);
    }
  }
  if (std::exchange(out_of_memory_, false)) throw std::bad_alloc();
}

Fiber& Worker::idle_fiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<FiberWithStack>(static_cast<unsigned>(fibers_.size())));
    FiberWithStack& made = *fibers_.back();
    made.fiber.start(made.stack.top(), made.stack.bytes(), fiber_main);
    return made.fiber;
  }
  Fiber& fiber = *idle_.back();
  idle_.pop_back();
  return fiber;
}

// A fiber runs kernel threads one after another; only a thread that waits keeps its fiber. So a kernel without barriers
// uses a single one.
void Worker::run_threads(Fiber& self) {
  for (;;) {
    threads_[current_].fiber = &self;
    run_current();
    threads_[current_].state = State::finished;
    if (--unfinished_ == 0) {
      idle_.push_back(&self);
      self.switch_to(os_thread_);
      continue;  // woken for a thread of another block
    }
    current_ = take_next();
    if (!threads_[current_].fiber) continue;
    idle_.push_back(&self);
    self.switch_to(*threads_[current_].fiber);
  }
}

void Worker::run_current() {
  threadIdx.x = static_cast<unsigned>(current_);
  std::string thrown;
  try {
    run_->grid.thread(run_->grid.arguments);
    if (!copies_[current_].on_their_way.empty()) [[unlikely]]
      give_up_block(copies_[current_].on_their_way.front().place,
                    "the thread has ended and never waited for the copy that it started here");
    hopper.thread_ends(current_);
    return;
  } catch (const std::exception& error) {
    thrown = error.what();
  } catch (...) {
    thrown = "something that is no std::exception";
  }
  // Outside of the handler, which must end before the fiber is left for good.
  give_up_block(current_, "after " + to_string(threads_[current_].place), "the kernel threw: " + thrown);
}

void Worker::release(const uint16_t* threads, int count) {
  for (int n = count - 1; n >= 0; --n) {
    threads_[threads[n]].state = State::ready;
    ready_[ready_count_++] = threads[n];
  }
}

int Worker::take_next() {
  if (hopper.delivers_now()) hopper.deliver();
  while (ready_count_ == 0) [[unlikely]]
    if (!hopper.deliver()) report_stuck();
  return ready_[--ready_count_];
}

void Worker::wait_for_unit(SourceLine place) {
  threads_[current_].place = place;
  threads_[current_].state = State::waits_for_unit;
  hand_over();
}

void Worker::hand_over() {
  const int me = current_;
  const int next = take_next();
  if (next == me) return;
  Fiber* to = threads_[next].fiber;
  if (!to) {
    try {
      to = &idle_fiber();
    } catch (const std::bad_alloc&) {  // it must not pass through the kernel: run_block throws it
      out_of_memory_ = true;
    }
    if (out_of_memory_) threads_[me].fiber->switch_to(os_thread_);  // for good
  }
  current_ = next;
  threads_[me].fiber->switch_to(*to);
  threadIdx.x = static_cast<unsigned>(me);
}

// ---- barriers ------------------------------------------------------------------------------------------------------

bool Worker::arrive(Gathering& gathering, int expected, State waiting, SourceLine place) {
  KernelThread& me = threads_[current_];
  if (gathering.arrived == 0) {
    gathering.place = place;
    gathering.first_thread = current_;
  } else if (!same(gathering.place, place)) [[unlikely]] {
    give_up_block(place, std::string(waiting == State::waits_for_block ? "__syncthreads" : "warp barrier") +
                             " while thread " + std::to_string(gathering.first_thread) + " waits at another one, " +
                             to_string(gathering.place) + ": all threads must reach the same barrier");
  }
  me.place = place;
  me.state = waiting;
  if (++gathering.arrived < expected) return false;
  gathering.arrived = 0;
  return true;
}

void Worker::wait_for_block(SourceLine place) {
  if (arrive(block_gathering_, threads_count_, State::waits_for_block, place)) {
    if (block_view.filmed) [[unlikely]]
      film_.barrier(place);
    if (++block_epoch_ == Access::kEpochs) {  // all earlier accesses are ordered before the later ones: forget them
      if (race_checked_) shadow_.forget_order();
      block_epoch_ = 1;
    }
    hopper.block_barrier_passed();
    release(order_, threads_count_);
  }
  hand_over();
}

void Worker::wait_for_warp(WarpOperation operation, void* deposit, SourceLine place) {
  Warp& warp = warps_[current_ / kWarp];
  if (operation && warp.lanes != kWarp) [[unlikely]]
    give_up_block(place, "an operation of a whole warp in a warp of " + std::to_string(warp.lanes) +
                             " threads: all 32 lanes must take part");
  if (warp.gathering.arrived == 0) warp.operation = operation;
  if (warp.operation != operation && same(warp.gathering.place, place)) [[unlikely]]
    give_up_block(place, "thread " + std::to_string(warp.gathering.first_thread) +
                             " of the same warp waits here with another operation");
  warp.deposits[current_ % kWarp] = deposit;
  if (arrive(warp.gathering, warp.lanes, State::waits_for_warp, place)) {
    if (block_view.filmed) [[unlikely]]
      film_.acts.warp_together(current_);
    if (operation) operation(warp.deposits);
    else ++warp.epoch, hopper.warp_barrier_passed(current_ / kWarp);
    release(warp.order, warp.lanes);
  }
  hand_over();
}

// ---- findings ------------------------------------------------------------------------------------------------------

void Worker::give_up_block(int thread, const std::string& place, const std::string& what) {
  {
    const std::lock_guard lock(run_->mutex);
    run_->findings.push_back({run_->grid.kernel, block_, thread, place, what});
    run_->stopped = true;
  }
  threads_[current_].fiber->switch_to(os_thread_);
  __builtin_unreachable();  // run_block starts every fiber afresh
}

std::string Worker::what_it_does(int thread) const {
  const KernelThread& it = threads_[thread];
  const std::string who = "thread " + std::to_string(thread);
  switch (it.state) {
    case State::finished:
      return who + " has ended";
    case State::waits_for_block:
      return who + " waits at __syncthreads (" + to_string(it.place) + ")";
    case State::waits_for_unit:
      return who + " waits for " + hopper.waits_for(thread) + " (" + to_string(it.place) + ")";
    case State::waits_for_warp:
      return who + " waits at " + (warps_[thread / kWarp].operation ? "a warp operation (" : "__syncwarp (") +
             to_string(it.place) + ")";
    case State::ready:
      break;
  }
  return who + " can run";
}

std::string Worker::who_waits_for_what() const {
  std::string all;
  std::vector<bool> told(static_cast<size_t>(threads_count_));
  for (int first = 0; first < threads_count_; ++first) {
    const KernelThread& it = threads_[first];
    if (told[static_cast<size_t>(first)] || it.state == State::finished) continue;
    const auto what = [&](int thread) {
      return what_it_does(thread).substr(("thread " + std::to_string(thread)).size());
    };  // " waits for ..."
    int count = 0, last = first;
    for (int other = first; other < threads_count_; ++other)
      if (threads_[other].state == it.state && what(other) == what(first)) {
        told[static_cast<size_t>(other)] = true;
        ++count, last = other;
      }
    const std::string who = count == 1 ? "thread " + std::to_string(first)
                                       : "each of " + std::to_string(count) + " threads from " + std::to_string(first) +
                                             " to " + std::to_string(last);
    all += (all.empty() ? "" : "; ") + who + what(first);
  }
  return all;
}

void Worker::report_stuck() {
  for (int thread = 0; thread < threads_count_; ++thread)
    if (threads_[thread].state == State::waits_for_unit)
      give_up_block(thread, to_string(threads_[thread].place),
                    "deadlock, nothing is on its way and nobody can go on: " + who_waits_for_what());
  int waiting = 0;
  while (threads_[waiting].state == State::finished) ++waiting;
  // The one to compare with: first among those of its warp, where it is a warp that waits.
  const bool in_warp = threads_[waiting].state == State::waits_for_warp;
  const int first = in_warp ? waiting / kWarp * kWarp : 0;
  const int last = in_warp ? first + warps_[waiting / kWarp].lanes : threads_count_;
  int other = first;
  while (other < last && threads_[other].state == threads_[waiting].state) ++other;
  std::string what = "a barrier that not all threads reach: " + what_it_does(waiting);
  if (other < last) what += ", " + what_it_does(other);
  give_up_block(waiting, to_string(threads_[waiting].place), what);
}

int Worker::site_of(const void* caller, SourceLine place) {
  if (sites_.empty()) sites_.resize(Access::kSites);
  size_t slot = (reinterpret_cast<uintptr_t>(caller) * 0x9e3779b97f4a7c15u) >> (64 - Access::kSiteBits);
  for (int tries = 0; tries < Access::kSites; ++tries, slot = (slot + 1) % Access::kSites) {
    if (sites_[slot].caller == caller) return static_cast<int>(slot);
    if (!sites_[slot].caller) break;
  }
  sites_[slot] = {place, caller};  // when the table is full the oldest call site of this slot loses its name
  return static_cast<int>(slot);
}

Access Worker::access_now(SourceLine place, const void* caller) {
  if (const uint32_t* clock = hopper.clock()) return {0, clock[current_], current_, site_of(caller, place)};
  return {block_epoch_, warps_[current_ / kWarp].epoch, current_, site_of(caller, place)};
}

std::string Worker::describe_byte(int64_t byte) const {
  const std::string name = block_view.name_of_byte ? block_view.name_of_byte(block_view.sram, byte) : "";
  return name.empty() ? "SRAM byte " + std::to_string(byte) : name + " (SRAM byte " + std::to_string(byte) + ")";
}

int Worker::print(const char* format, std::va_list values) {
  run_->printed = true;
  return run_->options.prints ? std::vfprintf(run_->options.prints, format, values) : 0;
}

void Worker::report_race(const ShadowSram::Race& race, bool write, SourceLine place, const void* caller) {
  const int other = race.earlier.thread();
  const bool one_warp = other / kWarp == current_ / kWarp;
  const Site& site = sites_[static_cast<size_t>(race.earlier.site())];
  if (race.on_its_way)
    give_up_block(place, caller,
                  "race on " + describe_byte(race.byte) + ": thread " + std::to_string(current_) +
                      (write ? " writes" : " reads") + " it while the copy that thread " + std::to_string(other) +
                      " started at " + where(site.place, site.caller) +
                      " is on its way there: that thread has not waited for it");
  give_up_block(
      place, caller,
      "race on " + describe_byte(race.byte) + ": thread " + std::to_string(current_) + (write ? " writes" : " reads") +
          " it, thread " + std::to_string(other) + (race.earlier_writes ? " wrote" : " read") + " it at " +
          where(site.place, site.caller) + ", and no " +
          (hopper.clock() ? "barrier"
           : one_warp     ? "__syncwarp or __syncthreads"
                          : "__syncthreads") +
          " lies between (they last waited at " + to_string(threads_[current_].place) + " and " +
          to_string(threads_[other].place) + ")");
}

void Worker::watch_sram(const void* address, int bytes, bool write, SourceLine place, const void* caller) {
  const int64_t first = static_cast<const unsigned char*>(address) - block_view.sram;
  const int64_t size = static_cast<int64_t>(block_view.sram_bytes);
  if (first < 0 || first + bytes > size) [[unlikely]]
    give_up_block(place, caller,
                  std::string(write ? "write" : "read") + " of SRAM bytes " + std::to_string(first) + " to " +
                      std::to_string(first + bytes - 1) + ", the block has " + std::to_string(size));
  if (!race_checked_) return;
  const uint32_t* clock = hopper.clock();
  if (clock) hopper.check_access(first, first + bytes, write, {place, caller});
  const Access now = access_now(place, caller);
  const ShadowSram::Race race =
      write ? shadow_.write(first, bytes, now, clock) : shadow_.read(first, bytes, now, clock);
  if (race.found) [[unlikely]]
    report_race(race, write, place, caller);
}

// ---- asynchronous copies --------------------------------------------------------------------------------------------

void Worker::start_copy(void* to, const void* from, SourceLine place, const void* caller) {
  std::memset(to, kNanByte, kCopyBytes);
  copies_[current_].on_their_way.push_back({to, from, copies_[current_].open_group, place});
  if (block_view.filmed && from) [[unlikely]]
    film_.acts.copy_started(current_, kCopyBytes, copies_[current_].open_group);
  if (race_checked_)
    shadow_.copy_starts(static_cast<const unsigned char*>(to) - block_view.sram, kCopyBytes, access_now(place, caller));
}

void Worker::wait_copies(int pending, SourceLine place, const void* caller) {
  auto& [on_their_way, open_group] = copies_[current_];
  if (block_view.filmed) [[unlikely]]
    film_.acts.add(current_, {Act::Kind::wait_copies, -1, open_group - pending, 0, place});
  size_t arrived = 0;
  for (; arrived < on_their_way.size() && on_their_way[arrived].group < open_group - pending; ++arrived) {
    const Copy& copy = on_their_way[arrived];
    if (copy.from) std::memcpy(copy.to, copy.from, kCopyBytes);
    else std::memset(copy.to, 0, kCopyBytes);
    if (block_view.filmed) [[unlikely]]
      film_.copy_arrives(kCopyBytes);
    if (race_checked_)
      shadow_.copy_arrives(
          static_cast<const unsigned char*>(copy.to) - block_view.sram, kCopyBytes, access_now(place, caller));
  }
  on_their_way.erase(on_their_way.begin(), on_their_way.begin() + static_cast<std::ptrdiff_t>(arrived));
}

// ---- what kernel threads call ---------------------------------------------------------------------------------------

namespace {
Worker& worker_at(SourceLine place, const char* what) {
  if (!running_worker) [[unlikely]]
    throw CheckFailed(to_string(place) + ": outside of a kernel: " + what);
  return *running_worker;
}

/// ATTN_LIST_BARRIERS=1: names each barrier that the run comes to, once. tests/mutants/barriers.py need not try the
/// others.
void list(SourceLine place) {
  static const bool asked = std::getenv("ATTN_LIST_BARRIERS");
  if (!asked) return;
  static std::mutex mutex;
  static std::set<std::string> named;
  const std::lock_guard lock(mutex);
  if (named.insert(to_string(place)).second) std::fprintf(stderr, "comes to: %s\n", to_string(place).c_str());
}

/// ATTN_LEAVE_OUT_BARRIER=step04_online_softmax.cu:45: the run goes on as if that barrier were not there, and says so,
/// once. tests/mutants/barriers.py holds with it that every barrier is needed.
bool left_out(SourceLine place) {
  list(place);
  static const char* const which = std::getenv("ATTN_LEAVE_OUT_BARRIER");
  if (!which || to_string(place) != which) return false;
  static std::once_flag said;
  std::call_once(said, [] { std::fprintf(stderr, "left out: the barrier at %s\n", which); });
  return true;
}

/// ATTN_OFF_BY_ONE=warpgroup.h:34+1: what a barrier of Hopper's or a wait for products is told there is one off (+1 or
/// -1): arrivals, warps, groups, the parity, 16 bytes. Otherwise as above.
int off_by_one(SourceLine place) {
  list(place);
  static const std::string which = std::getenv("ATTN_OFF_BY_ONE") ? std::getenv("ATTN_OFF_BY_ONE") : "";
  if (which.empty() || which.rfind(to_string(place), 0) != 0) return 0;
  const std::string by = which.substr(to_string(place).size());
  if (by != "+1" && by != "-1") return 0;
  static std::once_flag said;
  std::call_once(said, [] { std::fprintf(stderr, "off by one: %s\n", which.c_str()); });
  return by == "+1" ? 1 : -1;
}
}  // namespace

void report(SourceLine place, const std::string& what, const void* caller) {
  worker_at(place, what.c_str()).give_up_block(place, caller, what);
}
void report_layout(int64_t bytes, SourceLine place) {
  report(place, "the SRAM layout needs " + std::to_string(bytes) + " bytes, the launch asked for " +
                    std::to_string(block_view.sram_bytes));
}
void watch_sram(const void* address, int bytes, bool write, SourceLine place) {
  Worker& worker = worker_at(place, "access to a block's SRAM");
  worker.watch_sram(address, bytes, write, place, __builtin_return_address(0));
  if (block_view.filmed) [[unlikely]]
    worker.film().sram(write, static_cast<const unsigned char*>(address) - block_view.sram, bytes, ATTN_FILM_CALLER);
}
void film_access(const HbmAccess& access, int64_t head, int64_t rows_above, int bytes) {
  if (access.kind != HbmAccess::Kind::copy)  // the copy engine tells of it, with its bytes
    running_worker->film().access(
        access, head, access.row + rows_above, bytes, running_worker->current(), ATTN_FILM_CALLER);
}
void film_bulk_copy(const BulkCopy& copy, bool load, int64_t bytes) {
  running_worker->film().bulk_copy(copy, load, bytes);
}
void film_product(int64_t flops) {
  const bool started = running_worker->hopper.used();
  running_worker->film().product(flops, started, ATTN_FILM_CALLER);
  if (started) return;  // the unit tells of its products itself
  running_worker->film().acts.add(running_worker->current(), {Act::Kind::product, -1, 0, flops, {}});
  running_worker->film().acts.scores(running_worker->current(), flops / 2);
}
void film_row_max(int lanes, int count, const float* x) {
  running_worker->film().row_max(lanes, count, x, running_worker->current(), ATTN_FILM_CALLER);
}
void film_exchange(SourceLine place) { running_worker->film().acts.exchange(running_worker->current(), place); }
void start_copy(void* to, const void* from, SourceLine place) {
  worker_at(place, "an asynchronous copy").start_copy(to, from, place, __builtin_return_address(0));
}
void commit_copies(SourceLine place) { worker_at(place, "commit_copies").commit_copies(); }
int print(const char* format, std::va_list values) {
  return running_worker ? running_worker->print(format, values) : std::vprintf(format, values);
}
void wait_copies(int pending, SourceLine place) {
  if (!left_out(place)) worker_at(place, "wait_copies").wait_copies(pending, place, __builtin_return_address(0));
}
void block_barrier(SourceLine place) {
  if (!left_out(place)) worker_at(place, "__syncthreads").wait_for_block(place);
}
void warp_barrier(SourceLine place) {
  if (!left_out(place)) worker_at(place, "__syncwarp").wait_for_warp(nullptr, nullptr, place);
}
#define ATTN_HOPPER(what) worker_at(place, what).hopper
#define ATTN_SITE \
  Site { place, __builtin_return_address(0) }
void make_barrier(void* barrier, int arrivals, SourceLine place) {
  ATTN_HOPPER("a barrier").make_barrier(barrier, arrivals + off_by_one(place), ATTN_SITE);
}
void arrive_at_barrier(void* barrier, int64_t bytes, SourceLine place) {
  if (!left_out(place))
    ATTN_HOPPER("a barrier").arrive(barrier, bytes + (bytes ? 16 * off_by_one(place) : 0), ATTN_SITE);
}
void wait_at_barrier(const void* barrier, int parity, SourceLine place) {
  if (!left_out(place)) ATTN_HOPPER("a barrier").wait(barrier, parity ^ (off_by_one(place) & 1), ATTN_SITE);
}
void named_barrier(int number, int threads, bool waits, SourceLine place) {
  if (!left_out(place))
    ATTN_HOPPER("a barrier").named_barrier(number, threads + kWarp * off_by_one(place), waits, ATTN_SITE);
}
void fence_stores(SourceLine place) {
  if (!left_out(place)) ATTN_HOPPER("a fence").fence(ATTN_SITE);
}
void start_bulk_copy(void* to, const BulkCopy& from, void* barrier, SourceLine place) {
  ATTN_HOPPER("a copy").start_copy(to, from, barrier, ATTN_SITE);
}
void start_bulk_copy_back(const void* from, const BulkCopy& to, SourceLine place) {
  ATTN_HOPPER("a copy").start_copy_back(from, to, ATTN_SITE);
}
void commit_bulk_copies_back(SourceLine place) {
  if (!left_out(place)) ATTN_HOPPER("a copy").commit_copies_back();
}
void wait_bulk_copies_back(SourceLine place) {
  if (!left_out(place)) ATTN_HOPPER("a copy").wait_copies_back(ATTN_SITE);
}
void set_registers(int count, bool takes, SourceLine place) {
  if (!left_out(place)) ATTN_HOPPER("setmaxnreg").set_registers(count, takes, ATTN_SITE);
}
void fence_products(SourceLine place) {
  if (!left_out(place)) ATTN_HOPPER("a fence").fence_products();
}
void start_product(float* sums, const WarpgroupOperands& operands, SourceLine place) {
  ATTN_HOPPER("a product").start_product(sums, operands, ATTN_SITE);
}
void commit_products(SourceLine place) {
  if (!left_out(place)) ATTN_HOPPER("a product").commit_products();
}
void wait_products(int pending, SourceLine place) {
  if (!left_out(place)) ATTN_HOPPER("a product").wait_products(pending + off_by_one(place), ATTN_SITE);
}
void use_registers(const void* first, const void* end, SourceLine place) {
  ATTN_HOPPER("registers").use_registers(first, end, ATTN_SITE);
}
#undef ATTN_SITE
#undef ATTN_HOPPER
void warp_collective(WarpOperation run, void* deposit, SourceLine place) {
  worker_at(place, "an operation of a warp").wait_for_warp(run, deposit, place);
}

}  // namespace attention::executor
