#include "common/base/tensors.h"

#include <algorithm>

namespace attention {

namespace {
using Kind = TensorInfo::Kind;
constexpr TensorInfo kTensors[] = {
    {"Q", "q"},
    {"K", "k", Kind::rows, true},
    {"V", "v", Kind::rows, true},
    {"O", "o"},
    {"LSE", "lse", Kind::row_scalars},
    {"dO", "do"},
    {"dQ", "dq"},
    {"dK", "dk", Kind::rows, true},
    {"dV", "dv", Kind::rows, true},
    {"S", "s", Kind::pairs},
    {"P", "p", Kind::pairs},
    {"dP", "dp", Kind::pairs},
    {"dS", "ds", Kind::pairs},
    {"delta", "delta", Kind::row_scalars}};
constexpr int kOutputs = 3, kGradients = 6, kForward = 5, kAll = 9;  // where they begin or end: O, dQ; LSE, dV

std::vector<const TensorInfo*> range(int begin, int end) {
  std::vector<const TensorInfo*> list;
  for (int n = begin; n < end; ++n) list.push_back(&kTensors[n]);
  return list;
}
}  // namespace

std::vector<int64_t> TensorInfo::shape(const Problem& p) const {
  std::vector<int64_t> shape = {p.batch, p.heads, of_keys ? p.seqlen_k : p.seqlen_q};
  if (kind == Kind::rows) shape.push_back(p.head_dim);
  if (kind == Kind::pairs) shape.push_back(p.seqlen_k);
  return shape;
}

int64_t TensorInfo::elements(const Problem& p) const {
  int64_t elements = 1;
  for (const int64_t length : shape(p)) elements *= length;
  return elements;
}

const TensorInfo* find_tensor(const std::string& name) {
  const auto found = std::find_if(
      std::begin(kTensors), std::end(kTensors), [&](const TensorInfo& t) { return name == t.name || name == t.file; });
  return found == std::end(kTensors) ? nullptr : &*found;
}

std::vector<const TensorInfo*> tensors_of_run(bool backward) { return range(0, backward ? kAll : kForward); }
std::vector<const TensorInfo*> outputs_of(bool backward) {
  return backward ? range(kGradients, kAll) : range(kOutputs, kForward);
}

}  // namespace attention
