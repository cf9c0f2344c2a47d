#!/bin/sh
# Installs what the build needs and this machine lacks, on Debian and Ubuntu; does nothing where all is there. Never
# installs CUDA: with nvcc the steps are built for the GPU too, without it for the CPU executor alone.
set -eu
cd "$(dirname "$0")"

missing=""
need() { # need <Debian package> <test command...>
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}
has_header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]; }
has_catch2() { has_header catch2/catch.hpp || has_header catch2/catch_all.hpp; }

need g++ sh -c 'command -v c++ || command -v g++'
need make command -v make
need git command -v git
need python3 command -v python3
need ca-certificates test -d /etc/ssl/certs
[ -x .tools/bin/cmake ] || need cmake command -v cmake
need libcli11-dev has_header CLI/CLI.hpp
need libfmt-dev has_header fmt/format.h
need nlohmann-json3-dev has_header nlohmann/json.hpp
need libboost-context-dev has_header boost/context/detail/fcontext.hpp
need catch2 has_catch2
need python3-numpy python3 -c 'import numpy'
case ${1:-} in plots | ci) need python3-matplotlib python3 -c 'import matplotlib' ;; esac  # the figures alone ask for it
if [ "${1:-}" = ci ]; then
  need clang-19 command -v clang++-19
  need chromium command -v chromium  # plays the films in the tests
  need chromium-driver command -v chromedriver
  need python3-selenium /usr/bin/python3 -c 'import selenium'
  need python3-nbclient /usr/bin/python3 -c 'import nbclient'  # runs the notebook in the tests
  need python3-ipykernel /usr/bin/python3 -c 'import ipykernel'
fi

if [ -n "$missing" ]; then
  as_root=""
  if [ "$(id -u)" != 0 ]; then as_root=sudo; fi
  if ! command -v apt-get >/dev/null || { [ -n "$as_root" ] && ! command -v sudo >/dev/null; }; then
    echo "setup.sh: missing:$missing. Install them with your package manager (the libraries are fetched by CMake if need be)." >&2
    command -v cmake >/dev/null && command -v make >/dev/null && exit 0
    exit 1
  fi
  echo "setup.sh: installing$missing"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  # One package after the other: a distribution that lacks one of the libraries still gets the rest, and CMake fetches
  # that one.
  for package in $missing; do
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$package" >/dev/null ||
      echo "setup.sh: $package could not be installed" >&2
  done
fi

# CMake 3.24 or newer: from PyPI into .tools, which the Makefile looks at first.
cmake_is_new() { [ "$(printf '%s\n3.24\n' "$("$1" --version | sed -n 's/^cmake version //p')" | sort -V | head -n 1)" = 3.24 ]; }
if [ ! -x .tools/bin/cmake ] && ! cmake_is_new cmake; then
  echo "setup.sh: cmake is older than 3.24; installing a newer one into .tools"
  if ! python3 -m venv .tools 2>/dev/null; then
    as_root=""
    if [ "$(id -u)" != 0 ]; then as_root=sudo; fi
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
    python3 -m venv .tools
  fi
  .tools/bin/pip install --quiet 'cmake>=3.24'
fi
