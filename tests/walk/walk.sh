#!/bin/sh
# How many functions, in how many files, one routed layer of 8 experts enters.
#
#   tests/walk/walk.sh            the counts: a layer that hits, one that misses, one that misses
#                                 through the host tier; and how many of them are the host device's
#                                 streams and threads, which a GPU's driver has instead
#   tests/walk/walk.sh hit|miss|tier    the functions, one a line, with their files
#
# The library is built apart, in build/walk, at -O1 and with nothing inlined: small helpers count.
set -eu
cd "$(dirname "$0")/../.."
out=build/walk
model=examples/models/tiny-qwen3moe
flags="-O1 -g -fno-inline -finstrument-functions -w"
${MAKE:-make} -s BUILD="$out" LIB="$out" CFLAGS="$flags" "$out/libmoepage.a" >/dev/null
${CC:-cc} -O1 -g -Iinclude tests/walk/walk.c "$out/libmoepage.a" \
    $(pkg-config --libs jansson libxxhash libzstd) $(pkg-config --libs numa 2>/dev/null) -ldl -lm -pthread -o "$out/walk"

names() {
    "$out/walk" "$model" "$1" | addr2line -f -e "$out/walk" | paste - - |
        awk '{ sub(/:.*/, "", $2); sub(/.*\/src\//, "", $2); print $2, $1 }' | sort -u
}

if [ $# -gt 0 ]; then
    names "$1"
    exit
fi
for what in hit miss tier; do
    names "$what" | awk -v what="$what" '
        { on_device = $1 ~ /^device\//; functions[on_device]++; n_files[on_device] += !seen[$1]++ }
        END { printf "%-5s %4d functions %3d files, of which the device %3d and %2d\n", what, NR,
                     n_files[0] + n_files[1], functions[1], n_files[1] }'
done
