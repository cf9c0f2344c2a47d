// Device memory of a run. Behind each tensor lies a tail of NaN, so that a kernel which reads past the end, even only to
// multiply what it finds by 0, shows it (hard-to-find otherwise: fresh memory is usually zero).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/device/device_api.h"

namespace attention {

class Buffers {
 public:
  explicit Buffers(Device& device) : device_(device) {}
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  /// A named buffer of `bytes` bytes followed by kTailBytes, all NaN. Throws DeviceFailure when it does not fit.
  void* add(const std::string& name, int64_t bytes);

  /// Address of a buffer; null when there is none of that name.
  void* find(const std::string& name) const;

  /// Every byte of the buffer, tail included, becomes NaN again.
  void fill_nan(const std::string& name);

  static constexpr int64_t kTailBytes = 64 * 1024;

 private:
  struct Buffer { void* address; int64_t bytes; };
  Device& device_;
  std::map<std::string, Buffer> buffers_;
};

}  // namespace attention
