// The end of every program and of every call of the library: an exception becomes an exit code and a line.
#pragma once

#include <functional>
#include <string>

namespace attention {

/// 0 and "" where nothing was thrown.
struct Ending {
  int code = 0;
  std::string line;
};

/// Runs `run`. The code of an ExitError (error.h); 4 for any other exception, also where memory or threads have run
/// out.
Ending end_of(const std::function<void()>& run);

/// What main() returns. Prints the line on stderr; what was printed on stdout and could not be written ends with 2.
int exit_code_of(const std::function<void()>& run);

}  // namespace attention
