#!/bin/sh
# A part of make check-device: the kernels' machine code is no worse than the committed figures say. Prints TAP.
#
#   BUILD=build check.sh             compares
#   BUILD=build check.sh --write     records: figures of this nvcc, and the tables of docs/gpu-bounds.md
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
here=tests/sass what="the kernels' machine code is no worse than recorded"
. $here/tools.sh
if ! find_tools; then
    skip "$what" "$why"
    finish
fi
known=$here/figures-$version.txt
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ "${1:-}" = --write ]; then
    $here/figures.sh >"$scratch/figures" && mv "$scratch/figures" "$known" &&
        $here/page.sh >"$scratch/page" && mv "$scratch/page" docs/gpu-bounds.md
    exit
fi
if [ ! -e "$known" ]; then
    skip "$what" "figures are recorded for $(cd $here && echo figures-*.txt), and this nvcc is $version"
    finish
fi

reads() { $here/figures.sh >"$scratch/figures"; }
is_no_worse() {
    awk -f $here/compare.awk "$known" "$scratch/figures" >"$scratch/worse"
    status=$?
    sort "$scratch/worse"
    return $status
}

check "machine code can be read" reads
[ "$failures" = 0 ] || finish
check "$what" is_no_worse
awk -f $here/compare.awk -v better=1 "$known" "$scratch/figures" | sort
finish
