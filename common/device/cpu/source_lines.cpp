#include "common/device/cpu/source_lines.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>

namespace attention::executor {

namespace {

std::string ask_addr2line(const void* return_address) {
  Dl_info image;
  if (!return_address || !dladdr(return_address, &image) || !image.dli_fbase) return "";
  // addr2line wants addresses as the file has them: a position-independent program was moved to dli_fbase.
  const bool moved = static_cast<const ElfW(Ehdr)*>(image.dli_fbase)->e_type == ET_DYN;
  const uintptr_t address =
      reinterpret_cast<uintptr_t>(return_address) - 1 - (moved ? reinterpret_cast<uintptr_t>(image.dli_fbase) : 0);
  char command[128];
  std::snprintf(command, sizeof command, "addr2line -i -e /proc/%ld/exe 0x%llx 2>/dev/null",
                static_cast<long>(getpid()), static_cast<unsigned long long>(address));
  std::FILE* pipe = popen(command, "r");
  if (!pipe) return "";
  std::string lines;
  char line[1024];
  while (std::fgets(line, sizeof line, pipe)) {
    std::string text = line;
    text = text.substr(text.rfind('/') + 1);           // first: a folder may have blanks
    text = text.substr(0, text.find_first_of(" \n"));  // " (discriminator 2)" may follow
    if (text.find('?') != std::string::npos || text.rfind("kernel_language.h", 0) == 0 ||
        text.rfind("hopper.h", 0) == 0)
      continue;
    lines += (lines.empty() ? "" : " < ") + text;
  }
  pclose(pipe);
  return lines;
}

}  // namespace

std::string source_lines(const void* return_address) {
  static std::mutex mutex;
  static std::map<const void*, std::string> known;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = known.try_emplace(return_address);
  if (is_new) entry->second = ask_addr2line(return_address);
  return entry->second;
}

}  // namespace attention::executor
