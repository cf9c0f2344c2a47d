#include "common/base/exit_code.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "common/base/error.h"

namespace attention {

Ending end_of(const std::function<void()>& run) {
  try {
    run();
    return {};
  } catch (const ExitError& error) {
    return {error.code, error.what()};
  } catch (const std::bad_alloc&) {
    return {4, "out of host memory: choose a smaller --seqlen, --heads or --batch"};
  } catch (const std::system_error& error) {
    const bool threads = error.code() == std::errc::resource_unavailable_try_again;
    return {4, threads ? "no more threads can be started: raise the limit (ulimit -u)" : error.what()};
  } catch (const std::exception& error) {
    return {4, error.what()};
  }
}

int exit_code_of(const std::function<void()>& run) {
  // A closed stream stays closed: else the next file that is opened would be what stdout and stderr write to.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) == -1 && errno == EBADF) static_cast<void>(open("/dev/null", O_RDONLY) == stream);
  Ending ending = end_of(run);
  const bool lost = std::ferror(stdout) != 0;
  errno = 0;
  if ((std::fflush(stdout) != 0 || lost) && ending.code == 0)
    ending = {
        2, std::string("standard output cannot be written") + (errno ? std::string(": ") + std::strerror(errno) : "")};
  if (!ending.line.empty()) std::fprintf(stderr, "%s\n", ending.line.c_str());
  return ending.code;
}

}  // namespace attention
