#!/bin/sh
# What must hold on a GPU: the device suite, the kernels against their definitions, sessions, pools,
# paths and graphs, and a part of it under compute-sanitizer.
#
#   tests/gpu/check.sh OUT_DIR
#
# Without a GPU it says so and exits with 77. GPU_SIM=1 runs a short part of it on the simulated
# driver: that checks this script. common.sh names what else may be set.
set -u
case ${1:-} in '' | /*) ;; *) first=$PWD/$1; shift; set -- "$first" "$@" ;; esac
cd "$(dirname "$0")/../.." || exit 2
. tests/gpu/common.sh
limit=${GPU_CHECK_SECONDS:-460}
began=$(date +%s)
logs=$out/logs
rm -rf "$logs" && mkdir -p "$logs/programs" || exit 2
find_gpu gpu-check

MP_TEST_DEVICE=cuda:0
SIM_CUDA_STRICT=1 # the simulated GPU reaches no memory that a real one would not
export MP_TEST_DEVICE SIM_CUDA_STRICT
passed=0 failed=0 skipped=0
: >"$logs/skips"
printf '%-46s %7s %7s %8s %8s\n' part passed failed skipped seconds | tee "$out/check.txt"

skip() { # skip NAME WHY
    skipped=$((skipped + 1))
    echo "skipped: $1 ($2)" >>"$logs/skips"
    printf '%-46s %7s %7s %8s %8s\n' "$1" - - 1 - | tee -a "$out/check.txt"
}

# run NAME SECONDS PROGRAM...: a test program, its lines counted as tests/run.sh does.
run() {
    name=$1 seconds=$2; shift 2
    start=$(date +%s)
    if [ $((start - began)) -ge "$limit" ]; then
        skip "$name" "no time left of $limit s"
        return
    fi
    program=$logs/programs/$(echo "$name" | tr -cs 'a-zA-Z0-9\n' -)
    { echo '#!/bin/sh'; echo "exec $*"; } >"$program" && chmod +x "$program"
    TEST_TIMEOUT=$seconds tests/run.sh --one "$logs" "$program" >"$program.report" 2>&1
    log=$logs/$(echo "$program" | tr -c 'A-Za-z0-9._\n' -).log
    set -- $(sed -n 's/^count //p' "$log.result")
    [ $# = 3 ] || set -- 0 1 0
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    sed -n "s/^skip [^:]*: */skipped: $name: /p" "$log.result" >>"$logs/skips"
    printf '%-46s %7d %7d %8d %8d\n' "$name" "$1" "$2" "$3" $(($(date +%s) - start)) |
        tee -a "$out/check.txt"
    [ "$2" = 0 ] && return
    sed -n 's/^fail [^:]*: */    failed: /p' "$log.result"
    tail -n 40 "$log" | sed 's/^/    | /'
}
suites=$GPU_PROGRAMS/suites

# ---- Kernels, then the device, then what is built on it ----
for part in elementwise quant rows topk remap api experts decode; do
    run "kernels: $part" 60 "$suites/unit" test_cuda_$part
done
run "kernels: decode, any stream" 60 "$suites/property" test_cuda_decode
run "device suite" 120 "$suites/conformance" test_cuda
run "fast mode, by cuBLAS where it is" 60 "$suites/gpu" test_gpu_fast
run "PagedTensor" 60 "$suites/gpu" test_gpu_paged
run "paths and graphs" 100 "$suites/property" test_cuda_path
run "decode loop, session" 60 tests/gpu/run_tool.sh "$GPU_TOOLS/cuda_decode" --device cuda:0 \
    --shape toy --steps 8 --budgets 50,100 --check
run "decode loop, graph" 60 tests/gpu/run_tool.sh "$GPU_TOOLS/cuda_decode" --device cuda:0 \
    --shape toy --steps 8 --budgets 50,100 --mode graph --check
if [ -n "$GPU_SIM" ] && [ "$GPU_SIM" != full ]; then
    skip "same bits, pool stress" "too long on the simulated driver"
else
    run "same bits, over tiers too" 150 "$suites/property" test_same_bits
fi

# ---- The same under compute-sanitizer ----
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$GPU_SIM" ]; then
    skip "compute-sanitizer" "simulated driver"
elif [ -z "$sanitizer" ]; then
    skip "compute-sanitizer" "not installed"
else
    for tool in memcheck racecheck; do
        for part in topk remap rows quant experts; do
            run "$tool: $part" 90 "$sanitizer" --tool $tool --error-exitcode 99 \
                "$suites/unit" test_cuda_$part
        done
        run "$tool: decode" 90 "$sanitizer" --tool $tool --error-exitcode 99 \
            "$suites/property" test_cuda_decode
    done
    # Not paths: they need launches that overlap.
    run "memcheck: decode loop, session" 120 tests/gpu/run_tool.sh "$sanitizer" --tool memcheck \
        --error-exitcode 99 "$GPU_TOOLS/cuda_decode" --device cuda:0 --shape toy --steps 4 \
        --budgets 50 --check
    run "memcheck: PagedTensor" 120 "$sanitizer" --tool memcheck --error-exitcode 99 \
        "$suites/gpu" test_gpu_paged
fi

# ---- The longest last ----
if [ -z "$GPU_SIM" ] || [ "$GPU_SIM" = full ]; then
    run "pool stress, over tiers too" 180 "$suites/property" test_pool_stress
fi

echo
cat "$logs/skips"
summary="$passed passed, $failed failed, $skipped skipped, $(($(date +%s) - began)) s"
echo "$summary" | tee -a "$out/check.txt"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
