#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "common/harness/timeline_tracks.h"

namespace attention {

namespace {

using executor::Act;
using executor::FilmedLaunch;

// Of an H200, per cycle and SM. Warpgroup products: 989 TFLOP/s (NVIDIA's H100 white paper) by 132 SMs at 1.83 GHz.
// mma.sync, L2: as step00 measures them. fp32, exponentials: the CUDA programming guide, arithmetic instructions. All
// other arithmetic of a softmax is taken to run beside its exponentials.
constexpr double kWarpgroupFlops = 4096, kMmaFlops = 2650, kFp32Flops = 256, kExponentials = 16, kBytes = 38;
constexpr int64_t kLatency =
    300;  // cycles from an access to its first byte, from the L2: blocks of one head share K and V
constexpr int64_t kSramOfSm = 228 * 1024, kSramOfSystem = 1024, kThreadsOfSm = 2048, kMostBlocks = 2;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::string place_text(executor::SourceLine place) {
  if (!place.file) return "";
  const std::string path = place.file;
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), place.line);
}

class Replay {
 public:
  Replay(const FilmedLaunch& launch, const Problem& p)
      : head_dim_(p.head_dim), cuda_cores_(p.dtype == Dtype::fp32 && !p.on_tensor_cores) {
    flops_ = p.dtype != Dtype::fp32 ? kMmaFlops
             : p.on_tensor_cores    ? kMmaFlops / 3
                                    : kFp32Flops;  // fp32 there: three products
    bool alone = false;
    for (const auto& acts : launch.filmed.at(0).acts)
      alone |= std::any_of(acts.begin(), acts.end(), [](const Act& act) { return act.kind == Act::Kind::registers; });
    const int64_t fit =
        alone ? 1 : std::min(kSramOfSm / (launch.sram_bytes + kSramOfSystem), kThreadsOfSm / launch.threads);
    const auto count = static_cast<size_t>(
        std::clamp<int64_t>(fit, 1, std::min<int64_t>(kMostBlocks, static_cast<int64_t>(launch.filmed.size()))));
    for (size_t block = 0; block < count; ++block) {
      blocks_.push_back(launch.filmed[block].block);
      const auto& acts = launch.filmed[block].acts;
      for (size_t n = 0; n < acts.size(); ++n) {
        warps_.push_back({&acts[n], block, static_cast<int>(n)});
        for (const Act& act : acts[n])
          if (act.kind == Act::Kind::arrive || act.kind == Act::Kind::bulk_copy) ++barriers_[{block, act.key}].missing;
      }
    }
  }

  Sm run() {
    for (;;) {
      Warp* first = nullptr;
      int64_t when = kNever;
      for (Warp& warp : warps_)
        if (warp.next < warp.acts->size())
          if (const int64_t ready = ready_at(warp); ready < when) first = &warp, when = ready;
      if (!first) break;
      perform(*first);
    }
    std::vector<WarpTracks> tracks;
    for (Warp& warp : warps_)
      tracks.push_back({warp.block, warp.number,
                        std::any_of(warp.acts->begin(), warp.acts->end(),
                                    [](const Act& one) { return one.kind == Act::Kind::bulk_copy; }),
                        std::move(warp.own), std::move(warp.products)});
    std::vector<BlockCopy> copies;
    for (auto& [key, span] : copies_) copies.push_back({key.block, std::move(span)});
    Sm sm = sm_of(std::move(blocks_), std::move(tracks), copies);
    sm.busy = fmt::format(
        "{} busy {:.0f} %", cuda_cores_ ? "CUDA cores" : "tensor cores",
        100.0 * static_cast<double>(products_) / static_cast<double>(kQuarters * std::max<int64_t>(sm.end, 1)));
    return sm;
  }

 private:
  struct Warp {
    const std::vector<Act>* acts;
    size_t block;
    int number;
    size_t next = 0;
    int64_t now = 0;
    std::map<int64_t, int64_t> groups, running;  // of copies, of products: when they end
    int64_t product = -1;                        // the group of the last product
    int64_t stores = 0, stored = 0;              // when the last bulk store has read its SRAM, and how many there were
    std::vector<Span> own{}, products{};
  };
  struct Phase {
    int missing = 0;
    int64_t end = 0;
  };
  struct Key {
    size_t block;
    int64_t key;
    auto operator<=>(const Key&) const = default;
  };
  struct CopyKey {
    size_t block;
    int64_t begin, group;
    int tensor;
    auto operator<=>(const CopyKey&) const = default;
  };

  const Act& act(const Warp& warp) const { return (*warp.acts)[warp.next]; }

  int64_t ready_at(const Warp& warp) const {
    const Act& it = act(warp);
    if (it.kind != Act::Kind::wait) return warp.now;
    const auto phase = barriers_.find({warp.block, it.key});
    if (phase == barriers_.end()) return warp.now;
    return phase->second.missing ? kNever : std::max(warp.now, phase->second.end);
  }
  void contribute(const Warp& warp, int64_t key, int64_t when) {
    Phase& phase = barriers_[{warp.block, key}];
    --phase.missing;
    phase.end = std::max(phase.end, when);
  }
  static int64_t latest(const std::map<int64_t, int64_t>& ends, int64_t before) {
    int64_t end = 0;
    for (const auto& [group, when] : ends)
      if (group < before) end = std::max(end, when);
    return end;
  }
  static int64_t cycles(double amount, double rate) {
    return std::max<int64_t>(1, static_cast<int64_t>(amount / rate + 0.5));
  }

  /// Takes a unit that does one thing after the other; when it is done.
  static int64_t occupy(int64_t& free, int64_t now, int64_t length) { return free = std::max(free, now) + length; }
  void wait_until(Warp& warp, int64_t when, const char* what, const Act& it) {
    if (when > warp.now)
      warp.own.push_back({Look::wait, warp.now, when, fmt::format("waits for {}", what), place_text(it.place)});
    warp.now = std::max(warp.now, when);
  }
  std::string moved(const Act& it) const {
    return fmt::format("{}, {} bytes", executor::tensor_name(it.tensor), it.amount);
  }

  /// Copies of one tensor that the warps of a block start for one group are drawn as one.
  void travels(Warp& warp, const Act& it, int64_t group, int64_t end) {
    const auto same = std::find_if(copies_.rbegin(), copies_.rend(), [&](const auto& one) {
      return one.first.block == warp.block && one.first.tensor == it.tensor && one.first.group == group;
    });
    if (same != copies_.rend()) {
      same->second.end = std::max(same->second.end, end);
      return;
    }
    copies_[{warp.block, warp.now, group, it.tensor}] = {
        Look::copy, warp.now, end, executor::tensor_name(it.tensor), place_text(it.place)};
  }
  void perform(Warp& warp) {
    const int64_t ready = ready_at(warp);
    const Act& it = act(warp);
    ++warp.next;
    const size_t quarter = static_cast<size_t>(warp.number % kQuarters);
    const auto amount = static_cast<double>(it.amount);
    switch (it.kind) {
      case Act::Kind::load: {  // those that follow it leave at once too
        std::string names = executor::tensor_name(it.tensor);
        int64_t bytes = it.amount;
        for (; warp.next < warp.acts->size() && act(warp).kind == Act::Kind::load; ++warp.next) {
          names += fmt::format(", {}", executor::tensor_name(act(warp).tensor));
          bytes += act(warp).amount;
        }
        const int64_t end = occupy(memory_, warp.now, cycles(static_cast<double>(bytes), kBytes)) + kLatency;
        warp.own.push_back({Look::load, warp.now, end, names, fmt::format("{} bytes", bytes)});
        warp.now = end;
        break;
      }
      case Act::Kind::store: {
        const int64_t end = occupy(stores_, warp.now, cycles(amount, kBytes));
        warp.own.push_back(
            {Look::store, warp.now, end, executor::tensor_name(it.tensor), fmt::format("{} bytes", it.amount)});
        warp.now = end;
        break;
      }
      case Act::Kind::copy: {
        const int64_t end = occupy(memory_, warp.now, cycles(amount, kBytes)) + kLatency;
        warp.groups[it.key] = std::max(warp.groups[it.key], end);
        travels(warp, it, it.key, end);
        break;
      }
      case Act::Kind::bulk_copy: {
        const int64_t end = occupy(memory_, warp.now, cycles(amount, kBytes)) + kLatency;
        contribute(warp, it.key, end);
        travels(warp, it, it.key, end);
        break;
      }
      case Act::Kind::bulk_store:
        warp.stores = occupy(stores_, warp.now, cycles(amount, kBytes));
        travels(warp, it, -1 - warp.number / kQuarters - 32 * warp.stored++,
                warp.stores);  // what four warps bring back is drawn as one
        break;
      case Act::Kind::wait_copies:
        wait_until(warp, latest(warp.groups, it.key), "copies", it);
        break;
      case Act::Kind::wait_bulk_stores:
        wait_until(warp, warp.stores, "stores", it);
        break;
      case Act::Kind::product: {
        const int64_t length = cycles(amount * head_dim_, flops_ / kQuarters),
                      end = occupy(tensor_core_[quarter], warp.now, length);
        wait_until(warp, end - length, "its turn", it);
        multiplies(warp, end - length, end, it);
        warp.now = end;
        break;
      }
      case Act::Kind::warpgroup_product: {
        const int64_t length = cycles(amount, kWarpgroupFlops / kQuarters),
                      end = occupy(tensor_core_[quarter], warp.now, length);
        warp.running[it.key] = std::max(warp.running[it.key], end);
        multiplies(warp, end - length, end, it);
        break;
      }
      case Act::Kind::wait_products:
        wait_until(warp, latest(warp.running, it.key), "products", it);
        break;
      case Act::Kind::softmax: {
        const int64_t length = cycles(amount, kExponentials / kQuarters),
                      end = occupy(arithmetic_[quarter], warp.now, length);
        wait_until(warp, end - length, "its turn", it);
        warp.own.push_back({Look::softmax, end - length, end, "softmax",
                            fmt::format("{} scores, {}", it.amount, place_text(it.place))});
        warp.now = end;
        break;
      }
      case Act::Kind::arrive:
        contribute(warp, it.key, warp.now);
        break;
      case Act::Kind::wait:
        wait_until(warp, ready, "a barrier", it);
        break;
      case Act::Kind::registers:
        break;
    }
  }
  void multiplies(Warp& warp, int64_t begin, int64_t end, const Act& it) {
    products_ += end - begin;
    if (!warp.products.empty() && warp.products.back().end == begin && warp.product == it.key)
      warp.products.back().end = end;
    else warp.products.push_back({Look::product, begin, end, "product", place_text(it.place)});
    warp.product = it.kind == Act::Kind::product ? -1 : it.key;
  }

  int head_dim_;
  double flops_;
  bool cuda_cores_;
  std::vector<int64_t> blocks_;
  std::vector<Warp> warps_;
  std::map<Key, Phase> barriers_;
  std::map<CopyKey, Span> copies_;
  int64_t memory_ = 0, stores_ = 0;  // when the way from memory, and the way back, are free
  std::array<int64_t, kQuarters> tensor_core_{}, arithmetic_{};
  int64_t products_ = 0;  // cycles of all tensor cores together
};

}  // namespace

Sm replay(const FilmedLaunch& launch, const Problem& problem) { return Replay(launch, problem).run(); }

std::string model_rates() {
  return fmt::format(
      "per cycle and SM: {} bytes, after {} cycles; FLOPs {} by warpgroup products, {} by mma.sync, {} in fp32; {} "
      "exponentials",
      kBytes, kLatency, kWarpgroupFlops, kMmaFlops, kFp32Flops, kExponentials);
}

}  // namespace attention
