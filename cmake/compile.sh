#!/bin/sh
# compile.sh LOG COMMAND...: runs a compiler. LOG keeps all that it prints, LOG.failed where it fails; shown is what its
# reader can act on: no notes of ptxas, and of an error the line itself, without the chain of templates that led there.
log=$1
shift
own=$log.$$  # others may be compiling for the same program
"$@" > "$own" 2>&1
code=$?
[ $code = 0 ] || log=$log.failed
mv -f "$own" "$log"
grep -v -E -e '^ptxas info|bytes stack frame' \
  -e ': In (instantiation|substitution) of |: +(recursively )?required (from|by) ' \
  -e '^In file included from |^ +from |^compilation terminated' \
  -e '^ +(detected|instantiation of) |^ *detected during' "$log" >&2
[ $code = 0 ] || echo "(the whole message: $log)" >&2
exit $code
