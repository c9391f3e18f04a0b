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
for program in cmake python3 c++; do
    command -v $program >/dev/null || skip "there is no $program"
done
[ -x "$tool" ] || skip "$tool is missing: make"
mkdir -p "$dir" || skip "$dir cannot be made"

install() {
    [ -x "$dir/venv/bin/python" ] || python3 -m venv "$dir/venv" || return 1
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" "$dir/venv/bin/pip" install --no-binary llama-cpp-python \
        llama-cpp-python gguf numpy
}
"$dir/venv/bin/python" -c 'import llama_cpp, gguf' 2>/dev/null || install >"$dir/log" 2>&1 ||
    skip "llama-cpp-python cannot be installed: see $dir/log"

plain=$dir/bf16-$layers.gguf
quantised=$dir/q4_k_m-$layers.gguf
"$dir/venv/bin/python" "$here/tests/bench/make_gguf.py" "$plain" --layers "$layers" \
    --quantize Q4_K_M "$quantised" >"$dir/models.log" 2>&1 || skip "no models: see $dir/models.log"
exec "$dir/venv/bin/python" "$here/tests/bench/compare_llama.py" "$tool" "$plain" "$quantised" "$@"
