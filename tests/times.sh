#!/bin/bash
# How long the loop takes on this machine: prints three times and the load, and changes nothing but build
# directories of its own.
#
#   tests/times.sh [FILE.c [NAME]]     default: src/pool/hold.c and the tests of that name, pool
#
# cold      make check in an empty build directory
# warm      make check again
# edit      FILE.c touched, then make test T=NAME to its last line, plain and sanitized
# Seconds by the clock, and of CPU time in parentheses: on a busy machine, half of these is what two idle
# processors would take.
set -u
cd "$(dirname "$0")/.." || exit 2
file=${1:-src/pool/hold.c} name=${2:-pool}
build=build/times
export CCACHE_DISABLE=1
[ -f "$file" ] || { echo "no $file" >&2; exit 2; }

# timed NAME COMMAND...: its line, and the closing line of what it printed.
timed() {
    what=$1; shift
    mkdir -p $build
    { time -p "$@" >$build/out 2>&1; } 2>$build/seconds
    awk -v what="$what" -v load="$(cut -d' ' -f1 /proc/loadavg)" -v last="$(grep ' skipped$' $build/out | tail -1)" '
        { t[$1] = $2 }
        END { printf "%-16s %6.0f s  (%.0f s of CPU, load %s)  %s\n", what, t["real"],
                     t["user"] + t["sys"], load, last }' $build/seconds
    sed -n 's/^failed: /                 failed: /p' $build/out
}
loop() { make BUILD=$build/b LIB=$build/lib "$@"; }

rm -rf $build
timed cold loop check
timed warm loop check
loop chosen "T=$name" >/dev/null 2>&1
touch "$file"
timed "edit, plain" loop test "T=$name"
loop chosen "T=$name" SAN=address,undefined >/dev/null 2>&1
touch "$file"
timed "edit, sanitized" loop test "T=$name" SAN=address,undefined
