#!/bin/sh
# llama.cpp's llama-bench with the plug-in and without it, on models of Qwen3-30B-A3B's shape with eight layers and
# random weights, in BF16 (11 GB) and Q4_K_M: with all experts resident, and under limits of memory below the model's
# size: tests/bench/compare_plugin.py, whose options it takes. Not part of any suite; needs root, for a cgroup.
#
#   tests/bench/compare_plugin.sh --rounds 5
#   LIMITS="1280M Q4:640M all Q4:all" LAYERS=4 tests/bench/compare_plugin.sh     # a smaller model
#
# llama.cpp and the models are made in ${LLAMA_DIR:-/tmp/moepage-llama}, on a disk with 20 GB left, and stay there.
# What cannot be done is said as "skipped: ...".
set -u
skip_all() { echo "skipped: $*"; exit 0; }
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=${LLAMA_DIR:-${TMPDIR:-/tmp}/moepage-llama}
layers=${LAYERS:-8}
host=${HOST:-2}
. "$here/tests/hosts/build_llama.sh"
have $host || skip_all "$why"
plugin $host >"$dir/plugin-$host.log" 2>&1 || skip_all "no plug-in: see $dir/plugin-$host.log"

plain=$dir/bf16-$layers.gguf
quantised=$dir/q4_k_m-$layers.gguf
"$python" "$here/tests/bench/make_gguf.py" "$plain" --layers "$layers" >"$dir/models.log" 2>&1 ||
    skip_all "no model: see $dir/models.log"
[ -e "$quantised" ] ||
    { "$dir/host-$host/bin/llama-quantize" "$plain" "$quantised.part" Q4_K_M >>"$dir/models.log" 2>&1 &&
        mv "$quantised.part" "$quantised"; } || skip_all "no quantised model: see $dir/models.log"
cases=
for limit in ${LIMITS:-all 2560M 4G Q4:all Q4:1G Q4:2G}; do
    case $limit in
    Q4:*) cases="$cases $quantised:${limit#Q4:}" ;;
    *) cases="$cases $plain:$limit" ;;
    esac
done
exec "$python" "$here/tests/bench/compare_plugin.py" "$dir/host-$host/bin" "$here/lib/libggml-moepage.so" $cases "$@"
