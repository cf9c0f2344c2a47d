#include "common/device/cpu/hopper_block.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "common/base/half.h"
#include "common/device/cpu/worker.h"

namespace attention::executor {

namespace {

constexpr int kMaxBarriers = 64, kRowBytes = 128, kWarpgroup = 128, kWarpgroupProductRows = 16;  // of a warp
constexpr int64_t kRegistersOfAnSm = 65536;
constexpr uint64_t kBarrierMark =
    0x6261727269657200;                   // what an initialised barrier holds in SRAM, with its number in the last byte
constexpr uint32_t kPoison = 0x7fa5a5a5;  // a signalling NaN: arithmetic on it, and so any change, leaves other bits

/// PTX ISA, 128-byte swizzle: of an address, bits 4 to 6 become themselves xor bits 7 to 9.
int64_t swizzled(int64_t address) { return address ^ (address >> 3 & 0x70); }

std::string text(Site site) { return where(site.place, site.caller); }
/// "k[1] (SRAM bytes 32768 to 49151)".
std::string bytes_text(int64_t first, int64_t end) {
  const std::string bytes = "SRAM bytes " + std::to_string(first) + " to " + std::to_string(end - 1);
  const std::string name =
      block_view.name_of_byte && first >= 0 && end <= static_cast<int64_t>(block_view.sram_bytes)
          ? block_view.name_of_byte(block_view.sram, first)
          : "";
  return name.empty() ? bytes : name + " (" + bytes + ")";
}

using Rows16 = float __attribute__((vector_size(64), may_alias));

/// Eight neighbours as floats.
void widen_eight(float* to, const unsigned char* from, bool bf16) {
  uint16_t bits[8];
  std::memcpy(bits, from, sizeof bits);
  if (bf16) {
    for (int n = 0; n < 8; ++n) to[n] = from_bf16(bits[n]);
  } else {
#if defined(__F16C__)
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits))));
#else
    for (int n = 0; n < 8; ++n) to[n] = from_fp16(bits[n]);
#endif
  }
}

// How a Hopper's tensor core adds, as measured (github.com/north-numerical-computing/MATLAB-tensor-core models it): 16
// products, each exact, and the sum before them are aligned to the largest exponent among them; of each, what lies more
// than two bits below fp32's last digit there is cut off, and of their sum what fp32 does not hold. Nothing is rounded
// to nearest.
constexpr int kKeptBits = 23 + 2;  // behind the largest exponent
using Bits16 = int32_t __attribute__((vector_size(64), may_alias));
using Doubles16 = double __attribute__((vector_size(128)));
using Masks16 = int64_t __attribute__((vector_size(128)));
constexpr int32_t kExponent = 0x7f800000;

/// The power of two below |x|.
Rows16 exponents_of(Rows16 x) { return reinterpret_cast<Rows16>(reinterpret_cast<Bits16>(x) & kExponent); }

bool all_finite(const float* x, int count) {
  bool finite = true;
  for (int n = 0; n < count; ++n) finite &= (std::bit_cast<int32_t>(x[n]) & kExponent) != kExponent;
  return finite;
}

/// sum += the products of a[k] and b[k * element] for 16 k, added as above. False, and nothing done, where numbers are
/// so large or small that fp32 cannot hold what this needs in between: only bf16 has such.
bool add_as_tensor_core(Rows16& sum, const Rows16 (&a)[16], const Rows16 (&a_exponents)[16], const float* b,
                        int element) {
  Rows16 largest = exponents_of(sum);
  for (int k = 0; k < 16; ++k) {
    const Rows16 both = a_exponents[k] * std::bit_cast<float>(std::bit_cast<int32_t>(b[k * element]) & kExponent);
    largest = both > largest ? both : largest;
  }
  Bits16 exponent = reinterpret_cast<Bits16>(largest) >> 23;
  exponent += (exponent == 0) & 127;  // nothing but zeros
  const Bits16 outside = (exponent <= kKeptBits + 1) | (exponent > 250);
  int32_t any = 0;
  for (int row = 0; row < 16; ++row) any |= outside[row];
  if (any) return false;
  const Rows16 up = reinterpret_cast<Rows16>((2 * 127 + kKeptBits - exponent) << 23),
               down = reinterpret_cast<Rows16>((exponent - kKeptBits) << 23);
  Bits16 total = {};
  for (int k = 0; k < 16; ++k) total += __builtin_convertvector(a[k] * b[k * element] * up, Bits16);  // toward zero
  const Doubles16 exact = __builtin_convertvector(total, Doubles16) +
                          __builtin_convertvector(__builtin_convertvector(sum * up, Bits16), Doubles16);
  const Rows16 nearest = __builtin_convertvector(exact, Rows16);
  const Doubles16 held = __builtin_convertvector(nearest, Doubles16);
  const Masks16 too_large = ((held > exact) & (exact > 0)) | ((held < exact) & (exact < 0));
  sum = reinterpret_cast<Rows16>(reinterpret_cast<Bits16>(nearest) + __builtin_convertvector(too_large, Bits16)) * down;
  return true;
}

/// sums[n] += the 16 rows of A times column n of B, whose element (n, k) is b[n * column + k * element].
void multiply_as_tensor_core(Rows16* sums, int columns, const Rows16 (&a)[16], const float* b, int column,
                             int element) {
  Rows16 a_exponents[16];
  for (int k = 0; k < 16; ++k) a_exponents[k] = exponents_of(a[k]);
  for (int n = 0; n < columns; ++n, b += column)
    if (!add_as_tensor_core(sums[n], a, a_exponents, b, element))
      for (int k = 0; k < 16; ++k) sums[n] += a[k] * b[k * element];
}
/// The same in fp32 as it comes, which lets NaN through.
void multiply(Rows16* sums, int columns, const Rows16 (&a)[16], const float* b, int column, int element) {
  for (int n = 0; n < columns; n += 4, b += 4 * column) {
    Rows16 s0 = sums[n], s1 = sums[n + 1], s2 = sums[n + 2], s3 = sums[n + 3];
    for (int k = 0; k < 16; ++k) {
      const float* at = b + k * element;
      s0 += a[k] * at[0], s1 += a[k] * at[column], s2 += a[k] * at[2 * column], s3 += a[k] * at[3 * column];
    }
    sums[n] = s0, sums[n + 1] = s1, sums[n + 2] = s2, sums[n + 3] = s3;
  }
}

}  // namespace

// ---- a block's start ------------------------------------------------------------------------------------------------

void HopperBlock::start_block(uint64_t seed) {
  seed_ = seed;
  random_ = {seed};
  used_ = clocks_run_ = false;
  copies_.clear();
}

void HopperBlock::use() {
  if (used_) return;
  used_ = true;
  threads_count_ = worker_.threads_count_;
  warps_count_ = (threads_count_ + kWarp - 1) / kWarp;
  barriers_.clear();
  for (NamedBarrier& one : named_) one = {};
  written_.clear();
  read_.clear();
  warps_.resize(static_cast<size_t>(warps_count_));
  const auto registers = static_cast<int>(std::min<int64_t>(kRegistersOfAnSm / threads_count_ / 8 * 8, 256));
  for (Warp& warp : warps_) {
    warp.products.clear();
    warp.first_product = 0;
    for (int lane = 0; lane < kWarp; ++lane)
      warp.started[lane] = 0, warp.committed[lane] = 0, warp.fenced[lane] = false;
    for (auto& sums : warp.sums) sums->used = false;
    warp.registers = registers, warp.wanted = 0;
  }
  free_registers_ = 0;
  threads_.assign(static_cast<size_t>(threads_count_), {});
  if (!worker_.race_checked_) return;
  clocks_run_ = true;
  worker_.shadow_.forget_order();
  pitch_ = static_cast<size_t>(threads_count_ + warps_count_ + kMaxBarriers + 15) / 16 * 16;
  clocks_.assign(pitch_ * static_cast<size_t>(threads_count_), 0);
  for (int thread = 0; thread < threads_count_; ++thread) time_of(thread) = 1;
  touched_.assign(block_view.sram_bytes / kRowBytes + 1, 0);
}

int HopperBlock::me() const { return worker_.current_; }

void HopperBlock::tell_film(const Act& act) { worker_.film_.acts.add(me(), act); }

void HopperBlock::give_up(Site site, const std::string& what) { worker_.give_up_block(site.place, site.caller, what); }

const uint32_t* HopperBlock::clock() const { return clocks_run_ ? clock_of(me()) : nullptr; }

int64_t HopperBlock::offset_in_sram(const void* address, int64_t bytes, const char* what, Site site) {
  const int64_t offset = static_cast<const unsigned char*>(address) - block_view.sram,
                size = static_cast<int64_t>(block_view.sram_bytes);
  if (offset < 0 || offset + bytes > size)
    give_up(site, std::string(what) + " at " + bytes_text(offset, offset + bytes) + ", the block has " +
                      std::to_string(size));
  return offset;
}

// ---- clocks ---------------------------------------------------------------------------------------------------------

void HopperBlock::join(uint32_t* into, const uint32_t* from, size_t count) {
  for (size_t n = 0; n < count; ++n) into[n] = std::max(into[n], from[n]);
}

// What comes after must not look as if it had been handed on too, so the thread's time moves on.
void HopperBlock::hand_on(Clock& into, int thread) {
  if (!clocks_run_) return;
  into.resize(pitch_);
  join(into.data(), clock_of(thread), pitch_);
  ++time_of(thread);
}

void HopperBlock::take_over(int thread, const Clock& from) {
  if (clocks_run_ && !from.empty()) join(clock_of(thread), from.data(), pitch_);
}

void HopperBlock::block_barrier_passed() {
  if (!clocks_run_) return;
  Clock all;
  for (int thread = 0; thread < threads_count_; ++thread) hand_on(all, thread);
  for (int thread = 0; thread < threads_count_; ++thread) take_over(thread, all);
}

void HopperBlock::warp_barrier_passed(int warp) {
  if (!clocks_run_) return;
  Clock all;
  const int first = warp * kWarp, end = std::min(first + kWarp, threads_count_);
  for (int thread = first; thread < end; ++thread) hand_on(all, thread);
  for (int thread = first; thread < end; ++thread) take_over(thread, all);
}

// ---- barriers with phases -------------------------------------------------------------------------------------------

void HopperBlock::make_barrier(void* state, int arrivals, Site site) {
  use();
  offset_in_sram(state, 8, "a barrier", site);
  if (arrivals < 1)
    give_up(site, "a barrier that takes " + std::to_string(arrivals) + " arrivals: it takes 1 at least");
  if (barriers_.size() == kMaxBarriers) give_up(site, "more than " + std::to_string(kMaxBarriers) + " barriers");
  Barrier& made = barriers_.emplace_back();
  made.state = state;
  made.expected = made.missing = arrivals;
  made.made = site;
  made.maker = me();
  made.made_at = clocks_run_ ? time_of(me()) : 0;
  const uint64_t mark = kBarrierMark | (barriers_.size() - 1);
  std::memcpy(state, &mark, sizeof mark);
}

int HopperBlock::find_barrier(const void* state, Site site) {
  use();
  const int64_t offset = offset_in_sram(state, 8, "a barrier", site);
  uint64_t mark;
  std::memcpy(&mark, state, sizeof mark);
  const uint64_t number = mark & 0xff;
  if ((mark ^ kBarrierMark) > 0xff || number >= barriers_.size() || barriers_[number].state != state)
    give_up(site, "the barrier at " + worker_.describe_byte(offset) +
                      " does not exist: nobody has initialised it, or something was stored over it");
  const Barrier& found = barriers_[number];
  if (clocks_run_ && found.maker != me() && clock()[found.maker] < found.made_at)
    give_up(site, "thread " + std::to_string(found.maker) + " initialises this barrier at " + text(found.made) +
                      ", and nothing says that it has done so before: no __syncthreads lies between");
  return static_cast<int>(number);
}

std::string HopperBlock::describe(const Barrier& it) const {
  return "the barrier " + worker_.describe_byte(static_cast<const unsigned char*>(it.state) - block_view.sram) +
         ", initialised at " + text(it.made) + ", which is in phase " + std::to_string(it.phase) + " with " +
         std::to_string(it.missing) + " of " + std::to_string(it.expected) + " arrivals and " +
         std::to_string(it.bytes) + " bytes to come";
}

void HopperBlock::arrive(void* state, int64_t bytes, Site site) {
  const int number = find_barrier(state, site);
  Barrier& barrier = barriers_[static_cast<size_t>(number)];
  if (barrier.missing == 0) give_up(site, "one arrival too many at " + describe(barrier));
  tell({Act::Kind::arrive, -1, barrier_key(kBarriers + number, barrier.phase), 0, site.place});
  --barrier.missing;
  barrier.bytes += bytes;
  hand_on(barrier.gathered, me());
  end_phase_if_complete(number);
}

void HopperBlock::acquire(int thread, int number) {
  const Barrier& barrier = barriers_[static_cast<size_t>(number)];
  if (!clocks_run_) return;
  take_over(thread, barrier.released);
  uint32_t& known = clock_of(thread)[threads_count_ + warps_count_ + number];
  known = std::max(known, barrier.phase);
}

void HopperBlock::end_phase_if_complete(int number) {
  Barrier& barrier = barriers_[static_cast<size_t>(number)];
  if (barrier.missing != 0) return;
  int64_t on_their_way = 0;
  for (const Copy& copy : copies_)
    if (copy.barrier == number && (on_their_way += copy.from.bytes) > barrier.bytes)
      worker_.give_up_block(
          copy.thread, text(copy.site),
          "this copy brings " + std::to_string(copy.from.bytes) + " bytes, which were not announced to " +
              describe(barrier) + ": the phase ends too early, or never");
  if (barrier.bytes < 0)
    worker_.give_up_block(me(), to_string(worker_.threads_[me()].place),
                          "more bytes have come than were announced to " + describe(barrier));
  if (barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.expected;
  barrier.released = barrier.gathered;
  std::vector<uint16_t> go_on, stay;
  for (const uint16_t thread : barrier.waiting)
    ((barrier.phase & 1) != static_cast<uint32_t>(threads_[thread].parity) ? go_on : stay).push_back(thread);
  barrier.waiting = stay;
  for (const uint16_t thread : go_on) {
    threads_[thread].barrier = -1;
    acquire(thread, number);
  }
  wake(go_on);
}

void HopperBlock::wake(std::vector<uint16_t>& threads) {
  worker_.release(threads.data(), static_cast<int>(threads.size()));
  if (seed_ == 0 || random_.below(2) == 0) return;
  // The others first: those on top of the stack of ready threads go to its bottom.
  std::rotate(
      worker_.ready_, worker_.ready_ + worker_.ready_count_ - threads.size(), worker_.ready_ + worker_.ready_count_);
}

void HopperBlock::wait(const void* state, int parity, Site site) {
  const int number = find_barrier(state, site);
  Barrier& barrier = barriers_[static_cast<size_t>(number)];
  if (parity != 0 && parity != 1) give_up(site, "a wait for parity " + std::to_string(parity) + ": it is 0 or 1");
  const bool ended = (barrier.phase & 1) != static_cast<uint32_t>(parity);
  if (!ended || barrier.phase > 0)
    tell({Act::Kind::wait, -1, barrier_key(kBarriers + number, barrier.phase - ended), 0, site.place});
  if (ended) return acquire(me(), number);
  barrier.waiting.push_back(static_cast<uint16_t>(me()));
  threads_[static_cast<size_t>(me())].barrier = number;
  threads_[static_cast<size_t>(me())].parity = parity;
  worker_.wait_for_unit(site.place);
}

void HopperBlock::fence(Site) {
  use();
  if (!clocks_run_) return;
  threads_[static_cast<size_t>(me())].fences.push_back(++time_of(me()));
}

void HopperBlock::named_barrier(int number, int threads, bool waits, Site site) {
  use();
  const std::string which = "named barrier " + std::to_string(number);
  if (number < 1 || number > 15) give_up(site, which + ": they have the numbers 1 to 15 (0 is __syncthreads')");
  if (threads < kWarp || threads > threads_count_ || threads % kWarp != 0)
    give_up(site, which + " for " + std::to_string(threads) + " threads, the block has " +
                      std::to_string(threads_count_) + " and whole warps take part");
  NamedBarrier& barrier = named_[number];
  if (barrier.arrived == 0) {
    barrier.threads = threads, barrier.first = site, barrier.first_thread = me();
    barrier.here.assign(static_cast<size_t>(threads_count_), false);
  }
  if (barrier.threads != threads)
    give_up(site, which + " for " + std::to_string(threads) + " threads, while thread " +
                      std::to_string(barrier.first_thread) + " is there for " + std::to_string(barrier.threads) + " (" +
                      text(barrier.first) + ")");
  if (barrier.here[static_cast<size_t>(me())])
    give_up(
        site, "this thread comes to " + which + " twice before " + std::to_string(threads) + " threads have come once");
  barrier.here[static_cast<size_t>(me())] = true;
  const int64_t key = barrier_key(kNamedBarriers + number, barrier.round);
  tell({Act::Kind::arrive, -1, key, 0, site.place});
  if (waits) tell({Act::Kind::wait, -1, key, 0, site.place});
  hand_on(barrier.gathered, me());
  if (++barrier.arrived < threads) {
    if (!waits) return;
    barrier.waiting.push_back(static_cast<uint16_t>(me()));
    threads_[static_cast<size_t>(me())].named = number;
    return worker_.wait_for_unit(site.place);
  }
  if (waits) take_over(me(), barrier.gathered);
  for (const uint16_t thread : barrier.waiting) threads_[thread].named = -1, take_over(thread, barrier.gathered);
  std::vector<uint16_t> waiting = std::move(barrier.waiting);
  const int round = barrier.round + 1;
  barrier = {};
  barrier.round = round;
  wake(waiting);
}

// ---- the copy engine ------------------------------------------------------------------------------------------------

void HopperBlock::move(const BulkCopy& copy, unsigned char* sram, bool to_sram) {
  if (copy.box_rows == 0) {
    if (to_sram) {
      std::memcpy(sram, copy.data, static_cast<size_t>(copy.bytes));
    } else if (copy.adds) {
      for (int64_t n = 0; n < copy.bytes / 4; ++n)
        std::atomic_ref(reinterpret_cast<float*>(copy.data)[n])
            .fetch_add(reinterpret_cast<const float*>(sram)[n], std::memory_order_relaxed);
    } else {
      std::memcpy(copy.data, sram, static_cast<size_t>(copy.bytes));
    }
    return;
  }
  const int64_t at = sram - block_view.sram;
  for (int panel = 0; panel < copy.panels; ++panel)
    for (int r = 0; r < copy.box_rows; ++r) {
      const int64_t row = copy.row + r;
      const bool inside = row >= 0 && row < copy.rows;
      unsigned char* in_hbm = inside ? copy.data + row * copy.row_bytes + panel * kRowBytes : nullptr;
      for (int chunk = 0; chunk < kRowBytes; chunk += 16) {
        unsigned char* in_sram =
            block_view.sram + swizzled(at + (int64_t{panel} * copy.box_rows + r) * kRowBytes + chunk);
        if (!to_sram && inside) std::memcpy(in_hbm + chunk, in_sram, 16);
        else if (to_sram && inside) std::memcpy(in_sram, in_hbm + chunk, 16);
        else if (to_sram) std::memset(in_sram, 0, 16);
      }
    }
}

namespace {
int64_t bytes_in_hbm(const BulkCopy& copy) {
  if (copy.box_rows == 0) return copy.bytes;
  return std::max<int64_t>(0, std::min(copy.row + copy.box_rows, copy.rows) - std::max<int64_t>(copy.row, 0)) *
         copy.panels * kRowBytes;
}
}  // namespace

void HopperBlock::start_copy(void* to, const BulkCopy& from, void* state, Site site) {
  const int number = find_barrier(state, site);
  const int64_t first = offset_in_sram(to, from.bytes, "a copy", site), end = first + from.bytes;
  const int aligned = from.box_rows ? kRowBytes : 16;
  if (first % aligned)
    give_up(site, "a copy to SRAM byte " + std::to_string(first) + ": not a multiple of " + std::to_string(aligned));
  const Barrier& barrier = barriers_[static_cast<size_t>(number)];
  if (clocks_run_) {
    const std::vector<uint32_t>& fences = threads_[static_cast<size_t>(barrier.maker)].fences;
    const auto fence = std::upper_bound(fences.begin(), fences.end(), barrier.made_at);
    if (fence == fences.end() || clock()[barrier.maker] < *fence)
      give_up(site, "the copy engine is given a barrier that it may not see: thread " + std::to_string(barrier.maker) +
                        " initialised it at " + text(barrier.made) + ", and no fence follows there");
    check_written(first, end, "a copy is started to", site);
    check_not_read(first, end, "a copy is started to", site);
    check_ordinary(first, end, true, "a copy is started to", site);
    const auto inside = [&](const auto& it) { return it.first >= first && it.end <= end; };
    std::erase_if(written_, inside);
    std::erase_if(read_, inside);
    written_.push_back({first, end, number, barrier.phase, me(), site});
  }
  std::memset(to, 0xff, static_cast<size_t>(from.bytes));
  block_view.requested[from.tensor].load += bytes_in_hbm(from);
  if (block_view.filmed) [[unlikely]]
    film_bulk_copy(from, true, bytes_in_hbm(from));
  tell({Act::Kind::bulk_copy, from.tensor, barrier_key(kBarriers + number, barrier.phase), bytes_in_hbm(from),
        site.place});
  copies_.push_back({from, first, number, barrier.phase, me(), site});
  end_phase_if_complete(number);  // all arrivals are there: who announces these bytes?
}

bool HopperBlock::deliver() {
  if (copies_.empty()) return false;
  const auto which = copies_.begin() + (seed_ == 0 ? 0 : random_.below(static_cast<int>(copies_.size())));
  const Copy copy = *which;
  copies_.erase(which);
  move(copy.from, block_view.sram + copy.to, true);
  barriers_[static_cast<size_t>(copy.barrier)].bytes -= copy.from.bytes;
  end_phase_if_complete(copy.barrier);
  return true;
}

void HopperBlock::start_copy_back(const void* from, const BulkCopy& to, Site site) {
  use();
  const int64_t first = offset_in_sram(from, to.bytes, "a copy back", site), end = first + to.bytes;
  const int aligned = to.box_rows ? kRowBytes : 16;
  if (first % aligned)
    give_up(site, "a copy from SRAM byte " + std::to_string(first) + ": not a multiple of " + std::to_string(aligned));
  if (clocks_run_) {
    check_written(first, end, "a copy back is started from", site);
    check_ordinary(first, end, false, "a copy back is started from", site);
    read_.push_back({first, end, false, me(), 0, site});
  }
  block_view.requested[to.tensor].store += bytes_in_hbm(to);
  if (block_view.filmed) [[unlikely]]
    film_bulk_copy(to, false, bytes_in_hbm(to));
  tell({Act::Kind::bulk_store, to.tensor, 0, bytes_in_hbm(to), site.place});
  threads_[static_cast<size_t>(me())].copies_back.push_back({to, first, false, false, site});
}

void HopperBlock::run_copies_back(Thread& thread) {
  for (CopyBack& copy : thread.copies_back)
    if (copy.committed && !copy.done) {
      move(copy.to, block_view.sram + copy.from, false);
      copy.done = true;
    }
}

void HopperBlock::commit_copies_back() {
  use();
  Thread& thread = threads_[static_cast<size_t>(me())];
  for (CopyBack& copy : thread.copies_back) copy.committed = true;
  if (seed_ != 0 && random_.below(2) == 0) run_copies_back(thread);
}

void HopperBlock::wait_copies_back(Site here) {
  use();
  Thread& thread = threads_[static_cast<size_t>(me())];
  tell({Act::Kind::wait_bulk_stores, -1, 0, 0, here.place});
  run_copies_back(thread);
  if (clocks_run_)
    for (const CopyBack& copy : thread.copies_back)
      for (Read& read : read_)
        if (copy.done && !read.product && read.reader == me() && read.first == copy.from && read.completed == 0)
          read.completed = time_of(me());
  std::erase_if(thread.copies_back, [](const CopyBack& copy) { return copy.done; });
}

// ---- who may touch SRAM ---------------------------------------------------------------------------------------------

void HopperBlock::check_written(int64_t first, int64_t end, const std::string& what, Site site) {
  for (const Written& it : written_) {
    if (it.first >= end || it.end <= first) continue;
    const uint32_t known = clock()[threads_count_ + warps_count_ + it.barrier];
    if (known > it.phase) continue;
    const Barrier& barrier = barriers_[static_cast<size_t>(it.barrier)];
    give_up(site, what + " " + bytes_text(std::max(first, it.first), std::min(end, it.end)) +
                      " without having waited for the copy that thread " + std::to_string(it.thread) +
                      " started there at " + text(it.site) + ": it is complete when phase " + std::to_string(it.phase) +
                      " ends of " + describe(barrier) + "; this thread has waited for " +
                      (known == 0 ? "none of its phases" : "its phases up to " + std::to_string(known - 1)));
  }
}

void HopperBlock::check_not_read(int64_t first, int64_t end, const std::string& what, Site site) {
  for (const Read& it : read_) {
    if (it.first >= end || it.end <= first) continue;
    if (it.product ? clock()[threads_count_ + it.reader] >= it.completed
                   : it.completed != 0 && (it.reader == me() || clock()[it.reader] >= it.completed))
      continue;
    const std::string reader = it.product ? "the product that warp " + std::to_string(it.reader)
                                          : "the copy back that thread " + std::to_string(it.reader);
    give_up(
        site, what + " " + bytes_text(std::max(first, it.first), std::min(end, it.end)) + " while " + reader +
                  " started at " + text(it.site) + " may still read there: nothing says that it has been waited for");
  }
}

// What threads have stored there (and, for a copy that writes, loaded).
void HopperBlock::check_ordinary(int64_t first, int64_t end, bool engine_writes, const std::string& what, Site site) {
  const uint32_t* now = clock();
  const auto known = [&](Access it) { return it.bits == 0 || it.thread() == me() || now[it.thread()] >= it.time(); };
  const auto line = [&](Access it) { return text(worker_.sites_[static_cast<size_t>(it.site())]); };
  ShadowSram::Word last;
  for (int64_t byte = first; byte < end; byte += ShadowSram::kWord) {
    if (byte % kRowBytes == 0 || byte == first)
      if (!touched_[static_cast<size_t>(byte / kRowBytes)]) {
        byte = (byte / kRowBytes + 1) * kRowBytes - ShadowSram::kWord;
        continue;
      }
    const ShadowSram::Word word = worker_.shadow_.at(byte);
    if (word.writer.bits == last.writer.bits && word.reader.bits == last.reader.bits &&
        word.other_reader.bits == last.other_reader.bits)
      continue;
    last = word;
    for (const Access& reader : {word.reader, word.other_reader})
      if (engine_writes && !known(reader))
        give_up(site, what + " " + worker_.describe_byte(byte) + " while thread " + std::to_string(reader.thread()) +
                          " may still read it at " + line(reader) + ": no barrier lies between");
    if (word.writer.bits == 0) continue;
    const int writer = word.writer.thread();
    const std::string who = what + " " + worker_.describe_byte(byte) + ", which thread " + std::to_string(writer) +
                            " stored at " + line(word.writer);
    if (!known(word.writer)) give_up(site, who + ", and no barrier lies between");
    const std::vector<uint32_t>& fences = threads_[static_cast<size_t>(writer)].fences;
    const auto fence = std::upper_bound(fences.begin(), fences.end(), word.writer.time());
    if (fence == fences.end() || now[writer] < *fence)
      give_up(site, who +
                        ": without a fence of that thread (stores_visible_to_engines) after its stores, the copy "
                        "engine and the tensor cores may not see them");
  }
}

void HopperBlock::check_access(int64_t first, int64_t end, bool write, Site site) {
  const std::string what = "thread " + std::to_string(me()) + (write ? " writes" : " reads");
  check_written(first, end, what, site);
  if (write) check_not_read(first, end, what, site);
  for (int64_t row = first / kRowBytes; row <= (end - 1) / kRowBytes; ++row) touched_[static_cast<size_t>(row)] = 1;
}

// ---- warpgroup products ---------------------------------------------------------------------------------------------

void HopperBlock::fence_products() {
  use();
  warps_[static_cast<size_t>(me() / kWarp)].fenced[me() % kWarp] = true;
}

void HopperBlock::commit_products() {
  use();
  ++warps_[static_cast<size_t>(me() / kWarp)].committed[me() % kWarp];
}

namespace {
/// A descriptor's fields, in bytes (common/tile/swizzle.h describes them).
struct Descriptor {
  int64_t start, lead, stride;
  explicit Descriptor(uint64_t d)
      : start((d & 0x3fff) << 4), lead((d >> 16 & 0x3fff) << 4), stride((d >> 32 & 0x3fff) << 4) {}
  /// Where 16 bytes lie: of row `row`, from column `column` (in elements) on.
  int64_t along(int row, int column) const {
    return swizzled(start + row / 8 * stride + row % 8 * kRowBytes + column * 2);
  }
  int64_t across(int summed, int column) const {
    return swizzled(start + summed / 8 * stride + summed % 8 * kRowBytes + column / 64 * lead + column % 64 * 2);
  }
};
}  // namespace

/// The rows of SRAM that an operand takes, `length` rows or columns long.
int HopperBlock::ranges_of(uint64_t descriptor, bool across, int length, Range (&ranges)[4]) const {
  const Descriptor at(descriptor);
  const int64_t first = at.start / kRowBytes * kRowBytes;
  if (!across) {
    ranges[0] = {first, first + (length / 8 - 1) * at.stride + 8 * kRowBytes};
    return 1;
  }
  const int panels = (length + 63) / 64;
  for (int panel = 0; panel < panels; ++panel)
    ranges[panel] = {first + panel * at.lead, first + panel * at.lead + at.stride + 8 * kRowBytes};
  return panels;
}

void HopperBlock::check_product_reads(const Range& range, Site site, bool first_lane, bool last_lane, uint32_t group) {
  check_written(range.first, range.end, "a product reads", site);
  const int warp = me() / kWarp;
  if (first_lane) {
    const auto same = std::find_if(read_.begin(), read_.end(), [&](const Read& it) {
      return it.product && it.reader == warp && it.first == range.first && it.end == range.end;
    });
    if (same == read_.end()) read_.push_back({range.first, range.end, true, warp, group + 1, site});
    else same->completed = group + 1, same->site = site;
  }
  if (last_lane) check_ordinary(range.first, range.end, false, "a product reads", site);
}

void HopperBlock::start_product(float* sums, const WarpgroupOperands& operands, Site site) {
  use();
  const int lane = me() % kWarp, number = me() / kWarp;
  Warp& warp = warps_[static_cast<size_t>(number)];
  if (threads_count_ % kWarpgroup)
    give_up(site,
            "a warpgroup's product in a block of " + std::to_string(threads_count_) + " threads: warpgroups have 128");
  if (!warp.fenced[lane])
    give_up(site,
            "a product is started, and its registers are as the code before left them only after begin_products "
            "(wgmma.fence), which this thread has not passed since it last waited for products");
  const uint64_t index = warp.started[lane]++ - warp.first_product;
  const bool first_lane = index == warp.products.size();
  if (first_lane) {
    if (operands.columns % 8 || operands.columns > 256)
      give_up(site, "a product of " + std::to_string(operands.columns) + " columns: a multiple of 8, 256 at most");
    for (const uint64_t descriptor : {operands.b, operands.a_registers ? operands.b : operands.a})
      if (descriptor >> 62 != 1)
        give_up(site, "a descriptor whose bits 62 and 63 hold " + std::to_string(descriptor >> 62) +
                          ": the executor knows the 128-byte swizzle, 1");
    Product& made = warp.products.emplace_back();
    made.operands = operands, made.sums = nullptr, made.group = warp.committed[lane], made.site = site, made.lanes = 0,
    made.done = false;
  }
  Product& product = warp.products[index];
  const WarpgroupOperands& first = product.operands;
  if (first.a != operands.a || first.b != operands.b || first.columns != operands.columns ||
      product.group != warp.committed[lane] || !first.a_registers != !operands.a_registers)
    give_up(site, "the lanes of a warp start different products: another one's is at " + text(product.site));

  for (auto& one : warp.sums)
    if (one->used && one->lane[lane] == sums) product.sums = one.get();
  if (!product.sums) {
    for (auto& one : warp.sums)
      if (!one->used) product.sums = one.get();
    if (!product.sums) product.sums = warp.sums.emplace_back(std::make_unique<Sums>()).get();
    product.sums->used = true;
    std::fill(std::begin(product.sums->lane), std::end(product.sums->lane), nullptr);
  }
  Sums& held = *product.sums;
  held.columns = operands.columns, held.last_group = product.group, held.site = site;
  if (!held.lane[lane]) {
    held.lane[lane] = sums;
    for (int n = 0; n < operands.columns / 2; ++n) {
      if (operands.accumulate) held.value[n / 4 * 8 + lane % 4 * 2 + n % 2][lane / 4 + n / 2 % 2 * 8] = sums[n];
      std::memcpy(&sums[n], &kPoison, sizeof kPoison);
    }
  }
  tell({Act::Kind::warpgroup_product, -1, product.group, operands.columns * kWarpgroupProductRows * 16 * 2 / kWarp,
        site.place});
  if (block_view.filmed && !operands.a_registers) [[unlikely]]
    worker_.film_.acts.scores(me(), operands.columns * kWarpgroupProductRows);
  product.a_registers[lane] = operands.a_registers;
  if (operands.a_registers) std::memcpy(product.a_values[lane], operands.a_registers, sizeof product.a_values[lane]);
  const bool last_lane = ++product.lanes == kWarp;

  Range ranges[4];
  const auto look_at = [&](uint64_t descriptor, bool across, int length) {
    const int count = ranges_of(descriptor, across, length, ranges);
    for (int n = 0; n < count; ++n) {
      if (first_lane)
        offset_in_sram(block_view.sram + ranges[n].first, ranges[n].end - ranges[n].first, "a product's operand", site);
      if (clocks_run_) check_product_reads(ranges[n], site, first_lane, last_lane, product.group);
    }
  };
  if (!operands.a_registers) look_at(operands.a, operands.a_across, 64);
  look_at(operands.b, operands.b_across, operands.columns);
  if (last_lane && seed_ != 0 && random_.below(2) == 0) run_products(warp, number, product.group + 1);
}

void HopperBlock::run_product(Product& product, int warp) {
  const WarpgroupOperands& it = product.operands;
  const bool bf16 = it.bf16;
  alignas(64) float a[16][16], b[256 * 16], eight[8];  // a[k][row]
  const int row0 = warp % 4 * 16;
  if (it.a_registers) {
    for (int lane = 0; lane < kWarp; ++lane)
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 2; ++c) {
          const auto bits = static_cast<uint16_t>(product.a_values[lane][r] >> 16 * c);
          a[lane % 4 * 2 + r / 2 * 8 + c][lane / 4 + r % 2 * 8] = bf16 ? from_bf16(bits) : from_fp16(bits);
        }
  } else {
    const Descriptor at(it.a);
    for (int outer = 0; outer < 16; ++outer)
      for (int inner = 0; inner < 16; inner += 8) {
        widen_eight(
            eight, block_view.sram + (it.a_across ? at.across(outer, row0 + inner) : at.along(row0 + outer, inner)),
            bf16);
        for (int n = 0; n < 8; ++n) (it.a_across ? a[outer][inner + n] : a[inner + n][outer]) = eight[n];
      }
  }
  const Descriptor at(it.b);
  if (it.b_across) {
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < it.columns; n += 8)
        widen_eight(&b[k * it.columns + n], block_view.sram + at.across(k, n), bf16);
  } else {
    for (int n = 0; n < it.columns; ++n)
      for (int k = 0; k < 16; k += 8) widen_eight(&b[n * 16 + k], block_view.sram + at.along(n, k), bf16);
  }
  Sums& sums = *product.sums;
  if (!it.accumulate) std::memset(sums.value, 0, static_cast<size_t>(it.columns) * sizeof sums.value[0]);
  auto* values = reinterpret_cast<Rows16*>(sums.value);
  const auto& rows = reinterpret_cast<const Rows16(&)[16]>(a);
  const auto multiplied =
      all_finite(&a[0][0], 256) && all_finite(b, 16 * it.columns) ? multiply_as_tensor_core : multiply;
  if (it.b_across) multiplied(values, it.columns, rows, b, 1, it.columns);
  else multiplied(values, it.columns, rows, b, 16, 1);
  product.done = true;
}

/// Those of the first `groups` groups that all lanes have started.
void HopperBlock::run_products(Warp& warp, int number, uint32_t groups) {
  for (Product& product : warp.products)
    if (!product.done && product.group < groups && product.lanes == kWarp) run_product(product, number);
}

void HopperBlock::wait_products(int pending, Site site) {
  use();
  tell({Act::Kind::wait_products, -1,
        int64_t{warps_[static_cast<size_t>(me() / kWarp)].committed[me() % kWarp]} - pending, 0, site.place});
  worker_.wait_for_warp(finish_products, &pending, site.place);
}

void HopperBlock::finish_products(void* const* lanes) {
  Worker& worker = *Worker::running();
  HopperBlock& block = worker.hopper;
  const int number = worker.current_ / kWarp, pending = *static_cast<const int*>(lanes[0]);
  Warp& warp = block.warps_[static_cast<size_t>(number)];
  const Site here{worker.threads_[worker.current_].place, nullptr};
  const uint32_t committed = warp.committed[0];
  for (int lane = 1; lane < kWarp; ++lane)
    if (warp.committed[lane] != committed)
      block.give_up(here, "the lanes of this warp have committed different numbers of groups of products");
  const uint32_t finished = committed - std::min<uint32_t>(committed, static_cast<uint32_t>(pending));
  block.run_products(warp, number, finished);

  size_t count = 0;
  for (; count < warp.products.size() && warp.products[count].group < finished; ++count) {
    const Product& product = warp.products[count];
    if (!product.done)
      block.give_up(here, "only " + std::to_string(product.lanes) + " lanes of this warp have started the product at " +
                              text(product.site));
    for (int lane = 0; lane < kWarp && product.operands.a_registers; ++lane)
      if (std::memcmp(product.a_registers[lane], product.a_values[lane], sizeof product.a_values[lane]) != 0)
        worker.give_up_block(
            number * kWarp + lane, text(product.site),
            "the left operand of this product was changed in its registers before the product was waited for (at " +
                to_string(here.place) + ")");
  }
  for (auto& sums : warp.sums) {
    if (!sums->used || sums->last_group >= finished) continue;
    for (int lane = 0; lane < kWarp; ++lane)
      for (int n = 0; n < sums->columns / 2; ++n) {
        uint32_t bits;
        std::memcpy(&bits, &sums->lane[lane][n], sizeof bits);
        if (bits != kPoison)
          worker.give_up_block(
              number * kWarp + lane, text(sums->site),
              "the sums of this product were touched before they were waited for (at " + to_string(here.place) + ")");
        sums->lane[lane][n] = sums->value[n / 4 * 8 + lane % 4 * 2 + n % 2][lane / 4 + n / 2 % 2 * 8];
      }
    sums->used = false;
  }
  warp.products.erase(warp.products.begin(), warp.products.begin() + static_cast<std::ptrdiff_t>(count));
  warp.first_product += count;
  for (int lane = 0; lane < kWarp; ++lane) {
    warp.fenced[lane] = false;
    if (!block.clocks_run_) continue;
    uint32_t& known = block.clock_of(number * kWarp + lane)[block.threads_count_ + number];
    known = std::max(known, finished);
  }
}

void HopperBlock::use_registers(const void* first, const void* end, Site site) {
  use();
  const int lane = me() % kWarp;
  const Warp& warp = warps_[static_cast<size_t>(me() / kWarp)];
  const auto within = [&](const void* at) { return at && at >= first && at < end; };
  const auto why = [&](uint32_t group) {
    return group == warp.committed[lane] ? " has not even been committed" : " has not been waited for";
  };
  for (const auto& sums : warp.sums)
    if (sums->used && within(sums->lane[lane]))
      give_up(site, "the sums are used here of the product started at " + text(sums->site) + ", which" +
                        why(sums->last_group));
  for (const Product& product : warp.products)
    if (static_cast<size_t>(&product - warp.products.data()) + warp.first_product < warp.started[lane] &&
        within(product.a_registers[lane]))
      give_up(site, "the left operand is used here of the product started at " + text(product.site) + ", which" +
                        why(product.group));
}

// ---- registers ------------------------------------------------------------------------------------------------------

void HopperBlock::set_registers(int count, bool takes, Site site) {
  use();
  Warp& warp = warps_[static_cast<size_t>(me() / kWarp)];
  tell({Act::Kind::registers, -1, 0, 0, site.place});
  if (takes ? count < warp.registers : count > warp.registers)
    give_up(site, std::string(takes ? "takes " : "gives up all but ") + std::to_string(count) +
                      " registers a thread, and has " + std::to_string(warp.registers));
  worker_.wait_for_warp(change_registers, &count, site.place);
  if (warp.registers == count) return;
  threads_[static_cast<size_t>(me())].registers = true;
  worker_.wait_for_unit(site.place);
}

void HopperBlock::change_registers(void* const* lanes) {
  HopperBlock& block = Worker::running()->hopper;
  block.warps_[static_cast<size_t>(block.me() / kWarp)].wanted = *static_cast<const int*>(lanes[0]);
  block.grant_registers();
}

// Who wants more than is free waits until others have given enough.
void HopperBlock::grant_registers() {
  for (int number = 0; number < warps_count_; ++number) {
    Warp& warp = warps_[static_cast<size_t>(number)];
    const int more = (warp.wanted - warp.registers) * kWarp;
    if (warp.wanted == 0 || more > free_registers_) continue;
    free_registers_ -= more;
    warp.registers = warp.wanted, warp.wanted = 0;
    std::vector<uint16_t> waiting;
    for (int thread = number * kWarp; thread < (number + 1) * kWarp; ++thread)
      if (std::exchange(threads_[static_cast<size_t>(thread)].registers, false))
        waiting.push_back(static_cast<uint16_t>(thread));
    wake(waiting);
    if (more < 0) number = -1;  // for those before it too
  }
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void HopperBlock::thread_ends(int thread) {
  if (!used_) return;
  const int lane = thread % kWarp;
  for (const CopyBack& copy : threads_[static_cast<size_t>(thread)].copies_back)
    worker_.give_up_block(
        thread, text(copy.site),
        copy.committed
            ? "the thread has ended and never waited for the copy back that it started here: the SRAM may be gone "
              "before it has been read"
            : "the copy back that the thread started here was never committed, so that no wait waits for it");
  const Warp& warp = warps_[static_cast<size_t>(thread / kWarp)];
  for (const Product& product : warp.products)
    if (static_cast<size_t>(&product - warp.products.data()) + warp.first_product < warp.started[lane])
      worker_.give_up_block(
          thread, text(product.site),
          product.group == warp.committed[lane]
              ? "the product that the thread started here was never committed, so that no wait waits for it"
              : "the thread has ended and never waited for the product that it started here");
  const int first = thread / kWarpgroup * kWarpgroup;
  for (int other = first; other < std::min(first + kWarpgroup, threads_count_); other += kWarp)
    if (worker_.threads_[other].state == Worker::State::finished &&
        warps_[static_cast<size_t>(other / kWarp)].started[0] != warp.started[lane])
      worker_.give_up_block(
          thread, to_string(worker_.threads_[thread].place),
          "warp " + std::to_string(thread / kWarp) + " has ended after " + std::to_string(warp.started[lane]) +
              " products, warp " + std::to_string(other / kWarp) + " of its warpgroup after " +
              std::to_string(warps_[static_cast<size_t>(other / kWarp)].started[0]) +
              ": they must start them together");
}

std::string HopperBlock::waits_for(int thread) const {
  if (!used_) return "";
  const Thread& it = threads_[static_cast<size_t>(thread)];
  if (it.barrier >= 0)
    return "parity " + std::to_string(it.parity) + " of " + describe(barriers_[static_cast<size_t>(it.barrier)]);
  if (it.named >= 0) {
    const NamedBarrier& barrier = named_[it.named];
    return "named barrier " + std::to_string(it.named) + ", where " + std::to_string(barrier.arrived) + " of " +
           std::to_string(barrier.threads) + " threads have arrived";
  }
  if (!it.registers) return "";
  const Warp& warp = warps_[static_cast<size_t>(thread / kWarp)];
  return std::to_string(warp.wanted) + " registers a thread: it has " + std::to_string(warp.registers) + ", and " +
         std::to_string(free_registers_) + " of the block's are free";
}

}  // namespace attention::executor
