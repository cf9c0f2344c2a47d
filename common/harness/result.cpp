#include "common/harness/result.h"

#include <algorithm>

namespace attention {

namespace {
template <class Kernel>
std::vector<TensorBytes> sum_by_tensor(const std::vector<Kernel>& kernels, std::vector<TensorBytes> Kernel::* list) {
  std::vector<TensorBytes> moved;
  for (const Kernel& kernel : kernels) moved.insert(moved.end(), (kernel.*list).begin(), (kernel.*list).end());
  return attention::sum_by_tensor(moved);
}

template <class Item>
int64_t sum(const std::vector<Item>& items, int64_t Item::* member) {
  int64_t all = 0;
  for (const Item& item : items) all += item.*member;
  return all;
}
}  // namespace

std::vector<TensorBytes> sum_by_tensor(const std::vector<TensorBytes>& moved) {
  std::vector<TensorBytes> sums;
  for (const TensorBytes& bytes : moved) {
    auto found =
        std::find_if(sums.begin(), sums.end(), [&](const TensorBytes& sum) { return sum.tensor == bytes.tensor; });
    if (found == sums.end()) found = sums.insert(sums.end(), {bytes.tensor, 0, 0});
    found->load += bytes.load;
    found->store += bytes.store;
  }
  return sums;
}

bool is_pair_tensor(const std::string& name) {
  const TensorInfo* tensor = find_tensor(name);
  return tensor && tensor->kind == TensorInfo::Kind::pairs;
}

bool MethodResult::grows_quadratically() const {
  return std::any_of(scratch.begin(), scratch.end(), [](const Scratch& buffer) { return buffer.quadratic; });
}

bool MethodResult::uses_library() const {
  return std::any_of(expected.begin(), expected.end(), [](const KernelCost& kernel) { return kernel.library; });
}

int64_t MethodResult::extra_bytes() const { return sum(scratch, &Scratch::bytes); }
int64_t MethodResult::executed_flops() const { return sum(expected, &KernelCost::executed_flops); }
int64_t MethodResult::counted_flops() const { return sum(launches, &LaunchRecord::counted_flops); }
std::vector<TensorBytes> MethodResult::requested() const { return sum_by_tensor(expected, &KernelCost::requested); }
std::vector<TensorBytes> MethodResult::hbm() const { return sum_by_tensor(expected, &KernelCost::hbm); }
std::vector<TensorBytes> MethodResult::counted() const { return sum_by_tensor(launches, &LaunchRecord::counted); }

}  // namespace attention
