// Stands in for reference_gpu.cu in a build without CUDA.
#ifndef ATTN_HAVE_CUDA

#include "common/base/error.h"
#include "common/reference/reference.h"

namespace attention {

bool reference_gpu_available() { return false; }

double reference_rate_gpu() { return 0; }

Reference compute_reference_gpu(const Problem&, const HostInputs&, const Selection&, bool) {
  throw Unsupported("the float64 reference on the GPU is not in this build: it was built without CUDA");
}

}  // namespace attention

#endif
