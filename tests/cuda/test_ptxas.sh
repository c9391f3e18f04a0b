#!/bin/sh
# What the assembler makes of the kernels: the decoder keeps everything in registers, and no kernel
# spills more than docs/ptxas-report.txt says. Register counts are the toolkit's own business.
#
# The decoder on all architectures; with MP_TEST_LONG every kernel.
set -u
. tests/support/tap.sh
NVCC=${NVCC:-nvcc} CUDA=${CUDA:-auto}
export NVCC
[ -n "${MP_TEST_LONG:-}" ] || { FAMILIES=${FAMILIES:-decode}; export FAMILIES; }
if [ "$CUDA" = 0 ] || ! command -v ${NVCC%% *} >/dev/null 2>&1; then
    reason='no nvcc'
    [ "$CUDA" != 0 ] || reason='CUDA=0'
    skip "kernels assemble without spills" "$reason"
    finish
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

assembles() { cuda/ptxas-report.sh >"$scratch/report"; }

rows() { grep -v '^#' "$1"; }

# The rows of the decoder with anything in the columns of spills and stack, or none at all.
decoder_is_in_registers() {
    rows "$scratch/report" | awk '
        $1 == "mp_gpu_decode" { seen++; if ($4 || $6) { print; bad = 1 } }
        END { if (!seen) print "no row of mp_gpu_decode"; exit bad || !seen }'
}

# Each kernel and architecture that was assembled has its row in the report, with the same spills.
spills_are_as_reported() {
    rows docs/ptxas-report.txt >"$scratch/kept"
    rows "$scratch/report" | awk -v kept="$scratch/kept" '
        BEGIN { while ((getline line < kept) > 0) { split(line, f, " "); spills[f[1] " " f[2]] = f[4] } }
        { key = $1 " " $2; seen++ }
        !(key in spills) { print key ": not in docs/ptxas-report.txt; run cuda/ptxas-report.sh"; bad = 1 }
        key in spills && $4 != spills[key] {
            print key ": spills " $4 " bytes, " spills[key] " in docs/ptxas-report.txt"; bad = 1 }
        END { exit bad || !seen }'
}

check "kernels assemble" assembles
check "the decoder spills nothing and has no stack" decoder_is_in_registers
check "spills are those of docs/ptxas-report.txt" spills_are_as_reported
finish
