// Catch2, version 2 (one header) or 3, and what version 2 lacks: a test that says it was skipped.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#include <string>

/// How many tests of this process have called skip_test.
inline int& skipped_tests() {
  static int count = 0;
  return count;
}

/// Says that a test cannot run here; return right after it. A process whose tests were all skipped exits with
/// kSkippedExitCode, which ctest shows as Skipped (SKIP_RETURN_CODE), never as passed.
inline void skip_test(const std::string& why) {
  ++skipped_tests();
  WARN("SKIPPED: " << why);
}
constexpr int kSkippedExitCode = 77;
