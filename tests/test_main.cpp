// main() of the tests: Catch2's own, plus the exit code of a run in which every test was skipped.
#define CATCH_CONFIG_RUNNER  // version 2: its implementation goes into this file
#include "tests/catch.h"

namespace {

int started_tests = 0;

#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

struct CountTests : Listener {
  using Listener::Listener;
  void testCaseStarting(const Catch::TestCaseInfo&) override { ++started_tests; }
};
CATCH_REGISTER_LISTENER(CountTests)

}  // namespace

int main(int argc, char** argv) {
  const int failures = Catch::Session().run(argc, argv);
  const bool all_skipped = started_tests > 0 && skipped_tests() == started_tests;
  return failures == 0 && all_skipped ? kSkippedExitCode : failures;
}
