// The tile on Hopper: the same three homes and the same two products as in tile.h and product.h, but a warpgroup (four
// warps, 64 query rows) computes together, and the copy engine moves whole tiles. Products are started and waited for
// later; the sums of a product lie in the registers as sum_row and sum_col (swizzle.h) say, so that a warp owns 16
// whole rows, four lanes to a row, two rows to a lane.
#pragma once

#include "common/device/hopper.h"
#include "common/tile/mask.h"
#include "common/tile/shapes.h"
#include "common/tile/softmax.h"
#include "common/tile/swizzle.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// Rows x Cols elements in SRAM as the copy engine leaves them and the tensor cores read them (swizzle.h).
template <class E, int Rows, int Cols>
struct alignas(1024) SwizzledTile {
  static constexpr int kPanels = Cols / kPanelColumns, kPanelBytes = Rows * kPanelRowBytes,
                       kBytes = kPanels * kPanelBytes;
  E element[Rows * Cols];
  __device__ __forceinline__ E* at(int row, int col) { return &element[swizzled_index(Rows, row, col)]; }
  /// Where to write `count` neighbouring elements of a row, 8 at most. The hook costs nothing on a GPU.
  __device__ __forceinline__ E* write(int row, int col, int count) {
    note_sram_write(at(row, col), count * static_cast<int>(sizeof(E)));
    return at(row, col);
  }
};

/// HBM -> SRAM: one thread starts the copy of the tile whose first row is row0, with zeros past the tensor's end; who
/// waits for `full` sees it complete.
template <class E, int Rows, int Cols>
__device__ __forceinline__ void copy_tile(SwizzledTile<E, Rows, Cols>& to, const TensorMap& from, int row0, int head,
                                          Barrier& full) {
  full.arrive_and_expect(to.kBytes);
  copy_box(&to, from, row0, head, full);
}

/// s = Q K^T for the 64 rows of Q from first_row on: started, not finished.
template <class E, int Br, int Bc, int D>
__device__ __forceinline__ void start_multiply_abt(float (&s)[Bc / 2], const SwizzledTile<E, Br, D>& q, int first_row,
                                                   const SwizzledTile<E, Bc, D>& k) {
  const Timed timed(Noted::warpgroup_product);
  if (threadIdx.x % 128 == 0) count_flops(2LL * 64 * Bc);
  const uint64_t a = tile_descriptor(sram_address(&q) + first_row * kPanelRowBytes),
                 b = tile_descriptor(sram_address(&k));
  ATTN_UNROLL for (int step = 0; step < D / 16; ++step)
    WarpgroupProduct<Bc, E>::abt(s, a + along_rows(step, q.kPanelBytes), b + along_rows(step, k.kPanelBytes), step > 0);
  commit_products();
}

/// o += P V: started, not finished.
template <class E, int Bc, int D>
__device__ __forceinline__ void start_multiply_ab(float (&o)[D / 2], const uint32_t (&p)[Bc / 16][4],
                                                  const SwizzledTile<E, Bc, D>& v) {
  const Timed timed(Noted::warpgroup_product);
  if (threadIdx.x % 128 == 0) count_flops(2LL * 64 * Bc);
  const uint64_t b = tile_descriptor(sram_address(&v), v.kPanelBytes);
  ATTN_UNROLL for (int step = 0; step < Bc / 16; ++step) WarpgroupProduct<D, E>::ab(o, p[step], b + across_rows(step));
  commit_products();
}

/// As start_multiply_abt, with sums that are not read before the product writes them, so that their registers are free
/// until then; or (Add) that go on from what they hold.
template <bool Add = false, class E, int Br, int Bc, int D>
__device__ __forceinline__ void start_sums_abt(float (&s)[Bc / 2], const SwizzledTile<E, Br, D>& a, int first_row,
                                               const SwizzledTile<E, Bc, D>& b) {
  const Timed timed(Noted::warpgroup_product);
  if (threadIdx.x % 128 == 0) count_flops(2LL * 64 * Bc);
  const uint64_t x = tile_descriptor(sram_address(&a) + first_row * kPanelRowBytes),
                 y = tile_descriptor(sram_address(&b));
  if (Add) WarpgroupProduct<Bc, E>::abt(s, x, y, 1);
  else WarpgroupProduct<Bc, E>::first_abt(s, x, y);
  ATTN_UNROLL for (int step = 1; step < D / 16; ++step)
    WarpgroupProduct<Bc, E>::abt(s, x + along_rows(step, a.kPanelBytes), y + along_rows(step, b.kPanelBytes), 1);
  commit_products();
}

/// s = A^T B for the 64 columns of A's panel and the 64 of B's; the sum runs down the rows of both. Started, not
/// finished.
template <class E, int Rows, int ACols, int BCols>
__device__ __forceinline__ void start_sums_atb(float (&s)[32], const SwizzledTile<E, Rows, ACols>& a, int a_panel,
                                               const SwizzledTile<E, Rows, BCols>& b, int b_panel) {
  const Timed timed(Noted::warpgroup_product);
  if (threadIdx.x % 128 == 0) count_flops(2LL * 64 * 64 * Rows / BCols);
  const uint64_t x = tile_descriptor(sram_address(&a) + a_panel * a.kPanelBytes, a.kPanelBytes),
                 y = tile_descriptor(sram_address(&b) + b_panel * b.kPanelBytes, b.kPanelBytes);
  WarpgroupProduct<64, E>::first_atb(s, x, y);
  ATTN_UNROLL for (int step = 1; step < Rows / 16; ++step)
    WarpgroupProduct<64, E>::atb(s, x + across_rows(step), y + across_rows(step));
  commit_products();
}

/// A lane's share of its warp's 16 rows of sums, seen as a Fragment (tile.h): four lanes to a row, runs of two columns.
template <int N>
struct SumsView {
  static constexpr int kRows = 2, kCols = N / 2;
  float (&value)[N];
  int row0, col0;
  __device__ __forceinline__ explicit SumsView(float (&sums)[N])
      : value(sums), row0(sum_row(threadIdx.x % 32, 0)), col0(sum_col(threadIdx.x % 32, 0)) {}
  __device__ __forceinline__ int row(int i) const { return row0 + sum_row(0, 2 * i); }
  __device__ __forceinline__ int col(int j) const { return col0 + from_col0(j); }
  static __device__ __forceinline__ int from_col0(int j) { return sum_col(0, index(0, j)); }
  __device__ __forceinline__ float& operator()(int i, int j) { return value[index(i, j)]; }

 private:
  static __device__ __forceinline__ int index(int i, int j) { return j / 2 * 4 + 2 * i + j % 2; }
};

/// The key tiles that the queries before q_end see; one at least, so that a loop's first tile may stand before the
/// loop.
__device__ __forceinline__ int key_tiles(const Mask& mask, int q_end, int bc) {
  return max(1, (mask.keys_seen(q_end - 1) + bc - 1) / bc);
}

/// The online softmax of a lane's two rows (steps/step04). First for row i: the larger of m and the tile's scores,
/// sought in Chains chains of comparisons.
template <int Chains, int N>
__device__ __forceinline__ float row_maximum(const float (&s)[N], int i, float m) {
  float top[Chains];
  ATTN_UNROLL for (int c = 0; c < Chains; ++c) top[c] = c == 0 ? m : s[2 * i + c];
  ATTN_UNROLL for (int n = 0; n < N / 4; ++n)
    ATTN_UNROLL for (int c = 0; c < 2; ++c) top[c % Chains] = fmaxf(top[c % Chains], s[4 * n + 2 * i + c]);
  ATTN_UNROLL for (int c = 1; c < Chains; ++c) top[0] = fmaxf(top[0], top[c]);
  top[0] = fmaxf(top[0], __shfl_xor_sync(kAllLanes, top[0], 2));
  return fmaxf(top[0], __shfl_xor_sync(kAllLanes, top[0], 1));
}
/// Then m grows to `top`. shift is what the row's scale `by` times m takes away from each exponent: rounded, so that a
/// weight is one multiply-add. alpha is what the past is scaled by, the quotient of what the weights are relative to,
/// before and now: shifts, rounded too, not by * (m - m).
__device__ __forceinline__ void update_maximum(float top, float by, float& m, float& alpha, float& shift) {
  shift = __fmul_rn(by, finite(top));
  alpha = exp2_or_zero(__fmul_rn(by, m) - shift);
  m = top;
}
/// Then s becomes the weights, l their sum (of this lane's columns). Here both rows together:
template <int N>
__device__ __forceinline__ void update_maxima(const float (&s)[N], float (&m)[2], float (&l)[2], float (&alpha)[2],
                                              float (&shift)[2], float (&by)[2], float scale) {
  ATTN_UNROLL for (int i = 0; i < 2; ++i) {
    const float top = row_maximum<1>(s, i, m[i]);
    by[i] = row_scale(__fmul_rn(scale, finite(top)), scale);
    update_maximum(top, by[i], m[i], alpha[i], shift[i]);
    l[i] *= alpha[i];
  }
}
template <int N>
__device__ __forceinline__ void exponentiate(float (&s)[N], const float (&shift)[2], const float (&by)[2],
                                             float (&l)[2]) {
  ATTN_UNROLL for (int n = 0; n < N / 4; ++n)
    ATTN_UNROLL for (int i = 0; i < 2; ++i)
      ATTN_UNROLL for (int c = 0; c < 2; ++c)
        l[i] += s[4 * n + 2 * i + c] = exp2_or_zero(fmaf(by[i], s[4 * n + 2 * i + c], -shift[i]));
}
/// And here one row after the other, in Chains chains of additions. Whether the scale is row_scale's other one is asked
/// by a quotient, which is the same for all tiles.
template <int Chains, int N>
__device__ __forceinline__ void online_softmax(float (&s)[N], float (&m)[2], float (&l)[2], float (&alpha)[2],
                                               float scale) {
  ATTN_UNROLL for (int i = 0; i < 2; ++i) {
    const float top = row_maximum<Chains>(s, i, m[i]),
                by = power_of_two_if(fabsf(finite(top)) >= kHugeShift / fabsf(scale), scale);
    float shift, sum[Chains] = {};
    update_maximum(top, by, m[i], alpha[i], shift);
    ATTN_UNROLL for (int n = 0; n < N / 4; ++n)
      ATTN_UNROLL for (int c = 0; c < 2; ++c)
        sum[c % Chains] += s[4 * n + 2 * i + c] = exp2_or_zero(fmaf(by, s[4 * n + 2 * i + c], -shift));
    ATTN_UNROLL for (int c = 1; c < Chains; ++c) sum[0] += sum[c];
    l[i] = l[i] * alpha[i] + sum[0];
  }
}
/// A lane's two rows, each times its own factor.
template <int N>
__device__ __forceinline__ void scale_rows(float (&o)[N], const float (&by)[2]) {
  ATTN_UNROLL for (int n = 0; n < N; ++n) o[n] *= by[n / 2 % 2];
}
/// P as the left operand of P V: the sums in their own order, two to a register.
template <class E, int N>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[N / 8][4], const float (&s)[N]) {
  ATTN_UNROLL for (int k = 0; k < N / 8; ++k)
    ATTN_UNROLL for (int r = 0; r < 4; ++r) p[k][r] = pack<E>(s[8 * k + 2 * r], s[8 * k + 2 * r + 1]);
}

/// O = o / l through SRAM (the warp's own 16 rows of `stage`, from warp_row on) to HBM, and LSE. One lane starts the
/// copies; it must wait until they have read `stage` before that is written again or the block ends.
template <class E, int Br, int D>
__device__ __forceinline__ void store_o_and_lse(float (&o)[D / 2], float (&m)[2], float (&l)[2], float softmax_scale,
                                                SwizzledTile<E, Br, D>& stage, int warp_row, const TensorMap& O,
                                                Global<float> LSE, const Mask& mask, int q0, int head) {
  const int lane = threadIdx.x % 32;
  float inverse[2];
  lanes_sum<4>(l);
  ATTN_UNROLL for (int i = 0; i < 2; ++i) {
    inverse[i] = l[i] > 0 ? 1 / l[i] : 0;
    const int row = q0 + warp_row + lane / 4 + 8 * i;
    if (lane % 4 == 0 && row < mask.seqlen_q) LSE.head(head).store(0, row, softmax_scale * finite(m[i]) + logf(l[i]));
  }
  scale_rows(o, inverse);
  ATTN_UNROLL for (int n = 0; n < D / 2; n += 2)
    *reinterpret_cast<uint32_t*>(stage.write(warp_row + sum_row(lane, n), sum_col(lane, n), 2)) =
        pack<E>(o[n], o[n + 1]);
  stores_visible_to_engines();
  __syncwarp();  // all 16 rows are there
  if (lane == 0 && q0 + warp_row < mask.seqlen_q) {
    ATTN_UNROLL for (int panel = 0; panel < D / kPanelColumns; ++panel)
      copy_box_back(O, stage.at(warp_row, panel * kPanelColumns), q0 + warp_row, panel, head);
    commit_copies_back();
  }
}

/// Whose turn at the tensor cores it is: a token that goes round the warpgroups. It takes one named barrier each, where
/// who waits and who passes the token on meet.
template <int Consumers>
struct Turn {
  static __device__ __forceinline__ void wait(int me) { named_sync(1 + me, 256); }
  static __device__ __forceinline__ void pass(int me) { named_arrive(1 + (me + 1 == Consumers ? 0 : me + 1), 256); }
};

// ---- what the host prepares -----------------------------------------------------------------------------------------

/// The tensors of a problem for the copy engine: Q comes a query tile at a time, K and V a key tile, O goes back by 16
/// rows and 64 columns.
struct TensorMaps {
  TensorMap q, k, v, o;
};
template <class T>
TensorMaps tensor_maps(const Problem& p, const Tensors& t) {
  using E = typename T::Element;
  constexpr int kPanels = T::kHeadDim / kPanelColumns;
  return {tensor_map<E>(t.q, "Q", p.heads_total(), p.seqlen_q, T::kHeadDim, T::kBr, kPanels),
          tensor_map<E>(t.k, "K", p.heads_total(), p.seqlen_k, T::kHeadDim, T::kBc, kPanels),
          tensor_map<E>(t.v, "V", p.heads_total(), p.seqlen_k, T::kHeadDim, T::kBc, kPanels),
          tensor_map<E>(t.o, "O", p.heads_total(), p.seqlen_q, T::kHeadDim, 16, 1)};
}

inline Order order_of(const Problem& p, int br) {
  return {static_cast<int>(ceil_div(p.seqlen_q, br)), static_cast<int>(p.heads_total()),
          p.causal ? Order::kTogetherIfCausal : 1};
}

/// What one pass over the visited key tiles costs: K and V are asked for once per tile, of which each query tile has
/// one at least (key_tiles). Two products: scores, P V.
inline std::vector<KernelCost> copy_engine_cost(const Problem& p) {
  const Visits visits = visits_by_query_blocks(p, p.tile.br, p.tile.bc, 1);
  return {KernelCost("attention", p)
              .loads("Q", p.Xq(), p.Xq())
              .loads({"K", "V"}, visits.rows * p.row(), p.Xk())
              .stores("O", p.Xq(), p.Xq())
              .stores("LSE", p.L(), p.L())
              .multiplies(visits, 2)
              .by_copy_engine()
              .by_warpgroups()};
}

/// Why these steps do not serve the problem, and which step does; "" where they do. What is said of others is that of
/// a forward.
inline std::string needs_hopper(
    const Problem& p, const char* other_head_dims = "step06 takes 8, 16, 24 and so on to 256, step04 any to 256",
    const char* other_gpus = "step06 is the same algorithm for 8.0 and newer, step04 for all") {
  constexpr int kHopper = 90;
  if (p.head_dim != 64 && p.head_dim != 128)
    return "takes head_dim 64 and 128, not " + std::to_string(p.head_dim) + "; " + other_head_dims;
  if (p.compute_capability != 0 && p.compute_capability != kHopper)
    return "needs a Hopper GPU (compute capability 9.0), whose copy engine and warpgroup products it is made of, this "
           "one has " +
           capability_name(p.compute_capability) + "; " + other_gpus;
  return "";
}
inline std::string only_on_hopper(const Problem& p) {
  return p.dtype == Dtype::fp32 ? std::string(kForHalfAlone) + ", step08 takes it on these units" : needs_hopper(p);
}

}  // namespace ATTN_DEVICE
}  // namespace attention
