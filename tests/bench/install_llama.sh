# Read by the scripts beside it, which define skip() and $dir: installs llama.cpp, as llama-cpp-python builds it for
# this processor from the sources on PyPI, gguf and numpy in $dir/venv.
for program in cmake python3 c++; do
    command -v $program >/dev/null || skip "there is no $program"
done
mkdir -p "$dir" || skip "$dir cannot be made"

# Without AMX: there are virtual machines whose processor says that it has it, and where its instructions end the program.
install_llama() {
    [ "$(uname -m)" = x86_64 ] && without="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" || without=
    [ -x "$dir/venv/bin/python" ] || python3 -m venv "$dir/venv" || return 1
    CFLAGS=$without CXXFLAGS=$without CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" "$dir/venv/bin/pip" install --no-binary llama-cpp-python \
        llama-cpp-python gguf numpy
}
"$dir/venv/bin/python" -c 'import llama_cpp, gguf' 2>/dev/null || install_llama >"$dir/log" 2>&1 ||
    skip "llama-cpp-python cannot be installed: see $dir/log"
