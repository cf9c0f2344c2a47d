// Files of a test: a folder that goes away, and a file's text.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace attention {

inline std::string slurp(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// A folder of its own, removed at the end of the test.
struct Folder {
  std::string path;
  Folder() {
    static int count = 0;
    path = (std::filesystem::temp_directory_path() / ("attention_test_" + std::to_string(getpid()) + "_" + std::to_string(count++))).string();
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return path + "/" + name; }
};

}  // namespace attention
