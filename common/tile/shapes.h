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
constexpr Dtype kDtype =
    std::is_same_v<E, half>       ? Dtype::fp16
    : std::is_same_v<E, bfloat16> ? Dtype::bf16
                                  : Dtype::fp32;

/// What a tile product needs to know: the type of its tensors in HBM, its tiles in SRAM, how P comes from registers to
/// the left side of a product, and the runs of neighbouring columns in its accumulators (tile.h). E alone stands for a
/// product on tiles of that type: fp32 on CUDA cores, 16 bits on tensor cores.
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

/// A block owns Br rows of one side and loops over the other side in tiles of Bc rows; rows are HeadDim long (shorter
/// ones are padded with zeros). Each of its Warps owns Br / Warps of the rows, Lanes lanes to a row (4 on tensor cores:
/// theirs is the choice). Out of BlocksPerSm follows how many registers a thread may have.
template <class Kind, int Br, int Bc, int HeadDim, int Warps, int Lanes, int BlocksPerSm>
struct Tile {
  using P = Product<Kind>;
  using Element = typename P::Element;
  static constexpr bool kTensorCores = P::kTensorCores;
  static constexpr int kBr = Br, kBc = Bc, kHeadDim = HeadDim;
  static constexpr int kThreads = 32 * Warps, kWarpRows = Br / Warps, kBlocksPerSm = BlocksPerSm;
  using In = Global<const Element>;                       // a tensor in HBM to read
  using Out = Global<Element>;                            // a tensor in HBM to write
  using Own = typename P::template InSram<Br, HeadDim>;   // the block's rows: Q (K and V where a block owns keys)
  using Loop = typename P::template InSram<Bc, HeadDim>;  // a tile of the other side
  using Pairs = typename P::template Pairs<Br, Bc>;       // a tile of P that comes from HBM
  using Staging = typename P::template Staging<Br, Bc>;   // P on its way from registers to the left side of a product
  using Scores = Fragment<kWarpRows, Bc, Lanes, P::kScoresRun>;
  using Output = Fragment<kWarpRows, HeadDim, Lanes, P::kOutputRun>;
};

template <class... Ts>
struct TileList {
  using All = TileList;
};
template <class... Lists>
struct Joined;
template <class... Ts>
struct Joined<TileList<Ts...>> {
  using type = TileList<Ts...>;
};
template <class... As, class... Bs, class... More>
struct Joined<TileList<As...>, TileList<Bs...>, More...> : Joined<TileList<As..., Bs...>, More...> {};

// ---- which tiles a build holds --------------------------------------------------------------------------------------
//
// With ATTN_ALL_TILES (make stepNN-tiles) all of a list. Without it, of each product and head_dim the tile that is
// chosen when none is asked for: the first whose block fits the SRAM, on each architecture of the build. Each costs the
// build time. ATTN_LARGEST_HEAD_DIM leaves out those for longer rows (exercises, mutants).

/// Bytes of SRAM that a block may have (CUDA C++ Programming Guide, technical specifications per compute capability).
constexpr size_t sram_of(int architecture) {
  if (architecture < 800) return 64 << 10;
  if (architecture == 800 || architecture == 870) return 163 << 10;
  return (architecture < 900 || architecture >= 1200 ? 99 : 227) << 10;
}
#if defined(ATTN_DEVICE_CPU)
constexpr int kArchitectures[] = {900};  // the executor's limit is the H200's
#else
constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
#endif
#if !defined(ATTN_LARGEST_HEAD_DIM)
#define ATTN_LARGEST_HEAD_DIM 256
#endif

/// True when T is what is chosen of the Ts on some architecture; Sram<T> is what a block holds.
template <class T, template <class> class Sram, class... Ts>
constexpr bool is_a_default() {
  for (const int architecture : kArchitectures) {
    bool found = false, this_one = false;
    const auto choose = [&](bool same_class, bool fits, bool is_t) {
      if (same_class && !found)
        found = fits, this_one = is_t;  // the last, if none fits: then it is what a refusal names
    };
    (choose(std::is_same_v<typename T::P, typename Ts::P> && T::kHeadDim == Ts::kHeadDim,
            sizeof(Sram<Ts>) <= sram_of(architecture), std::is_same_v<T, Ts>),
     ...);
    if (this_one) return true;
  }
  return false;
}

#if defined(ATTN_ALL_TILES)
template <class List, template <class> class>
using Built = List;
#else
template <class List, template <class> class Sram>
struct Built;
template <class... Ts, template <class> class Sram>
struct Built<TileList<Ts...>, Sram>
    : Joined<TileList<>, std::conditional_t<Ts::kHeadDim <= ATTN_LARGEST_HEAD_DIM && is_a_default<Ts, Sram, Ts...>(),
                                            TileList<Ts>, TileList<>>...>::type {
  using All = TileList<Ts...>;
};
#endif

/// What a block of the forward holds at most, and of the backward.
template <class T>
struct ForwardSram {
  typename T::Own q;
  typename T::Loop k, v;
  typename T::Staging p;
};
template <class T>
struct BackwardSram {
  typename T::Own q, d_o;
  typename T::Loop k, v;
  typename T::Staging ds;
  SramTile<float, 1, (T::kBr > T::kBc ? T::kBr : T::kBc)> lse, delta;
};

// ---- the lists ------------------------------------------------------------------------------------------------------

// fp32: a 128x64 tile gives each lane 8x8 outputs, the largest micro-tile whose accumulators fit the registers; it
// needs 102 KiB of SRAM at head_dim 64, so the smaller ones are for GPUs with less (99 KiB: sm_86, sm_89, sm_120; 64
// KiB: sm_75). 16 bits: 32 rows per warp, so that two 16-row blocks share each operand read from K and V. fp32 on
// tensor cores: SRAM as in fp32, but no tile of P. A thread has its whole share of a tile in flight, so the K and V
// tiles give it 8 vectors each at most. 32 rows per warp here too, for which key tiles of 32 leave the registers at
// head_dim 128.
template <class E>
using TensorCoreTiles =
    TileList<Tile<E, 128, 64, 64, 4, 4, 3>, Tile<E, 64, 64, 64, 2, 4, 4>, Tile<E, 64, 32, 64, 2, 4, 4>,
             Tile<E, 128, 64, 128, 4, 4, 2>, Tile<E, 64, 64, 128, 4, 4, 3>, Tile<E, 64, 32, 128, 4, 4, 3>,
             Tile<E, 64, 32, 256, 4, 4, 2>, Tile<E, 32, 32, 256, 2, 4, 3>>;
using SplitTiles = TileList<Tile<Split<AtMostOne>, 128, 64, 64, 4, 4, 2>, Tile<Split<AtMostOne>, 64, 64, 64, 4, 4, 2>,
                            Tile<Split<AtMostOne>, 128, 32, 128, 4, 4, 2>, Tile<Split<AtMostOne>, 64, 32, 128, 4, 4, 2>,
                            Tile<Split<AtMostOne>, 32, 32, 128, 2, 4, 2>>;
using AllForwardTiles =
    Joined<TileList<Tile<float, 128, 64, 64, 4, 8, 2>, Tile<float, 64, 64, 64, 4, 8, 3>,
                    Tile<float, 64, 32, 64, 2, 8, 3>, Tile<float, 128, 64, 128, 8, 16, 1>,
                    Tile<float, 64, 32, 128, 4, 16, 2>, Tile<float, 32, 32, 128, 2, 16, 3>,
                    Tile<float, 64, 32, 256, 8, 32, 1>, Tile<float, 32, 16, 256, 4, 16, 2>>,
           SplitTiles, TensorCoreTiles<half>, TensorCoreTiles<bfloat16>>::type;
using ForwardTiles = Built<AllForwardTiles, ForwardSram>;

// step04 has more, for --sweep-tiles: at head_dim 64 every pair of 32, 64 and 128 rows, and at 128 what was missing
// beside them of the article's 64x64 and of 128x32. Not in bf16, where a shape takes the time that it takes in fp16.
// They stand behind those above, so that none of them is a GPU's first choice.
using MoreTiles =
    TileList<Tile<float, 128, 128, 64, 8, 16, 1>, Tile<float, 128, 32, 64, 4, 8, 2>, Tile<float, 64, 128, 64, 4, 16, 2>,
             Tile<float, 32, 128, 64, 2, 16, 3>, Tile<float, 32, 64, 64, 2, 16, 4>, Tile<float, 32, 32, 64, 1, 8, 4>,
             Tile<float, 128, 32, 128, 8, 16, 1>, Tile<float, 64, 64, 128, 4, 16, 1>, Tile<half, 128, 128, 64, 4, 4, 2>,
             Tile<half, 128, 32, 64, 4, 4, 3>, Tile<half, 64, 128, 64, 2, 4, 4>, Tile<half, 32, 128, 64, 1, 4, 8>,
             Tile<half, 32, 64, 64, 1, 4, 8>, Tile<half, 32, 32, 64, 1, 4, 8>, Tile<half, 128, 32, 128, 4, 4, 2>>;
using SweepTiles = Built<Joined<AllForwardTiles, MoreTiles>::type, ForwardSram>;

// step06, at head_dim 64: 128 keys a tile halve its barriers, and there are registers for them at 2 blocks per SM.
using AsyncTiles = Built<
    TileList<Tile<half, 128, 128, 64, 4, 4, 2>, Tile<half, 128, 64, 64, 4, 4, 3>, Tile<half, 64, 64, 64, 2, 4, 4>,
             Tile<half, 128, 64, 128, 4, 4, 2>, Tile<half, 64, 64, 128, 4, 4, 3>, Tile<half, 64, 32, 256, 4, 4, 2>,
             Tile<half, 32, 32, 256, 2, 4, 3>, Tile<bfloat16, 128, 128, 64, 4, 4, 2>,
             Tile<bfloat16, 128, 64, 64, 4, 4, 3>, Tile<bfloat16, 64, 64, 64, 2, 4, 4>,
             Tile<bfloat16, 128, 64, 128, 4, 4, 2>, Tile<bfloat16, 64, 64, 128, 4, 4, 3>,
             Tile<bfloat16, 64, 32, 256, 4, 4, 2>, Tile<bfloat16, 32, 32, 256, 2, 4, 3>>,
    ForwardSram>;

// The backward keeps two accumulators and two fragments of scores, so a lane's micro-tiles are half as tall.
template <class E>
using TensorCoreBackwardTiles =
    TileList<Tile<E, 64, 64, 64, 4, 4, 3>, Tile<E, 32, 32, 64, 2, 4, 4>, Tile<E, 64, 64, 128, 4, 4, 2>,
             Tile<E, 32, 32, 128, 2, 4, 3>, Tile<E, 32, 32, 256, 2, 4, 2>, Tile<E, 16, 16, 256, 1, 4, 2>>;
using SplitBackwardTiles =
    TileList<Tile<Split<AnyWeights>, 128, 32, 64, 4, 4, 2>, Tile<Split<AnyWeights>, 64, 32, 64, 4, 4, 2>,
             Tile<Split<AnyWeights>, 128, 64, 128, 8, 4, 1>, Tile<Split<AnyWeights>, 64, 32, 128, 4, 4, 2>,
             Tile<Split<AnyWeights>, 64, 16, 128, 4, 4, 2>, Tile<Split<AnyWeights>, 32, 16, 128, 2, 4, 2>>;
using BackwardTiles =
    Built<Joined<TileList<Tile<float, 64, 64, 64, 4, 8, 2>, Tile<float, 32, 32, 64, 2, 8, 3>,
                          Tile<float, 64, 64, 128, 8, 16, 1>, Tile<float, 32, 32, 128, 4, 16, 1>,
                          Tile<float, 16, 16, 128, 4, 16, 2>, Tile<float, 16, 16, 256, 4, 16, 1>>,
                 SplitBackwardTiles, TensorCoreBackwardTiles<half>, TensorCoreBackwardTiles<bfloat16>>::type,
          BackwardSram>;

/// The padded head_dim that serves `head_dim`, 0 when none does.
constexpr int padded_head_dim(int head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : head_dim <= 256 ? 256 : 0;
}

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
  if (!found)
    throw Unsupported("no tile " + std::to_string(problem.tile.br) + "x" + std::to_string(problem.tile.bc) +
                      " for head_dim " + std::to_string(problem.head_dim));
}

/// How many tiles of the list serve the problem.
template <class... Ts>
int count_serving(const Problem& problem, TileList<Ts...>) {
  return (0 + ... + serves(Ts{}, problem));
}

/// The list's shapes for this dtype and head_dim, in order, each with the bytes of SRAM that `sram_bytes(T{})` says a
/// block needs.
template <class List, class F>
std::vector<TileChoice> tile_choices(const Problem& problem, List list, F&& sram_bytes) {
  std::vector<TileChoice> choices;
  const int left_out =
      ATTN_LARGEST_HEAD_DIM < 256 ? 0 : count_serving(problem, typename List::All{}) - count_serving(problem, list);
  auto add = [&](auto t) {
    if (serves(t, problem))
      choices.push_back({{t.kBr, t.kBc}, static_cast<int64_t>(sram_bytes(t)), t.kThreads, left_out});
  };
  [&]<class... Ts>(TileList<Ts...>) { (add(Ts{}), ...); }(list);
  return choices;
}

}  // namespace ATTN_DEVICE
}  // namespace attention
