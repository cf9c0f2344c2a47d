# Steps with some text changed, for the CPU executor alone: hunts and mutants. The texts are changed when a variant is
# built, by cmake/edit.py; nothing is read of them before, and one whose text has gone fails alone.
set(ATTN_VARIANT_FOLDER ${CMAKE_BINARY_DIR}/variants)
file(GLOB ATTN_VARIANT_SOURCES CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/steps/*.cu ${PROJECT_SOURCE_DIR}/steps/*.cuh ${PROJECT_SOURCE_DIR}/steps/*.h
     ${PROJECT_SOURCE_DIR}/common/tile/*.h)

# attn_names_of_edits(result file): "name|stepNN" of each edit in a file of edits.
function(attn_names_of_edits result file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(STRINGS ${file} lines REGEX "^== ")
  list(TRANSFORM lines REPLACE "^== ([^ ]+) (step[0-9][0-9]).*" "\\1|\\2")
  set(${result} ${lines} PARENT_SCOPE)
endfunction()

# attn_add_edit(target edits name): makes <ATTN_VARIANT_FOLDER>/<target>, the sources with that edit, whose
# edited_step.h is the step.
function(attn_add_edit target edits name)
  set(folder ${ATTN_VARIANT_FOLDER}/${target})
  add_custom_command(OUTPUT ${folder}.made VERBATIM
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/cmake/edit.py ${edits} ${name} ${PROJECT_SOURCE_DIR} ${folder}
    COMMAND ${CMAKE_COMMAND} -E touch ${folder}.made
    DEPENDS ${PROJECT_SOURCE_DIR}/cmake/edit.py ${edits} ${ATTN_VARIANT_SOURCES})
  add_custom_target(${target}_edit DEPENDS ${folder}.made)
endfunction()

# attn_use_edit(target edit): compiles cmake/edited_step.cpp in `target` with the sources of that edit.
function(attn_use_edit target edit)
  target_include_directories(${target} BEFORE PRIVATE ${ATTN_VARIANT_FOLDER}/${edit})
  # Few tiles keep the build short.
  target_compile_definitions(${target} PRIVATE ATTN_DEVICE_CPU ATTN_LARGEST_HEAD_DIM=64)
  target_compile_options(${target} PRIVATE -O1 -w)
  add_dependencies(${target} ${edit}_edit)
endfunction()

# attn_add_variant(target step edits name folder) adds the executable <folder>/<target>: `step` with that edit.
function(attn_add_variant target step edits name folder)
  attn_add_edit(${target} ${edits} ${name})
  add_executable(${target} EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/edited_step.cpp)
  attn_use_edit(${target} ${target})
  target_link_libraries(${target} PRIVATE harness_main harness)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${folder})
endfunction()
