// What a test does with the world around it: files, variables of the environment, programs of the build folder.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace attention {

inline std::string slurp(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A folder of its own, removed at the end of the test.
struct Folder {
  std::string path;
  Folder() {
    static int count = 0;
    const std::string name = "attention_test_" + std::to_string(getpid()) + "_" + std::to_string(count++);
    path = (std::filesystem::temp_directory_path() / name).string();
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return path + "/" + name; }
};

/// One variable of the environment (null: none), put back at the end of the test.
struct Environment {
  std::string name;
  std::optional<std::string> before;
  Environment(const std::string& variable, const char* value) : name(variable) {
    if (const char* old = std::getenv(name.c_str())) before = old;
    set(value);
  }
  ~Environment() { set(before ? before->c_str() : nullptr); }
  void set(const char* value) const {
    if (value) setenv(name.c_str(), value, 1);
    else unsetenv(name.c_str());
  }
};

struct Outcome {
  int code = -1;
  std::string out, err;
  int err_lines() const { return static_cast<int>(std::count(err.begin(), err.end(), '\n')); }
};

/// Runs "stepNN flags" of the build folder in a shell. `before` stands in front: variables, or a program that runs it.
inline Outcome run_program(const std::string& command, const std::string& before = "") {
  const Folder folder;
  const std::string line =
      before + " '" ATTN_STEP_FOLDER "'/" + command + " >" + folder.file("out") + " 2>" + folder.file("err");
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, slurp(folder.file("out")), slurp(folder.file("err"))};
}

}  // namespace attention
