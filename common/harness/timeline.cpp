#include "common/harness/timeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/text.h"
#include "common/harness/timeline_tracks.h"

namespace attention {

Sm sm_of(std::vector<int64_t> blocks, std::vector<WarpTracks> warps, const std::vector<BlockCopy>& copies) {
  Sm sm;
  sm.blocks = std::move(blocks);
  for (const BlockCopy& copy : copies) {
    const auto row = std::find_if(sm.tracks.begin(), sm.tracks.end(), [&](const Track& track) {
      return track.block == copy.block && track.spans.back().end <= copy.span.begin;
    });
    if (row != sm.tracks.end()) row->spans.push_back(copy.span);
    else sm.tracks.push_back({copy.block, -1, false, {copy.span}});
  }
  // A producer is a warpgroup that asks the copy engine while others multiply.
  const bool multiply =
      std::any_of(warps.begin(), warps.end(), [](const WarpTracks& warp) { return !warp.products.empty(); });
  bool producer = false;
  int consumers = 0;
  for (const WarpTracks& warp : warps) {
    sm.roles.resize(std::max(sm.roles.size(), static_cast<size_t>(warp.warp) + 1));
    if (warp.block != 0 || warp.warp % kQuarters != 0) continue;
    producer |= multiply && warp.copies && warp.products.empty();
    if (producer)
      sm.roles[static_cast<size_t>(warp.warp)] =
          warp.products.empty() ? "producer" : fmt::format("consumer {}", ++consumers);
  }
  for (WarpTracks& warp : warps) {
    sm.tracks.push_back({warp.block, warp.warp, false, std::move(warp.own)});
    if (!warp.products.empty()) sm.tracks.push_back({warp.block, warp.warp, true, std::move(warp.products)});
  }
  std::stable_sort(
      sm.tracks.begin(), sm.tracks.end(), [](const Track& a, const Track& b) { return a.block < b.block; });
  for (const Track& track : sm.tracks)
    for (const Span& span : track.spans) sm.end = std::max(sm.end, span.end);
  return sm;
}

namespace {

constexpr std::array<const char*, 6> kLooks{
    "load", "store", "copy", "wait", "product", "softmax"};  // in the JSON, and the page's colours

bool noted(const RunResult& result) { return result.device == DeviceKind::gpu; }

double slowdown(const MethodResult& method) { return method.noted_time->median_ms / method.time->median_ms; }

/// What a warp computes between its products.
const char* between(const RunResult& result) { return result.methods.back().backward ? "P and dS" : "softmax"; }

/// Each launch that shows something, and its name.
std::vector<std::pair<std::string, Sm>> sms_of(const RunResult& result) {
  std::vector<std::pair<std::string, Sm>> all;
  for (const MethodResult& method : result.methods) {
    const std::string of = result.methods.size() > 1 && !noted(result) ? method.name + ": " : "";
    for (const executor::FilmedLaunch& launch : method.film)
      all.emplace_back(of + launch.kernel, replay(launch, result.problem));
    for (const NotedLaunch& launch : method.noted)
      if (!launch.warps.empty()) all.emplace_back(of + launch.kernel, tracks_of(launch, between(result)));
  }
  return all;
}

std::string warp_name(const Sm& sm, const Track& track) {
  const std::string& role = sm.roles.at(static_cast<size_t>(track.warp));
  const auto last = std::min(track.warp + kQuarters, static_cast<int>(sm.roles.size())) - 1;
  return !role.empty()       ? role
         : last > track.warp ? fmt::format("warps {}-{}", track.warp, last)
                             : fmt::format("warp {}", track.warp);
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
  for (const char* ending : {".html", ".json", ".svg", ".stamps"})
    if (path.ends_with(ending)) return "";
  return fmt::format(
      "--timeline {}: its name must end with .html (a page), .json (for ui.perfetto.dev), .svg (a picture) or .stamps "
      "(a GPU's timestamps)",
      path);
}

std::string timeline_svg(const RunResult& result, bool wide) {
  const Problem& p = result.problem;
  const auto sms = sms_of(result);
  int64_t longest = 1;
  for (const auto& [name, sm] : sms) longest = std::max(longest, sm.end);
  const int64_t fit = wide ? static_cast<int64_t>((kWidest - kLeft - kRight) * kCyclesOfPixel) : kPictured,
                shown = std::min(longest, fit);
  const int width =
      wide ? std::max(kNarrowest, static_cast<int>(static_cast<double>(shown) / kCyclesOfPixel) + kLeft + kRight)
           : kNarrowest;
  const double per_cycle = (width - kLeft - kRight) / static_cast<double>(shown);

  Drawing d;
  const bool cuda_cores = p.dtype == Dtype::fp32 && !p.on_tensor_cores;
  d.text(12, 22,
         fmt::format("{}, {}: one SM in {}", result.step, result.title,
                     noted(result) ? fmt::format("cycles of an {}", result.device_name)
                                   : "the logical time of the CPU executor"),
         " font-size='15' font-weight='bold'");
  d.text(12, 41,
         fmt::format("{}, N {}, d {}, tile {}{}. A track is one of four warps that work alike, a {} each; its "
                     "products run below it.",
                     type_and_product(p), p.seqlen_k, p.head_dim, tile_name(p.tile), p.causal ? ", causal" : "",
                     cuda_cores ? "quarter of the CUDA cores" : "tensor core"));
  const std::array<std::pair<Look, const char*>, 6> legend{
      {{Look::load, "load, waited for"},
       {Look::copy, "copy on its way"},
       {Look::product, "product"},
       {Look::softmax, between(result)},
       {Look::store, "store"},
       {Look::wait, "wait"}}};
  for (double x = 12; const auto& [look, what] : legend) {
    d.rect(x, 52, 14, 14, look);
    d.text(x + 19, 64, what);
    x += 42 + 6.8 * static_cast<double>(std::string_view(what).size());
  }
  d.y = 78;
  for (const auto& [name, sm] : sms) {
    std::vector<int64_t> drawn;
    for (size_t n = 0; n < sm.blocks.size(); ++n)
      if (std::any_of(sm.tracks.begin(), sm.tracks.end(), [&](const Track& track) {
            return track.block == n && !track.spans.empty() && track.spans.front().begin < shown;
          }))
        drawn.push_back(sm.blocks[n]);
    std::string head = fmt::format("{}: block{} {} on one SM; ", name, drawn.size() == 1 ? "" : "s",
                                   fmt::join(drawn, drawn.size() == 2 ? " and " : ", "));
    if (noted(result))  // whose stored stamps end early
      head += fmt::format("{}{} cycles; the notes make it {:.2f} times as long", shown < sm.end ? "the first " : "",
                          std::min(shown, sm.end), slowdown(result.methods.back()));
    else
      head += fmt::format(
          "{} of {} cycles{}", sm.busy, sm.end, shown < sm.end ? fmt::format(", here are the first {}", shown) : "");
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
    for (size_t l = 0; l < sm.tracks.size(); ++l) {
      const Track& track = sm.tracks[l];
      if (track.products || (track.warp >= 0 && track.warp % kQuarters != 0) || track.spans.empty() ||
          track.spans.front().begin >= shown)
        continue;
      if (std::exchange(block, track.block) != track.block) copies = 0, d.y += kGap;
      const std::string which = sm.blocks.size() > 1 ? fmt::format("block {}: ", sm.blocks[track.block]) : "";
      if (track.warp < 0) {
        d.text(12, d.y + 13, copies++ == 0 ? which + "copies" : "");
        draw(track.spans, d.y, kHalf);
        d.y += kHalf + 3;
        continue;
      }
      d.text(12, d.y + 13, which + warp_name(sm, track));
      draw(track.spans, d.y, kHalf);
      d.y += kHalf;
      if (l + 1 < sm.tracks.size() && sm.tracks[l + 1].products) {
        draw(sm.tracks[l + 1].spans, d.y, kHalf);
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
  int process = 0;
  for (const auto& [kernel, sm] : sms_of(result))
    for (size_t block = 0; block < sm.blocks.size(); ++block) {
      name("process_name", ++process, 0, fmt::format("{}, block {}", kernel, sm.blocks[block]));
      int thread = 0;
      for (const Track& track : sm.tracks) {
        if (track.block != block) continue;
        const std::string role =
            track.warp < 0 ? "" : sm.roles[static_cast<size_t>(track.warp / kQuarters * kQuarters)];
        name("thread_name", process, ++thread,
             track.warp < 0 ? "copies"
                            : fmt::format("warp {}{}{}", track.warp, role.empty() ? "" : ", " + role,
                                          track.products ? ": products" : ""));
        for (const Span& span : track.spans)
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
  json about{
      {"time", noted(result)
                   ? fmt::format("the clock of SM 0 of an {}: a nanosecond stands for one cycle", result.device_name)
                   : "logical time of the CPU executor: a nanosecond stands for one cycle of an SM"},
      {"step", result.step},
      {"title", result.title},
      {"dtype", type_and_product(result.problem)},
      {"tile", tile_name(result.problem.tile)},
      {"seqlen_k", result.problem.seqlen_k},
      {"head_dim", result.problem.head_dim}};
  if (!noted(result)) about["rates"] = model_rates();
  else about["times_the_plain_time"] = slowdown(result.methods.back());
  const json out{{"traceEvents", events}, {"displayTimeUnit", "ns"}, {"otherData", about}};
  return out.dump();
}

}  // namespace attention
