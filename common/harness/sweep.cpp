#include "common/harness/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "common/base/error.h"
#include "common/base/text.h"

namespace attention {

namespace {

/// A tile that fits, timed; its traffic is measured later.
RunResult run_tile(ProblemRuns& runs, Options options, TileShape shape) {
  try {
    return runs.run(options, shape);
  } catch (const CheckFailed& finding) {
    RunResult result = runs.expected(shape);
    result.verdict = "FAIL";
    result.failures = {finding.what()};
    result.failures.insert(result.failures.end(), finding.also.begin(), finding.also.end());
    return result;
  }
}

/// What the counters say of a tile that has been timed: a run of its own.
void measure_tile(ProblemRuns& runs, Options options, RunResult& into) {
  options.check.kind = CheckChoice::Kind::none;
  options.repeat = 1;
  const RunResult again = runs.run(options, into.problem.tile);
  into.methods.back().measured = again.methods.back().measured;
  into.failures = again.failures;
}

}  // namespace

std::optional<bool> SweptTile::verified() const {
  if (!run.failures.empty()) return false;
  if (!method().not_run.empty() || run.planned_only || method().checks.empty()) return std::nullopt;
  return true;
}

const LaunchRecord* SweptTile::longest_kernel() const {
  const std::vector<LaunchRecord>& launches = method().launches;
  const auto longest =
      std::max_element(launches.begin(), launches.end(),
                       [](const LaunchRecord& a, const LaunchRecord& b) { return a.time_ms < b.time_ms; });
  return longest == launches.end() ? nullptr : &*longest;
}

std::vector<std::string> Sweep::failures() const {
  std::vector<std::string> lines;
  for (const SweptTile& swept : tiles)
    for (const std::string& line : swept.run.failures)
      lines.push_back(fmt::format("{}: {}", tile_name(swept.tile.shape), line));
  return lines;
}

const SweptTile* Sweep::best() const {
  const SweptTile* best = nullptr;
  for (const SweptTile& swept : tiles) {
    const std::optional<TimeStats>& time = swept.method().time;
    if (swept.verified() != true || !time || time->emulated) continue;
    if (!best || time->median_ms < best->method().time->median_ms) best = &swept;
  }
  return best;
}

std::string Sweep::no_best_reason() const {
  const RunResult& any = tiles.front().run;
  if (any.planned_only) return kPlanned;
  if (any.device == DeviceKind::cpu) return "emulated time does not rank tiles: a GPU does";
  return any.options.check.kind == CheckChoice::Kind::none ? "nothing was checked (--check none)" : "no tile passed";
}

const SweptTile* Sweep::find(TileShape shape) const {
  const auto found =
      std::find_if(tiles.begin(), tiles.end(), [&](const SweptTile& swept) { return swept.tile.shape == shape; });
  return found == tiles.end() ? nullptr : &*found;
}

Sweep sweep_tiles(const Options& options, const Step& step, ChosenDevice& chosen, Progress& progress) {
  ProblemRuns runs(options, step, chosen, progress);
  choose_tile(runs.options(), step, runs.problem());  // refuses what is not served, and a device that no tile fits
  std::vector<TileChoice> choices = step.tiles(runs.problem());
  if (!choices.empty() && choices.front().shape == TileShape{})
    throw Unsupported(fmt::format("{} has no tiles to sweep: its products are a library's, which chooses", step.id));
  if (const std::string more = where_more_tiles_are(step, choices); !more.empty())
    throw Unsupported(fmt::format("{} is built with the tile that it takes by default alone{}", step.id, more));
  std::sort(choices.begin(), choices.end(), [](const TileChoice& a, const TileChoice& b) {
    return std::tie(a.shape.br, a.shape.bc) < std::tie(b.shape.br, b.shape.bc);
  });

  // All times first: a profiler in the process slows launches. Without counters there is nothing to wait for.
  const bool counters = chosen.device->measurable() != nullptr;
  Options timed = runs.options();
  timed.traffic = timed.traffic && !counters;
  Sweep sweep;
  for (const TileChoice& choice : choices) {
    SweptTile& swept = sweep.tiles.emplace_back(choice);
    if (choice.sram_bytes <= runs.problem().sram_limit) {
      swept.run = run_tile(runs, timed, choice.shape);
      continue;
    }
    swept.run = runs.expected(choice.shape);
    for (MethodResult& method : swept.run.methods)
      method.not_run = fmt::format(
          "asks for {} bytes of SRAM per block, {} are allowed", choice.sram_bytes, runs.problem().sram_limit);
  }
  if (options.traffic && counters && !options.plan)
    for (SweptTile& swept : sweep.tiles)
      if (swept.method().not_run.empty() && swept.run.failures.empty()) measure_tile(runs, runs.options(), swept.run);
  return sweep;
}

std::string describe_article_tile(const Sweep& sweep) {
  const SweptTile *article = sweep.find(kArticleTile), *best = sweep.best();
  const RunResult& any = sweep.tiles.front().run;
  const std::string name = tile_name(kArticleTile);
  if (!article)
    return fmt::format(
        "{} is not compiled in for {} at head_dim {}", name, dtype_name(any.problem.dtype), any.problem.head_dim);
  if (!article->method().not_run.empty()) return fmt::format("{} {}", name, article->method().not_run);
  if (article->verified() == false) return name + " gave a wrong result";
  if (!best) return fmt::format("{} beside the best: n/a ({})", name, sweep.no_best_reason());
  const double ms = article->method().time->median_ms, best_ms = best->method().time->median_ms;
  if (article == best) return fmt::format("{} is the best here", name);
  return fmt::format("{} takes {:.2f} times the best's time here ({:.3g} ms, {} {:.3g} ms)", name, ms / best_ms, ms,
                     tile_name(best->tile.shape), best_ms);
}

}  // namespace attention
