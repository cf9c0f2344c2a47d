// Asynchronous copies on the CPU executor, at their laziest: a copy's bytes arrive when its thread waits for their
// group, and until then the place where they go holds NaN and must not be touched.
#pragma once

#include "common/device/cpu/kernel_language.h"

namespace attention {
inline namespace ATTN_DEVICE {

/// cp.async: kVector neighbours at (row, col) travel to `to` in SRAM, or zeros (and no access, no bytes) when `inside`
/// is false.
template <class E>
__forceinline__ void copy_async(E* to, Global<const E> from, bool inside, int64_t row, int64_t col,
                                const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  executor::start_copy(to, inside ? from.vector_to_load(row, col, file, line) : nullptr, {file, line});
}

/// cp.async.commit_group: the copies that this thread has started since the last one are a group.
__forceinline__ void commit_copies(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  executor::commit_copies({file, line});
}

/// cp.async.wait_group: all of this thread's groups but the `Pending` youngest arrive.
template <int Pending>
__forceinline__ void wait_copies(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  executor::wait_copies(Pending, {file, line});
}

}  // namespace ATTN_DEVICE
}  // namespace attention
