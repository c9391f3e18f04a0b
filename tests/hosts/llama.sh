#!/bin/sh
# Builds the plug-in for llama.cpp and runs llama.cpp with it: tests/hosts/check_llama.py. `make check-llama` calls it;
# no other suite does.
#
# llama.cpp comes from the sources of llama-cpp-python on PyPI, built for this processor outside the tree, in
# ${LLAMA_DIR:-/tmp/moepage-llama}, and stays there. Where it cannot be had, all of this is one skip, with its reason.
set -u
skip() { echo "ok 1 - llama.cpp # SKIP $*"; echo 1..1; exit 0; }
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=${LLAMA_DIR:-${TMPDIR:-/tmp}/moepage-llama}
. "$here/tests/bench/install_llama.sh"

# Its headers are in the package of sources alone.
version=$("$dir/venv/bin/python" -c 'import llama_cpp; print(llama_cpp.__version__)')
sources=$dir/sources-$version
get_sources() {
    rm -rf "$sources.part" && mkdir -p "$sources.part" &&
        "$dir/venv/bin/pip" download -q --no-binary :all: --no-deps \
            "llama-cpp-python==$version" -d "$sources.part" &&
        tar xzf "$sources.part"/*.tar.gz -C "$sources.part" --strip-components 1 && mv "$sources.part" "$sources"
}
[ -d "$sources" ] || get_sources >"$dir/sources.log" 2>&1 ||
    skip "the sources of llama-cpp-python cannot be downloaded: see $dir/sources.log"

plugin=$dir/libggml-moepage.so
make -C "$here" llama GGML="$sources/vendor/llama.cpp/ggml" WERROR=1 >"$dir/plugin.log" 2>&1 &&
    cp "$here/lib/libggml-moepage.so" "$plugin" || {
    cat "$dir/plugin.log"
    echo "not ok 1 - the plug-in builds"
    exit 1
}
"$dir/venv/bin/python" "$here/tests/hosts/check_llama.py" "$plugin" "$here/examples/models/tiny-qwen3moe"
