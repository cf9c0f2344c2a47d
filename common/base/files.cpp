#include "common/base/files.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/base/error.h"

namespace attention {

namespace {
namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw BadArguments(path + ": cannot be written: " + why);
}

/// Where a symbolic link leads, also one that leads to nothing yet.
std::string follow(const std::string& path) {
  fs::path target = path;
  std::error_code error;
  for (int links = 0; links < 40 && fs::is_symlink(target, error); ++links)
    target = target.parent_path() / fs::read_symlink(target, error);
  return target.string();
}

bool written_in_place(const std::string& target) {
  std::error_code none;
  const auto status = fs::status(target, none);
  return fs::exists(status) && !fs::is_regular_file(status);
}

// What a signal must remove. A handler may call unlink and little else, so the names lie in memory of their own.
constexpr int kSlots = 8, kLongestName = 4096;
char temporary[kSlots][kLongestName];
std::atomic<bool> taken[kSlots];
std::atomic<bool> committing;
std::atomic<int> interrupted;

void remove_and_end(int signal) {
  if (committing) {  // the few renames of one commit belong together
    interrupted = signal;
    return;
  }
  for (int slot = 0; slot < kSlots; ++slot)
    if (taken[slot]) unlink(temporary[slot]);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

/// -1 where there is none left: then only the destructor removes the file.
int take_slot(const std::string& part) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(signal, remove_and_end) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup's
  for (int slot = 0; slot < kSlots && part.size() < kLongestName; ++slot) {
    if (taken[slot]) continue;
    std::memcpy(temporary[slot], part.c_str(), part.size() + 1);
    taken[slot] = true;
    return slot;
  }
  return -1;
}
}  // namespace

void refuse_unwritable(const std::string& named, const std::string& flag) {
  const std::string path = flag.empty() ? named : flag + " " + named;
  const std::string target = follow(named);
  const fs::path parent = fs::path(target).parent_path();
  if (fs::is_directory(target)) refuse(path, "it is a folder");
  if (written_in_place(target) ? access(target.c_str(), W_OK) != 0
                               : access(parent.empty() ? "." : parent.c_str(), W_OK) != 0)
    refuse(path, std::string(std::strerror(errno)) + (errno == ENOENT ? " (its folder)" : ""));
}

void WholeFiles::add(const std::string& path, const std::vector<std::span<const std::byte>>& parts) {
  refuse_unwritable(path);
  const std::string target = follow(path);
  const bool in_place = written_in_place(target);
  const std::string part = in_place ? target : target + "." + std::to_string(getpid()) + ".part";
  if (!in_place) files_.push_back({path, part, target, take_slot(part)});
  errno = 0;
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  for (const auto& bytes : parts)
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();  // a full disk may show only here
  if (!file) refuse(path, std::strerror(errno ? errno : EIO));
}

void WholeFiles::commit() {
  committing = true;
  std::string failed;
  int why = 0;
  for (File& file : files_) {
    if (failed.empty() && std::rename(file.part.c_str(), file.target.c_str()) != 0) failed = file.path, why = errno;
    if (failed.empty() && file.slot >= 0) taken[file.slot] = false;
    if (failed.empty()) file.part.clear();
  }
  committing = false;
  if (const int signal = interrupted.exchange(0)) raise(signal);
  if (!failed.empty()) refuse(failed, std::strerror(why));
}

WholeFiles::~WholeFiles() {
  for (const File& file : files_) {
    if (file.part.empty()) continue;
    std::remove(file.part.c_str());
    if (file.slot >= 0) taken[file.slot] = false;
  }
}

void write_whole(const std::string& path, const std::string& text) {
  WholeFiles file;
  file.add(path, {std::as_bytes(std::span(text))});
  file.commit();
}

}  // namespace attention
