# build_info.cpp: what the JSON's `versions` says about this build (common/base/build_info.h). Written at each build, so that the commit is the one
# that was built, and only when it changed, so that nothing is compiled again for it.
set(ATTN_BUILD_INFO_DIR ${CMAKE_BINARY_DIR}/build_info)
find_package(Git QUIET)
set(cuda_version "")
set(cuda_architectures "")
if(ATTN_HAVE_CUDA)
  set(cuda_version ${CUDAToolkit_VERSION})
  string(REPLACE ";" "," cuda_architectures "${CMAKE_CUDA_ARCHITECTURES}")
endif()
add_custom_target(attn_build_info
  COMMAND ${CMAKE_COMMAND} -DGIT=${GIT_EXECUTABLE} -DSOURCE=${CMAKE_SOURCE_DIR}
          -DOUTPUT=${ATTN_BUILD_INFO_DIR}/build_info.cpp
          "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" -DBUILD_TYPE=${CMAKE_BUILD_TYPE}
          -DCUDA=${cuda_version} -DARCHITECTURES=${cuda_architectures}
          -P ${CMAKE_CURRENT_LIST_DIR}/write_build_info.cmake
  BYPRODUCTS ${ATTN_BUILD_INFO_DIR}/build_info.cpp VERBATIM)
