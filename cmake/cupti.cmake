# CUPTI, for measured traffic (common/traffic/cupti.cpp). Its headers alone: libcupti is opened at run time, so that a
# program starts where it is missing. Sets ATTN_CUPTI_LEFT_OUT, the sources that are not built: those that read, or the
# one that says why nothing is read.
option(ATTN_CUPTI "Measure traffic with CUPTI where its headers are found" ON)
set(ATTN_CUPTI_LEFT_OUT "traffic/cupti[a-z_]*\\.cpp$")
if(NOT ATTN_HAVE_CUDA)
  return()
endif()
if(NOT ATTN_CUPTI)
  message(STATUS "CUPTI: off; measured traffic shows n/a (ATTN_CUPTI is OFF).")
  return()
endif()
find_path(ATTN_CUPTI_INCLUDE cupti_range_profiler.h
  HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_TARGET_DIR} ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_BIN_DIR}/..
  PATH_SUFFIXES extras/CUPTI/include include)
if(NOT ATTN_CUPTI_INCLUDE)
  message(STATUS "CUPTI: cupti_range_profiler.h is not found (CUDA 12.6 and newer have it); "
                 "measured traffic shows n/a.")
  return()
endif()
set(ATTN_CUPTI_LEFT_OUT "traffic/without_cupti\\.cpp$")
# Where libcupti and its neighbours are in this toolkit, for a machine whose loader does not know the folder.
set(folders ${CUDAToolkit_TARGET_DIR}/extras/CUPTI/lib64 ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/lib64
            ${CUDAToolkit_LIBRARY_DIR})
list(REMOVE_DUPLICATES folders)
list(JOIN folders ":" folders)
set_source_files_properties(common/traffic/cupti.cpp common/traffic/cupti_library.cpp PROPERTIES
  INCLUDE_DIRECTORIES "${ATTN_CUPTI_INCLUDE};${CUDAToolkit_INCLUDE_DIRS}"
  COMPILE_DEFINITIONS "ATTN_CUPTI_FOLDERS=\"${folders}\"")
