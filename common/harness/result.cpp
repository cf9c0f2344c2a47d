#include "common/harness/result.h"

#include <algorithm>

namespace attention {

std::vector<TensorBytes> sum_by_tensor(const std::vector<std::vector<TensorBytes>>& kernels) {
  std::vector<TensorBytes> sums;
  for (const std::vector<TensorBytes>& kernel : kernels) {
    for (const TensorBytes& bytes : kernel) {
      auto found = std::find_if(sums.begin(), sums.end(), [&](const TensorBytes& sum) { return sum.tensor == bytes.tensor; });
      if (found == sums.end()) found = sums.insert(sums.end(), {bytes.tensor, 0, 0});
      found->load += bytes.load;
      found->store += bytes.store;
    }
  }
  return sums;
}

bool is_pair_tensor(const std::string& name) {
  const TensorInfo* tensor = find_tensor(name);
  return tensor && tensor->kind == TensorInfo::Kind::pairs;
}

int64_t MethodResult::extra_bytes() const {
  int64_t bytes = 0;
  for (const Scratch& buffer : scratch) bytes += buffer.bytes;
  return bytes;
}

bool MethodResult::grows_quadratically() const {
  return std::any_of(scratch.begin(), scratch.end(), [](const Scratch& buffer) { return buffer.quadratic; });
}

bool MethodResult::uses_library() const {
  return std::any_of(expected.begin(), expected.end(), [](const KernelCost& kernel) { return kernel.library; });
}

int64_t MethodResult::executed_flops() const {
  int64_t flops = 0;
  for (const KernelCost& kernel : expected) flops += kernel.executed_flops;
  return flops;
}

int64_t MethodResult::counted_flops() const {
  int64_t flops = 0;
  for (const LaunchRecord& launch : launches) flops += launch.counted_flops;
  return flops;
}

std::vector<TensorBytes> MethodResult::requested() const {
  std::vector<std::vector<TensorBytes>> kernels;
  for (const KernelCost& kernel : expected) kernels.push_back(kernel.requested);
  return sum_by_tensor(kernels);
}

std::vector<TensorBytes> MethodResult::hbm() const {
  std::vector<std::vector<TensorBytes>> kernels;
  for (const KernelCost& kernel : expected) kernels.push_back(kernel.hbm);
  return sum_by_tensor(kernels);
}

std::vector<TensorBytes> MethodResult::counted() const {
  std::vector<std::vector<TensorBytes>> kernels;
  for (const LaunchRecord& launch : launches) kernels.push_back(launch.counted);
  return sum_by_tensor(kernels);
}

}  // namespace attention
