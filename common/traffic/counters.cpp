#include "common/traffic/counters.h"

#include <fmt/format.h>

namespace attention {

std::optional<int64_t> hbm_total(const CounterBytes& bytes) {
  const std::optional<int64_t>&read = bytes[Counter::hbm_read], &write = bytes[Counter::hbm_write];
  if (!read || !write) return std::nullopt;
  return *read + *write;
}

// The numbers are CUptiResult's (cupti_result.h); written out, since a build without CUPTI's headers explains them too.
CountersUnavailable explain_cupti_error(int code, const std::string& call) {
  const auto unavailable = [&](const std::string& reason, const std::string& advice) {
    return CountersUnavailable(fmt::format("{} (CUPTI error {} at {})", reason, code, call), advice);
  };
  const std::string newer = "install a newer CUDA Toolkit and driver, and build again";
  switch (code) {
    case 8:
      return unavailable("out of memory: the profiler found none to keep its counts in",
                         "choose a smaller --seqlen, --heads or --batch");
    case 11:
    case 15:
      return unavailable("library too old: this CUPTI or driver has no Range Profiler", newer);
    case 14:
    case 27:
    case 38:
      return unavailable("no counters: CUPTI does not support this GPU and driver", newer);
    case 17:
    case 46:
      return unavailable("no counters for this chip: this CUPTI does not know it", newer);
    case 23:
    case 26:
    case 36:
    case 39:
      return unavailable(
          "another profiler holds the counters",
          "run outside of ncu, nsys, compute-sanitizer and cuda-gdb; pause DCGM's profiling (dcgmi profile --pause)");
    case 33:
    case 40:
      return unavailable(
          "no permission: a virtual GPU whose host does not share its counters",
          "ask the host's administrator to enable profiling for this virtual GPU, or run on a whole one");
    case 35:
      return unavailable("no permission: the driver lets only administrators read the GPU's counters",
                         "run as root, start the container with --cap-add=SYS_ADMIN, or have the driver loaded with "
                         "NVreg_RestrictProfilingToAdminUsers=0 (docs/traffic.md)");
    case 41:
      return unavailable("no counters under confidential computing", "run on a GPU outside of confidential computing");
    case 42:
      return unavailable("no counters on a mining GPU", "run on another GPU");
    case 43:
      return unavailable(
          "no counters: the GPU is cut into MIG instances", "run on a whole GPU (an administrator: nvidia-smi -mig 0)");
    case 44:
      return unavailable("no counters on GPUs joined by SLI", "switch SLI off");
    case 45:
      return unavailable("no counters under this WSL",
                         "allow them in the NVIDIA Control Panel under Windows (Developer, Manage GPU Performance "
                         "Counters), with driver 525 or newer");
    default:
      return unavailable("the profiler failed", "docs/traffic.md shows the same measurement by hand, with ncu");
  }
}

}  // namespace attention
