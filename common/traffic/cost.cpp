#include "common/traffic/cost.h"

#include <algorithm>

#include "common/base/tensors.h"

namespace attention {

namespace {

/// The last key that query i sees: -1 or less when there is none.
int64_t last_visible_key(const Problem& p, int64_t i) {
  return p.causal ? std::min(p.seqlen_k - 1, i + p.seqlen_k - p.seqlen_q) : p.seqlen_k - 1;
}

/// The first query that sees key j: seqlen_q or more when there is none.
int64_t first_seeing_query(const Problem& p, int64_t j) {
  return p.causal ? std::max<int64_t>(0, j - (p.seqlen_k - p.seqlen_q)) : 0;
}

/// The entry of `tensor`, appended when it is new.
TensorBytes& entry(std::vector<TensorBytes>& bytes, const std::string& tensor) {
  for (TensorBytes& known : bytes)
    if (known.tensor == tensor) return known;
  return bytes.emplace_back(TensorBytes{tensor, 0, 0});
}

/// The statistics of a row stay in fp32 whatever the dtype of the tensors is, and so does what a step keeps of its own,
/// partial sums.
int64_t element_bytes(const Problem& p, const std::string& tensor) {
  const TensorInfo* known = find_tensor(tensor);
  return bytes_per_element(known ? known->dtype(p) : Dtype::fp32);
}
}  // namespace

KernelCost& KernelCost::moves(int64_t TensorBytes::* way, const std::string& tensor, int64_t requested_elements,
                              int64_t hbm_elements) {
  if (!library) entry(requested, tensor).*way += requested_elements * element_bytes(problem_, tensor);
  entry(hbm, tensor).*way += hbm_elements * element_bytes(problem_, tensor);
  return *this;
}

KernelCost& KernelCost::multiplies(const Visits& visits, int products) {
  executed_flops += 2 * visits.tiles * visits.own * visits.loop * problem_.row() * products;
  return *this;
}

int64_t total_load(const std::vector<TensorBytes>& bytes) {
  int64_t sum = 0;
  for (const TensorBytes& t : bytes) sum += t.load;
  return sum;
}

int64_t total_store(const std::vector<TensorBytes>& bytes) {
  int64_t sum = 0;
  for (const TensorBytes& t : bytes) sum += t.store;
  return sum;
}

int64_t visible_pairs(const Problem& p) {
  if (!p.causal) return p.seqlen_q * p.seqlen_k;
  // The last min(Nq, Nk) queries see Nk - min + 1, ..., Nk keys, one more from each row to the next; rows before them
  // see none.
  const int64_t rows = std::min(p.seqlen_q, p.seqlen_k);
  return p.seqlen_k * rows - rows * (rows - 1) / 2;
}

int64_t useful_flops(const Problem& p, bool backward) {
  return (backward ? 10 : 4) * p.head_dim * visible_pairs(p) * p.heads_total();
}

Visits visits_by_query_blocks(const Problem& p, int own, int loop, int64_t at_least, int64_t at_most) {
  Visits visits{.blocks = ceil_div(p.seqlen_q, own), .own = own, .loop = loop};
  for (int64_t block = 0; block < visits.blocks; ++block) {
    const int64_t last_row = std::min((block + 1) * own, p.seqlen_q) - 1;
    const int64_t keys = std::max<int64_t>(0, last_visible_key(p, last_row) + 1);
    const int64_t tiles = std::clamp(ceil_div(keys, loop), at_least, at_most);
    visits.tiles += tiles;
    visits.rows += std::min(tiles * loop, p.seqlen_k);
  }
  return visits;
}

Visits visits_by_key_blocks(const Problem& p, int own, int loop) {
  Visits visits{.blocks = ceil_div(p.seqlen_k, own), .own = own, .loop = loop};
  for (int64_t block = 0; block < visits.blocks; ++block) {
    const int64_t first = first_seeing_query(p, block * own);
    if (first >= p.seqlen_q) continue;
    const int64_t first_tile = first / loop;
    visits.tiles += ceil_div(p.seqlen_q, loop) - first_tile;
    visits.rows += p.seqlen_q - first_tile * loop;
  }
  return visits;
}

Visits visits_all(int64_t own_rows, int64_t loop_rows, int own, int loop) {
  const int64_t blocks = ceil_div(own_rows, own);
  return {blocks, blocks * ceil_div(loop_rows, loop), blocks * loop_rows, own, loop};
}

}  // namespace attention
