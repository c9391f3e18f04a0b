# Sourced by check.sh and bench.sh: where things are, and whether there is a GPU.
#
#   GPU_PROGRAMS   folder of suites/* and tests/gpu/bench_*              default: here
#   GPU_TOOLS      the command-line tools                               default: bin
#   GPU_LIB        libmoepage.so, libmoepage-cuda.so and what they need default: lib
#   GPU_SIM        not empty: on the simulated driver, which lies in GPU_SIM_LIB (default: sim)
: "${GPU_PROGRAMS:=.}" "${GPU_TOOLS:=bin}" "${GPU_LIB:=$PWD/lib}" "${GPU_SIM_LIB:=$PWD/sim}"
: "${GPU_SIM:=}"
out=${1:-gpu-results}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)

LD_LIBRARY_PATH=$GPU_LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ -n "$GPU_SIM" ]; then
    [ -f "$GPU_SIM_LIB/libcuda.so.1" ] || { echo "there is no $GPU_SIM_LIB/libcuda.so.1" >&2; exit 2; }
    # Its cuBLAS too: a real one would look for a real GPU.
    LD_LIBRARY_PATH=$GPU_SIM_LIB:$GPU_SIM_LIB/blas:$LD_LIBRARY_PATH
    MP_TEST_SLOW=1
    export MP_TEST_SLOW
    tiny=--tiny
else
    tiny=
fi
export LD_LIBRARY_PATH
# Streams that have nothing to do with each other must not share a queue with one that waits, nor a
# kernel's first launch wait for an idle GPU: docs/cuda.md says why.
: "${CUDA_DEVICE_MAX_CONNECTIONS:=32}" "${CUDA_MODULE_LOADING:=EAGER}"
export CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING

# A machine that has a GPU, but on which it cannot be opened, is no reason to skip.
find_gpu() { # find_gpu WHAT
    said=$("$GPU_PROGRAMS/tests/gpu/bench_info" $tiny --out "$out" 2>&1)
    case $? in
    0) printf '%s\n\n' "$said" ;;
    77)
        if [ -e /dev/nvidiactl ]; then
            printf 'failed: %s: %s\n0 passed, 1 failed, 0 skipped\n' "$1" "$said"
            exit 1
        fi
        printf 'skipped: %s (%s)\n0 passed, 0 failed, 1 skipped\n' "$1" "$said"
        exit 77 ;;
    *)
        printf 'failed: %s: %s\n0 passed, 1 failed, 0 skipped\n' "$1" "$said"
        exit 1 ;;
    esac
}
