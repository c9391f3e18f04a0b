#!/bin/sh
# Times the host kernels beside ggml's CPU backend: tests/bench/compare_ggml.c, whose arguments it takes.
# Not part of any suite.
#
# ggml comes from the sources of llama-cpp-python on PyPI, is built outside the tree, in
# ${GGML_DIR:-/tmp/moepage-ggml}, for this processor or as ${GGML_FLAGS} says, and stays there. What cannot
# be done is said as "skipped: ...".
set -u
skip() { echo "skipped: $*"; exit 0; }
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=${GGML_DIR:-${TMPDIR:-/tmp}/moepage-ggml}
for tool in cmake pip tar c++; do
    command -v $tool >/dev/null || skip "there is no $tool"
done
[ -f "$here/lib/libmoepage.a" ] || skip "lib/libmoepage.a is missing: make lib"

# The sources of a package lack a file that only pkg-config would want.
build_ggml() {
    mkdir -p "$dir/get" && cd "$dir" || return 1
    if ! [ -d "$dir/sources" ]; then
        pip download -q --no-binary :all: --no-deps llama-cpp-python -d "$dir/get" || return 1
        mkdir "$dir/sources"
        tar xzf "$dir"/get/llama_cpp_python-*.tar.gz -C "$dir/sources" --strip-components 1 || return 1
    fi
    ggml=$dir/sources/vendor/llama.cpp/ggml
    [ -f "$ggml/ggml.pc.in" ] || : >"$ggml/ggml.pc.in"
    cmake -S "$ggml" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        ${GGML_FLAGS:--DGGML_NATIVE=ON} -DGGML_OPENMP=OFF -DGGML_BUILD_TESTS=OFF \
        -DGGML_BUILD_EXAMPLES=OFF -DCMAKE_INSTALL_PREFIX="$dir/installed" &&
        cmake --build "$dir/build" -j2 && cmake --install "$dir/build"
}
if ! [ -f "$dir/installed/include/ggml.h" ]; then
    mkdir -p "$dir" || skip "$dir cannot be made"
    (build_ggml) >"$dir/log" 2>&1 || skip "ggml cannot be downloaded or built: see $dir/log"
fi

cd "$here" || exit 1
libs=$(find "$dir/installed/" -name 'libggml*.a' | sort -r)
mkdir -p build
objects=
for source in tests/bench/compare_ggml tests/support/random_blocks tests/support/numbers; do
    object=build/ggml_$(basename $source).o
    ${CC:-cc} -O2 -std=gnu11 -D_GNU_SOURCE -Iinclude -Isrc -Itests/support -Itests/bench \
        -I"$dir/installed/include" -c $source.c -o $object || exit 1
    objects="$objects $object"
done
${CXX:-c++} -o build/compare_ggml $objects lib/libmoepage.a -Wl,--start-group $libs -Wl,--end-group \
    -lcmocka -ldl -lpthread -lm || exit 1
exec build/compare_ggml "$@"
