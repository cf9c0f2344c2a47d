// The float64 reference on the CPU. Every product of the attention formulas is needed twice, once with signs (the
// value) and once with absolute values (the allowance); signed_and_absolute() does both in one pass and is all the
// arithmetic that is hot.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "common/base/parallel.h"
#include "common/reference/reference.h"

namespace attention {
namespace {

constexpr int64_t kTile = 64;   // rows of the looped-over side that are widened to double at a time
constexpr int64_t kBlock = 8;   // query rows that share one pass over the key tiles
constexpr int64_t kLanes = 16;  // columns per inner loop of signed_and_absolute; widths are padded to it with zeros

using Vec = double __attribute__((vector_size(32)));
using Bits = long long __attribute__((vector_size(32)));

/// Four neighbours, wherever they lie. (A vector type with less alignment would do for GCC; clang forgets it behind a
/// pointer.)
inline __attribute__((always_inline)) void load_vec(Vec& x, const double* from) {
  __builtin_memcpy(&x, from, sizeof x);
}
inline __attribute__((always_inline)) void store_vec(double* to, const Vec& x) { __builtin_memcpy(to, &x, sizeof x); }

/// out[n] += sum_m a[m] B[m][n] and out_abs[n] += sum_m b[m] |B[m][n]| for n < cols (a multiple of kLanes), m < rows.
void signed_and_absolute(int64_t rows, int64_t cols, const double* a, const double* b, const double* B, int64_t pitch,
                         double* out, double* out_abs) {
  constexpr int kVecs = kLanes / 4;
  const Bits no_sign = Bits{} + 0x7fffffffffffffff;
  for (int64_t n = 0; n < cols; n += kLanes) {
    Vec sum[kVecs], sum_abs[kVecs];
#pragma GCC unroll 4
    for (int u = 0; u < kVecs; ++u) {
      load_vec(sum[u], out + n + 4 * u);
      load_vec(sum_abs[u], out_abs + n + 4 * u);
    }
    for (int64_t m = 0; m < rows; ++m) {
#pragma GCC unroll 4
      for (int u = 0; u < kVecs; ++u) {
        Vec x;
        load_vec(x, B + m * pitch + n + 4 * u);
        sum[u] += a[m] * x;
        sum_abs[u] += b[m] * reinterpret_cast<Vec>(reinterpret_cast<Bits>(x) & no_sign);
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u < kVecs; ++u) {
      store_vec(out + n + 4 * u, sum[u]);
      store_vec(out_abs + n + 4 * u, sum_abs[u]);
    }
  }
}

int64_t padded(int64_t cols) { return (cols + kLanes - 1) / kLanes * kLanes; }

/// Rows of an output: sums over rows of the other side of their values, of their allowances and, in half precision, of what
/// stored pairs add.
struct Sums {
  int64_t d, pitch;
  std::vector<double> value, allowance, stored;

  Sums(int64_t count, int64_t cols, bool half)
      : d(cols),
        pitch(padded(cols)),
        value(count * pitch),
        allowance(count * pitch),
        stored(half ? count * pitch : 0) {}
  /// Adds `rows` rows of B [.., pitch], each by its three coefficients.
  void add(int64_t at, int64_t rows, const double* of_value, const double* of_allowance, const double* of_stored,
           const double* B) {
    signed_and_absolute(rows, pitch, of_value, of_allowance, B, pitch, &value[at * pitch], &allowance[at * pitch]);
    if (stored.empty()) return;
    std::vector<double> thrown_away(pitch);  // a second copy of the inner loop, without signs, is not worth its text
    signed_and_absolute(rows, pitch, of_stored, of_stored, B, pitch, thrown_away.data(), &stored[at * pitch]);
  }
  /// Into rows first, first + 1, ...
  void store(ReferenceTensor& to, int64_t first) const {
    for (const auto& [from, into] : {std::pair{&value, &to.value}, {&allowance, &to.allowance}, {&stored, &to.stored}})
      for (int64_t r = 0; r * pitch < static_cast<int64_t>(from->size()); ++r)
        std::copy_n(&(*from)[r * pitch], d, &(*into)[(first + r) * d]);
  }
};

/// `count` rows of a float matrix [.., cols], widened to double.
struct WideRows {
  int64_t pitch;
  std::vector<double> rows;       // [count][pitch], zeros in the padding
  std::vector<double> magnitude;  // its absolute values

  explicit WideRows(int64_t count, int64_t cols) : pitch(padded(cols)), rows(count * pitch), magnitude(count * pitch) {}
  void load(int64_t at, const float* from, int64_t cols) {
    for (int64_t c = 0; c < cols; ++c) {
      rows[at * pitch + c] = from[c];
      magnitude[at * pitch + c] = std::abs(rows[at * pitch + c]);
    }
  }
  const double* row(int64_t at) const { return rows.data() + at * pitch; }
  const double* abs_row(int64_t at) const { return magnitude.data() + at * pitch; }
};

/// kTile rows with the dimension first, [cols][kTile], so that a dot product with many rows runs along memory.
struct TransposedTile {
  std::vector<double> element;
  explicit TransposedTile(int64_t cols) : element(cols * kTile) {}
  void load(int64_t at, const float* from, int64_t cols) {
    for (int64_t c = 0; c < cols; ++c) element[c * kTile + at] = from[c];
  }
  void clear_from(int64_t at, int64_t cols) {
    for (int64_t c = 0; c < cols; ++c)
      std::fill(element.begin() + c * kTile + at, element.begin() + (c + 1) * kTile, 0.0);
  }
};

/// What the keys' gradients need of each query row. P_ij = exp(s_ij - largest) / total: with the LSE instead of the
/// two, scores of 1e10 would leave five digits.
struct RowStatistics {
  double largest = -std::numeric_limits<double>::infinity();
  double total = 0;
  double weight = 0;       // max(1, max_j |s_ij| / 3): the part of w_ij that the row shares
  double from_lse = 0;     // lse_share_of_weight |lse_i|
  double from_scores = 0;  // lse_share_of_weight sum_j P_ij A_ij
  double delta = 0;        // sum_c dO_ic o_ic
  double delta_abs = 0;    // sum_c |dO_ic o_ic|
  double mean_score = 0;   // sum_j P_ij |s_ij|
};

struct Run {
  const Problem& problem;
  const HostInputs& in;
  const bool backward;
  const bool half = problem.dtype != Dtype::fp32;
  const double least = least_pair(problem.dtype), flushed = flushed_pair(problem.dtype),
               lse_share = lse_share_of_weight(problem.dtype);
  const int64_t d = problem.head_dim;
  const double scale = problem.softmax_scale;

  const float* q(int64_t head, int64_t i) const { return in.q.data() + (head * problem.seqlen_q + i) * d; }
  const float* k(int64_t head, int64_t j) const { return in.k.data() + (head * problem.seqlen_k + j) * d; }
  const float* v(int64_t head, int64_t j) const { return in.v.data() + (head * problem.seqlen_k + j) * d; }
  const float* d_o(int64_t head, int64_t i) const { return in.d_o.data() + (head * problem.seqlen_q + i) * d; }
};

/// kBlock query rows of one head: everything that belongs to a row of queries.
class QueryBlock {
 public:
  QueryBlock(const Run& run, std::span<const HeadRow> rows)
      : run_(run),
        head_(rows[0].head),
        count_(static_cast<int64_t>(rows.size())),
        q_(count_, run.d),
        d_o_(count_, run.d),
        o_(count_, run.d, run.half) {
    for (int64_t r = 0; r < count_; ++r) {
      q_.load(r, run.q(head_, rows[r].row), run.d);
      if (run.backward) d_o_.load(r, run.d_o(head_, rows[r].row), run.d);
      seen_.push_back(visible_keys(run.problem, rows[r].row));
    }
    keys_ = *std::max_element(seen_.begin(), seen_.end());
    keys_pitch_ = (keys_ + kTile - 1) / kTile * kTile;
    p_.resize(count_ * keys_pitch_);
    p_weighted_.resize(count_ * keys_pitch_);
    p_stored_.resize(count_ * keys_pitch_);
  }

  void forward() {
    scores();
    softmax();
    WideRows v(kTile, run_.d);
    for (int64_t j0 = 0; j0 < keys_; j0 += kTile) {
      const int64_t keys = load_tile(v, &Run::v, j0);
      for (int64_t r = 0; r < count_; ++r) {
        double allowed[kTile];
        for (int64_t j = 0; j < keys; ++j)
          allowed[j] = weighted(r, j0)[j] + (j0 + j < seen_[r] ? run_.least / statistics_[r].total : 0);
        o_.add(r, keys, p(r, j0), allowed, stored(r, j0), v.row(0));
      }
    }
    if (!run_.backward) return;
    for (int64_t r = 0; r < count_; ++r) {
      for (int64_t c = 0; c < run_.d; ++c) {
        const double term = d_o_.row(r)[c] * o_.value[r * o_.pitch + c];
        statistics_[r].delta += term;
        statistics_[r].delta_abs += std::abs(term);
      }
    }
  }

  /// dQ of the rows and its allowance, into rows first, first + 1, ... of `dq`. After forward().
  void query_gradients(ReferenceTensor& dq, int64_t first) {
    Sums sums(count_, run_.d, run_.half);
    TransposedTile v(run_.d);
    WideRows k(kTile, run_.d);
    for (int64_t j0 = 0; j0 < keys_; j0 += kTile) {
      const int64_t keys = load_tile(k, &Run::k, j0);
      load_tile(v, &Run::v, j0);
      for (int64_t r = 0; r < count_; ++r) {
        double dp[kTile] = {}, dp_abs[kTile] = {}, dp_stored[kTile];
        signed_and_absolute(run_.d, kTile, d_o_.row(r), d_o_.abs_row(r), v.element.data(), kTile, dp, dp_abs);
        for (int64_t j = 0; j < keys; ++j) {
          const double parts = std::abs(run_.scale) * (dp_abs[j] + statistics_[r].delta_abs);
          const bool visible = j0 + j < seen_[r];
          if (visible) largest_dp_ = std::max(largest_dp_, std::abs(dp[j]));
          dp[j] = run_.scale * p(r, j0)[j] * (dp[j] - statistics_[r].delta);
          largest_ds_ = std::max(largest_ds_, std::abs(dp[j]));
          // P_ij w_ij becomes P_ij W_ij.
          const double with_lse = std::max(weighted(r, j0)[j] + p(r, j0)[j] * statistics_[r].from_scores,
                                           p(r, j0)[j] * statistics_[r].from_lse + run_.flushed);
          dp_abs[j] = visible ? with_lse * parts + run_.least : 0;
          dp_stored[j] = (p(r, j0)[j] + stored(r, j0)[j]) * parts;
        }
        sums.add(r, keys, dp, dp_abs, dp_stored, k.row(0));
      }
    }
    sums.store(dq, first);
  }

  void store_forward(Reference& reference, int64_t first) const {
    o_.store(reference.o, first);
    for (int64_t r = 0; r < count_; ++r) {
      const double lse = lse_of(statistics_[r]);
      reference.lse.value[first + r] = lse;
      reference.lse.allowance[first + r] = seen_[r] == 0 ? 0 : std::max({1.0, std::abs(lse), largest_a_[r] / 3});
      if (run_.half) reference.lse.stored[first + r] = statistics_[r].mean_score;
    }
  }

  const std::vector<RowStatistics>& statistics() const { return statistics_; }
  bool sees_a_key(int64_t r) const { return seen_[r] > 0; }
  double mean_weight(int64_t r) const { return mean_weight_[r]; }
  double largest_weight(int64_t r) const { return std::max(row_weight(r), largest_a_[r] / 3); }
  double largest_score(int64_t r) const { return largest_score_[r]; }
  double largest_dp() const { return largest_dp_; }  // of all the rows; after query_gradients()
  double largest_ds() const { return largest_ds_; }

 private:
  static double lse_of(const RowStatistics& row) {
    return row.largest + std::log(row.total);
  }  // -inf + -inf for a row that sees no key
  /// The part of w_ij that the row shares.
  double row_weight(int64_t r) const { return std::max(1.0, largest_score_[r] / 3); }
  double* p(int64_t r, int64_t j) { return p_.data() + r * keys_pitch_ + j; }
  double* weighted(int64_t r, int64_t j) { return p_weighted_.data() + r * keys_pitch_ + j; }
  double* stored(int64_t r, int64_t j) { return p_stored_.data() + r * keys_pitch_ + j; }

  template <class Tile>
  int64_t load_tile(Tile& tile, const float* (Run::*tensor)(int64_t, int64_t) const, int64_t j0) const {
    const int64_t keys = std::min(kTile, keys_ - j0);
    for (int64_t j = 0; j < keys; ++j) tile.load(j, (run_.*tensor)(head_, j0 + j), run_.d);
    if constexpr (std::is_same_v<Tile, TransposedTile>) tile.clear_from(keys, run_.d);
    return keys;
  }

  /// p_ becomes q k and p_weighted_ sum_c |q_c k_c|, both without the scale.
  void scores() {
    TransposedTile k(run_.d);
    for (int64_t j0 = 0; j0 < keys_; j0 += kTile) {
      load_tile(k, &Run::k, j0);
      for (int64_t r = 0; r < count_; ++r) {
        signed_and_absolute(
            run_.d, kTile, q_.row(r), q_.abs_row(r), k.element.data(), kTile, p(r, j0), weighted(r, j0));
      }
    }
  }

  /// Scores to probabilities: p_ becomes P_ij, p_weighted_ P_ij w_ij and p_stored_ what storing S adds, 0 for the keys
  /// that row r does not see.
  void softmax() {
    statistics_.resize(count_);
    largest_a_.resize(count_);
    largest_score_.resize(count_);
    mean_weight_.resize(count_);
    for (int64_t r = 0; r < count_; ++r) {
      double* s = p(r, 0);
      double* a = weighted(r, 0);
      RowStatistics& row = statistics_[r];
      for (int64_t j = 0; j < seen_[r]; ++j) {
        s[j] *= run_.scale;
        a[j] *= std::abs(run_.scale);
        row.largest = std::max(row.largest, s[j]);
        largest_score_[r] = std::max(largest_score_[r], std::abs(s[j]));
        largest_a_[r] = std::max(largest_a_[r], a[j]);
        stored(r, 0)[j] = std::abs(s[j]);
      }
      for (int64_t j = 0; j < seen_[r]; ++j) row.total += s[j] = std::exp(s[j] - row.largest);
      row.weight = row_weight(r);
      if (seen_[r] > 0) row.from_lse = run_.lse_share * std::abs(lse_of(row));
      for (int64_t j = 0; j < seen_[r]; ++j) {
        s[j] /= row.total;
        row.from_scores += run_.lse_share * s[j] * a[j];
        a[j] = s[j] * std::max(row_weight(r), a[j] / 3);
        mean_weight_[r] += a[j];
        a[j] += run_.flushed;
        row.mean_score += s[j] * stored(r, 0)[j];
      }
      for (int64_t j = 0; j < seen_[r]; ++j)
        stored(r, 0)[j] = s[j] * (stored(r, 0)[j] + row.mean_score) + 2 * run_.least;
      std::fill(s + seen_[r], s + keys_pitch_, 0.0);
      std::fill(a + seen_[r], a + keys_pitch_, 0.0);
    }
  }

  const Run& run_;
  int64_t head_, count_;
  int64_t keys_ = 0;        // seen by any of the rows
  int64_t keys_pitch_ = 0;  // the same in whole tiles
  std::vector<int64_t> seen_;
  WideRows q_, d_o_;
  std::vector<double> p_, p_weighted_, p_stored_;
  Sums o_;
  std::vector<RowStatistics> statistics_;
  std::vector<double> largest_a_, largest_score_, mean_weight_;
  double largest_dp_ = 0, largest_ds_ = 0;
};

/// dK and dV of up to kTile key rows of one head, and their allowances: one loop over the queries, kTile at a time.
/// `statistics` holds one entry for each query row of this head.
void key_gradients(const Run& run, std::span<const HeadRow> rows, const RowStatistics* statistics, Reference& reference,
                   int64_t first) {
  const int64_t head = rows[0].head, count = static_cast<int64_t>(rows.size()), d = run.d;
  TransposedTile k(d), v(d);
  for (int64_t j = 0; j < count; ++j) {
    k.load(j, run.k(head, rows[j].row), d);
    v.load(j, run.v(head, rows[j].row), d);
  }
  WideRows q(kTile, d), d_o(kTile, d);
  Sums dk(count, d, run.half), dv(count, d, run.half);
  // [key][query]: the sums below run over queries.
  std::vector<double> p(kTile * kTile), p_weighted(kTile * kTile), ds(kTile * kTile), ds_abs(kTile * kTile);
  std::vector<double> p_stored(kTile * kTile), ds_stored(kTile * kTile);
  for (int64_t i0 = 0; i0 < run.problem.seqlen_q; i0 += kTile) {
    const int64_t queries = std::min(kTile, run.problem.seqlen_q - i0);
    if (visible_keys(run.problem, i0 + queries - 1) <= rows[0].row)
      continue;  // the mask hides all these keys from all these queries
    for (int64_t i = 0; i < queries; ++i) {
      q.load(i, run.q(head, i0 + i), d);
      d_o.load(i, run.d_o(head, i0 + i), d);
      double s[kTile] = {}, a[kTile] = {}, dp[kTile] = {}, dp_abs[kTile] = {};
      signed_and_absolute(d, kTile, q.row(i), q.abs_row(i), k.element.data(), kTile, s, a);
      signed_and_absolute(d, kTile, d_o.row(i), d_o.abs_row(i), v.element.data(), kTile, dp, dp_abs);
      const RowStatistics& row = statistics[i0 + i];
      for (int64_t j = 0; j < count; ++j) {
        const bool visible = run.problem.visible(i0 + i, rows[j].row);
        const double probability = visible ? std::exp(run.scale * s[j] - row.largest) / row.total : 0;
        const double least = visible ? run.least : 0, flushed = visible ? run.flushed : 0;
        const double weight = std::max(row.weight, std::abs(run.scale) * a[j] / 3);
        const double weighted = probability * std::max(weight + row.from_scores, row.from_lse) + flushed;
        p[j * kTile + i] = probability;
        p_weighted[j * kTile + i] = weighted + least;
        const double parts = std::abs(run.scale) * (dp_abs[j] + row.delta_abs);
        ds[j * kTile + i] = run.scale * probability * (dp[j] - row.delta);
        ds_abs[j * kTile + i] = weighted * parts + least;
        p_stored[j * kTile + i] = probability * (std::abs(run.scale * s[j]) + row.mean_score) + 2 * least;
        ds_stored[j * kTile + i] = (probability + p_stored[j * kTile + i]) * parts;
      }
    }
    for (int64_t at = 0; at < count * kTile; at += kTile) {
      dv.add(at / kTile, queries, &p[at], &p_weighted[at], &p_stored[at], d_o.row(0));
      dk.add(at / kTile, queries, &ds[at], &ds_abs[at], &ds_stored[at], q.row(0));
    }
  }
  dk.store(reference.dk, first);
  dv.store(reference.dv, first);
}

/// Cuts a sorted list into runs of at most `most` rows of one head: the index where each begins, and the list's end.
std::vector<int64_t> cut(const std::vector<HeadRow>& rows, int64_t most) {
  std::vector<int64_t> begins;
  for (int64_t n = 0; n < static_cast<int64_t>(rows.size()); ++n) {
    if (begins.empty() || n - begins.back() == most || rows[n].head != rows[begins.back()].head) begins.push_back(n);
  }
  begins.push_back(static_cast<int64_t>(rows.size()));
  return begins;
}

/// Calls work(first, rows of one head) for each piece of the list, on all cores.
template <class Work>
void for_each_piece(const std::vector<HeadRow>& rows, int64_t most, const Work& work) {
  const std::vector<int64_t> begins = cut(rows, most);
  parallel_for(static_cast<int64_t>(begins.size()) - 1,
               [&](int64_t n) { work(begins[n], std::span(rows).subspan(begins[n], begins[n + 1] - begins[n])); });
}

}  // namespace

Reference compute_reference_cpu(const Problem& problem, const HostInputs& inputs, const Selection& selection,
                                bool backward) {
  const Run run{problem, inputs, backward};
  const Selection rows = spelled_out(problem, selection, backward);
  Reference reference = allocate_reference(problem, rows, backward);
  std::vector<RowStatistics> statistics(backward ? problem.L() : 0);

  std::mutex guard;  // of the sums over rows below
  int64_t rows_with_keys = 0;
  for_each_piece(rows.queries, kBlock, [&](int64_t first, std::span<const HeadRow> piece) {
    QueryBlock block(run, piece);
    block.forward();
    block.store_forward(reference, first);
    if (backward) block.query_gradients(reference.dq, first);
    if (backward && selection.full)
      std::copy(block.statistics().begin(), block.statistics().end(), statistics.begin() + first);
    const std::lock_guard lock(guard);
    reference.largest_dp = std::max(reference.largest_dp, block.largest_dp());
    reference.largest_ds = std::max(reference.largest_ds, block.largest_ds());
    for (int64_t r = 0; r < static_cast<int64_t>(piece.size()); ++r) {
      if (!block.sees_a_key(r)) continue;
      ++rows_with_keys;
      reference.mean_weight += block.mean_weight(r);
      reference.largest_weight = std::max(reference.largest_weight, block.largest_weight(r));
      reference.largest_score = std::max(reference.largest_score, block.largest_score(r));
    }
  });
  if (rows_with_keys > 0) reference.mean_weight /= static_cast<double>(rows_with_keys);
  if (!backward) return reference;

  if (!selection.full) {  // all the query rows of each head that has a sampled key
    std::set<int64_t> heads;
    for (const HeadRow& key : rows.keys) heads.insert(key.head);
    std::vector<HeadRow> queries;
    for (const int64_t head : heads)
      for (int64_t i = 0; i < problem.seqlen_q; ++i) queries.push_back({head, i});
    for_each_piece(queries, kBlock, [&](int64_t, std::span<const HeadRow> piece) {
      QueryBlock block(run, piece);
      block.forward();
      std::copy(block.statistics().begin(), block.statistics().end(),
                statistics.begin() + piece[0].head * problem.seqlen_q + piece[0].row);
    });
  }
  for_each_piece(rows.keys, kTile, [&](int64_t first, std::span<const HeadRow> piece) {
    key_gradients(run, piece, statistics.data() + piece[0].head * problem.seqlen_q, reference, first);
  });
  return reference;
}

double reference_rate_cpu() {
  // Measured at head_dim 64, forward and backward, on a 2020s x86 server core with AVX2; half of it, since laptops
  // throttle.
  constexpr double kFlopsPerCore = 4e9;
  return kFlopsPerCore * std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace attention
