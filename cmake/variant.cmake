# attn_add_variant(name step file old new [file old new ...]) adds the executable variants/name: `step` for the CPU executor alone,
# built from a copy of steps/ and common/tile/ in which `old` in `file` has become `new`. `old` must stand in the file exactly
# once, so that a change of the source cannot turn a mutant into the original without anyone noticing: then configuring stops.
# The variants hold tiles for head_dim up to 64 alone, which keeps their build short.
set(ATTN_VARIANT_FOLDER ${CMAKE_BINARY_DIR}/variants)

file(GLOB variant_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/steps/*.cu ${PROJECT_SOURCE_DIR}/steps/*.h ${PROJECT_SOURCE_DIR}/common/tile/*.h)
list(FILTER variant_sources EXCLUDE REGEX "step00_|_hopper_|/warpgroup.h|/swizzle.h")  # for GPUs alone: they do not run on the CPU executor
foreach(source IN LISTS variant_sources)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${source})
endforeach()

# Writes `text` unless the file holds it already: an unchanged copy is not compiled again.
function(attn_write_if_different path text)
  file(WRITE ${path}.new "${text}")
  file(COPY_FILE ${path}.new ${path} ONLY_IF_DIFFERENT)
  file(REMOVE ${path}.new)
endfunction()

# text with its only `old` replaced by `new`; `file` is for the message.
function(attn_replace_once result text old new file)
  string(FIND "${text}" "${old}" first)
  string(FIND "${text}" "${old}" last REVERSE)
  if(first EQUAL -1)
    message(FATAL_ERROR "${file} no longer contains \"${old}\": bring ${CMAKE_CURRENT_LIST_FILE} up to date")
  elseif(NOT first EQUAL last)
    message(FATAL_ERROR "${file} contains \"${old}\" more than once: give ${CMAKE_CURRENT_LIST_FILE} a longer piece of that line")
  endif()
  string(REPLACE "${old}" "${new}" text "${text}")
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

function(attn_add_variant name step)
  set(folder ${ATTN_VARIANT_FOLDER}/${name})
  foreach(source IN LISTS variant_sources)
    file(READ ${PROJECT_SOURCE_DIR}/${source} text)
    math(EXPR last "${ARGC} - 1")
    foreach(at RANGE 2 ${last} 3)
      math(EXPR old "${at} + 1")
      math(EXPR new "${at} + 2")
      if(source STREQUAL "${ARGV${at}}")
        attn_replace_once(text "${text}" "${ARGV${old}}" "${ARGV${new}}" ${source})
      endif()
    endforeach()
    attn_write_if_different(${folder}/${source} "${text}")
  endforeach()

  file(GLOB STEP_FILE RELATIVE ${folder} ${folder}/steps/${step}_*.cu)
  set(STEP_ID ${step})
  set(DEVICE cpu)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/step_source.in ${folder}/${step}_cpu.cpp @ONLY)
  add_executable(${name} EXCLUDE_FROM_ALL ${folder}/${step}_cpu.cpp)
  target_include_directories(${name} BEFORE PRIVATE ${folder})
  target_compile_definitions(${name} PRIVATE ATTN_DEVICE_CPU ATTN_LARGEST_HEAD_DIM=64)
  target_compile_options(${name} PRIVATE -O1)
  target_link_libraries(${name} PRIVATE harness_main harness)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${folder})
endfunction()
