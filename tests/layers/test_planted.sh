#!/bin/sh
# layers.sh sees each kind of violation: planted, one at a time, in a small tree that has none.
set -u
. tests/support/tap.sh
here=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# base <- pool <- api, cuda on base; pool has a wall. One file, one function, which calls those named.
unit() { # unit FILE INCLUDE... -- CALLED...
    file=$1; shift
    mkdir -p "$(dirname "$file")"
    while [ $# -gt 0 ] && [ "$1" != -- ]; do echo "#include \"$1\""; shift; done >"$file"
    [ $# -eq 0 ] || shift
    for called; do echo "void $called(void);"; done >>"$file"
    { echo "void $(basename "$file" .c)(void) {"; for called; do echo "$called();"; done; echo "}"; } >>"$file"
}
plant_nothing() {
    rm -rf src cuda include tests && mkdir -p include tests/layers src/base src/pool src/api cuda
    printf 'base:\npool: base\napi: pool\ncuda: base\n' >tests/layers/order.txt
    echo 'pool: pool.h' >tests/layers/doors.txt
    : >include/moepage.h >src/base/base.h >src/pool/pool.h >src/pool/inside.h >src/pool/slots.h
    : >src/pool/hold_inside.h >cuda/gpu.h
    unit src/base/low.c base/base.h
    unit src/base/other.c
    unit src/pool/pool.c pool.h inside.h hold_inside.h slots.h moepage.h -- low
    unit src/pool/slots.c -- other
    unit src/api/door.c pool/pool.h -- pool
    unit cuda/gpu.c gpu.h base/base.h -- low
}
# judge STATUS WORDS: exit status and a line of its report, after compiling what there is.
judge() {
    find src cuda -name '*.c' | while read -r file; do
        mkdir -p "objects/$(dirname "$file")"
        ${CC:-cc} -Isrc -Icuda -Iinclude -c "$file" -o "objects/${file%.c}.o" || exit 1
    done || return 1
    "$here/tests/layers/layers.sh" objects "$work" >report
    status=$?
    cat report
    [ $status = "$1" ] && grep -qF -- "$2" report
}

clean() { plant_nothing && rm -rf objects && judge 0 '' ; [ ! -s report ]; }
seen() { # seen WORDS PLANT...
    words=$1; shift
    plant_nothing && rm -rf objects && "$@" && judge 1 "$words"
}
grown() { yes '' | head -n 120 >src/pool/pool.h; }
new_room() { unit src/cellar/wine.c; }
without_law() { plant_nothing && rm tests/layers/order.txt && judge 2 'no laws in'; }

check "a tree that keeps the laws passes" clean
check "a circle of files is seen" seen 'circle of files:  src/base/low src/base/other' \
    sh -c 'echo "void other(void); void more(void) { other(); }" >>src/base/low.c
           echo "void low(void); void most(void) { low(); }" >>src/base/other.c'
check "a circle of folders is seen" seen 'circle of folders:  ' \
    unit src/base/other.c -- pool
check "an upward arrow is seen" seen \
    'upward arrow: src/base/other.c uses door of src/api/door.c' unit src/base/other.c -- door
check "an arrow past the order is seen, though it is not up" seen \
    'upward arrow: cuda/gpu.c uses slots of src/pool/slots.c' unit cuda/gpu.c -- slots
check "an upward include is seen" seen \
    'upward include: src/base/low.c includes src/pool/pool.h' unit src/base/low.c pool/pool.h
check "another room's inside.h is seen" seen \
    'inside of another room: src/api/door.c includes src/pool/inside.h' \
    unit src/api/door.c pool/inside.h -- pool
check "and another room's x_inside.h" seen \
    'inside of another room: src/api/door.c includes src/pool/hold_inside.h' \
    unit src/api/door.c pool/hold_inside.h -- pool
check "a header that is no door is seen" seen 'no door: src/api/door.c includes src/pool/slots.h' \
    unit src/api/door.c pool/slots.h -- pool
check "a door that has grown is seen" seen 'src/pool/pool.h has 120 lines' grown
check "a door that is not there is seen" seen 'too big a door: src/pool/hint.h' \
    sh -c 'echo "pool: pool.h hint.h" >tests/layers/doors.txt'
check "a public header that includes ours is seen" seen \
    'a public header needs the tree: include/moepage.h includes src/base/base.h' \
    sh -c 'echo "#include \"base/base.h\"" >include/moepage.h'
check "src that includes cuda is seen" seen 'src knows cuda: src/api/door.c includes cuda/gpu.h' \
    unit src/api/door.c gpu.h -- pool
check "a room without a law is seen" seen 'a line of order.txt: cellar' new_room
check "a circle in the order is seen" seen 'order.txt has a circle' \
    sh -c 'echo "base: api" >>tests/layers/order.txt'
check "a tree without laws is no tree that keeps them" without_law
finish
