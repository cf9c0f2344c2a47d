// Which tile shapes are compiled in, and how a step picks one at run time.
#pragma once

#include <type_traits>
#include <vector>

#include "common/base/error.h"
#include "common/step/step.h"
#include "common/tile/split_product.h"

namespace attention {
inline namespace ATTN_DEVICE {

template <class E>
constexpr Dtype kDtype = std::is_same_v<E, half> ? Dtype::fp16 : std::is_same_v<E, bfloat16> ? Dtype::bf16 : Dtype::fp32;

/// What a tile product needs to know: the type of its tensors in HBM, its tiles in SRAM, how P comes from registers to the left side
/// of a product, and the runs of neighbouring columns in its accumulators (tile.h). E alone stands for a product on tiles of that
/// type: fp32 on CUDA cores, 16 bits on tensor cores.
template <class E>
struct Product {
  static constexpr bool kTensorCores = sizeof(E) == 2;
  static constexpr int kScoresRun = kTensorCores ? 2 : 1, kOutputRun = kTensorCores ? 2 : 4;
  using Element = E;
  template <int Rows, int Cols>
  using InSram = SramTile<E, Rows, Cols>;
  template <int Rows, int Cols>
  using Pairs = SramTile<E, Rows, Cols>;
  template <int Rows, int Cols>
  using Staging = std::conditional_t<kTensorCores, NoStaging, Pairs<Rows, Cols>>;
};

/// fp32 on tensor cores: HBM and accumulators hold fp32, SRAM two fp16 parts of it (split_product.h).
template <class Weights>
struct Split {};
template <class Weights>
struct Product<Split<Weights>> {
  static constexpr bool kTensorCores = true;
  static constexpr int kScoresRun = 2, kOutputRun = 2;
  using Element = float;
  template <int Rows, int Cols>
  using InSram = SplitTile<Rows, Cols>;
  template <int Rows, int Cols>
  using Pairs = SramTile<float, Rows, Cols>;  // split on the way to registers
  template <int, int>
  using Staging = Weights;
};

/// A block owns Br rows of one side and loops over the other side in tiles of Bc rows; rows are HeadDim long (shorter ones are
/// padded with zeros). Each of its Warps owns Br / Warps of the rows, Lanes lanes to a row (4 on tensor cores: theirs is the
/// choice). Out of BlocksPerSm follows how many registers a thread may have.
template <class Kind, int Br, int Bc, int HeadDim, int Warps, int Lanes, int BlocksPerSm>
struct Tile {
  using P = Product<Kind>;
  using Element = typename P::Element;
  static constexpr bool kTensorCores = P::kTensorCores;
  static constexpr int kBr = Br, kBc = Bc, kHeadDim = HeadDim;
  static constexpr int kThreads = 32 * Warps, kWarpRows = Br / Warps, kBlocksPerSm = BlocksPerSm;
  using In = Global<const Element>;                     // a tensor in HBM to read
  using Out = Global<Element>;                          // a tensor in HBM to write
  using Own = typename P::template InSram<Br, HeadDim>;  // the block's rows: Q (K and V where a block owns keys)
  using Loop = typename P::template InSram<Bc, HeadDim>; // a tile of the other side
  using Pairs = typename P::template Pairs<Br, Bc>;     // a tile of P that comes from HBM
  using Staging = typename P::template Staging<Br, Bc>; // P on its way from registers to the left side of a product
  using Scores = Fragment<kWarpRows, Bc, Lanes, P::kScoresRun>;
  using Output = Fragment<kWarpRows, HeadDim, Lanes, P::kOutputRun>;
};

template <class... Ts>
struct TileList {};

// fp32: a 128x64 tile gives each lane 8x8 outputs, the largest micro-tile whose accumulators fit the registers; it needs 102 KiB
// of SRAM at head_dim 64, so the smaller ones are for GPUs with less (99 KiB: sm_86, sm_89, sm_120; 64 KiB: sm_75).
// 16 bits: 32 rows per warp, so that two 16-row blocks share each operand read from K and V.
// fp32 on tensor cores: SRAM as in fp32, but no tile of P. A thread has its whole share of a tile in flight, so the K and V tiles
// give it 8 vectors each at most. 32 rows per warp here too, for which key tiles of 32 leave the registers at head_dim 128.
template <class E>
using TensorCoreTiles = TileList<
    Tile<E, 128, 64, 64, 4, 4, 3>, Tile<E, 64, 64, 64, 2, 4, 4>, Tile<E, 64, 32, 64, 2, 4, 4>,
    Tile<E, 128, 64, 128, 4, 4, 2>, Tile<E, 64, 64, 128, 4, 4, 3>, Tile<E, 64, 32, 128, 4, 4, 3>,
    Tile<E, 64, 32, 256, 4, 4, 2>, Tile<E, 32, 32, 256, 2, 4, 3>>;
using SplitTiles = TileList<
    Tile<Split<AtMostOne>, 128, 64, 64, 4, 4, 2>, Tile<Split<AtMostOne>, 64, 64, 64, 4, 4, 2>,
    Tile<Split<AtMostOne>, 128, 32, 128, 4, 4, 2>, Tile<Split<AtMostOne>, 64, 32, 128, 4, 4, 2>, Tile<Split<AtMostOne>, 32, 32, 128, 2, 4, 2>>;
template <class... Lists>
struct Joined;
template <class... Ts>
struct Joined<TileList<Ts...>> {
  using type = TileList<Ts...>;
};
template <class... As, class... Bs, class... More>
struct Joined<TileList<As...>, TileList<Bs...>, More...> : Joined<TileList<As..., Bs...>, More...> {};
using ForwardTiles = Joined<TileList<
    Tile<float, 128, 64, 64, 4, 8, 2>, Tile<float, 64, 64, 64, 4, 8, 3>, Tile<float, 64, 32, 64, 2, 8, 3>,
    Tile<float, 128, 64, 128, 8, 16, 1>, Tile<float, 64, 32, 128, 4, 16, 2>, Tile<float, 32, 32, 128, 2, 16, 3>,
    Tile<float, 64, 32, 256, 8, 32, 1>, Tile<float, 32, 16, 256, 4, 16, 2>>, SplitTiles, TensorCoreTiles<half>, TensorCoreTiles<bfloat16>>::type;

// step04 has more, for --sweep-tiles: at head_dim 64 every pair of 32, 64 and 128 rows, and at 128 what was missing beside them of
// the article's 64x64 and of 128x32. Not in bf16, where a shape takes the time that it takes in fp16: each costs the build a second.
// They stand behind those above, so that none of them is a GPU's first choice.
using MoreTiles = TileList<
    Tile<float, 128, 128, 64, 8, 16, 1>, Tile<float, 128, 32, 64, 4, 8, 2>, Tile<float, 64, 128, 64, 4, 16, 2>,
    Tile<float, 32, 128, 64, 2, 16, 3>, Tile<float, 32, 64, 64, 2, 16, 4>, Tile<float, 32, 32, 64, 1, 8, 4>,
    Tile<float, 128, 32, 128, 8, 16, 1>, Tile<float, 64, 64, 128, 4, 16, 1>,
    Tile<half, 128, 128, 64, 4, 4, 2>, Tile<half, 128, 32, 64, 4, 4, 3>, Tile<half, 64, 128, 64, 2, 4, 4>,
    Tile<half, 32, 128, 64, 1, 4, 8>, Tile<half, 32, 64, 64, 1, 4, 8>, Tile<half, 32, 32, 64, 1, 4, 8>, Tile<half, 128, 32, 128, 4, 4, 2>>;
using SweepTiles = Joined<ForwardTiles, MoreTiles>::type;

// step06, at head_dim 64: 128 keys a tile halve its barriers, and there are registers for them at 2 blocks per SM.
using AsyncTiles = TileList<
    Tile<half, 128, 128, 64, 4, 4, 2>, Tile<half, 128, 64, 64, 4, 4, 3>, Tile<half, 64, 64, 64, 2, 4, 4>,
    Tile<half, 128, 64, 128, 4, 4, 2>, Tile<half, 64, 64, 128, 4, 4, 3>, Tile<half, 64, 32, 256, 4, 4, 2>, Tile<half, 32, 32, 256, 2, 4, 3>,
    Tile<bfloat16, 128, 128, 64, 4, 4, 2>, Tile<bfloat16, 128, 64, 64, 4, 4, 3>, Tile<bfloat16, 64, 64, 64, 2, 4, 4>,
    Tile<bfloat16, 128, 64, 128, 4, 4, 2>, Tile<bfloat16, 64, 64, 128, 4, 4, 3>, Tile<bfloat16, 64, 32, 256, 4, 4, 2>, Tile<bfloat16, 32, 32, 256, 2, 4, 3>>;

// The backward keeps two accumulators and two fragments of scores, so a lane's micro-tiles are half as tall.
template <class E>
using TensorCoreBackwardTiles = TileList<
    Tile<E, 64, 64, 64, 4, 4, 3>, Tile<E, 32, 32, 64, 2, 4, 4>,
    Tile<E, 64, 64, 128, 4, 4, 2>, Tile<E, 32, 32, 128, 2, 4, 3>,
    Tile<E, 32, 32, 256, 2, 4, 2>, Tile<E, 16, 16, 256, 1, 4, 2>>;
using SplitBackwardTiles = TileList<
    Tile<Split<AnyWeights>, 128, 32, 64, 4, 4, 2>, Tile<Split<AnyWeights>, 64, 32, 64, 4, 4, 2>,
    Tile<Split<AnyWeights>, 128, 64, 128, 8, 4, 1>, Tile<Split<AnyWeights>, 64, 32, 128, 4, 4, 2>, Tile<Split<AnyWeights>, 64, 16, 128, 4, 4, 2>, Tile<Split<AnyWeights>, 32, 16, 128, 2, 4, 2>>;
using BackwardTiles = Joined<TileList<
    Tile<float, 64, 64, 64, 4, 8, 2>, Tile<float, 32, 32, 64, 2, 8, 3>,
    Tile<float, 64, 64, 128, 8, 16, 1>, Tile<float, 32, 32, 128, 4, 16, 1>, Tile<float, 16, 16, 128, 4, 16, 2>,
    Tile<float, 16, 16, 256, 4, 16, 1>>, SplitBackwardTiles, TensorCoreBackwardTiles<half>, TensorCoreBackwardTiles<bfloat16>>::type;

/// The padded head_dim that serves `head_dim`, 0 when none does.
constexpr int padded_head_dim(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : head_dim <= 256 ? 256 : 0; }

/// 16-bit types know one product only, that of the tensor cores.
template <class T>
bool serves(T, const Problem& problem) {
  const bool product = problem.dtype != Dtype::fp32 || T::kTensorCores == problem.on_tensor_cores;
  return kDtype<typename T::Element> == problem.dtype && product && padded_head_dim(problem.head_dim) == T::kHeadDim;
}

/// Calls f(E{}) for the element type E of the problem.
template <class F>
void with_element(const Problem& problem, F&& f) {
  if (problem.dtype == Dtype::fp16) f(half{});
  else if (problem.dtype == Dtype::bf16) f(bfloat16{});
  else f(float{});
}

/// Calls f(T{}) for the T of the list that is problem.tile at this head_dim. Throws Unsupported when there is none.
template <class F, class... Ts>
void with_tile(const Problem& problem, TileList<Ts...>, F&& f) {
  auto matches = [&](auto t) { return serves(t, problem) && problem.tile == TileShape{t.kBr, t.kBc}; };
  const bool found = ((matches(Ts{}) && (f(Ts{}), true)) || ...);
  if (!found) throw Unsupported("no tile " + std::to_string(problem.tile.br) + "x" + std::to_string(problem.tile.bc) + " for head_dim " + std::to_string(problem.head_dim));
}

/// The list's shapes for this dtype and head_dim, in order, each with the bytes of SRAM that `sram_bytes(T{})` says a block needs.
template <class F, class... Ts>
std::vector<TileChoice> tile_choices(const Problem& problem, TileList<Ts...>, F&& sram_bytes) {
  std::vector<TileChoice> choices;
  auto add = [&](auto t) {
    if (serves(t, problem)) choices.push_back({{t.kBr, t.kBc}, static_cast<int64_t>(sram_bytes(t)), t.kThreads});
  };
  (add(Ts{}), ...);
  return choices;
}

}  // namespace ATTN_DEVICE
}  // namespace attention
