# The target `barriers` takes out each __syncthreads, __syncwarp and wait_copies of steps/ and common/tile/, one at a time, and demands that a plain
# run on the CPU executor, `stepNN --device cpu` with the flags below, then ends with exit 1. It builds a program per barrier and step, which takes a
# minute or two, so it is not part of the build or of ctest.

# The steps that run the barriers of each file: its own, unless it is named here. step01's kernels are step02's too.
set(steps_of_steps/step01_naive_three_kernels.cu step02)
set(steps_of_common/tile/block_reduce.h step02 step05)
set(steps_of_common/tile/backward.h step10)
set(steps_of_common/tile/product.h step03 step04 step05)
set(steps_of_common/tile/split_product.h step02 step04 step05)
# What makes them run it: flags, with commas between.
set(flags_of_common/tile/split_product.h --product=tensor-cores,--head-dim=63)
set(flags_of_steps/step06_asynchronous_pipeline.cu --causal,--seqlen-q=700,--seqlen-k=300)  # several key tiles, and blocks that see none
set(flags_of_steps/step10_one_pass_backward.cu --seqlen=300)
set(flags_of_common/tile/backward.h --seqlen=300,--deterministic)

set(barrier_programs "")
set(barrier_runs "")
foreach(source IN LISTS variant_sources)
  file(READ ${PROJECT_SOURCE_DIR}/${source} rest)
  set(before "")  # the text up to the barrier, which tells it from its likes
  while(rest MATCHES "(__sync(threads|warp)|wait_copies<[0-9]>)\\(\\);")
    set(barrier ${CMAKE_MATCH_0})
    string(FIND "${rest}" "${barrier}" at)
    string(SUBSTRING "${rest}" 0 ${at} head)
    string(APPEND before "${head}")
    string(REGEX MATCHALL "\n" lines "${before}")
    list(LENGTH lines line)
    math(EXPR line "${line} + 1")

    set(steps ${steps_of_${source}})
    if(NOT steps)
      string(REGEX MATCH "step[0-9][0-9]" steps ${source})
    endif()
    if(NOT steps)
      message(FATAL_ERROR "${source} has a barrier: name the steps that run it in tests/mutants/barriers.cmake")
    endif()
    foreach(step IN LISTS steps)
      get_filename_component(name ${source} NAME_WE)
      set(name barrier_${name}_${line}_${step})
      attn_add_variant(${name} ${step} ${source} "${before}${barrier}" "${before}")
      list(APPEND barrier_programs ${name})
      list(APPEND barrier_runs ${source}:${line} ${step} $<TARGET_FILE:${name}> --device=cpu,${flags_of_${source}})
    endforeach()

    string(LENGTH "${head}${barrier}" length)
    string(SUBSTRING "${rest}" ${length} -1 rest)
    string(APPEND before "${barrier}")
  endwhile()
endforeach()

list(JOIN barrier_runs " " barrier_runs)
add_custom_target(barriers COMMAND ${CMAKE_COMMAND} "-DRUNS=${barrier_runs}" -P ${CMAKE_CURRENT_SOURCE_DIR}/run_without_barriers.cmake
                  DEPENDS ${barrier_programs} VERBATIM)
