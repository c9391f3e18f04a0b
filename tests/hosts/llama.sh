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

# The plug-in for each interface; each host knows the other's, to refuse it.
wanted=
for host in ${HOSTS:-2 3}; do
    case $host in [23]) ;; *) skip "llama.cpp $host" "HOSTS: 2 or 3"; continue ;; esac
    if ! have_sources $host; then
        skip "llama.cpp, backend API $host" "$why"
    elif ! plugin $host >"$dir/plugin-$host.log" 2>&1; then
        fail "the plug-in builds for backend API $host" "$dir/plugin-$host.log"
    else
        cp "$here/lib/libggml-moepage.so" "$dir/plugin-$host.so"
        wanted="$wanted $host"
    fi
done

programs() { # HOST KINDS OTHER
    mkdir -p "$dir/models-$1"
    [ -e "$dir/plugin-$3.so" ] && set -- "$1" "$2" "--other $dir/plugin-$3.so" || set -- "$1" "$2" ""
    "$python" "$here/tests/hosts/check_programs.py" "backend API $1" "$dir/host-$1/bin" "$dir/plugin-$1.so" \
        "$here/build/bin/moepage-sim" --models "$dir/models-$1" --kinds $2 $3
}

# Programs spend time on one processor, or waiting for each other: host 3 is built, and then checked, beside that.
second() {
    have 3 || { skip "llama.cpp, backend API 3" "$why"; return 0; }
    programs 3 Q4_K_M 2
}
case $wanted in
*2*) have 2 || { skip "llama.cpp, backend API 2" "$why"; wanted=${wanted# 2}; } ;;
esac
case $wanted in *3*) second >"$dir/second.tap" 2>&1 & beside=$! ;; *) beside= ;; esac
ending() { # the other host's claims come last
    [ -z "$beside" ] || wait "$beside" || failed=1
    [ -z "$beside" ] || cat "$dir/second.tap"
    exit $failed
}
case $wanted in *2*) programs 2 BF16,Q8_0,Q4_K_M,MXFP4_MOE 3 || failed=1 ;; *) ending ;; esac
ggml=$dir/sources-2/$(inside 2)/ggml
if ! ${CC:-cc} -std=gnu11 -shared -fPIC -O1 -D_GNU_SOURCE -I"$ggml/include" -I"$ggml/src" "$here/tests/hosts/stand_in.c" \
    -o "$dir/stand_in.so" >"$dir/stand_in.log" 2>&1; then
    fail "stand_in.c builds" "$dir/stand_in.log"
    ending
fi
LLAMA_CPP_LIB_PATH=$dir/host-2/bin PYTHONPATH=$dir/sources-2 "$python" "$here/tests/hosts/check_llama.py" \
    "$dir/plugin-2.so" "$here/build/bin/moepage-sim" "$dir/host-2/bin/llama-quantize" --stand-in "$dir/stand_in.so" \
    --models "$dir/models-2" || failed=1

# Faults, with a plug-in that AddressSanitizer watches.
runtime=$(${CC:-cc} -print-file-name=libasan.so)
if ! plugin 2 SAN=address >"$dir/plugin-asan.log" 2>&1; then
    fail "the plug-in builds with AddressSanitizer" "$dir/plugin-asan.log"
elif ! ${CC:-cc} -shared -fPIC -O1 -D_GNU_SOURCE "$here/tests/hosts/fail_reads.c" -o "$dir/fail_reads.so" -ldl; then
    fail "fail_reads.c builds" /dev/null
else
    "$python" "$here/tests/hosts/check_faults.py" "$dir/host-2/bin" "$here/build/address/libggml-moepage.so" \
        --asan "$runtime" --fail-reads "$dir/fail_reads.so" --models "$dir/models-2" || failed=1
fi
ending
