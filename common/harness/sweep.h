// --sweep-tiles: a problem run once with every tile that is compiled in for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/harness/run.h"

namespace attention {

constexpr TileShape kArticleTile = {64, 64};  // of the article that the repository follows

/// One tile of a sweep. The last method of `run` is the one that the tile belongs to; its not_run says why it did not
/// run.
struct SweptTile {
  TileChoice tile;
  RunResult run;

  const MethodResult& method() const { return run.methods.back(); }
  std::optional<bool> verified() const;        // empty: it did not run, or nothing was checked
  const LaunchRecord* longest_kernel() const;  // null when nothing ran
};

struct Sweep {
  std::vector<SweptTile> tiles;  // by Br, then Bc; never empty

  std::vector<std::string> failures() const;  // "64x64: forward: o ..."; empty: all is well
  const SweptTile* best() const;              // the fastest on a GPU of those that passed
  std::string no_best_reason() const;
  const SweptTile* find(TileShape shape) const;
};

/// Runs each tile that fits the device's SRAM, from the same inputs and against the same reference; the others stay as
/// expected. A wrong result, or a finding of the CPU executor, ends up in the tile's RunResult::failures and the sweep
/// goes on. Throws Unsupported when the step's tiles are a library's, its dtype is not served here, or no tile fits;
/// else as run_step.
Sweep sweep_tiles(const Options& options, const Step& step, ChosenDevice& chosen, Progress& progress);

/// How the article's tile does beside the best, in one line.
std::string describe_article_tile(const Sweep& sweep);

}  // namespace attention
