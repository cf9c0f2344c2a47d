// --trace-row: the online softmax of one row, tile by tile.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/problem.h"
#include "common/reference/reference.h"

namespace attention {

/// m, l and alpha after each key tile of problem.tile.bc keys, for query `row` of head 0, by the recurrence of the
/// online softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022, algorithm 1) replayed in float64 on
/// the host from the inputs, and the LSE it ends with beside `kernel_lse`, the step's own.
std::string trace_row(const Problem& problem, const HostInputs& inputs, int64_t row, float kernel_lse);

}  // namespace attention
