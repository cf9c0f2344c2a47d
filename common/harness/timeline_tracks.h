// What a timeline is drawn from: the tracks of one SM. The CPU executor's are a model's (timeline_executor.cpp), a GPU's
// were noted by its warps (timeline_gpu.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/device/cpu/film.h"
#include "common/device/timestamps.h"
#include "common/base/problem.h"

namespace attention {

constexpr int kQuarters = 4;  // of an SM: each has a tensor core and the arithmetic of every fourth warp

enum class Look { load, store, copy, wait, product, softmax };

struct Span {
  Look look;
  int64_t begin, end;  // cycles
  std::string name, place;
};
/// What one warp does itself, or its products; or a row of copies, none of which begins before the last one has ended.
struct Track {
  size_t block;
  int warp;  // -1: copies
  bool products;
  std::vector<Span> spans;
};
/// A warp's own track, the one of its products, and whether it asks the copy engine.
struct WarpTracks {
  size_t block;
  int warp;
  bool copies;
  std::vector<Span> own, products;
};
struct Sm {
  std::vector<int64_t> blocks;
  std::vector<std::string> roles;  // by warp, of each block alike
  std::vector<Track> tracks;
  int64_t end = 0;
  std::string busy;  // of its model: "tensor cores busy 45 %"
};

/// Warps in the order of their blocks, then copies in the order of their begins.
struct BlockCopy {
  size_t block;
  Span span;
};
Sm sm_of(std::vector<int64_t> blocks, std::vector<WarpTracks> warps, const std::vector<BlockCopy>& copies);

/// In logical time: the acts that the executor saw of a launch's first blocks, on a model of an SM.
Sm replay(const executor::FilmedLaunch& launch, const Problem& problem);
std::string model_rates();

/// In cycles of SM 0's clock. `between`: what a warp computes between its products.
Sm tracks_of(const NotedLaunch& launch, const std::string& between);

}  // namespace attention
