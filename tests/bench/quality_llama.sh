#!/bin/sh
# moepage-generate and moepage-eval on GGUF files that llama.cpp quantised itself, beside llama.cpp and a float64
# evaluation: tests/bench/quality_llama.py, whose options it takes. Not part of any suite; some minutes.
#
#   MODEL=examples/models/tiny-qwen3moe tests/bench/quality_llama.sh --kinds Q4_K_M --models widened
#
# llama.cpp comes from the sources of llama-cpp-python on PyPI, built for this processor outside the tree, in
# ${LLAMA_DIR:-/tmp/moepage-llama} (tests/bench/install_llama.sh). What cannot be done is said as "skipped: ...".
set -u
skip() { echo "skipped: $*"; exit 0; }
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=${LLAMA_DIR:-${TMPDIR:-/tmp}/moepage-llama}
model=${MODEL:-$here/examples/models/tiny-qwen3moe}
bin=${BIN:-$here/build/bin}
[ -f "$model/config.json" ] || skip "there is no model in $model"
for tool in moepage-generate moepage-eval; do
    [ -x "$bin/$tool" ] || skip "$bin/$tool is missing: make"
done
. "$here/tests/bench/install_llama.sh"
mkdir -p "$dir/quality" || skip "$dir/quality cannot be made"
exec "$dir/venv/bin/python" "$here/tests/bench/quality_llama.py" "$bin/moepage-generate" "$bin/moepage-eval" \
    "$model" "$dir/quality" "$@" 2>"$dir/quality/log"
