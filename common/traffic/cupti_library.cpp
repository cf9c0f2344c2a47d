#include "common/traffic/cupti_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace attention {

namespace {

/// Where libcupti may be: ATTN_CUPTI_LIBRARY alone when it is set; else the loader's own search, then the toolkit's
/// folders.
std::vector<std::string> library_candidates() {
  if (const char* chosen = std::getenv("ATTN_CUPTI_LIBRARY")) return {chosen};
  const std::string name = fmt::format("libcupti.so.{}", CUDA_VERSION / 1000);
  std::vector<std::string> candidates = {name};
  for (const char* toolkit : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* folder = std::getenv(toolkit))
      candidates.push_back(fmt::format("{}/extras/CUPTI/lib64/{}", folder, name));
  const std::string folders = ATTN_CUPTI_FOLDERS;  // of the toolkit of this build, separated by colons
  for (size_t begin = 0; begin < folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    candidates.push_back(fmt::format("{}/{}", folders.substr(begin, end - begin), name));
    begin = end + 1;
  }
  return candidates;
}

/// libcupti opens libnvperf_host and libnvperf_target by their bare names when it needs them. Where its folder is not
/// on the loader's path they would not be found; opened here, they are there already.
void open_neighbours(void* symbol_of_cupti) {
  Dl_info info{};
  if (dladdr(symbol_of_cupti, &info) == 0 || info.dli_fname == nullptr) return;
  const std::filesystem::path folder = std::filesystem::path(info.dli_fname).parent_path();
  for (const char* name : {"libnvperf_host.so", "libnvperf_target.so"}) dlopen((folder / name).c_str(), RTLD_NOW);
}

/// Opened once and never closed: libcupti keeps threads and handlers until the process ends.
Cupti load_cupti() {
  void* library = nullptr;
  for (const std::string& candidate : library_candidates())
    if ((library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
  if (library == nullptr)
    throw CountersUnavailable(
        fmt::format("no library: {} is not found", library_candidates().front()),
        "install CUPTI, a part of the CUDA Toolkit, and add its folder (extras/CUPTI/lib64) to LD_LIBRARY_PATH");
  Cupti cupti;
  const auto find = [&](const char* name) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr)
      throw CountersUnavailable(
          fmt::format("library too old: this libcupti has no {}", name), "install the CUDA Toolkit 12.6 or newer");
    return symbol;
  };
#define ATTN_FIND(name) cupti.name = reinterpret_cast<decltype(cupti.name)>(find(#name));
  ATTN_CUPTI_FUNCTIONS(ATTN_FIND)
#undef ATTN_FIND
  open_neighbours(reinterpret_cast<void*>(cupti.cuptiProfilerInitialize));
  return cupti;
}

}  // namespace

const Cupti& cupti_library() {
  static const Cupti cupti = load_cupti();
  return cupti;
}

}  // namespace attention
