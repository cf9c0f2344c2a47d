// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace attention {

/// Bytes that can be had without swapping: what the kernel says, or less where a container's limit (cgroup 1 or 2) or
/// ulimit -v says so. `root` stands for / in tests.
int64_t available_memory(const std::string& root = "");

/// Throws DeviceFailure, "<what>: needs n bytes of memory, m are free", where that is more than available_memory().
void refuse_more_than_available(const std::string& what, int64_t bytes);

}  // namespace attention
