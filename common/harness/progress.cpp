#include "common/harness/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace attention {

namespace {
constexpr const char* kWipe = "\r\033[K";

bool can_rewrite() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) && !(terminal && std::string(terminal) == "dumb");
}
}  // namespace

Progress::Progress() : rewrites_(can_rewrite()) {
  try {
    thread_ = std::thread([this] { show_until_done(); });
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

void Progress::stage(const std::string& text, std::function<double()> share) {
  const std::lock_guard lock(guard_);
  text_ = text;
  share_ = std::move(share);
}

void Progress::say(const std::string& line) {
  const std::lock_guard lock(guard_);
  std::fprintf(stderr, "%s%s\n", shown_ && rewrites_ ? kWipe : "", line.c_str());
}

void Progress::show_until_done() {
  using namespace std::chrono;
  const auto start = steady_clock::now();
  std::unique_lock lock(guard_);
  auto wake = start + seconds(rewrites_ ? 1 : 10);
  while (!changed_.wait_until(lock, wake, [this] { return done_; })) {
    const std::string share = share_ ? fmt::format(": {:.0f} %", 100 * share_()) : "";
    const auto passed = duration_cast<seconds>(steady_clock::now() - start).count();
    std::fputs(
        fmt::format("{}{}{} ... {} s{}", rewrites_ ? kWipe : "", text_, share, passed, rewrites_ ? "" : "\n").c_str(),
        stderr);
    std::fflush(stderr);
    shown_ = true;
    wake = steady_clock::now() + (rewrites_ ? milliseconds(250) : seconds(30));
  }
  if (shown_ && rewrites_) std::fputs(kWipe, stderr);
}

}  // namespace attention
