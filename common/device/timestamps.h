// What --timeline knows of a GPU: times that the warps of one SM note for themselves. device/gpu/timed.h writes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attention {

/// What a warp did between two times.
enum class Noted : uint32_t {
  nothing,  // of a ring: not written yet
  load,     // HBM to SRAM, and waited; more: how far the last of several tensors lies from the first, in kTensorUnit
  store,    // to HBM
  copy,     // started asynchronous copies
  commit_copies,
  wait_copies,        // more: how many groups may still travel
  bulk_copy,          // asked the copy engine for a tile; more: the barrier that counts its bytes
  bulk_store,         // the same, back to HBM
  wait_bulk_stores,   // until they have read SRAM
  product,            // a product of its own
  warpgroup_product,  // started one, a group
  wait_products,      // more: how many groups may still run
  wait,               // at a barrier: detail is its address in SRAM, or its number
};

/// 16 bytes of a ring. Times are the low halves of the SM's clock; detail is a tensor's address in units of 16 bytes.
struct Timestamp {
  uint32_t begin, end;
  uint32_t what;  // Noted, and `more` from bit 8 on
  uint32_t detail;

  Noted kind() const { return static_cast<Noted>(what & 0xff); }
  int more() const { return static_cast<int32_t>(what) >> 8; }
};
constexpr int kTensorUnit = 256;  // bytes: device memory is allocated in these

/// One warp of a block on the chosen SM.
struct NotedWarp {
  int64_t block = 0;
  int warp = 0;
  int64_t begun = 0;              // the SM's clock when the block began
  std::vector<Timestamp> stamps;  // from the oldest that its ring still had
};
struct NotedTensor {
  std::string name;
  uint32_t address = 0, length = 0;  // both in units of 16 bytes
};
struct NotedLaunch {
  std::string kernel;
  std::vector<NotedTensor> tensors;
  std::vector<NotedWarp> warps;
};

/// A ring's stamps from the oldest on: where the ring has come round, the oldest follows the newest.
inline std::vector<Timestamp> in_order(const Timestamp* ring, int64_t count) {
  int64_t first = 0, used = 0;
  while (used < count && ring[used].kind() != Noted::nothing) ++used;
  for (int64_t n = 1; n < used; ++n)
    if (static_cast<int32_t>(ring[n].end - ring[n - 1].end) < 0) first = n;
  std::vector<Timestamp> stamps(ring + first, ring + used);
  stamps.insert(stamps.end(), ring, ring + first);
  return stamps;
}

/// Where the warps of a launch write, handed to the kernel; null pointers: nowhere. Warps of SM 0 take a ring each as
/// they begin; all others, so that they take as long, write to one that nobody reads.
struct Rings {
  static constexpr int kRings = 64, kStamps = 4096, kUnreadStamps = 64, kWarpsOfSm = 64;
  struct Head {
    uint32_t block, warp;
    uint64_t begun;
  };
  uint32_t* taken = nullptr;    // how many rings are
  Head* heads = nullptr;        // [kRings]
  Timestamp* rings = nullptr;   // [kRings, kStamps], each at a multiple of its size
  Timestamp* unread = nullptr;  // [SMs, kWarpsOfSm, kUnreadStamps], likewise
};

}  // namespace attention
