// A build without CUPTI: it runs all the same, and says why it cannot measure.
#include "common/traffic/cupti.h"

namespace attention {

namespace {
CountersUnavailable not_built() {
  return {"this program was built without CUPTI",
          "configure with -DATTN_CUPTI=ON (it needs the CUDA Toolkit 12.6 or newer with its cupti_range_profiler.h), "
          "and build again"};
}
}  // namespace

std::unique_ptr<CounterSession> open_cupti(int) { throw not_built(); }
std::vector<std::string> cupti_metrics(const std::string&) { throw not_built(); }

}  // namespace attention
