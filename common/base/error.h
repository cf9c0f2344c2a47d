// The ways a run can end badly. main() prints what() as one line on stderr and exits with `code`.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace attention {

struct ExitError : std::runtime_error {
  int code;
  ExitError(int exit_code, const std::string& line) : std::runtime_error(line), code(exit_code) {}
};

struct CheckFailed : ExitError {  // a wrong result, or a finding of the CPU executor
  std::vector<std::string> also;  // what else was found, a line each
  explicit CheckFailed(const std::string& line, std::vector<std::string> more = {})
      : ExitError(1, line), also(std::move(more)) {}
};
struct BadArguments : ExitError {
  explicit BadArguments(const std::string& line) : ExitError(2, line) {}
};  // flags, sizes, files
struct Unsupported : ExitError {
  explicit Unsupported(const std::string& line) : ExitError(3, line) {}
};  // this step cannot serve this device or shape
struct DeviceFailure : ExitError {
  explicit DeviceFailure(const std::string& line) : ExitError(4, line) {}
};  // CUDA error, out of memory

}  // namespace attention
