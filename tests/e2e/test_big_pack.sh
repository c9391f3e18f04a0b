#!/bin/sh
# A model bigger than what it may have of memory: a synthetic pack of more than 8 GB is served with
# 1 GiB on the device and 1 GiB of host tier. Anonymous, shared and pinned memory is sampled while it
# runs; mapped files' pages are the system's to take back and do not count.
#
# Takes minutes and 9 GB of TMPDIR: only with MP_TEST_LONG=1.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
name="a pack of 8 GB is served with 2 GiB"
space=$(df -Pk "${TMPDIR:-/tmp}" | awk 'NR == 2 { print $4 }')
if [ -z "${MP_TEST_LONG:-}" ]; then
    skip "$name" "MP_TEST_LONG is not set"
    finish
elif [ "$space" -lt 10485760 ]; then
    skip "$name" "${TMPDIR:-/tmp} has less than 10 GiB free"
    finish
fi
bin=${BUILD:-build}/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

number() { # number KEY FILE: of one JSON object
    sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" "$2"
}

pack() {
    "$bin/moepage-pack" --synthetic qwen3-30b-a3b --layers 9 --json "$work/big.moepack" \
        >"$work/pack.json" && [ "$(number file_bytes "$work/pack.json")" -ge 8000000000 ]
}

# The most KiB that count, of a process that runs.
generate() {
    "$bin/moepage-generate" --model "$work/big.moepack" --budget 1G --host-tier 1G --json \
        --tokens 11,222,3333,44444 --tokens 5,66,777 --max-tokens 8 >"$work/run.json" &
    pid=$!
    most=0
    while kill -0 $pid 2>/dev/null; do
        now=$(awk '/^(RssAnon|RssShmem|VmPin|VmLck):/ { sum += $2 } END { print sum + 0 }' \
            /proc/$pid/status 2>/dev/null)
        [ "${now:-0}" -gt "$most" ] && most=$now
    done
    wait $pid || return 1
    echo "$most" >"$work/most"
}

within_memory() {
    dense=$(number dense_bytes "$work/pack.json")
    allowed=$(((2 * 1024 * 1024 + dense / 1024) * 110 / 100))
    echo "$(cat "$work/most") KiB at the most, $allowed allowed"
    # Less than the tier alone would mean that the sampling saw nothing.
    [ "$(cat "$work/most")" -ge 1048576 ] && [ "$(cat "$work/most")" -le "$allowed" ]
}

# Each of the 4 I/O threads read one expert when the pool was created.
reads_agree() {
    misses=$(number misses "$work/run.json")
    reads=$(number cold_reads "$work/run.json")
    hits=$(number host_hits "$work/run.json")
    echo "$misses misses, $hits in the host tier, $reads read"
    [ "$misses" -gt 0 ] && [ "$misses" = $((hits + reads - 4)) ]
}

check "a pack of more than 8 GB is written" pack
check "it generates" generate
check "memory stays within both budgets, the dense weights and a tenth" within_memory
check "every miss is a host hit or a cold read" reads_agree
finish
