// What step00 measured of a GPU, and the file that carries it to the other programs: <gpu name>.json in the user's
// cache folder. Every prediction and every roofline of this repository starts from these figures; there are no built-in
// ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/known.h"
#include "common/base/problem.h"

namespace attention {

/// How fast the repository's own products (common/tile) multiply tiles that already lie in SRAM.
struct TileProductRate {
  Dtype dtype = Dtype::fp32;
  int head_dim = 0;  // as the tile has it: 64, 128 or 256
  TileShape tile;
  int blocks_per_sm = 0;
  double flops_per_second = 0;
};

/// Reading `bytes` of memory again and again.
struct WorkingSetRate {
  int64_t bytes = 0;
  double bytes_per_second = 0;
};

/// Rates in bytes or FLOPs per second (2 FLOPs per multiply-add), sizes in bytes, a missing figure as an empty
/// optional.
struct DeviceFigures {
  std::string gpu;             // as the driver names it: "NVIDIA H200"
  std::string driver_cuda;     // the newest CUDA that the driver supports
  int compute_capability = 0;  // 90 for sm_90
  int sm_count = 0;
  int64_t hbm_bytes = 0, l2_bytes = 0, sram_bytes_per_sm = 0, sram_bytes_per_block = 0;

  double hbm_read = 0, hbm_copy = 0;  // copy: read and written bytes together
  std::optional<double> hbm_peak;     // memory clock times bus width, where the driver tells them
  double l2_read = 0, sram_read = 0;
  std::vector<WorkingSetRate> working_sets;  // ascending

  double ffma_fp32 = 0;                      // CUDA cores, operands in registers
  std::optional<double> mma_fp16, mma_bf16;  // tensor cores (mma.sync), fp32 sums, operands in registers
  std::optional<double> wgmma_fp16,
      wgmma_bf16;  // Hopper's warpgroup products (wgmma), fp32 sums, tiles in SRAM: R of the steps made of them
  std::vector<TileProductRate> tile_products;
  std::vector<TileProductRate>
      split_products;               // of fp32 on tensor cores: FLOPs of the attention, each of which is three there
  double launch_spacing_us = 0;     // from one empty kernel to the next
  double launch_round_trip_us = 0;  // launching one and waiting for its end

  /// R: the FLOPs per second that a step's tile products reach, without anything else in the way. Rows shorter than the
  /// tile's are padded with zeros, which take as long as numbers do, so R falls in proportion. `warpgroups`: that of
  /// warpgroup products, whose rows need no padding. Empty: not measured.
  std::optional<double> product_rate(const Problem& problem, bool warpgroups = false) const;
  /// BW: bytes per second from and to HBM, the copy's.
  double bandwidth() const { return hbm_copy; }
  /// No traffic from and to HBM is faster than this: the peak, or the best rate measured where the driver tells none.
  double hbm_limit() const;
};

/// True for a rate (bytes per second) more than 5 % above hbm_limit(): HBM cannot have moved those bytes, a cache
/// served them.
bool is_cache_resident(double bytes_per_second, const DeviceFigures& figures);

/// Where the figures of this GPU are kept: ATTN_DEVICE_FIGURES, else attention-steps/<gpu name>.json in XDG_CACHE_HOME,
/// else in ~/.cache. "" when the environment names no such place.
std::string figures_path(const std::string& gpu);

/// The figures as the object that step00's JSON holds, and back. parse_figures throws std::runtime_error, one line, for
/// a text that is not step00's or lacks a figure.
std::string figures_json(const DeviceFigures& figures);
DeviceFigures parse_figures(const std::string& text);

/// Reads figures_path(gpu). A file that is missing, broken, of another GPU or of another driver gives a reason, with
/// what to do ("step00 has not measured this GPU: run ./step00 once"); never throws.
Known<DeviceFigures> find_figures(const std::string& gpu, const std::string& driver_cuda);

}  // namespace attention
