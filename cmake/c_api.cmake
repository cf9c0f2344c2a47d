# attention_c: libattention_steps.so, all steps behind the C interface of common/c_api, for Python
# (plots/attention_steps.py). attention_c_without_rescale: the same interface with a mistake in step04, which
# plots/measuring/swap_check.py must reject.
#
# The GPU's objects serve the library and the executables alike: position-independent host code costs them nothing. The
# CPU executor's are compiled once more, because the executables reach its thread-local variables in one instruction and
# a library that is loaded at run time cannot (executor.h); at -O1, since nothing is timed on it.
file(GLOB executor_sources CONFIGURE_DEPENDS common/device/cpu/*.cpp)

add_library(attention_c_flags INTERFACE)
target_link_libraries(attention_c_flags INTERFACE harness)
target_compile_definitions(attention_c_flags INTERFACE ATTN_SHARED_LIBRARY)

# A part of the library, compiled for it alone.
function(attn_add_c_part name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PRIVATE attention_c_flags)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()

# The kernels of one step for the CPU executor: the sources that cmake/steps.cmake generated for it.
function(attn_add_c_step name)
  attn_add_c_part(${name} ${ARGN})
  target_compile_definitions(${name} PRIVATE ATTN_DEVICE_CPU)
  target_compile_options(${name} PRIVATE -O1)
endfunction()

# The parts stand before the harness, whose archive then adds what is still missing: not its own executor.
function(attn_add_c_library name output)
  add_library(${name} SHARED)
  target_link_libraries(${name} PRIVATE attention_c_base ${ARGN} harness)
  target_link_options(${name} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/common/c_api/exports.map)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${output} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                        LINK_DEPENDS ${PROJECT_SOURCE_DIR}/common/c_api/exports.map)
endfunction()

attn_add_c_part(attention_c_base common/c_api/attention_steps.cpp ${executor_sources})

get_property(steps GLOBAL PROPERTY ATTN_STEPS)
set(parts "")
foreach(step IN LISTS steps)
  if(TARGET ${step}_cpu)  # step00 and the yardstick are no steps of the interface
    get_target_property(sources ${step}_cpu SOURCES)
    attn_add_c_step(${step}_cpu_in_c ${sources})
    list(APPEND parts ${step}_cpu_in_c)
  endif()
  if(TARGET ${step}_gpu)
    list(APPEND parts ${step}_gpu)
  endif()
endforeach()
attn_add_c_library(attention_c attention_steps ${parts})

# step04 with the rescale left out, as in tests/mutants: what was summed before the maximum grew keeps its old scale.
# The backward is step05's own.
if(Python3_FOUND)
  attn_add_edit(without_rescale ${PROJECT_SOURCE_DIR}/tests/mutants/mutants.txt rescale_left_out)
  attn_add_c_part(without_rescale_in_c ${PROJECT_SOURCE_DIR}/cmake/edited_step.cpp)
  attn_use_edit(without_rescale_in_c without_rescale)
  attn_add_c_library(attention_c_without_rescale attention_without_rescale without_rescale_in_c step05_cpu_in_c)
  set_target_properties(without_rescale_in_c attention_c_without_rescale PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
