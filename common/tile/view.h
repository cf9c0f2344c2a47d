// Device addresses of a problem's tensors as views of HBM with their shapes. T is the element type, const to read.
#pragma once

#include <type_traits>

#include "common/device/device.h"
#include "common/harness/problem.h"

namespace attention {
inline namespace ATTN_DEVICE {

template <class T>
using Address = std::conditional_t<std::is_const_v<T>, const void*, void*>;

/// q, o, dO, dQ: [heads, seqlen_q, head_dim]; batch and heads are counted together.
template <class T>
Global<T> query_rows(const Problem& p, Address<T> address, const char* tensor) {
  return {static_cast<T*>(address), tensor, p.heads_total(), p.seqlen_q, p.head_dim};
}

/// k, v, dK, dV: [heads, seqlen_k, head_dim].
template <class T>
Global<T> key_rows(const Problem& p, Address<T> address, const char* tensor) {
  return {static_cast<T*>(address), tensor, p.heads_total(), p.seqlen_k, p.head_dim};
}

/// S, P, dP, dS: [heads, seqlen_q, seqlen_k].
template <class T>
Global<T> pairs(const Problem& p, Address<T> address, const char* tensor) {
  return {static_cast<T*>(address), tensor, p.heads_total(), p.seqlen_q, p.seqlen_k};
}

/// LSE, delta: one number per query row, a line per head: [heads, 1, seqlen_q].
template <class T>
Global<T> row_scalars(const Problem& p, Address<T> address, const char* tensor) {
  return {static_cast<T*>(address), tensor, p.heads_total(), 1, p.seqlen_q};
}

/// The same memory for kernels that do not care about heads: the rows of all heads in one matrix, their scalars in one line.
template <class T>
Global<T> all_query_rows(const Problem& p, Address<T> address, const char* tensor) {
  return {static_cast<T*>(address), tensor, 1, p.L(), p.head_dim};
}
template <class T>
Global<T> all_pairs(const Problem& p, Address<T> address, const char* tensor) {
  return {static_cast<T*>(address), tensor, 1, p.L(), p.seqlen_k};
}
template <class T>
Global<T> all_row_scalars(const Problem& p, Address<T> address, const char* tensor) {
  return {static_cast<T*>(address), tensor, 1, 1, p.L()};
}

}  // namespace ATTN_DEVICE
}  // namespace attention
