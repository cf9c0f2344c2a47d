#!/bin/sh
# keep_output.sh FILE COMMAND...: runs the command, keeps what it prints in FILE, and shows it where it failed.
log=$1
shift
"$@" > "$log" 2>&1
code=$?
[ $code -eq 0 ] || cat "$log" >&2
exit $code
