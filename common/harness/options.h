// The command line of every step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/device/device_api.h"
#include "common/base/problem.h"
#include "common/step/step.h"
#include "common/harness/workload.h"

namespace attention {

enum class DeviceChoice { automatic, gpu, cpu };

/// How the outputs are compared with the reference: all rows or a sample as the time allows, all rows, n rows, not at
/// all.
struct CheckChoice {
  enum class Kind { automatic, full, sample, none };
  Kind kind = Kind::automatic;
  int64_t rows = 0;  // sample only
};

/// What was typed, checked as far as that goes without a device. An empty optional: the flag was not given.
struct Options {
  std::optional<int64_t> batch, heads, seqlen_q, seqlen_k, head_dim;
  std::optional<float> softmax_scale;
  bool causal = false;
  std::optional<Dtype> dtype;  // by --dtype or a preset; else that of --load's files, else fp32
  uint64_t seed = 0;
  Init init;
  bool init_given = false;
  DeviceChoice device = DeviceChoice::automatic;
  std::optional<bool> tensor_cores;  // --product
  std::optional<TileShape> tile;
  bool sweep_tiles = false;
  std::optional<int64_t> trace_row;
  std::string load_dir, save_dir;  // "" = not given
  CheckChoice check;
  bool traffic = true;
  std::optional<int> repeat;
  bool plan = false;
  std::vector<std::string> left_out;   // of the step's techniques, by name
  int64_t splits = 0;                  // 0: auto
  std::string film, timeline, stamps;  // "" = not given
  std::string json;                    // "" = not given, "-" = standard output

  // The CPU executor's own.
  ExecutorOptions::RaceCheck race_check = ExecutorOptions::RaceCheck::ends;
  std::optional<uint64_t> thread_order;
  int os_threads = 0;

  bool films() const { return !film.empty() || !timeline.empty(); }
};

/// Parses the command line for `step` (its name and idea stand in --help). Throws BadArguments, one line; returns
/// nothing when --help, --help-all or --describe was asked for, with the text in `help`.
std::optional<Options> parse_options(int argc, const char* const* argv, const Step& step, std::string& help);

}  // namespace attention
