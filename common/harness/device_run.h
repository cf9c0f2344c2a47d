// One way to run a method on tensors of the host: they go to the device, the method runs, its outputs come back as
// floats.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/tensors.h"
#include "common/device/device_api.h"
#include "common/reference/reference.h"

namespace attention {

/// A host copy of an output, in fp32.
struct Output {
  const TensorInfo* tensor = nullptr;
  std::vector<float> values;
};

/// The tensors of a run and the scratch of its methods, in the device's memory. Behind each lies a tail of NaN, so that
/// a kernel which reads past the end, even only to multiply what it finds by 0, shows it: fresh memory is usually zero.
class DeviceRun {
 public:
  static constexpr int64_t kTailBytes = 64 * 1024;

  /// Allocates, all NaN, and copies the inputs in; with a backward where inputs.d_o is not empty. Throws DeviceFailure
  /// when it does not fit.
  DeviceRun(Device& device, const Problem& problem, const std::vector<Scratch>& scratch, const HostInputs& inputs);
  ~DeviceRun();
  DeviceRun(const DeviceRun&) = delete;
  DeviceRun& operator=(const DeviceRun&) = delete;

  const Tensors& tensors() const { return tensors_; }

  /// NaN in the method's outputs: an element that a kernel forgets then shows.
  void poison_outputs(const Method& method);

  /// Makes the device ready for method.run: NaN in its outputs, its scratch and SRAM, then method.prepare. O and LSE
  /// stay for a backward.
  void prepare(const Method& method);

  /// The outputs of a method that has run.
  std::vector<Output> outputs(const Method& method) const;

  /// Where each tensor and scratch buffer lies, as timestamps name it.
  std::vector<NotedTensor> addresses() const;

  /// Other bytes than NaN behind every tensor (for tests).
  void fill_tails(unsigned char byte);

 private:
  struct Buffer {
    char* address;
    int64_t bytes;
  };
  void add(const std::string& name, int64_t bytes);
  void* find(const std::string& name) const;  // null when there is none of that name
  void fill_nan(const std::string& name);

  Device& device_;
  const Problem problem_;
  std::map<std::string, Buffer> buffers_;
  Tensors tensors_;
};

}  // namespace attention
