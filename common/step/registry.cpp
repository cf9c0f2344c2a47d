#include <map>
#include <utility>

#include "common/step/step.h"

namespace attention {

namespace {
/// A function's static, since steps register themselves before main, in no particular order.
std::map<std::string, Step>& registry(DeviceKind device) {
  static std::map<DeviceKind, std::map<std::string, Step>> steps;
  return steps[device];
}
}  // namespace

bool register_step(DeviceKind device, Step step) {
  std::string id = step.id;
  return registry(device).emplace(std::move(id), std::move(step)).second;
}

const Step* find_step(DeviceKind device, const std::string& id) {
  const std::map<std::string, Step>& steps = registry(device);
  if (id.empty()) return steps.size() == 1 ? &steps.begin()->second : nullptr;
  const auto found = steps.find(id);
  return found == steps.end() ? nullptr : &found->second;
}

std::vector<std::string> registered_steps(DeviceKind device) {
  std::vector<std::string> ids;
  for (const auto& [id, step] : registry(device)) ids.push_back(id);
  return ids;
}

}  // namespace attention
