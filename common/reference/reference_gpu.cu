// The float64 reference on a GPU: plain CUDA in double, its own tiles and products. Two kernels do everything. Both let
// a block own up to kOwn selected rows (queries, or keys for dK and dV) of one head and loop over the rows of the other
// side in tiles of kOther:
//   row_statistics   maximum and sum of the softmax, max |s|, mean |s| and max A of query rows
//   weighted_sum     one of O, dQ, dV, dK and its allowance: recomputes S (and dP), turns them into the two coefficients of each
//                    pair - the value's and the allowance's - and sums the other side's rows with them. In half precision it runs
//                    once more for the second kind of allowance, `stored`
// Each product is done twice, with signs and with absolute values, as the allowance needs.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/reference/reference.h"

namespace attention {
namespace {

constexpr int kOwn = 64;    // rows that a block owns
constexpr int kOther = 32;  // rows of the other side per tile
constexpr int kCols =
    64;  // output columns of a block of weighted_sum; wider heads take several blocks, each recomputing S
constexpr int kDims = 16;  // dimensions of a product that are in shared memory at a time
constexpr int kThreads =
    256;  // 16 x 16: a thread has 4 own rows by 2 other rows of a score tile, 4 by 4 of an output tile
constexpr int kPerOwn = kOwn / 16, kPerOther = kOther / 16, kPerCol = kCols / 16;

enum class Output { o, dq, dv, dk };
__host__ __device__ constexpr bool owns_queries(Output output) { return output == Output::o || output == Output::dq; }
__host__ __device__ constexpr bool needs_dp(Output output) { return output == Output::dq || output == Output::dk; }

/// What the kernels know of the problem; heads are counted from the first one of the batch at hand.
struct Shape {
  int64_t seqlen_q, seqlen_k;
  int d;
  bool causal;
  double scale;
  double least;      // least_pair
  double flushed;    // flushed_pair
  double lse_share;  // lse_share_of_weight

  /// Problem::visible, for device code.
  __device__ bool visible(int64_t i, int64_t j) const { return !causal || j <= i + seqlen_k - seqlen_q; }
};

struct Inputs {
  const float *q, *k, *v, *d_o;
};

/// Up to kOwn selected rows of one head: rows[begin], ..., rows[begin + count - 1].
struct Group {
  int64_t head, begin;
  int count;
};

/// What is known of each query row of the batch, indexed head * seqlen_q + i. P_ij = exp(s_ij - largest) / total: with
/// the LSE instead of the two, scores of 1e10 would leave five digits.
struct RowStatistics {
  double largest, total, lse, largest_score, largest_a, delta, delta_abs, mean_weight, mean_score, mean_a, largest_dp,
      largest_ds;
};

/// Tiles with the dimension (or the other side's row) first; one column more than needed, so that the threads that fill
/// a column hit different banks.
struct ProductTiles {
  double own[kDims][kOwn + 1];
  double other[kDims][kOther + 1];
};
struct CoefficientTiles {
  double value[kOther][kOwn + 1];
  double allowance[kOther][kOwn + 1];
};

/// sum[a][b] = x_a . y_b and sum_abs[a][b] = sum_c |x_ac y_bc| for this thread's own rows a and other rows b.
/// own_row[n] is the n-th own row of the matrix x [.., d] or -1; the other rows are other0, other0 + 1, ... of y, up to
/// other_end. Rows that do not exist count as zeros. All threads of the block take part; starts with a barrier, so that
/// the tiles may be in use before.
__device__ void products(ProductTiles& tiles, const float* x, const int64_t* own_row, const float* y, int64_t other0,
                         int64_t other_end, int d, double (&sum)[kPerOwn][kPerOther],
                         double (&sum_abs)[kPerOwn][kPerOther]) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int a = 0; a < kPerOwn; ++a)
#pragma unroll
    for (int b = 0; b < kPerOther; ++b) sum[a][b] = sum_abs[a][b] = 0;
  for (int c0 = 0; c0 < d; c0 += kDims) {
    __syncthreads();  // the products of the previous dimensions are done reading the tiles
    for (int n = threadIdx.x; n < kDims * kOwn; n += kThreads) {
      const int c = n % kDims, row = n / kDims;
      tiles.own[c][row] = c0 + c < d && own_row[row] >= 0 ? x[own_row[row] * d + c0 + c] : 0;
    }
    for (int n = threadIdx.x; n < kDims * kOther; n += kThreads) {
      const int c = n % kDims, row = n / kDims;
      tiles.other[c][row] = c0 + c < d && other0 + row < other_end ? y[(other0 + row) * d + c0 + c] : 0;
    }
    __syncthreads();  // the tiles are complete
#pragma unroll 4
    for (int c = 0; c < kDims; ++c) {
      double own[kPerOwn], other[kPerOther];
#pragma unroll
      for (int a = 0; a < kPerOwn; ++a) own[a] = tiles.own[c][ty + 16 * a];
#pragma unroll
      for (int b = 0; b < kPerOther; ++b) other[b] = tiles.other[c][tx + 16 * b];
#pragma unroll
      for (int a = 0; a < kPerOwn; ++a)
#pragma unroll
        for (int b = 0; b < kPerOther; ++b) {
          sum[a][b] += own[a] * other[b];
          sum_abs[a][b] += fabs(own[a]) * fabs(other[b]);
        }
    }
  }
}

/// The rows of the other side that any of the block's own rows meets: [first, end).
struct Range {
  int64_t first, end;
};
__device__ Range visible_range(const Shape& shape, bool own_queries, int64_t first_own, int64_t last_own) {
  const int64_t shift = shape.seqlen_k - shape.seqlen_q;
  if (own_queries) {
    const int64_t end = shape.causal ? last_own + shift + 1 : shape.seqlen_k;
    return {0, end < shape.seqlen_k ? end : shape.seqlen_k};
  }
  const int64_t first = shape.causal ? first_own - shift : 0;
  return {first > 0 ? first / kOther * kOther : 0, shape.seqlen_q};
}

/// The block's own rows, -1 where it has fewer than kOwn.
__device__ void load_own_rows(int64_t (&own_row)[kOwn], const Group& group, const int64_t* rows) {
  for (int n = threadIdx.x; n < kOwn; n += kThreads) own_row[n] = n < group.count ? rows[group.begin + n] : -1;
  __syncthreads();  // own_row is complete
}

/// Maximum and sum of the softmax, max |s|, sum_j P_ij |s_ij|, max A and sum_j P_ij A_ij of the group's query rows. One block per group.
/// The sum runs along with its maximum, as in the online softmax (Milakov and Gimelshein 2018); in float64 the
/// rescaling costs nothing that 1e-12 would show.
__global__ void __launch_bounds__(kThreads)
    row_statistics(Shape shape, Inputs in, const Group* groups, const int64_t* rows, RowStatistics* statistics) {
  __shared__ ProductTiles tiles;
  __shared__ int64_t own_row[kOwn];
  const Group group = groups[blockIdx.x];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  load_own_rows(own_row, group, rows);
  const float* q = in.q + group.head * shape.seqlen_q * shape.d;
  const float* k = in.k + group.head * shape.seqlen_k * shape.d;

  double largest[kPerOwn], total[kPerOwn], total_score[kPerOwn], total_a[kPerOwn], largest_score[kPerOwn],
      largest_a[kPerOwn];
#pragma unroll
  for (int a = 0; a < kPerOwn; ++a) {
    largest[a] = -INFINITY;
    total[a] = total_score[a] = total_a[a] = largest_score[a] = largest_a[a] = 0;
  }
  const Range keys = visible_range(shape, true, own_row[0], own_row[group.count - 1]);
  for (int64_t j0 = keys.first; j0 < keys.end; j0 += kOther) {
    double s[kPerOwn][kPerOther], s_abs[kPerOwn][kPerOther];
    products(tiles, q, own_row, k, j0, keys.end, shape.d, s, s_abs);
#pragma unroll
    for (int a = 0; a < kPerOwn; ++a)
#pragma unroll
      for (int b = 0; b < kPerOther; ++b) {
        const int64_t i = own_row[ty + 16 * a], j = j0 + tx + 16 * b;
        if (i < 0 || j >= keys.end || !shape.visible(i, j)) continue;
        const double score = shape.scale * s[a][b], absolute = fabs(shape.scale) * s_abs[a][b];
        const double now = fmax(largest[a], score);
        const double rescale = exp(largest[a] - now), p = exp(score - now);
        total[a] = total[a] * rescale + p;
        total_score[a] = total_score[a] * rescale + p * fabs(score);
        total_a[a] = total_a[a] * rescale + p * absolute;
        largest[a] = now;
        largest_score[a] = fmax(largest_score[a], fabs(score));
        largest_a[a] = fmax(largest_a[a], absolute);
      }
  }
#pragma unroll
  for (int a = 0; a < kPerOwn; ++a) {
    for (int step = 8; step > 0; step /= 2) {  // the 16 threads of a row are neighbouring lanes
      const double other = __shfl_xor_sync(0xffffffffu, largest[a], step, 16);
      const double other_total = __shfl_xor_sync(0xffffffffu, total[a], step, 16),
                   other_score = __shfl_xor_sync(0xffffffffu, total_score[a], step, 16),
                   other_a = __shfl_xor_sync(0xffffffffu, total_a[a], step, 16);
      const double now = fmax(largest[a], other);
      // Where both have seen no key the maximum is -inf and there is nothing to add.
      const double rescale = now == -INFINITY ? 0 : exp(largest[a] - now),
                   other_rescale = now == -INFINITY ? 0 : exp(other - now);
      total[a] = total[a] * rescale + other_total * other_rescale;
      total_score[a] = total_score[a] * rescale + other_score * other_rescale;
      total_a[a] = total_a[a] * rescale + other_a * other_rescale;
      largest[a] = now;
      largest_score[a] = fmax(largest_score[a], __shfl_xor_sync(0xffffffffu, largest_score[a], step, 16));
      largest_a[a] = fmax(largest_a[a], __shfl_xor_sync(0xffffffffu, largest_a[a], step, 16));
    }
    const int64_t i = own_row[ty + 16 * a];
    if (tx == 0 && i >= 0) {
      RowStatistics& row = statistics[group.head * shape.seqlen_q + i];
      row.largest = largest[a];
      row.total = total[a];
      row.lse = largest[a] + log(total[a]);  // -inf + -inf where no key is visible
      row.mean_score = total[a] > 0 ? total_score[a] / total[a] : 0;
      row.mean_a = total[a] > 0 ? total_a[a] / total[a] : 0;
      row.largest_score = largest_score[a];
      row.largest_a = largest_a[a];
    }
  }
}

/// One output of the group's rows, columns c0 = (blockIdx.x % col_blocks) * kCols onwards, and its allowance, into rows
/// group.begin, ... of value and allowance [.., d]. Needs row_statistics of every query row that it meets and, for dQ
/// and dK, their delta. The first column block also leaves the rows' mean weight (Output::o) or largest dP and dS
/// (Output::dq) in `statistics`. `stored`: ReferenceTensor's stored takes the allowance's place.
template <Output kOutput>
__global__ void __launch_bounds__(kThreads)
    weighted_sum(Shape shape, Inputs in, const Group* groups, const int64_t* rows, int col_blocks, bool stored,
                 RowStatistics* statistics, double* value, double* allowance) {
  constexpr bool kOwnQueries = owns_queries(kOutput);
  __shared__ union {  // never needed at the same time
    ProductTiles product;
    double other_row[kDims][kCols + 1];  // kDims rows of the matrix that is summed
  } tiles;
  __shared__ CoefficientTiles coefficient;
  __shared__ int64_t own_row[kOwn];
  const Group group = groups[blockIdx.x / col_blocks];
  const int c0 = static_cast<int>(blockIdx.x % col_blocks) * kCols;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  load_own_rows(own_row, group, rows);

  const float* q = in.q + group.head * shape.seqlen_q * shape.d;
  const float* d_o = in.d_o + group.head * shape.seqlen_q * shape.d;
  const float* k = in.k + group.head * shape.seqlen_k * shape.d;
  const float* v = in.v + group.head * shape.seqlen_k * shape.d;
  const float* summed = kOutput == Output::o ? v : kOutput == Output::dq ? k : kOutput == Output::dv ? d_o : q;
  RowStatistics* const row_of = statistics + group.head * shape.seqlen_q;

  double sum[kPerOwn][kPerCol] = {}, sum_abs[kPerOwn][kPerCol] = {}, weight[kPerOwn] = {};
  double largest_dp[kPerOwn] = {}, largest_ds[kPerOwn] = {};
  const Range others = visible_range(shape, kOwnQueries, own_row[0], own_row[group.count - 1]);
  for (int64_t other0 = others.first; other0 < others.end; other0 += kOther) {
    double s[kPerOwn][kPerOther], s_abs[kPerOwn][kPerOther], dp[kPerOwn][kPerOther], dp_abs[kPerOwn][kPerOther];
    products(tiles.product, kOwnQueries ? q : k, own_row, kOwnQueries ? k : q, other0, others.end, shape.d, s, s_abs);
    if constexpr (needs_dp(kOutput)) {
      products(tiles.product, kOwnQueries ? d_o : v, own_row, kOwnQueries ? v : d_o, other0, others.end, shape.d, dp,
               dp_abs);
    }
#pragma unroll
    for (int a = 0; a < kPerOwn; ++a)
#pragma unroll
      for (int b = 0; b < kPerOther; ++b) {
        const int64_t own = own_row[ty + 16 * a], other = other0 + tx + 16 * b;
        const int64_t i = kOwnQueries ? own : other, j = kOwnQueries ? other : own;
        double to_value = 0, to_allowance = 0;
        if (own >= 0 && other < others.end && shape.visible(i, j)) {
          const RowStatistics& row = row_of[i];
          double w = fmax(fmax(1.0, fabs(shape.scale) * s_abs[a][b] / 3), row.largest_score / 3);
          if constexpr (kOutput != Output::o)
            w = fmax(w + shape.lse_share * row.mean_a, shape.lse_share * fabs(row.lse));
          const double p = exp(shape.scale * s[a][b] - row.largest) / row.total;
          const double p_score = p * (fabs(shape.scale * s[a][b]) + row.mean_score), p_weight = p * w + shape.flushed;
          weight[a] += p * w;
          if constexpr (needs_dp(kOutput)) {
            const double parts = fabs(shape.scale) * (dp_abs[a][b] + row.delta_abs);
            to_value = p * shape.scale * (dp[a][b] - row.delta);
            to_allowance = stored ? (p + p_score + 2 * shape.least) * parts : p_weight * parts + shape.least;
            if constexpr (kOutput == Output::dq) {
              largest_dp[a] = fmax(largest_dp[a], fabs(dp[a][b]));
              largest_ds[a] = fmax(largest_ds[a], fabs(to_value));
            }
          } else {
            to_value = p;
            to_allowance = stored ? p_score + 2 * shape.least
                                  : p_weight + (kOutput == Output::o ? shape.least / row.total : shape.least);
          }
        }
        coefficient.value[tx + 16 * b][ty + 16 * a] = to_value;
        coefficient.allowance[tx + 16 * b][ty + 16 * a] = to_allowance;
      }
    for (int part = 0; part < kOther; part += kDims) {
      __syncthreads();  // the products (part 0) or the previous part are done with `tiles`; the coefficients are complete
      for (int n = threadIdx.x; n < kDims * kCols; n += kThreads) {
        const int c = n % kCols, m = n / kCols;
        const int64_t other = other0 + part + m;
        tiles.other_row[m][c] = other < others.end && c0 + c < shape.d ? summed[other * shape.d + c0 + c] : 0;
      }
      __syncthreads();  // other_row is complete
#pragma unroll 2
      for (int m = 0; m < kDims; ++m) {
        double x[kPerCol];
#pragma unroll
        for (int c = 0; c < kPerCol; ++c) x[c] = tiles.other_row[m][tx + 16 * c];
#pragma unroll
        for (int a = 0; a < kPerOwn; ++a) {
          const double to_value = coefficient.value[part + m][ty + 16 * a],
                       to_allowance = coefficient.allowance[part + m][ty + 16 * a];
#pragma unroll
          for (int c = 0; c < kPerCol; ++c) {
            sum[a][c] += to_value * x[c];
            sum_abs[a][c] += to_allowance * fabs(x[c]);
          }
        }
      }
    }
    // No barrier here: products() of the next tile starts with one, and the coefficients are written after it.
  }
#pragma unroll
  for (int a = 0; a < kPerOwn; ++a) {
    const int n = ty + 16 * a;
    if (kOutput == Output::o) {
      for (int step = 8; step > 0; step /= 2) weight[a] += __shfl_xor_sync(0xffffffffu, weight[a], step, 16);
      if (c0 == 0 && tx == 0 && own_row[n] >= 0) row_of[own_row[n]].mean_weight = weight[a];
    }
    if (kOutput == Output::dq) {
      for (int step = 8; step > 0; step /= 2) {
        largest_dp[a] = fmax(largest_dp[a], __shfl_xor_sync(0xffffffffu, largest_dp[a], step, 16));
        largest_ds[a] = fmax(largest_ds[a], __shfl_xor_sync(0xffffffffu, largest_ds[a], step, 16));
      }
      if (c0 == 0 && tx == 0 && own_row[n] >= 0) {
        row_of[own_row[n]].largest_dp = largest_dp[a];
        row_of[own_row[n]].largest_ds = largest_ds[a];
      }
    }
    if (own_row[n] < 0) continue;
#pragma unroll
    for (int c = 0; c < kPerCol; ++c) {
      const int col = c0 + tx + 16 * c;
      if (col >= shape.d) continue;
      value[(group.begin + n) * shape.d + col] = sum[a][c];
      allowance[(group.begin + n) * shape.d + col] = sum_abs[a][c];
    }
  }
}

/// delta_i = sum_c dO_ic o_ic and its sum of absolute values, for the group's query rows, whose o stands in rows
/// group.begin, ... One thread per row.
__global__ void row_delta(Shape shape, Inputs in, const Group* groups, const int64_t* rows, const double* o,
                          RowStatistics* statistics) {
  const Group group = groups[blockIdx.x];
  if (static_cast<int>(threadIdx.x) >= group.count) return;
  const int64_t n = group.begin + threadIdx.x, row = group.head * shape.seqlen_q + rows[n];
  double delta = 0, delta_abs = 0;
  for (int c = 0; c < shape.d; ++c) {
    const double term = in.d_o[row * shape.d + c] * o[n * shape.d + c];
    delta += term;
    delta_abs += fabs(term);
  }
  statistics[row].delta = delta;
  statistics[row].delta_abs = delta_abs;
}

void require(cudaError_t error, const char* doing) {
  if (error != cudaSuccess)
    throw DeviceFailure(std::string("float64 reference on the GPU, ") + doing + ": " + cudaGetErrorString(error));
}

/// Device memory that frees itself.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) : bytes_(count * static_cast<int64_t>(sizeof(T))) {
    if (bytes_ > 0) require(cudaMalloc(reinterpret_cast<void**>(&data_), bytes_), "allocating");
  }
  template <class Range>
  static Buffer holding(const Range& host) {
    Buffer buffer(static_cast<int64_t>(std::size(host)));
    if (buffer.bytes_ > 0)
      require(cudaMemcpy(buffer.data_, std::data(host), buffer.bytes_, cudaMemcpyHostToDevice), "copying in");
    return buffer;
  }
  static Buffer zeros(int64_t count) {
    Buffer buffer(count);
    if (buffer.bytes_ > 0) require(cudaMemset(buffer.data_, 0, buffer.bytes_), "clearing memory");
    return buffer;
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { cudaFree(data_); }
  T* get() const { return data_; }
  void copy_out(T* host) const {
    if (bytes_ > 0) require(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "running its kernels");
  }

 private:
  T* data_ = nullptr;
  int64_t bytes_;
};

/// Part of a selection on the device: the rows of the heads [first_head, first_head + heads), cut into groups.
class RowList {
 public:
  /// `rows` is sorted; the part is rows[begin], ..., rows[end - 1].
  RowList(std::span<const HeadRow> rows, int64_t first_head)
      : size_(static_cast<int64_t>(rows.size())),
        host_groups_(groups(rows, first_head)),
        groups_(Buffer<Group>::holding(host_groups_)),
        rows_(Buffer<int64_t>::holding(row_numbers(rows))) {}
  int64_t size() const { return size_; }
  int64_t group_count() const { return static_cast<int64_t>(host_groups_.size()); }
  const Group* group_list() const { return groups_.get(); }
  const int64_t* row_list() const { return rows_.get(); }

 private:
  static std::vector<Group> groups(std::span<const HeadRow> rows, int64_t first_head) {
    std::vector<Group> list;
    for (int64_t n = 0; n < static_cast<int64_t>(rows.size()); ++n) {
      const int64_t head = rows[n].head - first_head;
      if (list.empty() || list.back().count == kOwn || list.back().head != head) list.push_back({head, n, 0});
      ++list.back().count;
    }
    return list;
  }
  static std::vector<int64_t> row_numbers(std::span<const HeadRow> rows) {
    std::vector<int64_t> numbers;
    numbers.reserve(rows.size());
    for (const HeadRow& row : rows) numbers.push_back(row.row);
    return numbers;
  }

  int64_t size_;
  std::vector<Group> host_groups_;
  Buffer<Group> groups_;
  Buffer<int64_t> rows_;
};

/// The heads of one batch on the device, and the steps of the computation on them.
class HeadBatch {
 public:
  HeadBatch(const Problem& problem, const HostInputs& in, int64_t first_head, int64_t heads, bool backward)
      : shape_{problem.seqlen_q,
               problem.seqlen_k,
               problem.head_dim,
               problem.causal,
               problem.softmax_scale,
               least_pair(problem.dtype),
               flushed_pair(problem.dtype),
               lse_share_of_weight(problem.dtype)},
        col_blocks_((problem.head_dim + kCols - 1) / kCols),
        q_(part(in.q, first_head, heads, problem.seqlen_q)),
        k_(part(in.k, first_head, heads, problem.seqlen_k)),
        v_(part(in.v, first_head, heads, problem.seqlen_k)),
        d_o_(backward ? part(in.d_o, first_head, heads, problem.seqlen_q) : Buffer<float>(0)),
        statistics_(Buffer<RowStatistics>::zeros(heads * problem.seqlen_q)) {}

  void statistics(const RowList& queries) const {
    row_statistics<<<grid(queries.group_count()), kThreads>>>(
        shape_, inputs(), queries.group_list(), queries.row_list(), statistics_.get());
    require(cudaGetLastError(), "launching row_statistics");
  }

  /// O of the rows into `value`, and dO . O into the statistics when there is a dO.
  void forward(const RowList& queries, const Buffer<double>& value, const Buffer<double>& allowance) const {
    sum<Output::o>(queries, value, allowance);
    if (!d_o_.get()) return;
    row_delta<<<grid(queries.group_count()), kOwn>>>(
        shape_, inputs(), queries.group_list(), queries.row_list(), value.get(), statistics_.get());
    require(cudaGetLastError(), "launching row_delta");
  }

  template <Output kOutput>
  void sum(const RowList& rows, const Buffer<double>& value, const Buffer<double>& allowance,
           bool stored = false) const {
    weighted_sum<kOutput><<<grid(rows.group_count() * col_blocks_), kThreads>>>(
        shape_, inputs(), rows.group_list(), rows.row_list(), col_blocks_, stored, statistics_.get(), value.get(),
        allowance.get());
    require(cudaGetLastError(), "launching weighted_sum");
  }

  std::vector<RowStatistics> copy_statistics(int64_t rows) const {
    std::vector<RowStatistics> host(rows);
    statistics_.copy_out(host.data());
    return host;
  }

 private:
  Buffer<float> part(std::span<const float> tensor, int64_t first_head, int64_t heads, int64_t rows) const {
    const int64_t head_size = rows * shape_.d;
    return Buffer<float>::holding(tensor.subspan(first_head * head_size, heads * head_size));
  }
  Inputs inputs() const { return {q_.get(), k_.get(), v_.get(), d_o_.get()}; }
  static unsigned grid(int64_t blocks) {
    return static_cast<unsigned>(blocks);
  }  // below 2^31: a batch has at most 1 GiB of rows, or one head

  Shape shape_;
  int col_blocks_;
  Buffer<float> q_, k_, v_, d_o_;
  Buffer<RowStatistics> statistics_;
};

/// The part of a sorted list that lies in the heads [first, end), and where it begins.
struct Part {
  std::span<const HeadRow> rows;
  int64_t begin;
};
Part part_of(const std::vector<HeadRow>& rows, int64_t first, int64_t end) {
  const auto from = std::lower_bound(rows.begin(), rows.end(), HeadRow{first, 0}),
             to = std::lower_bound(rows.begin(), rows.end(), HeadRow{end, 0});
  return {{from, to}, from - rows.begin()};
}

/// value and allowance, which one weighted_sum has left, into the reference; in half precision `stored` too, by
/// another.
template <Output kOutput>
void copy_out(const HeadBatch& batch, const RowList& rows, ReferenceTensor& tensor, int64_t begin,
              const Buffer<double>& value, const Buffer<double>& allowance) {
  value.copy_out(tensor.value.data() + begin * tensor.cols);
  allowance.copy_out(tensor.allowance.data() + begin * tensor.cols);
  if (tensor.stored.empty()) return;
  batch.sum<kOutput>(rows, value, allowance, true);
  allowance.copy_out(tensor.stored.data() + begin * tensor.cols);
}

/// The heads [first_head, first_head + heads) of the reference. `weights` sums the mean weights and counts the rows
/// behind them.
struct Weights {
  double sum = 0;
  int64_t rows = 0;
};
void compute_batch(const Problem& problem, const HostInputs& in, const Selection& rows, bool full, bool backward,
                   int64_t first_head, int64_t heads, Reference& reference, Weights& weights) {
  const Part query_part = part_of(rows.queries, first_head, first_head + heads),
             key_part = part_of(rows.keys, first_head, first_head + heads);
  if (query_part.rows.empty() && key_part.rows.empty()) return;
  const HeadBatch batch(problem, in, first_head, heads, backward);
  const RowList queries(query_part.rows, first_head);
  if (queries.size() > 0) {
    const Buffer<double> value(queries.size() * problem.head_dim), allowance(queries.size() * problem.head_dim);
    batch.statistics(queries);
    batch.forward(queries, value, allowance);
    copy_out<Output::o>(batch, queries, reference.o, query_part.begin, value, allowance);
    if (backward) {
      batch.sum<Output::dq>(queries, value, allowance);
      copy_out<Output::dq>(batch, queries, reference.dq, query_part.begin, value, allowance);
    }
    const std::vector<RowStatistics> statistics = batch.copy_statistics(heads * problem.seqlen_q);
    for (int64_t n = 0; n < queries.size(); ++n) {
      const HeadRow at = query_part.rows[n];
      const RowStatistics& row = statistics[(at.head - first_head) * problem.seqlen_q + at.row];
      reference.lse.value[query_part.begin + n] = row.lse;
      if (visible_keys(problem, at.row) == 0) continue;
      reference.lse.allowance[query_part.begin + n] = std::max({1.0, std::abs(row.lse), row.largest_a / 3});
      if (!reference.lse.stored.empty()) reference.lse.stored[query_part.begin + n] = row.mean_score;
      reference.largest_score = std::max(reference.largest_score, row.largest_score);
      reference.largest_dp = std::max(reference.largest_dp, row.largest_dp);
      reference.largest_ds = std::max(reference.largest_ds, row.largest_ds);
      reference.largest_weight = std::max({reference.largest_weight, 1.0, row.largest_score / 3, row.largest_a / 3});
      weights.sum += row.mean_weight;
      ++weights.rows;
    }
  }
  if (key_part.rows.empty()) return;
  if (!full) {  // the keys' gradients need LSE and delta of all the queries of their heads
    std::set<int64_t> heads_with_keys;
    for (const HeadRow& key : key_part.rows) heads_with_keys.insert(key.head);
    for (const int64_t head : heads_with_keys) {
      std::vector<HeadRow> all(problem.seqlen_q);
      for (int64_t i = 0; i < problem.seqlen_q; ++i) all[i] = {head, i};
      const RowList every_query(all, first_head);
      const Buffer<double> value(every_query.size() * problem.head_dim),
          allowance(every_query.size() * problem.head_dim);
      batch.statistics(every_query);
      batch.forward(every_query, value, allowance);
    }
  }
  const RowList keys(key_part.rows, first_head);
  const Buffer<double> value(keys.size() * problem.head_dim), allowance(keys.size() * problem.head_dim);
  batch.sum<Output::dv>(keys, value, allowance);
  copy_out<Output::dv>(batch, keys, reference.dv, key_part.begin, value, allowance);
  batch.sum<Output::dk>(keys, value, allowance);
  copy_out<Output::dk>(batch, keys, reference.dk, key_part.begin, value, allowance);
}

}  // namespace

bool reference_gpu_available() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

double reference_rate_gpu() {
  int device = 0, multiprocessors = 0, clock_khz = 0, fp32_per_fp64 = 1, major = 0, minor = 0;
  require(cudaGetDevice(&device), "finding the device");
  require(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "reading an attribute");
  require(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device), "reading an attribute");
  require(cudaDeviceGetAttribute(&fp32_per_fp64, cudaDevAttrSingleToDoublePrecisionPerfRatio, device),
          "reading an attribute");
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "reading an attribute");
  require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "reading an attribute");
  const int fp32_lanes =
      major * 10 + minor <= 80 ? 64 : 128;  // per multiprocessor (CUDA C++ Programming Guide, arithmetic instructions)
  // Meant to reach a third of the peak, while executing 1.5 times the operations that reference_flops counts.
  constexpr double kShareOfPeak = 0.2;
  return kShareOfPeak * 2 * fp32_lanes * multiprocessors * (clock_khz * 1e3) / std::max(1, fp32_per_fp64);
}

Reference compute_reference_gpu(const Problem& problem, const HostInputs& inputs, const Selection& selection,
                                bool backward) {
  const Selection rows = spelled_out(problem, selection, backward);
  Reference reference = allocate_reference(problem, rows, backward);
  // Per head: four float inputs, statistics, and value and allowance of one output at a time.
  const int64_t longest = std::max(problem.seqlen_q, problem.seqlen_k);
  const int64_t per_element = 4 * sizeof(float) + 2 * sizeof(double), per_row = sizeof(RowStatistics) + sizeof(int64_t);
  const int64_t head_bytes = longest * (problem.head_dim * per_element + per_row);
  constexpr int64_t kBatchBytes = int64_t{1} << 30;
  const int64_t batch = std::max<int64_t>(1, kBatchBytes / head_bytes);
  Weights weights;
  for (int64_t head = 0; head < problem.heads_total(); head += batch) {
    compute_batch(problem, inputs, rows, selection.full, backward, head, std::min(batch, problem.heads_total() - head),
                  reference, weights);
  }
  if (weights.rows > 0) reference.mean_weight = weights.sum / static_cast<double>(weights.rows);
  return reference;
}

}  // namespace attention
