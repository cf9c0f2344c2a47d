// The vocabulary of the steps' traffic formulas: what a kernel is expected to ask for, to move through HBM and to
// execute.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/base/problem.h"

namespace attention {

/// Bytes of one tensor (Q K V O S P LSE dO dQ dK dV dP dS delta), both directions.
struct TensorBytes {
  std::string tensor;
  int64_t load = 0;
  int64_t store = 0;
  bool operator==(const TensorBytes&) const = default;
};

/// Tiles that the blocks of one head visit: each block owns `own` rows of one side and loops over the other side in
/// tiles of `loop` rows.
struct Visits {
  int64_t blocks = 0;  // ceil(own side / own)
  int64_t tiles = 0;   // (block, tile) pairs
  int64_t rows = 0;    // rows of the looped-over side that are loaded in all, the ragged last tile counted as it is
  int own = 0;
  int loop = 0;
};
/// Blocks own queries and loop over keys up to the last visible one, over at_least tiles at least and at_most at most.
Visits visits_by_query_blocks(const Problem& problem, int own, int loop, int64_t at_least = 0,
                              int64_t at_most = INT64_MAX);
Visits visits_by_key_blocks(
    const Problem& problem, int own,
    int loop);  // blocks own keys and loop over queries from the tile of the first that sees one
Visits visits_all(int64_t own_rows, int64_t loop_rows, int own, int loop);  // no tile is skipped (the naive steps)

/// What one kernel launch is expected to cost, for all heads. `requested` is what its loads and stores ask for; `hbm`
/// what must cross from and to memory (a re-read that no cache can serve is part of it).
struct KernelCost {
  std::string name;
  std::vector<TensorBytes> requested;
  std::vector<TensorBytes> hbm;
  bool library =
      false;  // a library's kernel: what it asks for is not known, `requested` is empty and no product rate of ours predicts it
  bool copy_engine =
      false;  // loads and stores go through the copy engine, which the counters of requested bytes do not see; those of L2→SM do
  bool warpgroups = false;     // its products are Hopper's warpgroup products, which have a rate of their own
  bool hbm_at_least = false;   // the access pattern moves partial lines: the true figure is larger (step01's softmax)
  int64_t executed_flops = 0;  // 2 per multiply-add of the tile products on the visited tiles, head_dim as given

  KernelCost(std::string kernel, const Problem& problem) : name(std::move(kernel)), problem_(problem) {}

  /// Elements of a tensor (of each of several) that are asked for, and that must come from (go to) HBM. LSE and delta are
  /// always fp32, the rest of the problem's dtype.
  KernelCost& loads(const std::string& tensor, int64_t requested_elements, int64_t hbm_elements) {
    return moves(&TensorBytes::load, tensor, requested_elements, hbm_elements);
  }
  KernelCost& stores(const std::string& tensor, int64_t requested_elements, int64_t hbm_elements) {
    return moves(&TensorBytes::store, tensor, requested_elements, hbm_elements);
  }
  KernelCost& loads(std::initializer_list<const char*> tensors, int64_t requested_of_each, int64_t hbm_of_each) {
    for (const char* tensor : tensors) loads(tensor, requested_of_each, hbm_of_each);
    return *this;
  }
  KernelCost& stores(std::initializer_list<const char*> tensors, int64_t requested_of_each, int64_t hbm_of_each) {
    for (const char* tensor : tensors) stores(tensor, requested_of_each, hbm_of_each);
    return *this;
  }
  /// `products` tile products of own x loop x head_dim on each visited tile of every head.
  KernelCost& multiplies(const Visits& visits, int products = 1);
  KernelCost& moves_at_least() { return hbm_at_least = true, *this; }
  KernelCost& by_copy_engine() { return copy_engine = true, *this; }
  KernelCost& by_warpgroups() { return warpgroups = true, *this; }
  KernelCost& by_library() { return library = true, *this; }  // from here on the requested elements are passed over

 private:
  KernelCost& moves(int64_t TensorBytes::* way, const std::string& tensor, int64_t requested_elements,
                    int64_t hbm_elements);
  Problem problem_;
};

int64_t total_load(const std::vector<TensorBytes>& bytes);
int64_t total_store(const std::vector<TensorBytes>& bytes);
inline int64_t total(const std::vector<TensorBytes>& bytes) { return total_load(bytes) + total_store(bytes); }

/// Useful FLOPs: 4 * head_dim per visible pair and head in the forward, 2.5 times that in the backward (a convention).
int64_t useful_flops(const Problem& problem, bool backward);

/// Visible (query, key) pairs of one head.
int64_t visible_pairs(const Problem& problem);

}  // namespace attention
