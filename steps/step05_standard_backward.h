// What step05 runs beside its own kernels (step05_standard_backward.cuh): step04's forward, and the standard backward,
// whose P, dP and dS go through HBM.
#pragma once

#include "common/step/step.h"
#include "common/tile/mask.h"
#include "common/tile/product.h"
#include "common/tile/shapes.h"
#include "common/tile/softmax.h"
#include "common/tile/tile.h"
#include "common/tile/view.h"

namespace attention::ATTN_DEVICE::step05 {

/// step04, with the first of its tiles that fits.
void forward(const Problem& p, const Tensors& t);
std::vector<KernelCost> forward_cost(const Problem& p);

/// What the standard forward leaves behind: P.
void save_p(const Problem& p, const Tensors& t);
void standard_backward(const Problem& p, const Tensors& t);
std::vector<KernelCost> standard_cost(const Problem& p);
std::vector<Scratch> standard_scratch(const Problem& p);

}  // namespace attention::ATTN_DEVICE::step05
