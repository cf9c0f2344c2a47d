#!/bin/sh
# keep_output.sh FILE COMMAND...: runs the command and keeps what it prints in FILE; of that, all but ptxas's notes is shown.
log=$1
shift
"$@" > "$log" 2>&1
code=$?
grep -v -e '^ptxas info' -e 'bytes stack frame' "$log" >&2
exit $code
