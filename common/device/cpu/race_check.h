// The race check: a shadow of the block's SRAM that remembers, for each 2-byte word, who wrote it last and who read it.
// Two bytes are the smallest element (fp16, bf16), and neighbouring elements are memory of their own: storing both at
// once is no race.
//
// Two accesses by different threads, at least one of them a write, must be ordered by a barrier that both threads pass
// between them: __syncthreads, or for threads of one warp __syncwarp. Every barrier starts a new epoch (of the block,
// of the warp), so two accesses are unordered exactly when their epochs are equal. That does not depend on the order in
// which the threads happened to run: one run finds what any order could show.
// Barriers between some threads (mbarriers, named ones) make other orders. Where a block has them, its threads have
// vector clocks (hopper_block.h): an access carries its thread's time, and is ordered before those whose thread knows
// of that time. Same idea as the last-access words of FastTrack (Flanagan, Freund: FastTrack, PLDI 2009), with barriers
// as the only order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace attention::executor {

/// One access, packed so that two are compared with a few bit operations.
struct Access {
  static constexpr int kSiteBits = 14, kThreadBits = 10, kEpochBits = 20;
  static constexpr int kSites = 1 << kSiteBits;
  static constexpr uint32_t kEpochs = 1u << kEpochBits;

  static constexpr uint64_t kWarpBits =
      uint64_t{31} << (kSiteBits + 5);  // a thread's number: 5 bits of warp, 5 of lane
  static constexpr uint64_t kWarpEpochBits = uint64_t{kEpochs - 1} << (kThreadBits + kSiteBits);

  uint64_t bits = 0;  // block epoch | warp epoch | thread | site; 0: no access (block epochs start at 1)

  Access() = default;
  Access(uint32_t block_epoch, uint32_t warp_epoch, int thread, int site)
      : bits(uint64_t{block_epoch} << (kEpochBits + kThreadBits + kSiteBits) |
             uint64_t{warp_epoch % kEpochs} << (kThreadBits + kSiteBits) | uint64_t(thread) << kSiteBits |
             uint64_t(site)) {}

  uint64_t time() const { return bits >> (kThreadBits + kSiteBits); }  // where there are clocks
  int thread() const { return static_cast<int>(bits >> kSiteBits) & ((1 << kThreadBits) - 1); }
  int site() const { return static_cast<int>(bits) & (kSites - 1); }
  int warp() const { return thread() / 32; }

  bool same_block_epoch(Access other) const {
    return (bits ^ other.bits) >> (kEpochBits + kThreadBits + kSiteBits) == 0;
  }
  bool same_epochs(Access other) const { return (bits ^ other.bits) >> (kThreadBits + kSiteBits) == 0; }

  /// True when no barrier lies between the two and they are of different threads.
  bool unordered(Access other) const {
    if (!same_block_epoch(other) || thread() == other.thread()) return false;
    return warp() != other.warp() || same_epochs(other);
  }
  /// The same where this access's thread has a clock.
  bool unordered(Access other, const uint32_t* clock) const {
    if (!clock) return unordered(other);
    return other.bits != 0 && other.thread() != thread() && clock[other.thread()] < other.time();
  }
};

class ShadowSram {
 public:
  static constexpr int64_t kWord = 2;  // bytes

  struct Race {
    bool found = false;
    Access earlier;
    bool earlier_writes = false;
    bool on_its_way = false;  // the earlier access is an asynchronous copy that nobody has waited for
    int64_t byte = 0;         // of the word, from the start of the block's SRAM
  };

  /// Forgets all accesses: at the start of a block of `sram_bytes`.
  void reset(int64_t sram_bytes);
  /// Forgets them but for copies on their way: when the epochs start again from 1.
  void forget_order();

  /// `clock`: of the accessing thread, null where barriers of the whole block and of warps are the only order.
  Race read(int64_t first_byte, int64_t bytes, Access now, const uint32_t* clock = nullptr);
  Race write(int64_t first_byte, int64_t bytes, Access now, const uint32_t* clock = nullptr);

  /// Who stored in the word at this byte last, and two of those who have loaded it since.
  struct Word {
    Access writer, reader, other_reader;
  };
  Word at(int64_t byte) const {
    const auto n = static_cast<std::size_t>(byte / kWord);
    return {writer_[n], reader_[n], other_reader_[n]};
  }

  /// An asynchronous copy writes twice: when it starts, which write() has been told, and when it arrives. Between the
  /// two its words belong to it: any access is a race, by whatever thread and after whatever barrier.
  void copy_starts(int64_t first_byte, int64_t bytes, Access now);
  void copy_arrives(int64_t first_byte, int64_t bytes, Access now);

 private:
  Race copy_on_its_way(std::size_t first, std::size_t end) const;
  bool nothing_new(std::size_t first, std::size_t count, Access now) const;

  // By word. Two readers are enough to answer for all: once they are of different warps, any writer races with one of
  // them; while all readers are of one warp, two of its newest epoch stand for the rest.
  std::vector<Access> writer_, reader_, other_reader_;
  std::vector<Access> copy_;  // on its way to this word; empty: none
  std::size_t words_with_copy_ = 0;
};

}  // namespace attention::executor
