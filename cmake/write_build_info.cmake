# Run as a script by the target attn_build_info (cmake/build_info.cmake).
set(commit "$ENV{ATTN_COMMIT}")  # for a copy of the sources that is not their repository, or lags behind it
set(reason "")
if(commit)
elseif(NOT GIT)
  set(reason "git was not found when this was built")
elseif(NOT EXISTS ${SOURCE}/.git)  # a repository further up is another project's
  set(reason "built outside of a git repository")
else()
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --abbrev=12
                  OUTPUT_VARIABLE commit ERROR_VARIABLE reason OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(reason MATCHES "dubious ownership")
    set(reason "git does not trust sources that another user owns (git config --global --add safe.directory)")
  elseif(reason)
    set(reason "git does not tell the commit")
  endif()
  # Dirty is what changes a program: `make table` writes into docs/ and must be able to resume.
  execute_process(COMMAND ${GIT} -C ${SOURCE} diff --quiet HEAD -- CMakeLists.txt cmake common steps
                  RESULT_VARIABLE differs OUTPUT_QUIET ERROR_QUIET)
  if(commit AND differs)
    string(APPEND commit "-dirty")
  endif()
endif()
set(text "// Written by cmake/write_build_info.cmake.
#include \"common/base/build_info.h\"
namespace attention::build_info {
const char* const kGitCommit = \"${commit}\";
const char* const kNoCommitReason = \"${reason}\";
const char* const kCompiler = \"${COMPILER}\";
const char* const kBuildType = \"${BUILD_TYPE}\";
const char* const kCuda = \"${CUDA}\";
const char* const kCudaArchitectures = \"${ARCHITECTURES}\";
}  // namespace attention::build_info
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
