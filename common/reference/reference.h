// The truth: attention in float64, forward and backward, on the CPU and on the GPU, with the error that each element is
// allowed. Shares no code with steps/ and tile/; the formulas are derived in docs/exactness.md, those of the 16-bit
// types in docs/precision.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/problem.h"

namespace attention {

/// The inputs as the step gets them (in half precision already rounded to the type), flat, C order: q, d_o [batch,
/// heads, seqlen_q, head_dim], k, v [.., seqlen_k, head_dim]. d_o is read by the backward alone and may be empty
/// without one.
struct HostInputs {
  std::span<const float> q, k, v, d_o;
};

/// One query row or one key row. `head` counts batch * heads: head = b * heads + h.
struct HeadRow {
  int64_t head = 0;
  int64_t row = 0;
  auto operator<=>(const HeadRow&) const = default;
};

/// Which rows of the outputs are computed and compared: all of them, or those listed (sorted, no duplicates).
struct Selection {
  bool full = true;
  std::vector<HeadRow> queries;  // rows of o, lse, dq
  std::vector<HeadRow> keys;     // rows of dk, dv
};

/// About n rows of o, lse, dq and, with `backward`, of dk, dv: first the first and last row of the first and last head,
/// then the rows around the first and last tile edge and the causal diagonal's ends in these heads, then others drawn
/// from `seed`. With `all_heads_keys` false the keys come from the first and last head alone: dK and dV of one key need
/// float64 LSE and delta of all the queries of its head. Where n covers every row the selection is full.
Selection sample_rows(const Problem& problem, int64_t n, uint64_t seed, bool backward, bool all_heads_keys);

/// float64 operations (a multiply-add is two, an exponential counts 40) of compute_reference_cpu for this selection.
/// The GPU keeps no scores and executes 1.5 times as many up to head_dim 64, 2 times at 128, 3 times at 256, in half
/// precision a third more.
double reference_flops(const Problem& problem, const Selection& selection, bool backward);

/// A full check when it fits `budget_seconds` at `flops_per_second`, else sample_rows of `sampled_rows` rows, with the
/// keys of all heads if that fits too, else of the two end heads if that fits, else of the last head (whose cost is
/// then that of one head's forward, far below the step's own where it runs on the same device). Typical budgets: 2 s on
/// a CPU, 5 s on a GPU.
Selection choose_selection(const Problem& problem, bool backward, double budget_seconds, double flops_per_second,
                           int64_t sampled_rows, uint64_t seed);

/// One output of the reference, for the selected rows in the selection's order (a full selection: all rows, in memory
/// order): value [rows, cols] and, with the same shape, the allowance for tol = 1 (the checker multiplies by its
/// tolerance) and, in half precision, what u more of rounding adds where S, P, dP and dS are stored in the type (the
/// checker multiplies by u).
struct ReferenceTensor {
  int64_t cols = 0;  // head_dim; 1 for lse
  std::vector<double> value;
  std::vector<double> allowance;
  std::vector<double> stored;  // empty in fp32
};

/// With s_ij = scale q_i k_j, A_ij = |scale| sum_c |q_ic k_jc|, w_ij = max(1, A_ij/3, max_j |s_ij| / 3) over the
/// visible keys, and W_ij = max(w_ij + g sum_k P_ik A_ik, g |lse_i|), where g = lse_share_of_weight(dtype):
///   o    sum_j P_ij v_jc                        allowance  sum_j P_ij w_ij |v_jc|
///   lse  ln sum_j exp s_ij                      allowance  max(1, |lse_i|, max_j A_ij / 3)
///   dv   sum_i P_ij dO_ic                       allowance  sum_i P_ij W_ij |dO_ic|
///   dq   scale sum_j P_ij (dP_ij - D_i) k_jc    allowance  |scale| sum_j P_ij W_ij (|dP|_ij + |D|_i) |k_jc|
///   dk   scale sum_i P_ij (dP_ij - D_i) q_ic    allowance  |scale| sum_i P_ij W_ij (|dP|_ij + |D|_i) |q_ic|
/// where dP_ij = sum_c dO_ic v_jc, D_i = sum_c dO_ic o_ic, and |dP|, |D| are the sums of the terms' absolute values.
/// In fp32 flushed_pair(dtype) joins P_ij w_ij and P_ij W_ij in all of these but lse's.
/// A row that sees no key: o = 0, lse = -inf, no gradient, allowance 0.
/// In half precision (problem.dtype) P and dS are rounded to the type, and below its normal numbers by up to half the
/// smallest subnormal: e = least_pair(dtype) for each visible pair joins P_ij w_ij in the allowance of dv and the whole
/// coefficient of |k_jc|, |q_ic| in those of dq and dk; in that of o it is e max_j P_ij, since there the largest weight
/// is 1 when they are rounded. Besides:
///   stored of lse      |s|_i = sum_j P_ij |s_ij|
///   stored of o, dv    sum (P_ij (|s_ij| + |s|_i) + 2e) |v_jc|, |dO_ic|
///   stored of dq, dk   |scale| sum (P_ij (1 + |s_ij| + |s|_i) + 2e) (|dP|_ij + |D|_i) |k_jc|, |q_ic|
/// derived in docs/precision.md.
/// Sources: FlashAttention (Dao et al. 2022), section 3.1 and appendix B.2, B.4 for the gradients.
struct Reference {
  ReferenceTensor o, lse, dq, dk, dv;  // dq, dk, dv are empty without a backward
  double mean_weight = 0;              // mean over the selected rows that see a key of sum_j P_ij w_ij
  double largest_weight = 0;           // max of w_ij over their visible pairs
  double largest_score = 0;            // max of |s_ij| over them
  double largest_dp =
      0;  // max of |dP_ij| and of |dS_ij|, dS_ij = scale P_ij (dP_ij - D_i), over them; 0 without a backward
  double largest_ds = 0;

  const ReferenceTensor& find(const std::string& name) const {
    return name == "o" ? o : name == "lse" ? lse : name == "dq" ? dq : name == "dk" ? dk : dv;
  }
};

/// On all cores of the CPU. Throws std::bad_alloc when the results do not fit.
Reference compute_reference_cpu(const Problem& problem, const HostInputs& inputs, const Selection& selection,
                                bool backward);

/// On the GPU, in the same float64 formulas and to about 1e-13 of the same values. Head after head, so that its memory
/// stays near 1 GiB or one head's tensors, whichever is more. Throws DeviceFailure; Unsupported in a build without
/// CUDA.
Reference compute_reference_gpu(const Problem& problem, const HostInputs& inputs, const Selection& selection,
                                bool backward);

/// False without a GPU, or in a build without CUDA.
bool reference_gpu_available();

/// float64 operations per second that the references reach on this machine; for choose_selection alone.
double reference_rate_cpu();
double reference_rate_gpu();

/// Half the smallest subnormal of the type in units of its tol, 2u: 2^-15 for fp16, nothing that shows for bf16; 0 for
/// fp32, whose own subnormals are flushed_pair's.
double least_pair(Dtype dtype);

/// What a step may flush to 0 of one P_ij in fp32, everything below the smallest normal number 2^-126, in units of tol:
/// it joins P_ij w_ij in every allowance. 0 in half precision, where least_pair is far larger.
double flushed_pair(Dtype dtype);

/// A backward that computes P again takes it from an LSE in fp32, whose errors all keys of a row share: the forward's
/// scores' (this times their mean A) and its own rounding (this times |lse_i|) are parts of the gradients' weight. A
/// third in fp32, as for a score; 0 in half precision, where a rounding of fp32 does not show.
double lse_share_of_weight(Dtype dtype);

/// For the two implementations: the number of keys that query i sees (they are the first ones), the selected rows with
/// a full selection spelled out, and the Reference with its tensors allocated.
int64_t visible_keys(const Problem& problem, int64_t i);
Selection spelled_out(const Problem& problem, const Selection& selection, bool backward);
Reference allocate_reference(const Problem& problem, const Selection& rows, bool backward);

}  // namespace attention
