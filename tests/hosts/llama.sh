#!/bin/sh
# Builds llama.cpp and the plug-in for it, and runs the one with the other. `make check-llama` calls it; no other suite
# does. llama.cpp is built once, in ${LLAMA_DIR:-/tmp/moepage-llama}: build_llama.sh says from what. HOSTS="2" leaves
# the other one out. What cannot be had is a skip with its reason.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=${LLAMA_DIR:-${TMPDIR:-/tmp}/moepage-llama}
failed=0
skip() { echo "ok 1 - $1 # SKIP $2"; echo 1..1; }
fail() { cat "$2"; echo "not ok 1 - $1"; echo 1..1; failed=1; }
skip_all() { skip llama.cpp "$*"; exit 0; }
. "$here/tests/hosts/build_llama.sh"

ready=
for host in ${HOSTS:-2 3}; do
    case $host in [23]) ;; *) skip "llama.cpp $host" "HOSTS: 2 or 3"; continue ;; esac
    if ! have $host; then
        skip "llama.cpp, backend API $host" "$why"
    elif ! plugin $host >"$dir/plugin-$host.log" 2>&1; then
        fail "the plug-in builds for backend API $host" "$dir/plugin-$host.log"
    else
        cp "$here/lib/libggml-moepage.so" "$dir/plugin-$host.so"
        ready="$ready $host"
    fi
done

for host in $ready; do
    [ $host = 2 ] && kinds=BF16,Q8_0,Q4_K_M,MXFP4_MOE other=3 || kinds=Q4_K_M other=2
    [ -e "$dir/plugin-$other.so" ] && other="--other $dir/plugin-$other.so" || other=
    "$python" "$here/tests/hosts/check_programs.py" "backend API $host" "$dir/host-$host/bin" "$dir/plugin-$host.so" \
        --models "$dir/models" --kinds $kinds $other || failed=1
done

case $ready in *2*) ;; *) exit $failed ;; esac
ggml=$dir/sources-2/$(inside 2)/ggml
if ! ${CC:-cc} -std=gnu11 -shared -fPIC -O1 -D_GNU_SOURCE -I"$ggml/include" -I"$ggml/src" "$here/tests/hosts/stand_in.c" \
    -o "$dir/stand_in.so" >"$dir/stand_in.log" 2>&1; then
    fail "stand_in.c builds" "$dir/stand_in.log"
    exit 1
fi
LLAMA_CPP_LIB_PATH=$dir/host-2/bin PYTHONPATH=$dir/sources-2 "$python" "$here/tests/hosts/check_llama.py" \
    "$dir/plugin-2.so" "$here/build/bin/moepage-sim" "$dir/host-2/bin/llama-quantize" --stand-in "$dir/stand_in.so" \
    --models "$dir/models" || failed=1

# Faults, with a plug-in that AddressSanitizer watches.
runtime=$(${CC:-cc} -print-file-name=libasan.so)
if ! plugin 2 SAN=address >"$dir/plugin-asan.log" 2>&1; then
    fail "the plug-in builds with AddressSanitizer" "$dir/plugin-asan.log"
elif ! ${CC:-cc} -shared -fPIC -O1 -D_GNU_SOURCE "$here/tests/hosts/fail_reads.c" -o "$dir/fail_reads.so" -ldl; then
    fail "fail_reads.c builds" /dev/null
else
    "$python" "$here/tests/hosts/check_faults.py" "$dir/host-2/bin" "$here/build/address/libggml-moepage.so" \
        --asan "$runtime" --fail-reads "$dir/fail_reads.so" --models "$dir/models" || failed=1
fi
exit $failed
