#include "common/device/cpu/film.h"

#include <unwind.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <utility>

#include "common/device/cpu/source_lines.h"

namespace attention::executor {

namespace {

/// The places of the steps' lines, by number. Looking an address up starts a program, so each is looked up once.
struct Sites {
  std::mutex mutex;
  std::vector<std::string> places{"?"};
  std::unordered_map<const void*, int> by_caller;  // 0: no line of a kernel there; negative: not of a step's own file
};
Sites& sites() {
  static Sites all;
  return all;
}

/// Of "tile.h:30 < step04.cu:52 < kernel_language.h:420": the innermost line of a step's own file, else the outermost
/// line of any other but the language's own, which is then the kernel's; in_step says which.
std::string line_of_kernel(const std::string& lines, bool& in_step) {
  std::string outermost;
  in_step = false;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find(" < ", begin), lines.size());
    const std::string one = lines.substr(begin, end - begin);
    const bool is_source = one.find(".cpp:") == std::string::npos;  // not the generated file that includes the step
    if (is_source && one.rfind("step", 0) == 0) return in_step = true, one;
    if (one.rfind("kernel_language.h", 0) != 0 && one.find(".h:") != std::string::npos) outermost = one;
    begin = end + 3;
  }
  return outermost;
}

int site_at(const void* caller) {
  Sites& all = sites();
  const std::lock_guard lock(all.mutex);
  const auto known = all.by_caller.find(caller);
  if (known != all.by_caller.end()) return known->second;
  bool in_step = false;
  const std::string place = line_of_kernel(source_lines(caller), in_step);
  int site = 0;
  if (!place.empty()) {
    const auto same = std::find(all.places.begin(), all.places.end(), place);
    site = static_cast<int>(same - all.places.begin());
    if (same == all.places.end()) all.places.push_back(place);
  }
  return all.by_caller[caller] = in_step ? site : -site;
}

/// Walks up from a hook to the kernel's own line; a tile function that was not inlined stands in between.
struct Walk {
  Way way;
  const Caller& caller;              // its frame
  const void* const* top = nullptr;  // of the frame before
  int depth = 0;
  bool found_all = true;

  _Unwind_Reason_Code look(const void* address, const void* const* frame_top) {
    constexpr int kDeepest = 12;
    const void* const* below = std::exchange(top, frame_top);
    if (reinterpret_cast<const std::byte*>(top) <= caller.frame) return _URC_NO_REASON;  // the hook, or called by it
    const void* const* at = top;  // the frame before returns to this one
    while (at > below && *--at != address) continue;
    found_all &= *at == address;
    if (way.caller) way.outer.push_back({reinterpret_cast<const std::byte*>(at) - caller.frame, address});
    way.caller = caller.address;
    const int site = site_at(address);
    if (site != 0) way.site = std::abs(site);
    return site > 0 || ++depth == kDeepest ? _URC_END_OF_STACK : _URC_NO_REASON;
  }
};
_Unwind_Reason_Code look_at_frame(_Unwind_Context* context, void* walk) {
  return static_cast<Walk*>(walk)->look(reinterpret_cast<const void*>(_Unwind_GetIP(context)),
                                        reinterpret_cast<const void* const*>(_Unwind_GetCFA(context)));
}

}  // namespace

void BlockFilm::start(int64_t block, int threads) {
  film_ = {block, {}, {}};
  acts.start(threads);
  keys_.clear();
  phase_ = 0;
}

size_t BlockFilm::find_way(const Caller& caller) {
  const auto known = std::find_if(ways_.begin(), ways_.end(), [&](const Way& way) { return way.is(caller); });
  if (known != ways_.end()) return static_cast<size_t>(known - ways_.begin());
  Walk walk{{}, caller};
  _Unwind_Backtrace(look_at_frame, &walk);
  if (walk.found_all) return ways_.push_back(std::move(walk.way)), ways_.size() - 1;
  ways_[0].site = walk.way.site;
  return 0;
}

FilmEvent& BlockFilm::event(FilmEvent::Kind kind, int tensor, const Caller& caller) {
  size_t& recent = recent_[reinterpret_cast<uintptr_t>(caller.address) * 0x9e3779b97f4a7c15u >> 54];
  if (!ways_[recent].is(caller)) recent = find_way(caller);
  Way& way = ways_[recent];
  const Key key{kind, way.site, tensor};
  if (way.event >= phase_ && way.event < keys_.size() && keys_[way.event] == key) return film_.events[way.event];
  const auto open = std::find(keys_.begin() + static_cast<std::ptrdiff_t>(phase_), keys_.end(), key);
  way.event = static_cast<size_t>(open - keys_.begin());
  if (open != keys_.end()) return film_.events[way.event];
  keys_.push_back(key);
  FilmEvent& made = film_.events.emplace_back();
  made.kind = kind;
  const std::lock_guard lock(sites().mutex);
  made.place = sites().places[static_cast<size_t>(key.site)];
  return made;
}

void BlockFilm::barrier(SourceLine place) {
  event(FilmEvent::Kind::barrier, -1, ATTN_FILM_CALLER);
  acts.block_together(place);
  phase_ = keys_.size();
}

FilmEvent& BlockFilm::hbm_event(bool load, int tensor, int64_t head, int elements, const Caller& caller) {
  FilmEvent& into = event(load ? FilmEvent::Kind::load : FilmEvent::Kind::store, tensor, caller);
  if (into.accesses++ == 0) into.tensor = tensor_name(tensor), into.head = head, into.elements = elements;
  return into;
}

void BlockFilm::access(const HbmAccess& it, int64_t head, int64_t row, int bytes, int thread, const Caller& caller) {
  const bool load = it.kind == HbmAccess::Kind::load;
  acts.add(thread, {load ? Act::Kind::load : Act::Kind::store, it.tensor, 0, bytes, {}});
  FilmEvent& into = hbm_event(load, it.tensor, head, it.elements, caller);
  into.bytes += bytes;
  into.part.add(row, it.col, it.elements);
  if (thread < kWarp && !(into.lanes >> thread & 1))
    into.lanes |= 1u << thread, into.first_warp.push_back({thread, row, it.col});
}

void BlockFilm::bulk_copy(const BulkCopy& copy, bool load, int64_t bytes) {
  constexpr int kPanelColumns = 64;  // of 16 bits
  if (load) phase_ = keys_.size();   // each tile that the engine brings is an event
  FilmEvent& into = hbm_event(load, copy.tensor, copy.head, 1, ATTN_FILM_CALLER);
  into.bytes += bytes;
  for (const int64_t row : {std::max<int64_t>(copy.row, 0),
                            std::min(copy.row + std::max(copy.box_rows, 1), std::max<int64_t>(copy.rows, 1)) - 1})
    into.part.add(row, copy.panel * kPanelColumns, std::max(copy.panels, 1) * kPanelColumns);
}

void BlockFilm::sram(bool write, int64_t offset, int bytes, const Caller& caller) {
  FilmEvent& into = event(write ? FilmEvent::Kind::sram_write : FilmEvent::Kind::sram_read, -1, caller);
  into.bytes += bytes;
  into.part.add(0, offset, bytes);
}

// A warp's fragment has count * 32 / lanes rows; x[n] of lane group g belongs to row g + 32 / lanes * n of them
// (Fragment::row).
void BlockFilm::row_max(int lanes, int count, const float* x, int thread, const Caller& caller) {
  FilmEvent& into = event(FilmEvent::Kind::row_max, -1, caller);
  const int groups = kWarp / lanes, first = thread / kWarp * count * groups + thread % kWarp / lanes;
  if (into.maxima.size() < static_cast<size_t>((thread / kWarp + 1) * count * groups))
    into.maxima.resize(
        static_cast<size_t>((thread / kWarp + 1) * count * groups), -std::numeric_limits<float>::infinity());
  for (int n = 0; n < count; ++n) into.maxima[static_cast<size_t>(first + groups * n)] = x[n];
}

}  // namespace attention::executor
