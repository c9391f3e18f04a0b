#!/bin/sh
# What the objects of cuda/ take from each other has an order: no file needs, directly or through
# others, a file that needs it.
set -u
. tests/support/tap.sh
objects=${BUILD:-build}/release/cuda

# "FILE SYMBOL TYPE" for each symbol that a file of cuda/ defines or needs.
symbols() {
    for source in cuda/*.c; do
        file=$(basename "$source" .c)
        nm "$objects/$file.o" | awk -v file="$file" 'NF >= 2 { print file, $NF, $(NF - 1) }'
    done
}

# "USER USED" for each pair of files.
pairs() {
    symbols | awk '
        $3 ~ /^[BCDRTVW]$/ { defines[$2] = $1 }
        $3 == "U" { n++; user[n] = $1; wanted[n] = $2 }
        END { for (i = 1; i <= n; i++) if (wanted[i] in defines) print user[i], defines[wanted[i]] }'
}

# tsort names the files of a circle on standard error.
no_circle() {
    for source in cuda/*.c; do
        [ -f "$objects/$(basename "$source" .c).o" ] || { echo "$source has no object"; return 1; }
    done
    found=$(pairs | tsort 2>&1 >/dev/null)
    [ -z "$found" ] || { echo "$found"; return 1; }
}

check 'no two files of cuda/ need each other' no_circle
finish
