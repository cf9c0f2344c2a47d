#include "common/harness/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/harness/device_run.h"

namespace attention {

std::vector<Scratch> shared_scratch(const Problem& problem, const std::vector<const Method*>& methods) {
  std::vector<Scratch> shared;
  for (const Method* method : methods) {
    for (const Scratch& buffer : scratch_of(*method, problem)) {
      const auto found =
          std::find_if(shared.begin(), shared.end(), [&](const Scratch& other) { return other.name == buffer.name; });
      if (found == shared.end()) shared.push_back(buffer);
      else found->bytes = std::max(found->bytes, buffer.bytes);
    }
  }
  return shared;
}

int64_t bytes_needed(const Device& device, const Problem& problem, bool backward, const std::vector<Scratch>& scratch) {
  int64_t bytes = 4 * device.l2_bytes();
  for (const TensorInfo* tensor : tensors_of_run(backward)) {
    bytes += tensor->bytes(problem) + DeviceRun::kTailBytes;
    if (device.kind() == DeviceKind::cpu) bytes += tensor->elements(problem) * 4;  // the host's copy is fp32
  }
  for (const Scratch& buffer : scratch) bytes += buffer.bytes + DeviceRun::kTailBytes;
  return bytes;
}

std::string describe_shortage(int64_t free_bytes, int64_t needed, const std::vector<Scratch>& scratch) {
  std::vector<std::string> names;
  int64_t quadratic_bytes = 0;
  for (const Scratch& buffer : scratch) {
    if (!buffer.quadratic) continue;
    names.push_back(buffer.name);
    quadratic_bytes += buffer.bytes;
  }
  if (names.empty()) return fmt::format("the tensors need {} bytes, {} are free", needed, free_bytes);
  std::string list = names.front();
  for (size_t n = 1; n < names.size(); ++n) list += (n + 1 == names.size() ? " and " : ", ") + names[n];
  return fmt::format(
      "{} {} {} bytes, {} are free", list, names.size() == 1 ? "needs" : "need", quadratic_bytes, free_bytes);
}

}  // namespace attention
