# Finds nvcc and the architecture to build for. Sets ATTN_HAVE_CUDA, and ATTN_GPU_TILES where it is not
# a guess which GPU the build is for.
#
# nvcc: -DATTN_NVCC=..., CUDACXX, PATH, then the places where NVIDIA's installers put it. -DATTN_NVCC=none plays a
# machine without nvcc. Architecture: -DCMAKE_CUDA_ARCHITECTURES=..., CUDAARCHS, else that of the GPU in this machine,
# else sm_80 alone (a build without a GPU only has to be quick; sm_80 is in every toolkit from 12.0 on, and its PTX runs
# on newer GPUs).
set(ATTN_HAVE_CUDA FALSE)
if(NOT ATTN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "ATTN_CUDA is AUTO, ON or OFF, not \"${ATTN_CUDA}\".")
endif()
if(ATTN_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: switched off (ATTN_CUDA=OFF); the steps run on the CPU executor alone.")
  return()
endif()

if(NOT ATTN_NVCC AND CMAKE_CUDA_COMPILER)
  set(ATTN_NVCC ${CMAKE_CUDA_COMPILER})
elseif(NOT ATTN_NVCC AND DEFINED ENV{CUDACXX})
  set(ATTN_NVCC $ENV{CUDACXX})
elseif(NOT ATTN_NVCC STREQUAL "none")
  find_program(ATTN_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda /opt/cuda PATH_SUFFIXES bin)
endif()
if(NOT ATTN_NVCC OR ATTN_NVCC STREQUAL "none")
  if(ATTN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ATTN_CUDA=ON, but no nvcc was found: install the CUDA Toolkit (12.0 or newer), or give its "
                        "path with -DATTN_NVCC=/path/to/nvcc.")
  endif()
  message(STATUS "CUDA: no nvcc found; the steps run on the CPU executor alone.")
  return()
endif()

# The GPUs of this machine as CMake architectures ("90"), cut to what this nvcc knows; "" when there is none. CMake's
# own `native` is not used: it stops the configuration on a machine without a GPU.
function(attn_gpu_architectures nvcc result)
  set(${result} "" PARENT_SCOPE)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE caps RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    return()
  endif()
  execute_process(COMMAND ${nvcc} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  string(REGEX MATCHALL "compute_[0-9]+" known "${known}")
  list(TRANSFORM known REPLACE "compute_" "")
  set(found "")
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" caps "${caps}")
  foreach(cap IN LISTS caps)
    string(REPLACE "." "" cap ${cap})
    set(best "")
    foreach(arch IN LISTS known)
      if(arch LESS_EQUAL cap AND (best STREQUAL "" OR arch GREATER best))
        set(best ${arch})  # a GPU newer than the toolkit runs the PTX of the newest architecture that the toolkit has
      endif()
    endforeach()
    list(APPEND found ${best})
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native")
  unset(CMAKE_CUDA_ARCHITECTURES CACHE)
  unset(CMAKE_CUDA_ARCHITECTURES)
endif()
set(gpu_tiles "Compile all tiles for the GPU, not the default ones alone, into tests and stepNN-tiles")
if(NOT CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  attn_gpu_architectures(${ATTN_NVCC} architectures)
  if(architectures)
    set(why "the GPU found")
  else()
    set(architectures 80)
    set(ATTN_GPU_TILES OFF CACHE BOOL ${gpu_tiles})
    set(why "no GPU found; choose another with -DCMAKE_CUDA_ARCHITECTURES=...")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING "GPU architectures to build for")
else()
  set(why "as asked")
endif()
set(ATTN_GPU_TILES ON CACHE BOOL ${gpu_tiles})

set(CMAKE_CUDA_COMPILER ${ATTN_NVCC})
if(NOT CMAKE_CUDA_HOST_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(CUDAToolkit_VERSION VERSION_LESS 12.0)
  message(FATAL_ERROR "CUDA 12.0 or newer is needed, ${ATTN_NVCC} is ${CUDAToolkit_VERSION}. "
                      "With -DATTN_CUDA=OFF the CPU executor alone is built.")
endif()
string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")  # CMake's own CUDA_STANDARD stops at 17 for nvcc before 3.26
set(ATTN_HAVE_CUDA TRUE)
message(STATUS "CUDA: ${CUDAToolkit_VERSION}, for sm_${CMAKE_CUDA_ARCHITECTURES} (${why}).")
