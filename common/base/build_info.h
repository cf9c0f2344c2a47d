// What the JSON's `versions` says about this build. Each build writes the values into a source of its own
// (cmake/write_build_info.cmake), so that a new commit compiles nothing else. An empty string: not known, or not part
// of this build.
#pragma once

namespace attention::build_info {

extern const char* const kGitCommit;
extern const char* const kNoCommitReason;  // where there is none
extern const char* const kCompiler;
extern const char* const kBuildType;
extern const char* const kCuda;
extern const char* const kCudaArchitectures;

}  // namespace attention::build_info
