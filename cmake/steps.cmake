# attn_add_kernels(id file) adds
#   <id>_cpu, <id>_gpu   object libraries: the same file for the CPU executor (host compiler) and for CUDA (nvcc)
# and sets <id>_objects to those that this build has. The file defines attention::ATTN_DEVICE::<id>::step(); the generated source
# includes it and registers that step. A file steps/stepNN_hopper_* has kernels for that GPU alone: nvcc compiles them for sm_90a,
# whatever the build's architectures are, and what ptxas says of them is kept in <build>/steps/<id>_ptxas.log (tests/CMakeLists.txt).
function(attn_add_kernels STEP_ID STEP_FILE)
  set(DEVICE cpu)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/step_source.in ${CMAKE_BINARY_DIR}/steps/${STEP_ID}_cpu.cpp @ONLY)
  add_library(${STEP_ID}_cpu OBJECT ${CMAKE_BINARY_DIR}/steps/${STEP_ID}_cpu.cpp)
  target_compile_definitions(${STEP_ID}_cpu PRIVATE ATTN_DEVICE_CPU)
  target_link_libraries(${STEP_ID}_cpu PRIVATE harness)
  set(objects ${STEP_ID}_cpu)

  if(ATTN_HAVE_CUDA)
    set(DEVICE gpu)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/step_source.in ${CMAKE_BINARY_DIR}/steps/${STEP_ID}_gpu.cu @ONLY)
    add_library(${STEP_ID}_gpu OBJECT ${CMAKE_BINARY_DIR}/steps/${STEP_ID}_gpu.cu)
    target_compile_options(${STEP_ID}_gpu PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -lineinfo>)
    target_link_libraries(${STEP_ID}_gpu PRIVATE harness)
    set_target_properties(${STEP_ID}_gpu PROPERTIES POSITION_INDEPENDENT_CODE ON)  # they go into libattention_steps.so too
    if(STEP_FILE MATCHES "_hopper_")
      set(log ${CMAKE_BINARY_DIR}/steps/${STEP_ID}_ptxas.log)
      target_compile_options(${STEP_ID}_gpu PRIVATE --generate-code=arch=compute_90a,code=sm_90a -Xptxas=-v)
      set_target_properties(${STEP_ID}_gpu PROPERTIES CUDA_ARCHITECTURES OFF CUDA_COMPILER_LAUNCHER "sh;${PROJECT_SOURCE_DIR}/cmake/keep_output.sh;${log}")
      set_property(GLOBAL APPEND PROPERTY ATTN_PTXAS_LOGS ${log})
    endif()
    list(APPEND objects ${STEP_ID}_gpu)
  endif()
  set(${STEP_ID}_objects ${objects} PARENT_SCOPE)
endfunction()

# attn_add_step(steps/stepNN_name.cu) adds stepNN, the executable, in the top of the build folder, and appends its objects to the
# global property ATTN_STEP_OBJECTS, for the tests, which link all steps at once.
function(attn_add_step STEP_FILE)
  string(REGEX MATCH "step[0-9][0-9]" STEP_ID ${STEP_FILE})
  attn_add_kernels(${STEP_ID} ${STEP_FILE})
  add_executable(${STEP_ID})
  target_link_libraries(${STEP_ID} PRIVATE harness_main ${${STEP_ID}_objects} harness)
  set_target_properties(${STEP_ID} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  set_property(GLOBAL APPEND PROPERTY ATTN_STEP_OBJECTS ${${STEP_ID}_objects})
  set_property(GLOBAL APPEND PROPERTY ATTN_STEPS ${STEP_ID})
endfunction()

set(ATTN_FEW_TILES ${CMAKE_BINARY_DIR}/few_tiles)

# attn_add_exercise(id file) adds the executable <id>, whose kernels are none of the steps': built only when it is asked for, and
# with few tiles (variant.cmake), so that its reader waits seconds.
function(attn_add_exercise STEP_ID STEP_FILE)
  file(READ ${PROJECT_SOURCE_DIR}/common/tile/shapes.h shapes)
  attn_keep_few_tiles(shapes "${shapes}")
  attn_write_if_different(${ATTN_FEW_TILES}/common/tile/shapes.h "${shapes}")
  attn_add_kernels(${STEP_ID} ${STEP_FILE})
  foreach(object IN LISTS ${STEP_ID}_objects)
    target_include_directories(${object} BEFORE PRIVATE ${ATTN_FEW_TILES})
    # What a missing line would use stays unused. -O1: nobody waits for the executor, but for the compiler.
    target_compile_options(${object} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-unused;-Wno-unused-parameter;-O1>" $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177,550>)
    set_target_properties(${object} PROPERTIES EXCLUDE_FROM_ALL ON)
  endforeach()
  add_executable(${STEP_ID} EXCLUDE_FROM_ALL)
  target_link_libraries(${STEP_ID} PRIVATE harness_main ${${STEP_ID}_objects} harness)
  set_target_properties(${STEP_ID} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
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
