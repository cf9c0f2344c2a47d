#!/usr/bin/env bash
# tests/build_times.sh none|nvcc|none-all|nvcc-all...: how many seconds whoever reads and changes the steps waits,
# without nvcc and with it; -all: whole builds and the tests too. In a clone of the last commit, without ccache, on all
# cores, which should have nothing else to do; the packages of setup.sh are there already. A row per wait, as
# docs/building.md shows them.
set -euo pipefail
cd "$(dirname "$0")/.."
export CCACHE_DISABLE=1
repository=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
row() { # row WHAT COMMAND...
  local what=$1 start=$SECONDS
  shift
  "$@" > "$folder/log" 2>&1 || { cat "$folder/log"; echo "FAILED: $what"; exit 1; }
  echo "| ${with%-all} | $what | $((SECONDS - start)) |"
}
runs() { make "$1" CMAKE_FLAGS="$flags" && "./$1" --device cpu | grep PASS; }
first_pass() { git clone -q "$repository" "$folder/$with" && cd "$folder/$with" && runs step04; }
change() { echo "// a line more" >> "$(ls steps/"$1"_*.cu)" && runs "$1"; }

echo "| nvcc | what | s, $(nproc) cores |"
echo "|---|---|---:|"
for with in "$@"; do
  case $with in nvcc*) flags=-DATTN_CUDA=ON ;; *) flags=-DATTN_NVCC=none ;; esac
  row "a clone, to the first PASS of step04" first_pass
  row "a line of step04, to its PASS" change step04
  row "step05 for the first time" runs step05
  row "a line of step05, to its PASS" change step05
  case $with in *-all)
    row "the rest of \`make\`" make
    row "then \`make test\`" make test ;;
  esac
done
