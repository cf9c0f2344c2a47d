// A problem's tensors as views of HBM with their shapes. E is the element type.
#pragma once

#include "common/device/device.h"
#include "common/base/problem.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// A tensor's address on the device and the name under which its bytes count; Source to read, Target to write.
struct Source {
  template <class E>
  using View = Global<const E>;
  const void* address;
  const char* tensor;
};
struct Target {
  template <class E>
  using View = Global<E>;
  void* address;
  const char* tensor;
};

template <class E, class Tensor>
typename Tensor::template View<E> view(Tensor t, int64_t heads, int64_t rows, int64_t cols) {
  return {static_cast<decltype(Tensor::template View<E>::data)>(t.address), t.tensor, heads, rows, cols};
}

/// q, o, dO, dQ: [heads, seqlen_q, head_dim]; batch and heads are counted together.
template <class E, class Tensor>
auto query_rows(const Problem& p, Tensor t) {
  return view<E>(t, p.heads_total(), p.seqlen_q, p.head_dim);
}

/// k, v, dK, dV: [heads, seqlen_k, head_dim].
template <class E, class Tensor>
auto key_rows(const Problem& p, Tensor t) {
  return view<E>(t, p.heads_total(), p.seqlen_k, p.head_dim);
}

/// S, P, dP, dS: [heads, seqlen_q, seqlen_k].
template <class E, class Tensor>
auto pairs(const Problem& p, Tensor t) {
  return view<E>(t, p.heads_total(), p.seqlen_q, p.seqlen_k);
}

/// LSE, delta: one fp32 number per query row, a line per head: [heads, 1, seqlen_q].
template <class Tensor>
auto row_scalars(const Problem& p, Tensor t) {
  return view<float>(t, p.heads_total(), 1, p.seqlen_q);
}

/// The same memory for kernels that do not care about heads: the rows of all heads in one matrix, their scalars in one
/// line.
template <class E, class Tensor>
auto all_query_rows(const Problem& p, Tensor t) {
  return view<E>(t, 1, p.L(), p.head_dim);
}
template <class E, class Tensor>
auto all_pairs(const Problem& p, Tensor t) {
  return view<E>(t, 1, p.L(), p.seqlen_k);
}
template <class Tensor>
auto all_row_scalars(const Problem& p, Tensor t) {
  return view<float>(t, 1, 1, p.L());
}

}  // namespace ATTN_DEVICE
}  // namespace attention
