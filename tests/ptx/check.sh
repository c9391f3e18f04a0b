#!/bin/bash
# make check-device: the suites of the kernels, run from the PTX that nvcc makes of them; defects planted in
# it; and which of its instructions ran. Prints TAP, and the table after it.
#
#   BUILD=build PTX_PROGRAMS='unit/test_cuda_rows ...' check.sh
#
# PTX_SIMULATED: programs that take their device from tests/support/device_rig.h.
set -u
ptx=${BUILD:-build}/cuda/ptx suites=${BUILD:-build}/release/chosen out=${BUILD:-build}/device
here=$(dirname "$0")
export CMOCKA_MESSAGE_OUTPUT=TAP
least=95 # percent of each architecture's instructions that must run
# The machine's loops are compiled for these.
for isa in avx2 fma; do
    if [ "$(uname -m)" = x86_64 ] && ! grep -qw "$isa" /proc/cpuinfo; then
        echo "ok # skip no $isa"
        exit 77
    fi
done

# One test case, whose output is kept.
case_() { # case_ LOG NAME COMMAND...
    local began=$SECONDS log=$1 name=$2
    if "${@:3}" >"$log" 2>&1 </dev/null; then
        echo "ok - $name ($((SECONDS - began)) s)"
    else
        echo "not ok - $name"
        grep -E '^(not ok|# *not ok|PTX machine|ERROR|# tests/)|error' "$log" | head -20 | sed 's/^/# /'
    fi
}

from_ptx() { # from_ptx ARCH PROGRAM [VARIABLE=VALUE]...
    case_ "$out/$1/${2##*/}.log" "sm_$1: $2 runs from PTX" env "${@:3}" MP_TEST_PTX="$ptx/$1" \
        MP_TEST_PTX_RAN="$out/$1" timeout 300 "$suites/${2%/*}" "${2#*/}"
}

architecture() { # architecture ARCH
    from_ptx "$1" ptx/test_ptx_entries
    for program in $PTX_PROGRAMS; do
        from_ptx "$1" "$program"
    done
    for program in $PTX_SIMULATED; do
        from_ptx "$1" "$program" MP_TEST_DEVICE=sim
    done
    for mode in session graph; do
        case_ "$out/$1/cuda_decode-$mode.log" "sm_$1: cuda_decode --mode $mode runs from PTX" \
            env LD_LIBRARY_PATH="${BUILD:-build}/release/sim" MP_TEST_PTX="$ptx/$1" MP_TEST_PTX_RAN="$out/$1" \
            timeout 300 "${BUILD:-build}/bin/cuda_decode" --shape toy --layers 4 --check --mode "$mode"
    done
}

# What each architecture's programs leave: family, entry, index, opcode, line, ran.
table() { # table ARCH
    echo "not ok - sm_$1: no count of the instructions that ran" >"$out/$1-ran.tap"
    cat "$out/$1"/*.ran | awk -v arch="$1" -v list="$out/$1.unrun" -v least="$least" -v tap="$out/$1-ran.tap" '
        { at = $1 " " $2 " " $3; if (!(at in opcode)) total[$2]++; opcode[at] = $4; line[at] = $5
          family[$2] = $1; entry[at] = $2 }
        $6 && !(at in ran) { ran[at] = 1; count[$2]++ }
        END {
            for (e in total) {
                printf "# sm_%s %-26s %6d of %6d instructions ran (%3d %%)\n", arch, e, count[e], total[e],
                    int(100 * count[e] / total[e]) | "sort"
                all += total[e]; of_all += count[e]
            }
            close("sort")
            printf "# sm_%s: %d of %d instructions of %d entries ran\n", arch, of_all, all, length(total)
            verdict = all && 100 * of_all >= least * all ? "ok" : "not ok"
            printf "%s - sm_%s: %d %% or more of the instructions ran\n", verdict, arch, least >tap
            for (at in opcode)
                if (!(at in ran)) print family[entry[at]] ".ptx:" line[at], entry[at], opcode[at] >list
        }'
    sort -t: -k1,1 -k2,2n -o "$out/$1.unrun" "$out/$1.unrun"
    echo "# not run: $(wc -l <"$out/$1.unrun") lines of $out/$1.unrun"
}

rm -rf "$out"
for path in "$ptx"/*/; do
    arch=$(basename "$path")
    mkdir -p "$out/$arch"
    architecture "$arch" >"$out/$arch.tap" &
done
wait
case_ "$out/planted.log" "planted defects are caught" "$here/planted.sh" "$ptx/$arch" "$suites/unit" \
    >"$out/planted.tap"
for path in "$ptx"/*/; do
    table "$(basename "$path")"
done >"$out/table"
cat "$out"/*.tap | awk '/^(not )?ok - / { sub(/ok -/, "ok " ++n " -") } { print } END { print "1.." n }'
cat "$out/table"
! grep -q '^not ok' "$out"/*.tap
