#!/bin/sh
# Programs built against the oldest header in the repository, and against every minor version's
# since, run on today's library: tests/abi/old/README.md.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
CC=${CC:-cc}
library=$(cd "${LIB:-lib}" && pwd)
old=tests/abi/old
strict='-std=c11 -O1 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tests/abi/structs.sh >"$work/structs" && tests/abi/symbols.sh >"$work/symbols" || exit 1

# Types, constants, callbacks and fields are where and what they were. A struct may have grown, and
# a reserved field may have got a name, in its place and of its size.
same_layout() {
    tests/abi/structs.sh "$old/$1" >"$work/$1.structs" || return 1
    grep -q '^struct ' "$work/$1.structs" || { echo "no struct was read"; return 1; }
    awk '
        function place(field, offset, size) {
            sub(/\..*/, "", field); return field " at " offset ", " size " bytes" }
        NR == FNR {
            now[$0] = 1
            if ($1 == "struct") bytes[$2] = $3
            if ($1 == "field") taken[place($2, $3, $4)] = 1
            next }
        $0 in now { next }
        $1 == "struct" && $2 in bytes && bytes[$2] + 0 >= $3 + 0 { next }
        $1 == "field" && $2 ~ /\.reserved$/ && place($2, $3, $4) in taken { next }
        { print "was promised, and is not so any more: " $0; bad = 1 }
        END { exit bad }' "$work/structs" "$work/$1.structs"
}

same_functions() {
    tests/abi/symbols.sh "$old/$1" >"$work/$1.symbols" && [ -s "$work/$1.symbols" ] || return 1
    comm -23 "$work/$1.symbols" "$work/symbols" | grep . && return 1
    return 0
}

# The CUDA module's functions need a device that is none of the program's.
builds() {
    $CC $strict -I"$old/$1" -I"$old" "$old/program.c" "$old/later.c" "$library/libmoepage.so.0" \
        -Wl,-rpath,"$library" -lm -o "$work/program-$1"
}
calls_everything() {
    nm -D --undefined-only "$work/program-$1" | sed -n 's/.* \(moepage_[a-z0-9_]*\).*/\1/p' |
        sort >"$work/called"
    cut -f 1 "$work/$1.symbols" | grep -v '^moepage_cuda_' | comm -23 - "$work/called" |
        sed 's/^/never called: /' | grep . && return 1
    return 0
}
runs() {
    mkdir -p "$work/files-$1" &&
        "$work/program-$1" "$work/files-$1" examples/models/tiny-qwen3moe >"$work/said" || return 1
    cat "$work/said"
    grep -q "^built against $1, run on " "$work/said"
}

# Rows of the table: version and commit.
copies() { sed -n 's/^| \(0\.[0-9]*\) | `\([0-9a-f]*\)` .*/\1 \2/p' "$old/README.md"; }
every_copy_is_listed() {
    copies | cut -d ' ' -f 1 >"$work/listed"
    (cd "$old" && ls -d [0-9]*) | diff "$work/listed" -
}
check "every earlier header is named with its commit" every_copy_is_listed

every_minor_has_a_copy() {
    minor=$(sed -n 's/^#define MOEPAGE_VERSION_MINOR //p' include/moepage.h)
    [ "$(wc -l <"$work/listed")" = $((minor - 1)) ]
}
check "every minor version before this one has its header kept" every_minor_has_a_copy

unchanged() { # unchanged VERSION COMMIT
    for header in "$old/$1"/*.h; do
        git show "$2:include/$(basename "$header")" | cmp - "$header" || return 1
    done
}

for version in $(cat "$work/listed"); do
    commit=$(copies | sed -n "s/^$version //p")
    name="the copy of $version is the header of its commit"
    if git cat-file -e "$commit" 2>/dev/null; then
        check "$name" unchanged "$version" "$commit"
    else
        skip "$name" "no repository with that commit"
    fi
    check "what $version laid out lies there still" same_layout "$version"
    check "every function of $version has its prototype still" same_functions "$version"
    check "a program of $version builds" builds "$version"
    check "it calls every function that $version had" calls_everything "$version"
    check "it runs on today's library" runs "$version"
done

finish
