#!/bin/sh
# Measures a GPU: one program and one JSON file for each part, then a table of what was aimed at.
#
#   tests/gpu/bench.sh OUT_DIR [PART...]     parts: decoder dequant transfer experts residency
#                                            generation; default all
#
# Without a GPU it says so and exits with 77. GPU_SIM=1 runs everything tiny on the simulated
# driver; its numbers mean nothing. common.sh names what else may be set.
set -u
case ${1:-} in '' | /*) ;; *) first=$PWD/$1; shift; set -- "$first" "$@" ;; esac
cd "$(dirname "$0")/../.." || exit 2
. tests/gpu/common.sh
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- decoder dequant transfer experts residency generation
find_gpu gpu-bench
failed=0

for part; do
    start=$(date +%s)
    # The status of the program, not of the pipe's end.
    { timeout "${GPU_BENCH_SECONDS:-400}" "$GPU_PROGRAMS/tests/gpu/bench_$part" $tiny --out "$out" 2>&1
      echo $? >"$out/status"; } | tee "$out/$part.txt"
    status=$(cat "$out/status")
    rm -f "$out/status"
    if [ "$status" != 0 ]; then
        failed=$((failed + 1))
        echo "failed: $part: exit status $status"
    fi
    echo "  $(($(date +%s) - start)) s"
    echo
done

# ---- What was aimed at ----

value() { # value PART CASE FIELD: of the row whose case begins so
    [ -f "$out/$1.json" ] || return
    grep -F "\"case\": \"$2" "$out/$1.json" | head -1 |
        sed -n "s/.*\"$3\": \\([-+0-9.e]*\\).*/\\1/p"
}
# target WHAT VALUE least|most BOUND
target() {
    echo "$1|${2:-}|$3|$4" | awk -F'|' '{
        good = $2 == "" ? "not measured" : ($3 == "least" ? $2 >= $4 : $2 <= $4) ? "met" : "MISSED"
        printf "  %-58s %12s  at %-5s %-6s %s\n", $1, $2 == "" ? "-" : $2, $3, $4, good }'
}
ratio() { # ratio A B
    [ -n "${1:-}" ] && [ -n "${2:-}" ] && awk "BEGIN { printf \"%.4g\", $1 / $2 }"
}
least() { sort -g | head -1; }
most() { sort -g | tail -1; }

{
    echo "targets${GPU_SIM:+ (simulated: the numbers mean nothing)}"
    target "decoder, 512 MB, GB/s out" "$(value decoder '512 MB: 64' median)" least 1200
    target "decoder, 16 tensors of 3 MB, GB/s out" "$(value decoder '16 tensors' median)" least 800
    target "copies of 1 MB and more, of plain copies' rate" "$(sed -n \
        's/.*"bytes": \([0-9]*\), "kind": "ours", "of_raw": \([0-9.]*\).*/\1 \2/p' \
        "$out/transfer.json" 2>/dev/null | awk '$1 >= 1048576 { print $2 }' | least)" least 0.95
    target "experts as exph over the bus, of plain copies' rate" \
        "$(grep -F 'exph over the bus' "$out/transfer.json" 2>/dev/null |
            sed -n 's/.*"of_raw": \([0-9.]*\).*/\1/p')" least 1.35
    target "session at full residency, overhead" \
        "$(value residency 'session: route, ffn, retire, bf16' overhead)" most 0.01
    target "path in a graph, all resident, added us a layer" \
        "$(value residency 'path in a graph, bf16' added_us_per_layer)" most 2
    for percent in 25 50; do
        ours=$(grep -F "\"case\": \"$percent %" "$out/generation.json" 2>/dev/null |
            grep -vF '"mode": "static"' | sed -n 's/.*"median": \([-+0-9.e]*\).*/\1/p' | most)
        target "decoding at $percent %, times static offloading" \
            "$(ratio "$ours" "$(value generation "$percent %: static" median)")" least 2.5
    done
} | tee "$out/targets.txt"
[ "$failed" = 0 ]
