// The attention problem: what every other room of this repository takes as its input.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace attention {

enum class Dtype { fp32, fp16, bf16 };

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Queries or keys of a head, at most: every position, also of a tile that begins within and ends past the last, then
/// fits 32 bits.
constexpr int64_t kMostTokens = (int64_t{1} << 31) - (int64_t{1} << 12);

/// "8.0" for a compute capability of 80.
inline std::string capability_name(int compute_capability) {
  return std::to_string(compute_capability / 10) + "." + std::to_string(compute_capability % 10);
}

/// Bytes of one element of `dtype` in HBM.
constexpr int bytes_per_element(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

/// The most keys that one sum over keys on tensor cores should run over. They round each addition toward zero, so that
/// an error grows with the number of additions; up to here it stays below what rounding P and O to 16 bits costs
/// (docs/09-split-keys.md).
constexpr int64_t kLongestChain = 1 << 16;

/// A tile: br query rows by bc key rows (the papers' Br x Bc). 0x0 means "not chosen yet".
struct TileShape {
  int br = 0;
  int bc = 0;
  bool operator==(const TileShape&) const = default;
};

/// O = softmax(softmax_scale * Q K^T) V with q, o [batch, heads, seqlen_q, head_dim] and k, v [batch, heads, seqlen_k,
/// head_dim], contiguous in that order. Causal is bottom-right: query i sees the keys j <= i + seqlen_k - seqlen_q.
struct Problem {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int head_dim = 64;
  bool causal = false;
  float softmax_scale = 0;  // the harness sets 1/sqrt(head_dim) unless told otherwise
  Dtype dtype = Dtype::fp32;
  bool on_tensor_cores =
      false;               // fp32 alone has a choice of tile products: CUDA cores, or split in parts on tensor cores
  TileShape tile;          // the step's tile, chosen by the harness from Step::tiles
  int64_t sram_limit = 0;  // bytes of SRAM a block may ask for on the device at hand
  int compute_capability = 0;  // of the GPU at hand, 90 for 9.0; 0: the CPU executor, which runs what any GPU can

  int multiprocessors = 0;  // of the device at hand; of the CPU executor, of which GPU it stands for
  int64_t splits = 0;       // among how many blocks a step that splits keys shares out a row's; 0: as its own rule says

  std::vector<std::string> left_out;  // of the step's techniques, by name

  bool leaves_out(const std::string& technique) const {
    return std::find(left_out.begin(), left_out.end(), technique) != left_out.end();
  }

  int64_t heads_total() const { return batch * heads; }

  /// The sizes that the formulas are written in (elements, all heads together).
  int64_t Xq() const { return heads_total() * seqlen_q * head_dim; }
  int64_t Xk() const { return heads_total() * seqlen_k * head_dim; }
  int64_t S() const { return heads_total() * seqlen_q * seqlen_k; }
  int64_t L() const { return heads_total() * seqlen_q; }
  /// A row of q, k, v or o in all heads together: Visits::rows * row() is a number of elements.
  int64_t row() const { return heads_total() * head_dim; }

  /// True when query i sees key j. The reference and the formulas use this; the kernels have their own copy of the
  /// rule (Mask in common/tile), so that one mistake cannot hide in both.
  bool visible(int64_t i, int64_t j) const { return !causal || j <= i + seqlen_k - seqlen_q; }
};

}  // namespace attention
