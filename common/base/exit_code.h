// The end of every program: an error becomes one line on stderr and an exit code.
#pragma once

#include <cstdio>
#include <exception>

#include "common/base/error.h"

namespace attention {

/// What run() returns; the code of an ExitError (error.h); 4 for any other exception.
template <class Run>
int exit_code_of(Run&& run) {
  try {
    return run();
  } catch (const ExitError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
}

}  // namespace attention
