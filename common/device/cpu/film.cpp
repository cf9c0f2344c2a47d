#include "common/device/cpu/film.h"

#include <unwind.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>

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
  int site = 0, depth = 0;
};
_Unwind_Reason_Code look_at_frame(_Unwind_Context* context, void* found) {
  constexpr int kDeepest = 12;
  Walk& walk = *static_cast<Walk*>(found);
  const int site = site_at(reinterpret_cast<const void*>(_Unwind_GetIP(context)));
  if (site != 0) walk.site = std::abs(site);
  return site > 0 || ++walk.depth == kDeepest ? _URC_END_OF_STACK : _URC_NO_REASON;
}

}  // namespace

void Extent::add(int64_t row, int64_t col, int64_t cols) {
  first_row = std::min(first_row, row), last_row = std::max(last_row, row);
  first_col = std::min(first_col, col), last_col = std::max(last_col, col + cols - 1);
}

void BlockFilm::start(int64_t block, int threads) {
  film_ = {block, {}, {}};
  acts.start(threads);
  paths_.assign(static_cast<size_t>((threads + kWarp - 1) / kWarp), {});
  passed_.assign(paths_.size() * kWarp, 0);
  keys_.clear();
  phase_ = 0;
}

int BlockFilm::site(FilmEvent::Kind kind, int tensor) {
  std::vector<Key>& path = paths_[threadIdx.x / kWarp];
  const size_t n = passed_[threadIdx.x]++;
  if (n < path.size() && path[n].kind == kind && path[n].tensor == tensor) return path[n].site;
  Walk walk;
  _Unwind_Backtrace(look_at_frame, &walk);
  if (n == path.size()) path.push_back({kind, walk.site, tensor});
  return walk.site;
}

void BlockFilm::warp_together(int thread) {
  const auto warp = static_cast<size_t>(thread / kWarp);
  acts.warp_together(thread);
  paths_[warp].clear();
  std::fill_n(passed_.begin() + static_cast<std::ptrdiff_t>(warp * kWarp), kWarp, 0);
}

FilmEvent& BlockFilm::event(FilmEvent::Kind kind, int tensor) {
  const Key key{kind, site(kind, tensor), tensor};
  const auto open = std::find(keys_.begin() + static_cast<std::ptrdiff_t>(phase_), keys_.end(), key);
  if (open != keys_.end()) return film_.events[static_cast<size_t>(open - keys_.begin())];
  keys_.push_back(key);
  FilmEvent& made = film_.events.emplace_back();
  made.kind = kind;
  const std::lock_guard lock(sites().mutex);
  made.place = sites().places[static_cast<size_t>(key.site)];
  return made;
}

void BlockFilm::barrier(SourceLine place) {
  event(FilmEvent::Kind::barrier);
  acts.block_together(place);
  for (auto& path : paths_) path.clear();
  std::fill(passed_.begin(), passed_.end(), 0);
  phase_ = keys_.size();
}

FilmEvent& BlockFilm::hbm_event(bool load, int tensor, int64_t head, int elements) {
  FilmEvent& into = event(load ? FilmEvent::Kind::load : FilmEvent::Kind::store, tensor);
  if (into.accesses++ == 0) into.tensor = tensor_name(tensor), into.head = head, into.elements = elements;
  return into;
}

void BlockFilm::access(const HbmAccess& it, int64_t head, int bytes, int thread) {
  const bool load = it.access == std::string("load");
  acts.add(thread, {load ? Act::Kind::load : Act::Kind::store, it.tensor, 0, bytes, {}});
  FilmEvent& into = hbm_event(load, it.tensor, head, it.elements);
  into.bytes += bytes;
  into.part.add(it.row, it.col, it.elements);
  const auto is_lane = [&](const FilmEvent::Lane& lane) { return lane.lane == thread; };
  if (thread < kWarp && std::none_of(into.first_warp.begin(), into.first_warp.end(), is_lane))
    into.first_warp.push_back({thread, it.row, it.col});
}

void BlockFilm::bulk_copy(const BulkCopy& copy, bool load, int64_t bytes) {
  constexpr int kPanelColumns = 64;  // of 16 bits
  if (load) phase_ = keys_.size();   // each tile that the engine brings is an event
  FilmEvent& into = hbm_event(load, copy.tensor, copy.head, 1);
  into.bytes += bytes;
  for (const int64_t row : {std::max<int64_t>(copy.row, 0),
                            std::min(copy.row + std::max(copy.box_rows, 1), std::max<int64_t>(copy.rows, 1)) - 1})
    into.part.add(row, copy.panel * kPanelColumns, std::max(copy.panels, 1) * kPanelColumns);
}

void BlockFilm::sram(bool write, int64_t offset, int bytes) {
  FilmEvent& into = event(write ? FilmEvent::Kind::sram_write : FilmEvent::Kind::sram_read);
  into.bytes += bytes;
  into.part.add(0, offset, bytes);
}

// A warp's fragment has count * 32 / lanes rows; x[n] of lane group g belongs to row g + 32 / lanes * n of them
// (Fragment::row).
void BlockFilm::row_max(int lanes, int count, const float* x, int thread) {
  FilmEvent& into = event(FilmEvent::Kind::row_max);
  const int groups = kWarp / lanes, first = thread / kWarp * count * groups + thread % kWarp / lanes;
  if (into.maxima.size() < static_cast<size_t>((thread / kWarp + 1) * count * groups))
    into.maxima.resize(
        static_cast<size_t>((thread / kWarp + 1) * count * groups), -std::numeric_limits<float>::infinity());
  for (int n = 0; n < count; ++n) into.maxima[static_cast<size_t>(first + groups * n)] = x[n];
}

}  // namespace attention::executor
