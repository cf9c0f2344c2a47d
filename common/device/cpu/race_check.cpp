#include "common/device/cpu/race_check.h"

#include <algorithm>

namespace attention::executor {

void ShadowSram::reset(int64_t sram_bytes) {
  const size_t words = static_cast<size_t>((sram_bytes + kWord - 1) / kWord);
  for (auto* accesses : {&writer_, &reader_, &other_reader_, &copy_}) accesses->assign(words, Access{});
  words_with_copy_ = 0;
}

void ShadowSram::forget_order() {
  for (auto* accesses : {&writer_, &reader_, &other_reader_}) accesses->assign(accesses->size(), Access{});
}

// True when a read changes nothing in any of these words, as most reads do: a row of K is read by all lanes of all
// warps. Arithmetic rather than comparisons, so that compilers check several words at once.
bool ShadowSram::nothing_new(size_t first, size_t count, Access now) const {
  constexpr int epoch_shift = Access::kEpochBits + Access::kThreadBits + Access::kSiteBits;
  constexpr uint64_t warp = Access::kWarpBits, warp_and_epoch = Access::kWarpBits | Access::kWarpEpochBits;
  const auto zero = [](uint64_t x) { return (x - 1) >> 63; };  // 1 when x == 0, else 0; for x < 2^63
  const Access *writers = &writer_[first], *readers = &reader_[first], *others = &other_reader_[first];
  uint64_t news = 0;
  for (size_t n = 0; n < count; ++n) {
    const uint64_t reader = readers[n].bits, other = others[n].bits;
    const uint64_t written = zero((writers[n].bits ^ now.bits) >> epoch_shift);  // in this epoch: to be looked at
    const uint64_t fewer_than_two = ((reader ^ now.bits) | (other ^ now.bits)) >> epoch_shift;  // readers in this epoch
    const uint64_t one_warp = zero((reader ^ other) & warp);           // both of one warp, and this
    const uint64_t mine = zero((reader ^ now.bits) & warp_and_epoch);  // one of it too, as it was then
    news |= written | fewer_than_two | (one_warp & ~mine);
  }
  return news == 0;
}

ShadowSram::Race ShadowSram::read(int64_t first_byte, int64_t bytes, Access now, const uint32_t* clock) {
  const size_t first = static_cast<size_t>(first_byte / kWord),
               count = static_cast<size_t>((first_byte + bytes + kWord - 1) / kWord) - first;
  if (const Race race = copy_on_its_way(first, first + count); race.found) return race;
  if (!clock && nothing_new(first, count, now)) return {};
  for (size_t n = first; n < first + count; ++n) {
    if (now.unordered(writer_[n], clock)) return {true, writer_[n], true, false, static_cast<int64_t>(n) * kWord};
    Access &reader = reader_[n], &other = other_reader_[n];
    if (clock) {  // a third reader that neither knows of the others goes unremembered
      if (!now.unordered(reader, clock)) reader = now;
      else if (!now.unordered(other, clock)) other = now;
      continue;
    }
    if (!now.same_block_epoch(reader)) {
      reader = now;
      other = {};
      continue;
    }
    const bool two = now.same_block_epoch(other);
    if (two && other.warp() != reader.warp()) continue;  // any writer races with one of the two
    if (reader.warp() != now.warp()) {
      other = now;
    } else if (!now.same_epochs(reader)) {
      reader = now;  // its warp has passed a __syncwarp since: for other warps this read stands for the older one
      other = {};
    } else if (!two && reader.thread() != now.thread()) {
      other = now;
    }
  }
  return {};
}

ShadowSram::Race ShadowSram::write(int64_t first_byte, int64_t bytes, Access now, const uint32_t* clock) {
  const size_t first = static_cast<size_t>(first_byte / kWord),
               end = static_cast<size_t>((first_byte + bytes + kWord - 1) / kWord);
  if (const Race race = copy_on_its_way(first, end); race.found) return race;
  for (size_t n = first; n < end; ++n) {
    const int64_t byte = static_cast<int64_t>(n) * kWord;
    if (now.unordered(writer_[n], clock)) return {true, writer_[n], true, false, byte};
    if (now.unordered(reader_[n], clock)) return {true, reader_[n], false, false, byte};
    if (now.unordered(other_reader_[n], clock)) return {true, other_reader_[n], false, false, byte};
    writer_[n] = now;
  }
  return {};
}

ShadowSram::Race ShadowSram::copy_on_its_way(size_t first, size_t end) const {
  if (words_with_copy_ == 0) return {};
  for (size_t n = first; n < end; ++n)
    if (copy_[n].bits != 0) return {true, copy_[n], true, true, static_cast<int64_t>(n) * kWord};
  return {};
}

void ShadowSram::copy_starts(int64_t first_byte, int64_t bytes, Access now) {
  const size_t first = static_cast<size_t>(first_byte / kWord),
               end = static_cast<size_t>((first_byte + bytes + kWord - 1) / kWord);
  for (size_t n = first; n < end; ++n) copy_[n] = now;
  words_with_copy_ += end - first;
}

void ShadowSram::copy_arrives(int64_t first_byte, int64_t bytes, Access now) {
  const size_t first = static_cast<size_t>(first_byte / kWord),
               end = static_cast<size_t>((first_byte + bytes + kWord - 1) / kWord);
  for (size_t n = first; n < end; ++n) copy_[n] = {}, writer_[n] = now;
  words_with_copy_ -= end - first;
}

}  // namespace attention::executor
