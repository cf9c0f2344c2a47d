#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "common/base/error.h"
#include "common/device/device_api.h"

namespace attention {

int64_t lowered_sram_limit(int64_t limit) {
  const char* lowered = std::getenv("ATTN_SMEM_LIMIT");
  if (!lowered) return limit;
  char* end = nullptr;
  const long long value = std::strtoll(lowered, &end, 10);
  if (end == lowered || *end != '\0' || value <= 0)
    throw BadArguments(fmt::format("ATTN_SMEM_LIMIT is '{}', it must be a positive number of bytes", lowered));
  return std::min<int64_t>(limit, value);
}

ExecutorOptions& executor_options() {
  static ExecutorOptions options;
  return options;
}

}  // namespace attention
