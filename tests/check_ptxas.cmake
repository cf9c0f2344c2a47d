# Reads what ptxas printed of a Hopper step's kernels (cmake/steps.cmake keeps it): products that it runs one by one
# (C7508 to C7520) or spills of more than 16 bytes would cost a tenth and more of the speed, and no result would show
# it. With SOURCE that file is compiled first: with mistakes that are chosen at run time (common/device/gpu/mistakes.h),
# which would all be right if ptxas ran products one by one.
if(SOURCE)
  execute_process(COMMAND ${NVCC} -std=c++20 --expt-relaxed-constexpr --generate-code=arch=compute_90a,code=sm_90a
                          -Xptxas=-v -DATTN_GPU_MISTAKES -I${FOLDER} -cubin -o ${LOG}.cubin ${SOURCE}
                  OUTPUT_FILE ${LOG} ERROR_FILE ${LOG})
endif()
file(READ ${LOG} text)
string(REGEX MATCHALL "Used [0-9]+ registers" kernels "${text}")
list(LENGTH kernels count)
if(count EQUAL 0)
  message(FATAL_ERROR "${LOG} names no kernel")
endif()
string(REGEX MATCHALL "[^\n]*\\(C75(0[89]|1[0-9]|20)\\)[^\n]*" serialised "${text}")
if(serialised)
  message(FATAL_ERROR "ptxas runs products one by one:\n${serialised}")
endif()
string(REGEX MATCHALL "[0-9]+ bytes spill (stores|loads)" spills "${text}")
foreach(spill IN LISTS spills)
  string(REGEX MATCH "[0-9]+" bytes "${spill}")
  if(bytes GREATER 16)
    message(FATAL_ERROR "a kernel has ${spill}")
  endif()
endforeach()
message("${count} kernels: none serialised, no spill over 16 bytes")
