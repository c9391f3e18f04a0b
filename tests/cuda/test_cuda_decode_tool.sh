#!/bin/sh
# cuda_decode on the simulated GPU and on the host: the same bits at every budget and in every mode, and
# clear sentences for what cannot be.
set -u
. tests/support/tap.sh
build=${BUILD:-build}
tool=$build/bin/cuda_decode
sim=$build/release/sim
small="--shape toy --steps 6 --distinct 24"

decodes() { # decodes WORDS COMMAND...: with success, and these words in what is printed
    words=$1; shift
    printed=$("$@" 2>&1) || { echo "$printed"; return 1; }
    case $printed in *"$words"*) ;; *) echo "no '$words' in: $printed"; return 1 ;; esac
}
refuses() { # refuses WORDS COMMAND...: with status 2 and one line
    words=$1; shift
    printed=$("$@" 2>&1 >/dev/null)
    status=$?
    [ "$status" = 2 ] || { echo "exit status $status: $printed"; return 1; }
    case $printed in *"$words"*) ;; *) echo "no '$words' in: $printed"; return 1 ;; esac
    [ "$(printf '%s\n' "$printed" | wc -l)" = 1 ] || { echo "not one line: $printed"; return 1; }
}
on_sim() { # on_sim COMMAND...
    env LD_LIBRARY_PATH="$sim:$sim/blas:${LD_LIBRARY_PATH:-}" "$@"
}

check "on the host" decodes "same bits" "$tool" --device host $small --check --budgets 100,50,20
for mode in session path graph; do
    check "on a GPU, mode $mode" decodes "same bits" \
        on_sim "$tool" $small --check --mode $mode --budgets 100,40 --batch 2
done
check "with prefetching" decodes "same bits" on_sim "$tool" $small --check --prefetch on --budgets 50
check "in FP32" decodes "same bits" on_sim "$tool" $small --check --math fp32 --mode graph --budgets 60

if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    skip "without a driver, that is said" "there is one"
else
    check "without a driver, that is said" refuses "there is no NVIDIA driver" "$tool" $small
fi
check "a shape that there is not" refuses "--shape gpt-9: unknown shape" "$tool" --shape gpt-9
check "more layers than there are" refuses "--layers 5: toy has 4 layers" \
    "$tool" --shape toy --layers 5
check "budgets that are none" refuses "--budgets 50,0: expected" "$tool" --budgets 50,0
check "a comma too many" refuses "--budgets 50,: expected" "$tool" --budgets 50,
check "a path on the host" refuses "--mode path: only CUDA devices" \
    "$tool" --device host --mode path
check "prefetching on a path" refuses "--prefetch" "$tool" --mode graph --prefetch on
check "checking what promises nothing" refuses "--check: --math fast" "$tool" --check --math fast
check "a pack and a shape" refuses "--model: a pack has a shape" "$tool" --model x --shape toy
check "a device that there is not" refuses 'there is no device "tpu"' "$tool" --device tpu $small
check "slots too few for a layer" refuses "a layer may need 4 experts at once" \
    on_sim "$tool" $small --mode graph --budgets 1
check "help is there" decodes "--budgets P,P" "$tool" --help
finish
