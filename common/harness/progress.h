// What the program is doing, on a terminal, when it takes over a second.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace attention {

/// While it lives, one line on stderr names the stage at work and the seconds so far: only on a terminal, only from the first
/// second on, and wiped at the end. Anywhere else it prints nothing.
class Progress {
 public:
  Progress();
  ~Progress();
  void stage(const std::string& text);

 private:
  void show_until_done();

  std::mutex guard_;
  std::condition_variable changed_;
  std::string text_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace attention
