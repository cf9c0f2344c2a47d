#include "common/reference/reference.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <set>

#include "common/base/half.h"
#include "common/base/random.h"

namespace attention {
namespace {

std::vector<HeadRow> all_rows(int64_t heads, int64_t rows) {
  std::vector<HeadRow> list;
  list.reserve(heads * rows);
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t row = 0; row < rows; ++row) list.push_back({head, row});
  return list;
}

/// See sample_rows. `tile` is the length of the tiles along these rows, `diagonal` a row next to which the causal mask
/// ends.
std::vector<HeadRow> sample(int64_t heads, int64_t rows, int64_t n, int64_t tile, int64_t diagonal, uint64_t seed,
                            uint32_t stream, bool end_heads_only) {
  const int64_t last_head = heads - 1, last_row = rows - 1;
  std::set<HeadRow> chosen;
  const auto choose = [&](int64_t head, int64_t row) {
    if (static_cast<int64_t>(chosen.size()) < n && row >= 0 && row < rows) chosen.insert({head, row});
  };
  choose(last_head, last_row);  // the largest offset of all comes first
  choose(0, 0);
  choose(last_head, 0);
  choose(0, last_row);
  const int64_t last_edge = last_row / tile * tile;
  for (const int64_t edge : {last_edge, tile, diagonal}) {
    for (const int64_t row : {edge - 1, edge}) {
      choose(last_head, row);
      choose(0, row);
    }
  }
  const int64_t available = (end_heads_only ? std::min<int64_t>(heads, 2) : heads) * rows;
  for (uint64_t draw = 0; static_cast<int64_t>(chosen.size()) < std::min(n, available); ++draw) {
    const auto word = random_block(seed, stream, draw);
    const uint64_t wide_row = uint64_t{word[1]} << 32 | word[2];
    const int64_t head =
        end_heads_only ? (word[0] & 1 ? last_head : 0) : static_cast<int64_t>(word[0] % static_cast<uint64_t>(heads));
    choose(head, static_cast<int64_t>(wide_row % static_cast<uint64_t>(rows)));
  }
  return {chosen.begin(), chosen.end()};
}

std::set<int64_t> heads_of(const std::vector<HeadRow>& rows) {
  std::set<int64_t> heads;
  for (const HeadRow& row : rows) heads.insert(row.head);
  return heads;
}

}  // namespace

double least_pair(Dtype dtype) {
  return dtype == Dtype::fp32 ? 0 : smallest_subnormal(dtype) / 2 / (2 * unit_roundoff(dtype));
}
double lse_share_of_weight(Dtype dtype) { return dtype == Dtype::fp32 ? 1.0 / 3 : 0; }
double flushed_pair(Dtype dtype) { return dtype == Dtype::fp32 ? std::numeric_limits<float>::min() / 1e-6 : 0; }

int64_t visible_keys(const Problem& problem, int64_t i) {
  const auto keys = std::views::iota(int64_t{0}, problem.seqlen_k);
  return std::ranges::partition_point(keys, [&](int64_t j) { return problem.visible(i, j); }) - keys.begin();
}

Selection sample_rows(const Problem& problem, int64_t n, uint64_t seed, bool backward, bool all_heads_keys) {
  const int64_t heads = problem.heads_total();
  if (n >= heads * std::max(problem.seqlen_q, backward ? problem.seqlen_k : 0)) return {};
  // Streams far from those of the inputs (workload.h), so that the choice of rows is independent of their values.
  constexpr uint32_t kQueryStream = 100, kKeyStream = 101;
  const int64_t br = problem.tile.br > 0 ? problem.tile.br : 64, bc = problem.tile.bc > 0 ? problem.tile.bc : 64;
  const int64_t shift =
      problem.causal ? problem.seqlen_q - problem.seqlen_k : 0;  // query `shift` is the first to see key 0
  Selection selection;
  selection.full = false;
  selection.queries = sample(heads, problem.seqlen_q, n, br, shift, seed, kQueryStream, false);
  if (backward) selection.keys = sample(heads, problem.seqlen_k, n, bc, -shift, seed, kKeyStream, !all_heads_keys);
  return selection;
}

double reference_flops(const Problem& problem, const Selection& selection, bool backward) {
  double head_pairs = 0;  // visible pairs of one head
  for (int64_t i = 0; i < problem.seqlen_q; ++i) head_pairs += static_cast<double>(visible_keys(problem, i));
  double query_pairs = 0, statistics_pairs = 0, key_pairs = 0;
  if (selection.full) {
    query_pairs = head_pairs * static_cast<double>(problem.heads_total());
    if (backward) key_pairs = query_pairs;
  } else {
    for (const HeadRow& query : selection.queries) query_pairs += static_cast<double>(visible_keys(problem, query.row));
    if (backward) {
      statistics_pairs = head_pairs * static_cast<double>(heads_of(selection.keys).size());
      key_pairs = static_cast<double>(selection.keys.size()) * static_cast<double>(problem.seqlen_q);
    }
  }
  // Per pair: products of head_dim terms, each done with signs and with absolute values (2 x 2 operations a term).
  // Queries: S, O and, backward, dP, dQ. Statistics: S, O. Keys: S, dP, dK, dV. In half precision the outputs twice,
  // for `stored`.
  const double product = 4.0 * problem.head_dim, exponential = 40;
  const double of_outputs = problem.dtype == Dtype::fp32 ? 1 : 2;
  return query_pairs * ((backward ? 2 : 1) * (1 + of_outputs) * product + exponential) +
         statistics_pairs * (2 * product + exponential) + key_pairs * (2 * (1 + of_outputs) * product + exponential);
}

Selection choose_selection(const Problem& problem, bool backward, double budget_seconds, double flops_per_second,
                           int64_t sampled_rows, uint64_t seed) {
  const auto fits = [&](const Selection& selection) {
    return reference_flops(problem, selection, backward) <= budget_seconds * flops_per_second;
  };
  if (fits(Selection{})) return {};
  Selection selection = sample_rows(problem, sampled_rows, seed, backward, true);
  if (!backward || fits(selection)) return selection;
  selection = sample_rows(problem, sampled_rows, seed, backward, false);
  if (!fits(selection))
    std::erase_if(selection.keys, [&](const HeadRow& key) { return key.head != problem.heads_total() - 1; });
  return selection;
}

Selection spelled_out(const Problem& problem, const Selection& selection, bool backward) {
  Selection rows = selection;
  if (selection.full) {
    rows.queries = all_rows(problem.heads_total(), problem.seqlen_q);
    rows.keys = all_rows(problem.heads_total(), problem.seqlen_k);
  }
  if (!backward) rows.keys.clear();
  return rows;
}

Reference allocate_reference(const Problem& problem, const Selection& rows, bool backward) {
  const auto allocate = [&](ReferenceTensor& tensor, size_t count, int64_t cols) {
    tensor.cols = cols;
    tensor.value.resize(count * cols);
    tensor.allowance.resize(count * cols);
    if (problem.dtype != Dtype::fp32) tensor.stored.resize(count * cols);
  };
  Reference reference;
  allocate(reference.o, rows.queries.size(), problem.head_dim);
  allocate(reference.lse, rows.queries.size(), 1);
  if (backward) {
    allocate(reference.dq, rows.queries.size(), problem.head_dim);
    allocate(reference.dk, rows.keys.size(), problem.head_dim);
    allocate(reference.dv, rows.keys.size(), problem.head_dim);
  }
  return reference;
}

}  // namespace attention
