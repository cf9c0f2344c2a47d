// What the program is doing, when it takes long.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace attention {

/// While it lives, stderr tells the stage at work, its share done where that is known, and the seconds so far. On a
/// terminal: one line from the first second on, wiped at the end. Into a file, or where the terminal is dumb: a line
/// after ten seconds and then every half minute.
class Progress {
 public:
  Progress();
  ~Progress();

  /// `share`: 0 to 1, asked from another thread until the next stage.
  void stage(const std::string& text, std::function<double()> share = nullptr);

  /// A line that stays.
  void say(const std::string& line);

 private:
  void show_until_done();

  const bool rewrites_;
  std::mutex guard_;
  std::condition_variable changed_;
  std::string text_;
  std::function<double()> share_;
  bool done_ = false, shown_ = false;
  std::thread thread_;
};

}  // namespace attention
