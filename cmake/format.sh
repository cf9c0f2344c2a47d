#!/bin/sh
# cmake/format.sh FILE...: lays out C++ and CUDA as .clang-format says. "ATTN_UNROLL for (...)" is one loop, which
# clang-format takes for a statement and a loop: it sees ATTN_UNROLL_for instead.
set -e
format=$(command -v clang-format-19 || command -v clang-format)
for file in "$@"; do
  sed -i -E 's/\b(ATTN_UNROLL(_[0-9A-Z]+)?) for \(/\1_for (/g' "$file"
  "$format" -i --style=file "$file"
  sed -i -E 's/\b(ATTN_UNROLL(_[0-9A-Z]+)?)_for \(/\1 for (/g' "$file"
done
