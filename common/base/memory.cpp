#include "common/base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/base/error.h"

namespace attention {

namespace {
/// The number in a file that holds one, or -1 ("max" in a cgroup's file means no limit).
int64_t number_in_file(const std::string& path) {
  int64_t value = -1;
  std::ifstream file(path);
  return file >> value ? value : -1;
}

/// What the group and those above it leave: `group` as /proc/self/cgroup names it. In a container the mount shows the
/// group itself as its root.
int64_t left_in_group(const std::string& mount, std::string group, const char* limit_file, const char* used_file) {
  int64_t left = INT64_MAX;
  for (;; group.erase(group.rfind('/'))) {
    const int64_t limit = number_in_file(mount + group + limit_file), used = number_in_file(mount + group + used_file);
    if (limit >= 0 && used >= 0) left = std::min(left, std::max<int64_t>(limit - used, 0));
    if (group.empty() || group.find('/') == std::string::npos) return left;
  }
}
}  // namespace

int64_t available_memory(const std::string& root) {
  int64_t available = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ifstream meminfo(root + "/proc/meminfo");
  std::string key, rest;
  for (int64_t kib; meminfo >> key >> kib; std::getline(meminfo, rest))
    if (key == "MemAvailable:") available = kib * 1024;

  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" of version 2, "4:memory:/path" of version 1
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      group = line.substr(second + 1);
    const std::string path = group == "/" ? "" : group;
    if (controllers == ",,")
      available = std::min(available, left_in_group(root + "/sys/fs/cgroup", path, "/memory.max", "/memory.current"));
    else if (controllers.find(",memory,") != std::string::npos)
      available = std::min(
          available,
          left_in_group(root + "/sys/fs/cgroup/memory", path, "/memory.limit_in_bytes", "/memory.usage_in_bytes"));
  }

  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const int64_t pages = std::max<int64_t>(number_in_file(root + "/proc/self/statm"), 0);
    available =
        std::min(available, std::max<int64_t>(static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE), 0));
  }
  return available;
}

void refuse_more_than_available(const std::string& what, int64_t bytes) {
  const int64_t free = available_memory();
  if (bytes > free)
    throw DeviceFailure(
        what + ": needs " + std::to_string(bytes) + " bytes of memory, " + std::to_string(free) + " are free");
}

}  // namespace attention
