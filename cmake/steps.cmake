# attn_add_kernels(name id file device) adds the object library `name`: the kernels of `file` for the CPU executor
# (device cpu, the host compiler) or for CUDA (gpu, nvcc; gpu_timed, whose warps note what they do when, for --timeline). The file defines attention::ATTN_DEVICE::<id>::step(); the
# generated source includes it and registers that step. Nothing here reads the file: cmake/check_names.sh does, when it
# is built. steps/stepNN_*.cuh are compiled beside it, each in a source of its own: a change of one leaves the others
# built.
#   -O1: as fast as -O3 here, whose code waits for the executor's checks, and compiled in a third of the time
#   one error is enough: a mistake in a kernel is found once for each tile
#   stepNN_hopper_*: nvcc compiles its kernels, which are that GPU's alone, for sm_90a whatever the build's
#   architectures are; what ptxas says of them is in the log (tests/CMakeLists.txt). The other steps are for sm_90a
#   where sm_90 was asked for: step09 has one of those kernels
function(attn_add_kernels name STEP_ID STEP_FILE DEVICE)
  set(suffix cpp)
  if(DEVICE MATCHES "gpu")
    set(suffix cu)
  endif()
  set(sources ${CMAKE_BINARY_DIR}/steps/${STEP_ID}_${DEVICE}.${suffix})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/step_source.in ${sources} @ONLY)
  if(NOT TARGET ${STEP_ID}_names)
    add_custom_target(${STEP_ID}_names COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/check_names.sh ${STEP_FILE} ${STEP_ID}
                      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
  endif()
  string(REPLACE "exercise" "step" step ${STEP_ID})
  file(GLOB parts CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/steps/${step}_*.cuh)
  foreach(part IN LISTS parts)
    get_filename_component(part_name ${part} NAME_WE)
    set(part_source ${CMAKE_BINARY_DIR}/steps/${part_name}_${DEVICE}.${suffix})
    file(CONFIGURE OUTPUT ${part_source} CONTENT "#include \"@part@\"\n" @ONLY)
    list(APPEND sources ${part_source})
  endforeach()
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${sources})
  add_dependencies(${name} ${STEP_ID}_names)
  target_link_libraries(${name} PRIVATE harness)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1;-Wfatal-errors>
                         $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Xcudafe=--error_limit=1>)
  foreach(language IN ITEMS CXX CUDA)
    set(launcher sh ${PROJECT_SOURCE_DIR}/cmake/compile.sh ${CMAKE_BINARY_DIR}/steps/${name}.log
                    ${CMAKE_${language}_COMPILER_LAUNCHER})
    set_target_properties(${name} PROPERTIES ${language}_COMPILER_LAUNCHER "${launcher}")
  endforeach()
  if(DEVICE STREQUAL "cpu")
    target_compile_definitions(${name} PRIVATE ATTN_DEVICE_CPU)
    return()
  endif()
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)  # they go into libattention_steps.so too
  if(DEVICE STREQUAL "gpu_timed")
    target_compile_definitions(${name} PRIVATE ATTN_TIMED)
  endif()
  if(STEP_FILE MATCHES "_hopper_")
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES OFF)
    target_compile_options(${name} PRIVATE --generate-code=arch=compute_90a,code=sm_90a -Xptxas=-v)
    if(DEVICE STREQUAL "gpu")
      set_property(GLOBAL APPEND PROPERTY ATTN_PTXAS_LOGS ${CMAKE_BINARY_DIR}/steps/${name}.log)
    endif()
  else()
    list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90$" "90a" OUTPUT_VARIABLE architectures)
    list(TRANSFORM architectures REPLACE "^90-real$" "90a-real")
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
  endif()
endfunction()

# attn_add_program(target id folder objects...) adds the executable <folder>/<id> of the harness and these kernels.
function(attn_add_program target STEP_ID folder)
  add_executable(${target} EXCLUDE_FROM_ALL)
  target_link_libraries(${target} PRIVATE harness_main ${ARGN} harness)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${STEP_ID} RUNTIME_OUTPUT_DIRECTORY ${folder})
endfunction()

# attn_add_step(steps/stepNN_name.cu) adds
#   stepNN        the executable, in the top of the build folder, with the tiles that are chosen when none is asked for
#                 (shapes.h)
#   stepNN-tiles  tiles/stepNN, with all tiles, for sweeps and tests: built only when asked for. Where this machine has
#                 no GPU and no architecture was asked for, on the CPU executor alone: compiling them all for a GPU
#                 takes minutes
#   stepNN-timeline  timeline/stepNN, whose --timeline works on a GPU too: built only when asked for
# and appends to the global properties ATTN_STEPS its name and to ATTN_STEP_OBJECTS its kernels with all tiles, for the
# tests, which link all steps at once.
function(attn_add_step STEP_FILE)
  string(REGEX MATCH "step[0-9][0-9]" STEP_ID ${STEP_FILE})
  set(objects "")
  set(all_objects "")
  set(devices cpu)
  if(ATTN_HAVE_CUDA)
    list(APPEND devices gpu)
  endif()
  foreach(device IN LISTS devices)
    attn_add_kernels(${STEP_ID}_${device} ${STEP_ID} ${STEP_FILE} ${device})
    list(APPEND objects ${STEP_ID}_${device})
    set(with_tiles ${STEP_ID}_${device})
    # A Hopper step's few tiles are all chosen by default.
    if(NOT STEP_FILE MATCHES "_hopper_" AND (device STREQUAL "cpu" OR ATTN_GPU_TILES))
      set(with_tiles ${STEP_ID}_${device}_tiles)
      attn_add_kernels(${with_tiles} ${STEP_ID} ${STEP_FILE} ${device})
      target_compile_definitions(${with_tiles} PRIVATE ATTN_ALL_TILES)
    endif()
    list(APPEND all_objects ${with_tiles})
  endforeach()
  attn_add_program(${STEP_ID} ${STEP_ID} ${CMAKE_BINARY_DIR} ${objects})
  set_target_properties(${STEP_ID} PROPERTIES EXCLUDE_FROM_ALL OFF)
  attn_add_program(${STEP_ID}-tiles ${STEP_ID} ${CMAKE_BINARY_DIR}/tiles ${all_objects})
  if(ATTN_HAVE_CUDA)
    attn_add_kernels(${STEP_ID}_gpu_timed ${STEP_ID} ${STEP_FILE} gpu_timed)
    list(APPEND objects ${STEP_ID}_gpu_timed)
  endif()
  attn_add_program(${STEP_ID}-timeline ${STEP_ID} ${CMAKE_BINARY_DIR}/timeline ${objects})
  set_property(GLOBAL APPEND PROPERTY ATTN_STEP_OBJECTS ${all_objects})
  set_property(GLOBAL APPEND PROPERTY ATTN_STEPS ${STEP_ID})
endfunction()

# attn_add_exercise(id file) adds the executable <id>, whose kernels are none of the steps': built only when it is asked
# for, and with the tiles for head_dim up to 64 alone, so that its reader waits seconds.
function(attn_add_exercise STEP_ID STEP_FILE)
  set(objects "")
  foreach(device IN ITEMS cpu gpu)
    if(device STREQUAL "cpu" OR ATTN_HAVE_CUDA)
      attn_add_kernels(${STEP_ID}_${device} ${STEP_ID} ${STEP_FILE} ${device})
      target_compile_definitions(${STEP_ID}_${device} PRIVATE ATTN_LARGEST_HEAD_DIM=64)
      # What a missing line would use stays unused.
      target_compile_options(${STEP_ID}_${device} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unused;-Wno-unused-parameter>
                             $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177,550>)
      list(APPEND objects ${STEP_ID}_${device})
    endif()
  endforeach()
  attn_add_program(${STEP_ID} ${STEP_ID} ${CMAKE_BINARY_DIR} ${objects})
endfunction()

# attn_add_yardstick(file) adds the executable yardstick, with the harness of a step and kernels for the GPU alone.
function(attn_add_yardstick STEP_FILE)
  set(STEP_ID yardstick)
  set(DEVICE gpu)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/step_source.in ${CMAKE_BINARY_DIR}/steps/yardstick_gpu.cu @ONLY)
  add_executable(yardstick ${CMAKE_BINARY_DIR}/steps/yardstick_gpu.cu)
  target_compile_options(yardstick PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -lineinfo>)
  target_link_libraries(yardstick PRIVATE harness_main harness CUDA::cublas)
  set_target_properties(yardstick PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  set_property(GLOBAL APPEND PROPERTY ATTN_STEPS yardstick)
endfunction()
