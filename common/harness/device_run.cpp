#include "common/harness/device_run.h"

#include <utility>

#include "common/base/error.h"
#include "common/base/half.h"

namespace attention {

DeviceRun::DeviceRun(Device& device, const Problem& problem, const std::vector<Scratch>& scratch,
                     const HostInputs& inputs)
    : device_(device), problem_(problem) {
  for (const TensorInfo* tensor : tensors_of_run(!inputs.d_o.empty())) add(tensor->name, tensor->bytes(problem));
  for (const Scratch& buffer : scratch) add(buffer.name, buffer.bytes);
  for (const auto& [name, values] : {std::pair{"Q", inputs.q}, {"K", inputs.k}, {"V", inputs.v}, {"dO", inputs.d_o}}) {
    if (values.empty()) continue;
    if (problem.dtype == Dtype::fp32) {
      device.copy_in(find(name), values.data(), static_cast<int64_t>(values.size_bytes()));
    } else {
      const std::vector<uint16_t> bits = narrow(problem.dtype, values);
      device.copy_in(find(name), bits.data(), static_cast<int64_t>(bits.size() * sizeof(uint16_t)));
    }
  }
  tensors_ = {find("Q"),  find("K"),  find("V"),  find("O"),  find("LSE"),
              find("dO"), find("dQ"), find("dK"), find("dV"), [this](const std::string& name) { return find(name); }};
}

DeviceRun::~DeviceRun() {
  for (auto& [name, buffer] : buffers_) {
    try {
      device_.release(buffer.address);
    } catch (const ExitError&) {
      // After a CUDA error every call fails; the first one has been reported, and a destructor must not throw.
    }
  }
}

void DeviceRun::add(const std::string& name, int64_t bytes) {
  buffers_[name] = {static_cast<char*>(device_.allocate(bytes + kTailBytes)), bytes};
  fill_nan(name);
}

void* DeviceRun::find(const std::string& name) const {
  const auto found = buffers_.find(name);
  return found == buffers_.end() ? nullptr : found->second.address;
}

void DeviceRun::fill_nan(const std::string& name) {
  const Buffer& buffer = buffers_.at(name);
  device_.fill_nan(buffer.address, buffer.bytes + kTailBytes);
}

void DeviceRun::fill_tails(unsigned char byte) {
  const std::vector<unsigned char> tail(kTailBytes, byte);
  for (const auto& [name, buffer] : buffers_) device_.copy_in(buffer.address + buffer.bytes, tail.data(), kTailBytes);
}

std::vector<NotedTensor> DeviceRun::addresses() const {
  std::vector<NotedTensor> all;
  for (const auto& [name, buffer] : buffers_)
    all.push_back({name, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(buffer.address) / 16),
                   static_cast<uint32_t>(buffer.bytes / 16)});
  return all;
}

void DeviceRun::poison_outputs(const Method& method) {
  for (const TensorInfo* output : outputs_of(method.backward)) fill_nan(output->name);
}

void DeviceRun::prepare(const Method& method) {
  poison_outputs(method);
  for (const Scratch& buffer : scratch_of(method, problem_)) fill_nan(buffer.name);
  if (method.prepare) method.prepare(problem_, tensors_);
  device_.poison_sram();
  device_.synchronize();
}

std::vector<Output> DeviceRun::outputs(const Method& method) const {
  std::vector<Output> outputs;
  for (const TensorInfo* tensor : outputs_of(method.backward)) {
    std::vector<float>& values =
        outputs.emplace_back(Output{tensor, std::vector<float>(static_cast<size_t>(tensor->elements(problem_)))})
            .values;
    if (tensor->dtype(problem_) == Dtype::fp32) {
      device_.copy_out(values.data(), find(tensor->name), tensor->bytes(problem_));
    } else {
      std::vector<uint16_t> bits(values.size());
      device_.copy_out(bits.data(), find(tensor->name), tensor->bytes(problem_));
      widen(problem_.dtype, bits, values);
    }
  }
  return outputs;
}

}  // namespace attention
