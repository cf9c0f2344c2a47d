// Which inputs fp32 on tensor cores (--product tensor-cores) can hold: docs/exact-tensor-cores.md, "What it cannot
// hold".
#pragma once

#include "common/base/problem.h"
#include "common/reference/reference.h"

namespace attention {

/// Throws Unsupported, naming the product that can, for inputs with inf or NaN, with scores beyond fp32, with gradients
/// near its smallest numbers, with a row or column (of a head) so far below the rest that its digits would be lost, or
/// with a column of q and k whose terms are so far above the others' that scores lose theirs.
void refuse_what_cannot_be_split(const HostInputs& inputs, const Problem& problem);

}  // namespace attention
