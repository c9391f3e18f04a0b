#!/bin/bash
# What a build with --coverage has run, room by room: lines of src/<room>/*.c and cuda/*.c.
#
#   tests/coverage.sh OBJECTS       OBJECTS holds src/ and cuda/ with their .gcno and .gcda
set -u
objects=${1:?usage: tests/coverage.sh OBJECTS}
gcov=${GCOV:-gcov}

# "File 'src/pool/hold.c'", then "Lines executed:97.50% of 120": of a source once, whatever includes it.
find "$objects/src" "$objects/cuda" -name '*.gcno' | sort | while read -r notes; do
    $gcov --no-output "$notes" 2>/dev/null
done | awk -F"[':% ]+" '
    /^File / { file = $2; next }
    /^Lines executed/ && (file ~ /^src\/[a-z]*\/[^\/]*\.c$/ || file ~ /^cuda\/[^\/]*\.c$/) && !(file in seen) {
        seen[file]
        room = file; sub(/\/[^\/]*$/, "", room)
        lines[room] += $5; ran[room] += $5 * $3 / 100
        all += $5; all_ran += $5 * $3 / 100 }
    { file = "" }
    END {
        if (!all) { print "no file of src/ or cuda/ was run"; exit 1 }
        for (room in lines) printf "%-18s %5.1f %% of %6d lines\n", room, 100 * ran[room] / lines[room], lines[room] | "sort"
        close("sort")
        printf "%-18s %5.1f %% of %6d lines\n", "all", 100 * all_ran / all, all }'
