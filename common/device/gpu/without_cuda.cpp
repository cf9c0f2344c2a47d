// The GPU side of a build without nvcc: it knows whether a GPU is there, and cannot use it.
#include <unistd.h>

#include "common/device/device_api.h"
#include "common/base/error.h"

namespace attention {

GpuPresence find_gpu() {
  GpuPresence presence;
  // NVIDIA's driver makes one device file per GPU (/dev/dxg under WSL, where the count is not shown).
  while (access(("/dev/nvidia" + std::to_string(presence.count)).c_str(), F_OK) == 0) ++presence.count;
  if (presence.count == 0 && access("/dev/dxg", F_OK) == 0 && access("/usr/lib/wsl/lib/libcuda.so.1", F_OK) == 0)
    presence.count = 1;
  if (presence.count > 0)
    presence.trouble =
        "a GPU is present, but this program was built without nvcc: install the CUDA Toolkit and build again, or run "
        "with --device cpu";
  return presence;
}

std::unique_ptr<Device> open_gpu() {
  const GpuPresence presence = find_gpu();
  if (presence.count > 0) throw DeviceFailure(presence.trouble);
  throw Unsupported(
      "--device gpu: no GPU found, and this program was built without nvcc; --device cpu runs the same kernels on the "
      "CPU executor");
}

}  // namespace attention
