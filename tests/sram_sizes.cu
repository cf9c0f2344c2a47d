// A block's SRAM below, at and above 48 KiB, from where on CUDA has to be asked for more (hard case A13). Needs a GPU.
#include <cstdlib>

#include "common/device/device.h"
#include "common/device/device_api.h"
#include "common/base/error.h"
#include "tests/catch.h"

namespace attention::on_gpu {

namespace {
template <int Bytes>
struct Sram {
  float element[Bytes / 4];
};

/// Writes the last element of its SRAM, and what it reads there to `out`.
template <int Bytes>
__global__ void use_all(float* out) {
  auto& sram = dynamic_sram<Sram<Bytes>>();
  sram.element[Bytes / 4 - 1 - threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();  // thread 0 reads what the last thread wrote
  if (threadIdx.x == 0) *out = sram.element[Bytes / 4 - blockDim.x];
}

template <int Bytes>
void check(Device& device) {
  float value = -1;
  float* out = static_cast<float*>(device.allocate(sizeof(value)));
  launch("use_all", use_all<Bytes>, 1, 128, Bytes, out);
  device.synchronize();
  device.copy_out(&value, out, sizeof(value));
  device.release(out);
  CHECK(value == 127);
}
}  // namespace

TEST_CASE("A13: SRAM below, at and above 48 KiB", "[gpu]") {
  const std::unique_ptr<Device> device = open_gpu();
  CHECK(device->sram_limit() >= 65536);  // of the smallest GPU that is served, sm_75
  check<49152 - 512>(*device);
  check<49152>(*device);
  check<49152 + 4096>(*device);
  check<65536>(*device);
}

TEST_CASE("ATTN_SMEM_LIMIT lowers the SRAM of a GPU's block", "[gpu]") {
  setenv("ATTN_SMEM_LIMIT", "40000", 1);
  CHECK(open_gpu()->sram_limit() == 40000);
  setenv("ATTN_SMEM_LIMIT", "abc", 1);
  CHECK_THROWS_AS(open_gpu(), BadArguments);
  unsetenv("ATTN_SMEM_LIMIT");
}

}  // namespace attention::on_gpu
