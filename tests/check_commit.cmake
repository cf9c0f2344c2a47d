# Whose commit: sources without a .git of their own inside another repository have none. Run by ctest with SOURCE and
# FOLDER.
find_package(Git QUIET)
if(NOT GIT_EXECUTABLE)
  message(STATUS "git was not found: nothing to check")
  return()
endif()
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/ours)
function(check source expected)
  execute_process(COMMAND ${CMAKE_COMMAND} -DGIT=${GIT_EXECUTABLE} -DSOURCE=${source} -DOUTPUT=${FOLDER}/build_info.cpp
                          -P ${SOURCE}/cmake/write_build_info.cmake COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${FOLDER}/build_info.cpp text)
  if(NOT text MATCHES "${expected}")
    message(FATAL_ERROR "${source}: not ${expected} in\n${text}")
  endif()
endfunction()
set(ENV{ATTN_COMMIT})
execute_process(COMMAND ${GIT_EXECUTABLE} -C ${FOLDER} init -q COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${GIT_EXECUTABLE} -C ${FOLDER} -c user.name=a -c user.email=a@b commit -q --allow-empty -m other
                COMMAND_ERROR_IS_FATAL ANY)
check(${FOLDER}/ours "kGitCommit = \"\".*kNoCommitReason = \"built outside of a git repository\"")
check(${FOLDER} "kGitCommit = \"[0-9a-f]+\".*kNoCommitReason = \"\"")
file(REMOVE_RECURSE ${FOLDER})
