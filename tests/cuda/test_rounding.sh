#!/bin/sh
# No bit of a result is a compiler's choice: every product, sum and quotient of the kernels says how it
# is rounded, so that none is fused with another, approximated, or flushed to zero. What has the same
# bits on the CPU, in another form of a kernel or on another architecture depends on it.
#
# The families that are quick to compile; with MP_TEST_LONG all of them.
set -u
. tests/support/tap.sh
NVCC=${NVCC:-nvcc} CUDA=${CUDA:-auto}
FAMILIES=${FAMILIES:-elementwise experts topk}
[ -z "${MP_TEST_LONG:-}" ] || FAMILIES=$(ls cuda/kernels/*.cu | sed 's|.*/||; s|\.cu$||')
if [ "$CUDA" = 0 ] || ! command -v ${NVCC%% *} >/dev/null 2>&1; then
    reason='no nvcc'
    [ "$CUDA" != 0 ] || reason='CUDA=0'
    skip "arithmetic is rounded as written" "$reason"
    finish
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# As a compiler would that is free to fuse. Instructions without .rn are for whoever assembles them to
# fuse; conversions between types are exact, or say how they round.
is_rounded_as_written() {
    $NVCC -O3 -fmad=true -std=c++17 -Icuda -Isrc -Iinclude -arch=compute_90 -ptx \
        "cuda/kernels/$1.cu" -o "$scratch/$1.ptx" || return 1
    ! grep -nE '[[:space:]](add|sub|mul|mad|fma|div|rcp|sqrt)(\.[a-z]+)*\.(f|bf)(16|32|64)(x2)?[[:space:]]|\.(approx|ftz|full)\b' \
        "$scratch/$1.ptx" | grep -vE '[[:space:]](add|mul|fma|div)\.rn\.f32[[:space:]]'
}

for family in $FAMILIES; do
    check "$family: arithmetic is rounded as written" is_rounded_as_written "$family"
done
finish
