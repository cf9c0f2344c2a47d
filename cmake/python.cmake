# Python, for the tests: of the interpreters here the first that has NumPy (setup.sh installs the system's), else any.
if(NOT Python3_EXECUTABLE)
  execute_process(COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/python_with.sh numpy
                  OUTPUT_VARIABLE python RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed EQUAL 0)
    set(Python3_EXECUTABLE ${python})
  endif()
endif()
find_package(Python3 3.10 COMPONENTS Interpreter QUIET)
