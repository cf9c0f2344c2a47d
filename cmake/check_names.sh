#!/bin/sh
# check_names.sh FILE ID: one line, and failure, for a copy of a step in which a name was left as it was.
for what in namespace .id; do
  case $what in
    namespace) found=$(sed -n 's/^namespace attention::ATTN_DEVICE::\([A-Za-z0-9_]*\).*/\1/p' "$1" | head -n 1) ;;
    .id) found=$(sed -n 's/.*[.]id = "\([^"]*\)".*/\1/p' "$1" | head -n 1) ;;
  esac
  if [ -n "$found" ] && [ "$found" != "$2" ]; then
    echo "$1: $what is $found, expected $2" >&2
    exit 1
  fi
done
