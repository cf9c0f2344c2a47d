// A launch that the GPU refuses must never look like a result (hard case A14). Needs a GPU.
#include <string>

#include "common/device/device.h"
#include "common/device/device_api.h"
#include "tests/catch.h"

namespace attention::on_gpu {

namespace {
__global__ void write_one(float* out) { *out = 1; }
}  // namespace

TEST_CASE("launch_error_is_fatal", "[gpu]") {
  const std::unique_ptr<Device> device = open_gpu();
  float* out = static_cast<float*>(device->allocate(256));
  try {
    launch("write_one", write_one, 1, 1500, 0, out);  // a block holds at most 1024 threads
    FAIL("a launch with 1500 threads went through");
  } catch (const DeviceFailure& failure) {
    const std::string line = failure.what();
    CHECK(line.find("write_one") != std::string::npos);
    CHECK(line.find("cudaErrorInvalid") != std::string::npos);
    CHECK(failure.code == 4);
  }
  CHECK_THROWS_AS(launch("write_one", write_one, int64_t{1} << 31, 1, 0, out), Unsupported);
  CHECK_THROWS_AS(
      launch("write_one", write_one, 1, 1, int64_t{1} << 30, out), DeviceFailure);  // SRAM beyond the opt-in limit

  launch("write_one", write_one, 1, 1, 0, out);  // the errors above are gone, and blame nobody else
  device->synchronize();
  float value = 0;
  device->copy_out(&value, out, sizeof(value));
  CHECK(value == 1);
  device->release(out);
}

TEST_CASE("a recorded run has one record per launch", "[gpu]") {
  const std::unique_ptr<Device> device = open_gpu();
  float* out = static_cast<float*>(device->allocate(256));
  const std::vector<LaunchRecord> records = device->record([&] {
    launch("first", write_one, 1, 1, 0, out);
    launch("second", write_one, 1, 1, 0, out);
  });
  REQUIRE(records.size() == 2);
  CHECK(records[0].kernel == "first");
  CHECK(records[1].kernel == "second");
  CHECK(records[0].time_ms > 0);
  device->release(out);
}

TEST_CASE("an allocation that does not fit tells needed and free bytes", "[gpu]") {
  const std::unique_ptr<Device> device = open_gpu();
  try {
    device->allocate(int64_t{1} << 50);
    FAIL("a PiB was allocated");
  } catch (const DeviceFailure& failure) {
    CHECK(std::string(failure.what()).find("1125899906842624 bytes needed") != std::string::npos);
  }
  device->flush_l2();
  device->poison_sram();
  device->synchronize();
}

}  // namespace attention::on_gpu
