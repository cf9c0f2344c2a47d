// The inputs of a run on the host: filled by --init or read by --load.
#pragma once

#include <vector>

#include "common/harness/options.h"
#include "common/base/problem.h"
#include "common/reference/reference.h"

namespace attention {

/// q, d_o [batch, heads, seqlen_q, head_dim], k, v [batch, heads, seqlen_k, head_dim], C order. d_o is empty without a
/// backward. In half precision they are rounded to the type (round_inputs), so that the device and the reference see
/// the same numbers.
struct InputTensors {
  std::vector<float> q, k, v, d_o;
  HostInputs spans() const { return {q, k, v, d_o}; }
};

/// Reads q.npy, k.npy, v.npy and, with `backward`, do.npy from options.load_dir; sizes not typed are set from the
/// files, and so is the dtype: fp16 when every file holds float16, else fp32. float16 files are widened exactly for
/// another dtype. Throws BadArguments for an unreadable file, shapes that do not fit each other, or a flag that
/// contradicts them.
InputTensors load_inputs(Options& options, bool backward);

/// Fills the tensors as options.init says, in fp32.
InputTensors make_inputs(const Options& options, const Problem& problem, bool backward);

/// Rounds them to `dtype`, to nearest, ties to even. Throws BadArguments when a finite number is too large for the
/// type.
void round_inputs(InputTensors& inputs, Dtype dtype);

}  // namespace attention
