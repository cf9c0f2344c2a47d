#include "common/harness/film.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/film/page.h"
#include "common/base/text.h"
#include "common/harness/timeline.h"

namespace attention {

namespace executor {
NLOHMANN_JSON_SERIALIZE_ENUM(
    FilmEvent::Kind,
    {{FilmEvent::Kind::load, "load"},
     {FilmEvent::Kind::store, "store"},
     {FilmEvent::Kind::sram_read, "sram read"},
     {FilmEvent::Kind::sram_write, "sram write"},
     {FilmEvent::Kind::product, "product"},
     {FilmEvent::Kind::row_max, "row max"},
     {FilmEvent::Kind::barrier, "barrier"},
     {FilmEvent::Kind::copy_arrives, "copy arrives"}})
}

namespace {

using executor::FilmedBlock;
using executor::FilmedLaunch;
using executor::FilmEvent;
using nlohmann::json;

constexpr size_t kLargestPage = 5'000'000;
constexpr int kValueColumns = 4;  // of V and O in the row's view

/// JSON has no infinity: null stands for -inf.
json number(double x) { return std::isfinite(x) ? json(x) : json(nullptr); }
/// With four decimals: a bar's height needs no more.
json rounded(double x) { return number(std::round(x * 1e4) / 1e4); }

json event_json(const FilmEvent& event, int head_dim, bool with_lanes) {
  json out{{"kind", event.kind}, {"at", event.place}};
  if (event.bytes) out["bytes"] = event.bytes;
  if (event.kind == FilmEvent::Kind::load || event.kind == FilmEvent::Kind::store) {
    out["tensor"] = event.tensor, out["head"] = event.head, out["accesses"] = event.accesses,
    out["elements"] = event.elements;
    out["rows"] = {event.part.first_row, event.part.last_row},
    out["cols"] = {event.part.first_col, event.part.last_col};
    if (with_lanes)
      for (const FilmEvent::Lane& lane : event.first_warp) out["lanes"].push_back({lane.lane, lane.row, lane.col});
  }
  if (event.kind == FilmEvent::Kind::sram_read || event.kind == FilmEvent::Kind::sram_write)
    out["cols"] = {event.part.first_col, event.part.last_col};
  if (event.flops) out["flops"] = event.flops * head_dim;
  for (const float m : event.maxima) out["maxima"].push_back(rounded(m));
  return out;
}

/// Every `step`-th filmed block, the last one too.
json launch_json(const FilmedLaunch& launch, const std::string& method, int head_dim, size_t step) {
  json out{{"method", method},
           {"kernel", launch.kernel},
           {"blocks", launch.blocks},
           {"threads", launch.threads},
           {"sram_bytes", launch.sram_bytes}};
  for (const TensorBytes& bytes : launch.counted)
    out["counted"].push_back({{"tensor", bytes.tensor}, {"load", bytes.load}, {"store", bytes.store}});
  for (size_t n = 0; n < launch.filmed.size(); ++n) {
    if (n % step != 0 && n + 1 != launch.filmed.size()) continue;
    json events = json::array();
    for (const FilmEvent& event : launch.filmed[n].events) events.push_back(event_json(event, head_dim, n == 0));
    out["filmed"].push_back({{"block", launch.filmed[n].block}, {"events", std::move(events)}});
  }
  return out;
}

/// The lines of the source file that the events name, as far as it can be read where it was compiled from.
json source_json(const std::vector<FilmedLaunch>& launches) {
  json sources = json::object();
  for (const FilmedLaunch& launch : launches)
    for (const FilmedBlock& block : launch.filmed)
      for (const FilmEvent& event : block.events) {
        const std::string file = event.place.substr(0, event.place.find(':'));
        if (file.empty() || file == "?" || sources.contains(file)) continue;
        json& lines = sources[file] = json::array();
        std::ifstream stream(std::string(kStepsFolder) + "/" + file);
        for (std::string line; std::getline(stream, line);) lines.push_back(line);
      }
  return sources;
}

/// The scores of one query of head 0 (float64), the first columns of V, and what the kernel made of them.
json row_json(const Problem& p, const HostInputs& inputs, int64_t row, const std::vector<float>& o, float lse) {
  const int columns = std::min(kValueColumns, p.head_dim);
  json out{{"query", row},
           {"tile_keys", p.tile.bc},
           {"lse", number(lse)},
           {"scores", json::array()},
           {"values", json::array()},
           {"o", json::array()}};
  const float* q = inputs.q.data() + row * p.head_dim;
  for (int64_t j = 0; j < p.seqlen_k && p.visible(row, j); ++j) {
    double score = 0;
    for (int c = 0; c < p.head_dim; ++c)
      score += static_cast<double>(q[c]) * inputs.k[static_cast<size_t>(j * p.head_dim + c)];
    out["scores"].push_back(number(score * p.softmax_scale));
    json value = json::array();
    for (int c = 0; c < columns; ++c) value.push_back(number(inputs.v[static_cast<size_t>(j * p.head_dim + c)]));
    out["values"].push_back(std::move(value));
  }
  for (int c = 0; c < columns; ++c) out["o"].push_back(number(o[static_cast<size_t>(row * p.head_dim + c)]));
  return out;
}

/// The page that shows this data; the text of a script element must not end it.
std::string page(const json& film) {
  std::string data = film.dump();
  for (size_t at = 0; (at = data.find("</", at)) != std::string::npos; at += 3) data.replace(at, 2, "<\\/");
  return std::string(kPageHead) + "[" + data + "]" + std::string(kPageTail);
}

}  // namespace

std::string timeline_file(const RunResult& result, const std::string& path) {
  if (path.ends_with(".json")) return timeline_json(result);
  if (path.ends_with(".svg")) return timeline_svg(result, false);
  if (path.ends_with(".stamps")) return timeline_stamps(result);
  return page({{"step", result.step},
               {"title", result.title},
               {"launches", json::array()},
               {"timeline", timeline_svg(result, true)}});
}

std::string film_page(const RunResult& result, const HostInputs& inputs, int64_t row, const std::vector<float>& o,
                      float lse) {
  const Problem& p = result.problem;
  json film{
      {"step", result.step},
      {"title", result.title},
      {"chapter", result.chapter},
      {"dtype", type_and_product(p)},
      {"batch", p.batch},
      {"heads", p.heads},
      {"seqlen_q", p.seqlen_q},
      {"seqlen_k", p.seqlen_k},
      {"head_dim", p.head_dim},
      {"causal", p.causal},
      {"softmax_scale", p.softmax_scale},
      {"tile", tile_name(p.tile)},
      {"verdict", result.verdict},
      {"row", row_json(p, inputs, row, o, lse)}};
  std::vector<FilmedLaunch> all;
  for (const MethodResult& method : result.methods) all.insert(all.end(), method.film.begin(), method.film.end());
  film["sources"] = source_json(all);
  film["timeline"] = timeline_svg(result, true);
  for (size_t step = 1;; step *= 2) {
    film["launches"] = json::array();
    bool fewest = true;
    for (const MethodResult& method : result.methods)
      for (const FilmedLaunch& launch : method.film) {
        film["launches"].push_back(launch_json(launch, method.name, p.head_dim, step));
        fewest &= film["launches"].back()["filmed"].size() <= 2;
      }
    std::string text = page(film);
    if (text.size() <= kLargestPage) return text;
    if (fewest)
      throw BadArguments("--film: the page would have " + std::to_string(text.size()) +
                         " bytes, more than 5 MB: choose a smaller --seqlen");
  }
}

}  // namespace attention
