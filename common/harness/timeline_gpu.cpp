#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/harness/timeline.h"
#include "common/harness/timeline_tracks.h"

namespace attention {

namespace {

constexpr int64_t kBrief = 64;      // cycles: a shorter pause is left blank. A note itself takes some 40
constexpr int64_t kTogether = 400;  // between the additions to a tensor that are drawn as one store

/// The whole clock, whose low halves the stamps have: two neighbours are less than 2^31 cycles apart.
struct Clock {
  int64_t now;
  int64_t at(uint32_t low) { return now += static_cast<int32_t>(low - static_cast<uint32_t>(now)); }
};

class Notes {
 public:
  Notes(const NotedLaunch& launch, std::string between) : launch_(launch), between_(std::move(between)) {
    std::map<int64_t, int64_t> begun;  // of a block: when
    for (const NotedWarp& warp : launch.warps) {
      const auto [block, first] = begun.try_emplace(warp.block, warp.begun);
      if (!first) block->second = std::min(block->second, warp.begun);
      if (!warp.stamps.empty()) zero_ = std::min(zero_, Clock{warp.begun}.at(warp.stamps.front().begin));
      for (const Timestamp& stamp : warp.stamps)
        if (stamp.kind() == Noted::bulk_copy) brought_[{warp.block, stamp.more()}].insert(tensor(stamp.detail));
    }
    for (const auto& [block, when] : begun) blocks_.push_back(block);
    std::sort(blocks_.begin(), blocks_.end(),
              [&](int64_t a, int64_t b) { return std::pair(begun[a], a) < std::pair(begun[b], b); });
  }

  Sm tracks() {
    std::vector<const NotedWarp*> in_order;
    for (const NotedWarp& warp : launch_.warps) in_order.push_back(&warp);
    std::sort(in_order.begin(), in_order.end(), [&](const NotedWarp* a, const NotedWarp* b) {
      return std::pair(number(a->block), a->warp) < std::pair(number(b->block), b->warp);
    });
    std::vector<WarpTracks> warps;
    for (const NotedWarp* warp : in_order) warps.push_back(of_warp(*warp));
    for (auto& [barrier, ends] : waited_) std::sort(ends.begin(), ends.end());
    for (const Bulk& bulk : bulks_) {  // there when the first warp has seen it
      const std::vector<int64_t>& ends = waited_[{bulk.block, bulk.barrier}];
      const auto seen = std::upper_bound(ends.begin(), ends.end(), bulk.begin);
      if (seen != ends.end()) travels(bulk.block, bulk.tensor, bulk.begin, bulk.begin, *seen);
    }
    std::vector<BlockCopy> copies;
    for (const auto& [key, span] : copies_) copies.push_back({std::get<0>(key), span});
    std::stable_sort(copies.begin(), copies.end(),
                     [](const BlockCopy& a, const BlockCopy& b) { return a.span.begin < b.span.begin; });
    return sm_of(blocks_, std::move(warps), copies);
  }

 private:
  struct Bulk {
    size_t block;
    int barrier;
    int64_t begin;
    std::string tensor;
  };

  size_t number(int64_t block) const {
    return static_cast<size_t>(std::find(blocks_.begin(), blocks_.end(), block) - blocks_.begin());
  }
  std::string tensor(uint32_t address) const {
    for (const NotedTensor& one : launch_.tensors)
      if (address - one.address < one.length) return one.name;
    return "tile";
  }
  std::string tensors(const Timestamp& stamp) const {
    const std::string first = tensor(stamp.detail);
    const auto last = stamp.detail + static_cast<uint32_t>(stamp.more() * (kTensorUnit / 16));
    return stamp.more() == 0 ? first : fmt::format("{}, {}", first, tensor(last));
  }
  /// Copies of one tensor that the warps of a block start together are drawn as one.
  void travels(size_t block, const std::string& tensor, int64_t group, int64_t begin, int64_t end) {
    const auto [copy, first] = copies_.try_emplace({block, tensor, group}, Span{Look::copy, begin, end, tensor, ""});
    copy->second.begin = std::min(copy->second.begin, begin);
    copy->second.end = std::max(copy->second.end, end);
  }

  WarpTracks of_warp(const NotedWarp& warp) {
    const size_t block = number(warp.block);
    WarpTracks tracks{block, warp.warp, false, {}, {}};
    std::vector<Span>& own = tracks.own;
    struct Started {
      int64_t group, begin;
      std::string tensor;
    };
    std::vector<Started> copies, stores;
    std::deque<int64_t> products;  // when those that run were started
    int64_t group = 0, stored = 0, now = std::numeric_limits<int64_t>::max();
    bool multiplied = false;  // since the last store
    Clock clock{warp.begun};
    const auto add = [&](Look look, int64_t begin, int64_t end, const std::string& name) {
      if (end > begin) own.push_back({look, begin, end, name, ""});
    };
    const auto waits = [&](int64_t begin, int64_t end, const std::string& what) {
      if (end - begin >= kBrief) add(Look::wait, begin, end, "waits for " + what);
    };
    const auto multiplies = [&](int64_t begin, int64_t end, size_t count) {
      if (!tracks.products.empty()) begin = std::max(begin, tracks.products.back().end);
      if (end > begin)
        tracks.products.push_back(
            {Look::product, begin, end, count == 1 ? "product" : fmt::format("{} products", count), ""});
      multiplied = true;
    };
    for (const Timestamp& stamp : warp.stamps) {
      const int64_t begin = clock.at(stamp.begin) - zero_, end = clock.at(stamp.end) - zero_;
      const bool store = stamp.kind() == Noted::store || stamp.kind() == Noted::bulk_store;
      while (!own.empty() && own.back().begin >= begin) own.pop_back();  // parts of what ends now
      if (!own.empty()) own.back().end = std::min(own.back().end, begin);
      if (multiplied && begin - now >= kBrief)
        add(store ? Look::store : Look::softmax, now, begin, store ? tensor(stamp.detail) : between_);
      now = end;
      switch (stamp.kind()) {
        case Noted::nothing:
          break;
        case Noted::load:
          add(Look::load, begin, end, tensors(stamp));
          break;
        case Noted::store: {
          const std::string to = tensor(stamp.detail);
          if (!own.empty() && own.back().look == Look::store && own.back().name == to &&
              begin - own.back().end < kTogether)
            own.back().end = end;
          else add(Look::store, begin, std::max(end, begin + 1), to);
          multiplied = false;
          break;
        }
        case Noted::copy:
          add(Look::copy, begin, end, tensor(stamp.detail));
          copies.push_back({group, begin, tensor(stamp.detail)});
          break;
        case Noted::commit_copies:
          ++group;
          break;
        case Noted::wait_copies:
          waits(begin, end, "copies");
          std::erase_if(copies, [&](const Started& one) {
            if (one.group >= group - stamp.more()) return false;
            travels(block, one.tensor, one.group, one.begin, end);
            return true;
          });
          break;
        case Noted::bulk_copy:
          tracks.copies = true;
          bulks_.push_back({block, stamp.more(), begin, tensor(stamp.detail)});
          break;
        case Noted::bulk_store:  // what four warps bring back is drawn as one
          stores.push_back({-1 - warp.warp / kQuarters - 32 * stored++, begin, tensor(stamp.detail)});
          multiplied = false;
          break;
        case Noted::wait_bulk_stores:
          waits(begin, end, "stores");
          for (const Started& one : std::exchange(stores, {})) travels(block, one.tensor, one.group, one.begin, end);
          break;
        case Noted::product:
          multiplies(begin, end, 1);
          break;
        case Noted::warpgroup_product:
          products.push_back(begin);
          break;
        case Noted::wait_products: {
          waits(begin, end, "products");
          const auto done = static_cast<ptrdiff_t>(products.size()) - stamp.more();
          if (done <= 0) break;
          multiplies(products.front(), end, static_cast<size_t>(done));
          products.erase(products.begin(), products.begin() + done);
          break;
        }
        case Noted::wait: {
          const auto barrier = static_cast<int>(stamp.detail);
          const auto tile = brought_.find({warp.block, barrier});
          waits(begin, end, tile == brought_.end() ? "a barrier" : fmt::format("{}", fmt::join(tile->second, ", ")));
          waited_[{block, barrier}].push_back(end);
          break;
        }
      }
    }
    return tracks;
  }

  const NotedLaunch& launch_;
  const std::string between_;
  int64_t zero_ = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> blocks_;                                       // in the order in which they began
  std::map<std::pair<int64_t, int>, std::set<std::string>> brought_;  // by block and barrier: tensors
  std::map<std::pair<size_t, int>, std::vector<int64_t>> waited_;     // by block and barrier: ends of waits
  std::map<std::tuple<size_t, std::string, int64_t>, Span> copies_;
  std::vector<Bulk> bulks_;
};

}  // namespace

Sm tracks_of(const NotedLaunch& launch, const std::string& between) { return Notes(launch, between).tracks(); }

// ---- stored timestamps ----------------------------------------------------------------------------------------------

namespace {
using nlohmann::json;
constexpr int64_t kKept = 16000;  // cycles: somewhat more than a picture shows
}  // namespace

std::string timeline_stamps(const RunResult& result) {
  const MethodResult& method = result.methods.back();
  const Problem& p = result.problem;
  json launches = json::array();
  for (const NotedLaunch& launch : method.noted) {
    if (launch.warps.empty()) continue;
    json tensors = json::array(), warps = json::array();
    for (const NotedTensor& tensor : launch.tensors) tensors.push_back({tensor.name, tensor.address, tensor.length});
    int64_t zero = std::numeric_limits<int64_t>::max();
    for (const NotedWarp& warp : launch.warps)
      if (!warp.stamps.empty()) zero = std::min(zero, Clock{warp.begun}.at(warp.stamps.front().begin));
    for (const NotedWarp& warp : launch.warps) {
      json stamps = json::array();
      Clock clock{warp.begun};
      for (const Timestamp& stamp : warp.stamps) {
        if (clock.at(stamp.begin) - zero >= kKept) break;
        for (const uint32_t number : {stamp.begin, stamp.end, stamp.what, stamp.detail}) stamps.push_back(number);
      }
      if (!stamps.empty())
        warps.push_back({{"block", warp.block}, {"warp", warp.warp}, {"begun", warp.begun}, {"stamps", stamps}});
    }
    launches.push_back({{"kernel", launch.kernel}, {"tensors", tensors}, {"warps", warps}});
  }
  const json out{
      {"step", result.step},
      {"title", result.title},
      {"gpu", result.device_name},
      {"dtype", dtype_name(p.dtype)},
      {"on_tensor_cores", p.on_tensor_cores},
      {"seqlen_k", p.seqlen_k},
      {"head_dim", p.head_dim},
      {"causal", p.causal},
      {"tile", {p.tile.br, p.tile.bc}},
      {"backward", method.backward},
      {"plain_ms", method.time->median_ms},
      {"noted_ms", method.noted_time->median_ms},
      {"launches", launches}};
  return out.dump() + "\n";
}

RunResult read_stamps(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw BadArguments("--stamps " + path + ": cannot be read");
  RunResult result;
  try {
    const json in = json::parse(file);
    result.step = in.at("step"), result.title = in.at("title"), result.device_name = in.at("gpu");
    result.device = DeviceKind::gpu;
    Problem& p = result.problem;
    const std::string dtype = in.at("dtype");
    p.dtype = dtype == "fp32" ? Dtype::fp32 : dtype == "fp16" ? Dtype::fp16 : Dtype::bf16;
    p.on_tensor_cores = in.at("on_tensor_cores"), p.seqlen_k = in.at("seqlen_k"), p.head_dim = in.at("head_dim");
    p.causal = in.at("causal"), p.tile = {in.at("tile").at(0), in.at("tile").at(1)};
    MethodResult& method = result.methods.emplace_back();
    method.backward = in.at("backward");
    method.time = TimeStats{.median_ms = in.at("plain_ms")};
    method.noted_time = TimeStats{.median_ms = in.at("noted_ms")};
    for (const json& one : in.at("launches")) {
      NotedLaunch& launch = method.noted.emplace_back(NotedLaunch{one.at("kernel"), {}, {}});
      for (const json& tensor : one.at("tensors")) launch.tensors.push_back({tensor.at(0), tensor.at(1), tensor.at(2)});
      for (const json& warp : one.at("warps")) {
        NotedWarp& into = launch.warps.emplace_back(NotedWarp{warp.at("block"), warp.at("warp"), warp.at("begun"), {}});
        const json& stamps = warp.at("stamps");
        for (size_t n = 0; n + 3 < stamps.size(); n += 4)
          into.stamps.push_back({stamps.at(n), stamps.at(n + 1), stamps.at(n + 2), stamps.at(n + 3)});
      }
    }
  } catch (const json::exception&) {
    throw BadArguments("--stamps " + path + ": is no file that --timeline FILE.stamps wrote");
  }
  return result;
}

}  // namespace attention
