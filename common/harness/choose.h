// From what was typed to what runs: the device, the problem, the tile.
#pragma once

#include <memory>
#include <string>

#include "common/device/device_api.h"
#include "common/harness/options.h"
#include "common/base/problem.h"
#include "common/step/step.h"

namespace attention {

/// The device that runs, and, when the choice was automatic and fell on the CPU executor, why.
struct ChosenDevice {
  std::unique_ptr<Device> device;
  std::string note;
};

/// auto: the GPU; the CPU executor only when there is no GPU at all. Throws DeviceFailure when a GPU is present but
/// unusable, Unsupported for --device gpu without one.
ChosenDevice choose_device(const Options& options);

/// The problem with the defaults of that device (GPU B1 H16 N4096 d64, CPU B1 H2 N512 d64); its tile is not chosen yet.
/// Throws BadArguments when a size or a product of sizes does not fit in 64 bits, Unsupported for what this step cannot
/// serve; a dtype that it cannot serve is choose_tile's to refuse.
Problem make_problem(const Options& options, const Step& step, const Device& device);

/// True when `step` serves this dtype, product and head_dim on the device that problem.compute_capability names.
bool serves(const Step& step, const Problem& problem);

/// The first compiled-in tile whose SRAM fits the device, or the one asked for. Throws Unsupported: the dtype is not
/// served here (with those that are), the tile is not compiled in (with those that are), or none fits (with the bytes
/// asked and allowed).
TileShape choose_tile(const Options& options, const Step& step, const Problem& problem);

/// "; `make step04-tiles` builds it with 8 more" where the program leaves tiles out, else "".
std::string where_more_tiles_are(const Step& step, const std::vector<TileChoice>& choices);

}  // namespace attention
