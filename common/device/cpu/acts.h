// What --timeline is made of: what each warp of a filmed block does, in its own order, as the executor's hooks tell it.
//
// The threads of a warp do the same things; what they do between two operations that the whole warp takes part in is
// put together: two acts with the same kind, tensor and key are one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/device/cpu/executor.h"

namespace attention::executor {

struct Act {
  enum class Kind : uint8_t {
    load,
    store,  // bytes of a tensor: the warp waits for what it loads
    copy,
    wait_copies,  // cp.async: key is the group; the wait is for all groups before its key
    bulk_copy,    // the copy engine brings bytes, which is one of the things that complete what key names
    bulk_store,
    wait_bulk_stores,
    product,  // FLOPs of one dimension of a row; the warp does it itself
    warpgroup_product,
    wait_products,  // FLOPs; key as in copies
    softmax,        // scores
    arrive,
    wait,       // at a barrier: key names it and its phase
    registers,  // setmaxnreg: such a block has an SM's registers to itself
  };
  Kind kind;
  int tensor = -1;
  int64_t key = 0, amount = 0;
  SourceLine place;
};

/// Names a phase of a barrier.
constexpr int64_t barrier_key(int number, int64_t phase) { return int64_t{number} << 40 | phase; }
inline constexpr int kSyncthreads = 0, kNamedBarriers = 1, kBarriers = 32;  // the first number of each sort

class BlockActs {
 public:
  void start(int threads) {
    warps_.assign(static_cast<size_t>((threads + kWarp - 1) / kWarp), {});
    syncs_ = 0;
  }
  std::vector<std::vector<Act>> finish() {
    std::vector<std::vector<Act>> all;
    for (Warp& warp : warps_) all.push_back(std::move(warp.acts));
    return all;
  }

  void add(int thread, const Act& act) {
    Warp& warp = of(thread);
    const auto same = [&](const Act& it) {
      return it.kind == act.kind && it.tensor == act.tensor && it.key == act.key;
    };
    size_t index = warp.loaded;
    if (index < warp.together || index >= warp.acts.size() || !same(warp.acts[index]))
      for (index = warp.together; index < warp.acts.size() && !same(warp.acts[index]);) ++index;
    if (index == warp.acts.size()) warp.acts.push_back(act);
    else warp.acts[index].amount += act.amount;
    if (act.kind == Act::Kind::load) warp.loaded = index;
  }
  /// A lane's last load was no load but the beginning of an asynchronous copy.
  void copy_started(int thread, int64_t bytes, int64_t group) {
    Warp& warp = of(thread);
    Act& load = warp.acts[warp.loaded];
    const Act copy{Act::Kind::copy, load.tensor, group, bytes, {}};
    load.amount -= bytes;
    if (load.amount == 0) warp.acts.erase(warp.acts.begin() + static_cast<std::ptrdiff_t>(warp.loaded));
    add(thread, copy);
  }
  /// Lanes exchange numbers. The first time after a product it is the softmax of the scores that this product has made.
  void exchange(int thread, SourceLine place) {
    Warp& warp = of(thread);
    if (warp.scores > 0) warp.acts.push_back({Act::Kind::softmax, -1, 0, warp.scores, place});
    warp.scores = 0;
  }
  void scores(int thread, int64_t count) { of(thread).scores = count; }
  /// All lanes of a warp have come to one place.
  void warp_together(int thread) { of(thread).together = of(thread).acts.size(); }
  void block_together(SourceLine place) {
    for (Warp& warp : warps_) {
      const int64_t key = barrier_key(kSyncthreads, syncs_);
      warp.acts.push_back({Act::Kind::arrive, -1, key, 0, place});
      warp.acts.push_back({Act::Kind::wait, -1, key, 0, place});
      warp.together = warp.acts.size();
    }
    ++syncs_;
  }

 private:
  struct Warp {
    std::vector<Act> acts;
    size_t together = 0;  // the first act since all lanes were at one place
    size_t loaded = 0;    // the last load
    int64_t scores = 0;   // that wait for their softmax
  };
  Warp& of(int thread) { return warps_[static_cast<size_t>(thread / kWarp)]; }
  std::vector<Warp> warps_;
  int64_t syncs_ = 0;
};

}  // namespace attention::executor
