#!/bin/sh
# Times moepage-generate beside llama.cpp on a model of Qwen3-30B-A3B's shape with random weights, in BF16 and
# quantised by llama.cpp: tests/bench/compare_llama.py, whose options it takes. Not part of any suite.
#
#   LAYERS=4 tests/bench/compare_llama.sh --threads 2 --rounds 5
#
# llama.cpp comes from the sources of llama-cpp-python on PyPI, built for this processor outside the tree, in
# ${LLAMA_DIR:-/tmp/moepage-llama}, and stays there, as the models do (1.2 GB, and 1.3 GB a layer in BF16). What
# cannot be done is said as "skipped: ...".
set -u
skip() { echo "skipped: $*"; exit 0; }
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=${LLAMA_DIR:-${TMPDIR:-/tmp}/moepage-llama}
layers=${LAYERS:-8}
tool=${TOOL:-$here/build/bin/moepage-generate}
[ -x "$tool" ] || skip "$tool is missing: make"
. "$here/tests/bench/install_llama.sh"

plain=$dir/bf16-$layers.gguf
quantised=$dir/q4_k_m-$layers.gguf
"$dir/venv/bin/python" "$here/tests/bench/make_gguf.py" "$plain" --layers "$layers" \
    --quantize Q4_K_M "$quantised" >"$dir/models.log" 2>&1 || skip "no models: see $dir/models.log"
exec "$dir/venv/bin/python" "$here/tests/bench/compare_llama.py" "$tool" "$plain" "$quantised" "$@"
