#include "common/device/cpu/source_lines.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>

namespace attention::executor {

namespace {

/// The program, or the library, that holds this code and the kernels.
const Dl_info& own_image() {
  static const Dl_info own = [] {
    Dl_info found{};
    dladdr(reinterpret_cast<const void*>(&source_lines), &found);
    return found;
  }();
  return own;
}

/// addr2line as a child that answers until this process ends: it reads the debug information once.
class Addr2line {
 public:
  /// What it says of an address in the own image's file, line by line; none where there is no addr2line.
  template <class Line>
  void ask(uintptr_t address, Line line) {
    if (process_ != getpid()) start();  // a forked child has an addr2line of its own
    if (!answers_) return;
    char text[1024];
    // A second address, which is nowhere, ends the answer: inlined functions make it several lines long.
    const int length = std::snprintf(text, sizeof text, "%#llx\n0\n", static_cast<unsigned long long>(address));
    if (send(fileno(answers_), text, static_cast<size_t>(length), MSG_NOSIGNAL) != length) return;
    for (bool last = false; std::fgets(text, sizeof text, answers_);) {
      const std::string one = text;
      if (last && one.rfind("0x", 0) != 0) return;
      if (one.rfind("0x", 0) != 0) line(one);
      else last = std::stoull(one, nullptr, 16) == 0;
    }
  }

 private:
  void start() {
    process_ = getpid(), answers_ = nullptr;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
#if defined(ATTN_SHARED_LIBRARY)
    std::string image = own_image().dli_fname;
#else
    std::string image = "/proc/" + std::to_string(process_) + "/exe";
#endif
    char name[] = "addr2line", addresses[] = "-a", inlined[] = "-i", file[] = "-e";
    char* const arguments[] = {name, addresses, inlined, file, image.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO}) posix_spawn_file_actions_adddup2(&actions, ends[1], stream);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t child;
    if (posix_spawnp(&child, name, &actions, nullptr, arguments, environ) == 0) answers_ = fdopen(ends[0], "r");
    else close(ends[0]);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }

  pid_t process_ = 0;  // that has started it
  std::FILE* answers_ = nullptr;
};

std::string ask_addr2line(const void* return_address) {
  static Addr2line addr2line;
  Dl_info image;
  if (!return_address || !dladdr(return_address, &image) || image.dli_fbase != own_image().dli_fbase) return "";
  // addr2line wants addresses as the file has them: a position-independent program was moved to dli_fbase.
  const bool moved = static_cast<const ElfW(Ehdr)*>(image.dli_fbase)->e_type == ET_DYN;
  const uintptr_t address =
      reinterpret_cast<uintptr_t>(return_address) - 1 - (moved ? reinterpret_cast<uintptr_t>(image.dli_fbase) : 0);
  std::string lines;
  addr2line.ask(address, [&](std::string text) {
    text = text.substr(text.rfind('/') + 1);           // first: a folder may have blanks
    text = text.substr(0, text.find_first_of(" \n"));  // " (discriminator 2)" may follow
    if (text.find('?') != std::string::npos || text.rfind("kernel_language.h", 0) == 0 ||
        text.rfind("hopper.h", 0) == 0)
      return;
    lines += (lines.empty() ? "" : " < ") + text;
  });
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
