#include "common/harness/buffers.h"

#include "common/base/error.h"

namespace attention {

Buffers::~Buffers() {
  for (auto& [name, buffer] : buffers_) {
    try {
      device_.release(buffer.address);
    } catch (const ExitError&) {
      // After a CUDA error every call fails; the first one has been reported, and a destructor must not throw.
    }
  }
}

void* Buffers::add(const std::string& name, int64_t bytes) {
  void* address = device_.allocate(bytes + kTailBytes);
  buffers_[name] = {address, bytes};
  fill_nan(name);
  return address;
}

void* Buffers::find(const std::string& name) const {
  const auto found = buffers_.find(name);
  return found == buffers_.end() ? nullptr : found->second.address;
}

void Buffers::fill_nan(const std::string& name) {
  const Buffer& buffer = buffers_.at(name);
  device_.fill_nan(buffer.address, buffer.bytes + kTailBytes);
}

}  // namespace attention
