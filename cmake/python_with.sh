#!/bin/sh
# Prints the first Python here that the scripts can use and that has a module: a python3 from elsewhere (conda, pyenv, a
# venv) does not see the system's packages, and the system's may be all that setup.sh has filled.
#   cmake/python_with.sh numpy
for python in ${PYTHONS:-python3 /usr/bin/python3}; do
  if "$python" -c "import sys; assert sys.version_info >= (3, 10); import $1" 2> /dev/null; then
    command -v "$python"
    exit
  fi
done
exit 1
