#include "common/harness/progress.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace attention {

Progress::Progress() {
  try {
    if (isatty(STDERR_FILENO)) thread_ = std::thread([this] { show_until_done(); });
  } catch (const std::system_error&) {
    // No more threads can be started: the run goes on in silence.
  }
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(guard_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Progress::stage(const std::string& text) {
  const std::lock_guard lock(guard_);
  text_ = text;
}

void Progress::show_until_done() {
  using namespace std::chrono;
  const auto start = steady_clock::now();
  bool shown = false;
  std::unique_lock lock(guard_);
  auto wake = start + seconds(1);
  while (!changed_.wait_until(lock, wake, [this] { return done_; })) {
    std::fprintf(stderr, "\r\033[K%s ... %lld s", text_.c_str(), static_cast<long long>(duration_cast<seconds>(steady_clock::now() - start).count()));
    std::fflush(stderr);
    shown = true;
    wake = steady_clock::now() + milliseconds(250);
  }
  if (shown) std::fprintf(stderr, "\r\033[K");
}

}  // namespace attention
