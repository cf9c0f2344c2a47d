#include "common/harness/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/text.h"

namespace attention {

namespace {

using executor::Act;
using executor::FilmedLaunch;

// ---- one SM --------------------------------------------------------------------------------------------------------

// Of an H200, per cycle and SM. Warpgroup products: 989 TFLOP/s (NVIDIA's H100 white paper) by 132 SMs at 1.83 GHz.
// mma.sync, L2: as step00 measures them. fp32, exponentials: the CUDA programming guide, arithmetic instructions. All
// other arithmetic of a softmax is taken to run beside its exponentials.
constexpr double kWarpgroupFlops = 4096, kMmaFlops = 2650, kFp32Flops = 256, kExponentials = 16, kBytes = 38;
constexpr int64_t kLatency =
    300;                      // cycles from an access to its first byte, from the L2: blocks of one head share K and V
constexpr int kQuarters = 4;  // of an SM: each has a tensor core and the arithmetic of every fourth warp
constexpr int64_t kSramOfSm = 228 * 1024, kSramOfSystem = 1024, kThreadsOfSm = 2048, kMostBlocks = 2;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

enum class Look { load, store, copy, wait, product, softmax };
constexpr std::array<const char*, 6> kLooks{
    "load", "store", "copy", "wait", "product", "softmax"};  // in the JSON, and the page's colours

struct Span {
  Look look;
  int64_t begin, end;
  std::string name, place;
};
/// What one warp does itself, or its products; or a row of copies, none of which begins before the last one has ended.
struct Lane {
  size_t block;
  int warp;  // -1: copies
  bool products;
  std::vector<Span> spans;
};
struct Sm {
  std::vector<int64_t> blocks;
  std::vector<std::string> roles;  // by warp, of each block alike
  std::vector<Lane> lanes;
  int64_t end = 0, products = 0;  // products: cycles of all tensor cores together
};

std::string place_text(executor::SourceLine place) {
  if (!place.file) return "";
  const std::string path = place.file;
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), place.line);
}

class Replay {
 public:
  Replay(const FilmedLaunch& launch, const Problem& p) : launch_(launch), head_dim_(p.head_dim) {
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
      sm_.blocks.push_back(launch.filmed[block].block);
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
    for (const auto& [key, copy] : copies_) put_in_row(key.block, copy);
    name_warps();
    for (Warp& warp : warps_) {
      sm_.lanes.push_back({warp.block, warp.number, false, std::move(warp.own)});
      if (!warp.products.empty()) sm_.lanes.push_back({warp.block, warp.number, true, std::move(warp.products)});
    }
    std::stable_sort(
        sm_.lanes.begin(), sm_.lanes.end(), [](const Lane& a, const Lane& b) { return a.block < b.block; });
    for (const Lane& lane : sm_.lanes)
      for (const Span& span : lane.spans) sm_.end = std::max(sm_.end, span.end);
    return std::move(sm_);
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
  void put_in_row(size_t block, const Span& span) {
    const auto row = std::find_if(sm_.lanes.begin(), sm_.lanes.end(), [&](const Lane& lane) {
      return lane.block == block && lane.spans.back().end <= span.begin;
    });
    if (row != sm_.lanes.end()) row->spans.push_back(span);
    else sm_.lanes.push_back({block, -1, false, {span}});
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
    sm_.products += end - begin;
    if (!warp.products.empty() && warp.products.back().end == begin && warp.product == it.key)
      warp.products.back().end = end;
    else warp.products.push_back({Look::product, begin, end, "product", place_text(it.place)});
    warp.product = it.kind == Act::Kind::product ? -1 : it.key;
  }

  void name_warps() {
    bool products = false;
    for (const Warp& warp : warps_) products |= !warp.products.empty();
    int consumers = 0;
    for (const Warp& warp : warps_) {
      if (warp.block != 0) break;
      const bool copies = std::any_of(
          warp.acts->begin(), warp.acts->end(), [](const Act& one) { return one.kind == Act::Kind::bulk_copy; });
      const bool first = warp.number % kQuarters == 0;
      if (products && first && copies && warp.products.empty()) producer_ = true;
      sm_.roles.push_back(producer_ && first && !warp.products.empty() ? fmt::format("consumer {}", ++consumers)
                          : producer_ && first                         ? "producer"
                                                                       : "");
    }
  }

  const FilmedLaunch& launch_;
  int head_dim_;
  double flops_;
  bool producer_ = false;
  std::vector<Warp> warps_;
  std::map<Key, Phase> barriers_;
  std::map<CopyKey, Span> copies_;
  int64_t memory_ = 0, stores_ = 0;  // when the way from memory, and the way back, are free
  std::array<int64_t, kQuarters> tensor_core_{}, arithmetic_{};
  Sm sm_;
};

std::vector<Sm> sms_of(const RunResult& result) {
  std::vector<Sm> all;
  for (const MethodResult& method : result.methods)
    for (const FilmedLaunch& launch : method.film) all.push_back(Replay(launch, result.problem).run());
  return all;
}
std::vector<std::string> names_of(const RunResult& result) {
  std::vector<std::string> all;
  for (const MethodResult& method : result.methods)
    for (const FilmedLaunch& launch : method.film)
      all.push_back(result.methods.size() > 1 ? fmt::format("{}: {}", method.name, launch.kernel) : launch.kernel);
  return all;
}
std::string warp_name(const Sm& sm, const Lane& lane) {
  const std::string& role = sm.roles[static_cast<size_t>(lane.warp)];
  const auto last = std::min(lane.warp + kQuarters, static_cast<int>(sm.roles.size())) - 1;
  return !role.empty()      ? role
         : last > lane.warp ? fmt::format("warps {}-{}", lane.warp, last)
                            : fmt::format("warp {}", lane.warp);
}

// ---- the picture ----------------------------------------------------------------------------------------------------

constexpr int kLeft = 136, kRight = 12, kHalf = 17, kGap = 6, kNarrowest = 960, kWidest = 12000;
constexpr int64_t kPictured = 12000;   // cycles at most in a picture for a document: all have one scale
constexpr double kCyclesOfPixel = 10;  // in a wide picture
constexpr std::array<const char*, 6> kColours{"#f7c9ae", "#e3c4e0", "#bcdaf2", "#b9b9b9", "#8fd0ae", "#f2dd8c"};

struct Drawing {
  std::string body;
  int y = 0;
  void text(double x, double at_y, const std::string& text, const char* more = "") {
    body += fmt::format("<text x='{:.0f}' y='{:.0f}'{}>{}</text>\n", x, at_y, more, text);
  }
  void rect(double x, double at_y, double width, double height, Look look, const std::string& title = "") {
    const auto n = static_cast<size_t>(look);
    body += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='var(--{}, {})'", x, at_y,
                        std::max(width, 0.8), height, kLooks[n], kColours[n]);
    body += title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", title);
  }
};
}  // namespace

std::string timeline_refusal(const std::string& path) {
  for (const char* ending : {".html", ".json", ".svg"})
    if (path.ends_with(ending)) return "";
  return fmt::format(
      "--timeline {}: its name must end with .html (a page), .json (for ui.perfetto.dev) or .svg (a picture)", path);
}

std::string timeline_svg(const RunResult& result, bool wide) {
  const Problem& p = result.problem;
  const std::vector<Sm> sms = sms_of(result);
  const std::vector<std::string> names = names_of(result);
  int64_t longest = 1;
  for (const Sm& sm : sms) longest = std::max(longest, sm.end);
  const int64_t fit = wide ? static_cast<int64_t>((kWidest - kLeft - kRight) * kCyclesOfPixel) : kPictured,
                shown = std::min(longest, fit);
  const int width =
      wide ? std::max(kNarrowest, static_cast<int>(static_cast<double>(shown) / kCyclesOfPixel) + kLeft + kRight)
           : kNarrowest;
  const double per_cycle = (width - kLeft - kRight) / static_cast<double>(shown);

  Drawing d;
  // What multiplies.
  const bool cuda_cores = p.dtype == Dtype::fp32 && !p.on_tensor_cores;
  const char *unit = cuda_cores ? "quarter of the CUDA cores" : "tensor core",
             *units = cuda_cores ? "CUDA cores" : "tensor cores";
  d.text(12, 22, fmt::format("{}, {}: one SM in the logical time of the CPU executor", result.step, result.title),
         " font-size='15' font-weight='bold'");
  d.text(12, 41,
         fmt::format("{}, N {}, d {}, tile {}{}. A lane is one of four warps that work alike, a {} each; its "
                     "products run below it.",
                     type_and_product(p), p.seqlen_k, p.head_dim, tile_name(p.tile), p.causal ? ", causal" : "", unit));
  const std::array<std::pair<Look, const char*>, 6> legend{
      {{Look::load, "load, waited for"},
       {Look::copy, "copy on its way"},
       {Look::product, "product"},
       {Look::softmax, "softmax"},
       {Look::store, "store"},
       {Look::wait, "wait"}}};
  for (double x = 12; const auto& [look, what] : legend) {
    d.rect(x, 52, 14, 14, look);
    d.text(x + 19, 64, what);
    x += 42 + 6.8 * static_cast<double>(std::string_view(what).size());
  }
  d.y = 78;
  for (size_t n = 0; n < sms.size(); ++n) {
    const Sm& sm = sms[n];
    const int busy = static_cast<int>(
        100.0 * static_cast<double>(sm.products) / static_cast<double>(kQuarters * std::max<int64_t>(sm.end, 1)) + 0.5);
    std::string head =
        names[n] + (sm.blocks.size() == 1 ? fmt::format(": block {} on one SM", sm.blocks[0])
                                          : fmt::format(": blocks {} and {} on one SM", sm.blocks[0], sm.blocks[1]));
    head += fmt::format("; {} busy {} % of {} cycles", units, busy, sm.end);
    if (shown < sm.end) head += fmt::format(", here are the first {}", shown);
    d.text(12, d.y + 14, head, " font-weight='bold'");
    d.y += 24;
    const int top = d.y;
    int copies = 0;
    size_t block = 0;
    const auto draw = [&](const std::vector<Span>& spans, double y, double height) {
      for (const Span& span : spans) {
        if (span.begin >= shown) break;
        const double x = kLeft + static_cast<double>(span.begin) * per_cycle,
                     w = static_cast<double>(std::min(span.end, shown) - span.begin) * per_cycle;
        const bool quiet = span.look == Look::wait;
        d.rect(x, quiet ? y + height / 2 - 2 : y, w, quiet ? 4 : height, span.look,
               wide ? fmt::format("{}: cycles {} to {}. {}", span.name, span.begin, span.end, span.place) : "");
        const bool named = span.look == Look::load || span.look == Look::copy || span.look == Look::store;
        if (named && w > 7.0 * static_cast<double>(span.name.size()) + 4)
          d.text(x + w / 2, y + height - 4, span.name, " text-anchor='middle'");
      }
    };
    for (size_t l = 0; l < sm.lanes.size(); ++l) {
      const Lane& lane = sm.lanes[l];
      if (lane.products || (lane.warp >= 0 && lane.warp % kQuarters != 0) || lane.spans.empty() ||
          lane.spans.front().begin >= shown)
        continue;
      if (std::exchange(block, lane.block) != lane.block) copies = 0, d.y += kGap;
      const std::string which = sm.blocks.size() > 1 ? fmt::format("block {}: ", sm.blocks[lane.block]) : "";
      if (lane.warp < 0) {
        d.text(12, d.y + 13, copies++ == 0 ? which + "copies" : "");
        draw(lane.spans, d.y, kHalf);
        d.y += kHalf + 3;
        continue;
      }
      d.text(12, d.y + 13, which + warp_name(sm, lane));
      draw(lane.spans, d.y, kHalf);
      d.y += kHalf;
      if (l + 1 < sm.lanes.size() && sm.lanes[l + 1].products) {
        draw(sm.lanes[l + 1].spans, d.y, kHalf);
        d.y += kHalf;
      }
      d.y += kGap;
    }
    int64_t tick = 100;
    for (int more = 0; static_cast<double>(tick) * per_cycle < 90; ++more)
      tick = tick * (more % 3 == 1 ? 5 : 4) / 2;  // 100, 200, 500, 1000 ...
    for (int64_t at = 0; at <= std::min(shown, sm.end); at += tick) {
      const double x = kLeft + static_cast<double>(at) * per_cycle;
      d.body += fmt::format(
          "<line x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2}' stroke='var(--line, #c3cad2)' stroke-dasharray='2 3'/>\n",
          x, top, d.y);
      if (x < width - 60)
        d.text(x, d.y + 14, at == 0 ? "0 cycles" : std::to_string(at), at == 0 ? "" : " text-anchor='middle'");
    }
    d.y += 30;
  }
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' font-family='DejaVu "
      "Sans, Helvetica, Arial, sans-serif' font-size='12.5' "
      "fill='var(--text, #222222)' role='img' aria-label='{2}: timeline of one SM'>\n<rect width='{0}' height='{1}' "
      "fill='var(--card, #ffffff)'/>\n{3}</svg>\n",
      width, d.y, result.step, d.body);
}

// ---- the file for Perfetto ------------------------------------------------------------------------------------------

std::string timeline_json(const RunResult& result) {
  using nlohmann::json;
  json events = json::array();
  const auto name = [&](const char* what, int process, int thread, const std::string& text) {
    events.push_back({{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", text}}}});
  };
  const std::vector<Sm> sms = sms_of(result);
  const std::vector<std::string> names = names_of(result);
  int process = 0;
  for (size_t n = 0; n < sms.size(); ++n)
    for (size_t block = 0; block < sms[n].blocks.size(); ++block) {
      name("process_name", ++process, 0, fmt::format("{}, block {}", names[n], sms[n].blocks[block]));
      int thread = 0;
      for (const Lane& lane : sms[n].lanes) {
        if (lane.block != block) continue;
        const std::string role =
            lane.warp < 0 ? "" : sms[n].roles[static_cast<size_t>(lane.warp / kQuarters * kQuarters)];
        name("thread_name", process, ++thread,
             lane.warp < 0 ? "copies"
                           : fmt::format("warp {}{}{}", lane.warp, role.empty() ? "" : ", " + role,
                                         lane.products ? ": products" : ""));
        for (const Span& span : lane.spans)
          events.push_back(
              {{"ph", "X"},
               {"pid", process},
               {"tid", thread},
               {"cat", kLooks[static_cast<size_t>(span.look)]},
               {"name", span.name},
               {"ts", static_cast<double>(span.begin) / 1000},
               {"dur", static_cast<double>(span.end - span.begin) / 1000},
               {"args", {{"cycles", span.end - span.begin}, {"of", span.place}}}});
      }
    }
  const json out{
      {"traceEvents", events},
      {"displayTimeUnit", "ns"},
      {"otherData",
       {{"time", "logical time of the CPU executor: a nanosecond stands for one cycle of an SM"},
        {"step", result.step},
        {"title", result.title},
        {"dtype", type_and_product(result.problem)},
        {"tile", tile_name(result.problem.tile)},
        {"seqlen_k", result.problem.seqlen_k},
        {"head_dim", result.problem.head_dim},
        {"rates", fmt::format("per cycle and SM: {} bytes, after {} cycles; FLOPs {} by warpgroup products, {} by "
                              "mma.sync, {} in fp32; {} exponentials",
                              kBytes, kLatency, kWarpgroupFlops, kMmaFlops, kFp32Flops, kExponentials)}}}};
  return out.dump();
}

}  // namespace attention
