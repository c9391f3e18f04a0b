#!/bin/sh
# The first hour on a GPU as one command: the steps of docs/gpu-status.md in their order, each only if what must be
# right before it is, and one JSON of all that they found.
#
#   tests/gpu/first.sh OUT_DIR       writes OUT_DIR/first.json
#
# Without a GPU it says so and exits with 77. GPU_SIM=1 runs it on the simulated driver; its numbers mean nothing.
# common.sh names what else may be set. Exit status 1: a step failed, and the file says which.
set -u
case ${1:-} in '' | /*) ;; *) first=$PWD/$1; shift; set -- "$first" "$@" ;; esac
cd "$(dirname "$0")/../.." || exit 2
. tests/gpu/common.sh
find_gpu gpu-first
steps=$out/steps
: >"$steps"
failed=0 began=$(date -u +%Y-%m-%dT%H:%M:%SZ)

# step NAME COMMAND...: its seconds and status go to the list.
step() {
    name=$1; shift
    start=$(date +%s)
    echo "== $name"
    { "$@" 2>&1; echo $? >"$out/status"; } </dev/null | tee "$out/step-$name.txt"
    status=$(cat "$out/status")
    rm -f "$out/status"
    [ "$status" = 0 ] || failed=$((failed + 1))
    echo "$name|$status|$(($(date +%s) - start))" >>"$steps"
}
skip_step() { echo "$1|skipped|0" >>"$steps"; } # skip_step NAME

step check tests/gpu/check.sh "$out"
if [ "$failed" = 0 ]; then
    step bench tests/gpu/bench.sh "$out"
    toy=${GPU_SIM:+--shape toy --steps 8}
    step decode-graph "$GPU_TOOLS/cuda_decode" --device cuda:0 --mode graph $toy
    step decode-session "$GPU_TOOLS/cuda_decode" --device cuda:0 --mode session --prefetch on $toy
    # As a caller has it who has set nothing: every stream may share a queue with any other.
    step paths-unset timeout 120 env -u CUDA_DEVICE_MAX_CONNECTIONS -u CUDA_MODULE_LOADING MP_TEST_DEVICE=cuda:0 \
        tests/gpu/run_tool.sh "$GPU_PROGRAMS/suites/property" test_cuda_path
else
    for name in bench decode-graph decode-session paths-unset; do skip_step $name; done
fi

# The lines of a table as JSON objects; the text in them has neither quotes nor backslashes.
{
    printf '{"simulated": %s,\n"began": "%s",\n"steps": [' "$([ -n "$GPU_SIM" ] && echo true || echo false)" "$began"
    awk -F'|' '{ printf "%s\n{\"step\": \"%s\", \"status\": %s, \"seconds\": %d}", n++ ? "," : "", $1,
        $2 == "skipped" ? "\"skipped\"" : $2, $3 }' "$steps"
    printf '],\n"checks": ['
    sed 1d "$out/check.txt" | awk 'NF >= 5 && $(NF) ~ /^([0-9]+|-)$/ && $(NF - 3) ~ /^([0-9]+|-)$/ {
        part = $1; for (i = 2; i <= NF - 4; i++) part = part " " $i
        for (i = NF - 3; i <= NF; i++) if ($i == "-") $i = 0
        printf "%s\n{\"part\": \"%s\", \"passed\": %d, \"failed\": %d, \"skipped\": %d, \"seconds\": %d}", n++ ? "," : "",
            part, $(NF - 3), $(NF - 2), $(NF - 1), $NF }'
    printf '],\n"targets": ['
    if [ -f "$out/targets.txt" ]; then
        sed 1d "$out/targets.txt" | awk '{
            for (at = NF; at > 0 && $at != "at"; at--) continue
            what = $1; for (i = 2; i < at - 1; i++) what = what " " $i
            verdict = $(at + 3); for (i = at + 4; i <= NF; i++) verdict = verdict " " $i
            printf "%s\n{\"target\": \"%s\", \"value\": %s, \"at\": \"%s %s\", \"verdict\": \"%s\"}", n++ ? "," : "", what,
                $(at - 1) == "-" ? "null" : $(at - 1), $(at + 1), $(at + 2), verdict }'
    fi
    printf '],\n"results": {'
    comma=
    for part in info decoder dequant transfer experts residency generation; do
        [ -f "$out/$part.json" ] || continue
        printf '%s\n"%s": ' "$comma" $part
        cat "$out/$part.json"
        comma=,
    done
    printf '}}\n'
} >"$out/first.json"
rm -f "$steps"
echo "$out/first.json"
[ "$failed" = 0 ]
