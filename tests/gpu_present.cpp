// Exit 0: a usable GPU. 77: none, ctest's code for a skipped test. 1: present, but unusable.
#include <cstdio>

#include "common/device/device_api.h"

int main() {
  const attention::GpuPresence gpu = attention::find_gpu();
  if (gpu.count == 0) {
    std::puts("skipped: no GPU");
    return 77;
  }
  if (!gpu.trouble.empty()) {
    std::puts(gpu.trouble.c_str());
    return gpu.compiled_in ? 1 : 77;  // a build without CUDA has no GPU tests, whatever the machine has
  }
  return 0;
}
