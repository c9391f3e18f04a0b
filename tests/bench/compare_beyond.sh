#!/bin/sh
# moepage-generate beside llama.cpp's mapped files under limits of memory below the model's size, on models of
# Qwen3-30B-A3B's shape with eight layers and random weights, in BF16 (11 GB) and quantised by llama.cpp:
# tests/bench/compare_beyond.py, whose options it takes. Not part of any suite; needs root, for a cgroup.
#
#   tests/bench/compare_beyond.sh --rounds 3           # routing as real models have it
#   ROUTING=even tests/bench/compare_beyond.sh         # every token has experts of its own
#   LIMITS="2560M 4G" tests/bench/compare_beyond.sh --packed          # ours from a pack, experts in exph
#   LIMITS="1280M Q4:640M" LAYERS=4 tests/bench/compare_beyond.sh     # a smaller model
#
# Everything is installed and made in ${LLAMA_DIR:-/tmp/moepage-llama}, on a disk with 16 GB left, and stays there. What
# cannot be done is said as "skipped: ...".
set -u
skip() { echo "skipped: $*"; exit 0; }
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=${LLAMA_DIR:-${TMPDIR:-/tmp}/moepage-llama}
layers=${LAYERS:-8}
routing=${ROUTING:-real}
tool=${TOOL:-$here/build/bin/moepage-generate}
[ -x "$tool" ] || skip "$tool is missing: make"
. "$here/tests/bench/install_llama.sh"

case $routing in
real) name='' attention=1 ;;
even) name=even- attention=0.1 ;;
*) skip "ROUTING=$routing: real or even" ;;
esac
plain=$dir/${name}bf16-$layers.gguf
quantised=$dir/${name}q4_k_m-$layers.gguf
"$dir/venv/bin/python" "$here/tests/bench/make_gguf.py" "$plain" --layers "$layers" --attention $attention \
    --quantize Q4_K_M "$quantised" >"$dir/models.log" 2>&1 || skip "no models: see $dir/models.log"
cases=
for limit in ${LIMITS:-2560M 4G Q4:1G Q4:2G}; do
    case $limit in
    Q4:*) cases="$cases $quantised:${limit#Q4:}" ;;
    *) cases="$cases $plain:$limit" ;;
    esac
done
exec "$dir/venv/bin/python" "$here/tests/bench/compare_beyond.py" "$tool" $cases "$@"
