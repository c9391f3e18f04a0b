#!/bin/sh
# Prints what is to be read in the kernels' machine code: for every architecture in the fat binaries, and, as a
# driver assembles it there, of the newest PTX on sm_120. Lines "sm entry figure value".
#
#   BUILD=build figures.sh        after make ptx chosen CHOICE=ptx/test_ptx_entries
#
# Exit status 77, with the reason on standard output, where the tools are missing.
set -eu
build=${BUILD:-build}
here=$(dirname "$0")
. "$here/tools.sh"
find_tools || { echo "$why"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
newest=$(ls "$build/cuda/ptx" | sort -n | tail -1)

# A block's threads are what the PTX allows; its shared memory is what the simulated driver's table says.
MP_TEST_PTX=$build/cuda/ptx/$newest CMOCKA_MESSAGE_OUTPUT=TAP "$build/release/chosen/ptx" test_ptx_entries >"$work/log"
awk 'FNR == NR { if (/^# shared/) shared[$3] = $4; next }
     /[.]entry/ { entry = $0; sub(/.*[.]entry /, "", entry); sub(/[(].*/, "", entry) }
     /[.]maxntid/ { sub(/,/, "", $2); name = entry; sub(/^mp_gpu_/, "", name); print name, $2, shared[entry] }' \
    "$work/log" "$build/cuda/ptx/$newest"/*.ptx >"$work/entries"

for fatbin in "$build"/cuda/*.fatbin; do
    family=$(basename "$fatbin" .fatbin)
    "$ptxas" -O3 -arch=sm_120 "$build/cuda/ptx/$newest/$family.ptx" -o "$work/newer.cubin"
    for image in "$fatbin" "$work/newer.cubin"; do
        "$cuobjdump" -sass "$image"
        "$cuobjdump" --dump-resource-usage "$image" 2>&1
    done
done >"$work/sass"
awk -v entries="$work/entries" -f "$here/count.awk" "$work/sass" | LC_ALL=C sort
