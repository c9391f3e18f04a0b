#!/bin/sh
# What `make install` puts down is what a program outside the tree needs, and `make uninstall`
# takes all of it away.
set -u
. tests/support/tap.sh
CC=${CC:-cc}
mkdir -p "${BUILD:-build}"
root=$(mktemp -d "$(cd "${BUILD:-build}" && pwd)/install.XXXXXX")
outside=$(mktemp -d)
trap 'rm -rf "$root" "$outside"' EXIT

# The caller's job server is not ours to use; its settings come through the environment.
unset MAKEFLAGS MFLAGS
prefix=$root/usr

cat >"$outside/program.c" <<'EOF'
#include <moepage_cuda.h>
#include <stdio.h>

int main(void)
{
    moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 32 << 20};
    moepage_device *device = NULL;
    moepage_status status = moepage_device_open("host", &config, &device);
    if (status != MOEPAGE_OK || moepage_version() != MOEPAGE_VERSION) {
        fprintf(stderr, "%s: %s\n", moepage_status_text(status), moepage_last_error());
        return 1;
    }
    moepage_cuda_info info = {.struct_size = sizeof info};
    if (moepage_cuda_get_info(device, &info) != MOEPAGE_E_UNSUPPORTED)
        return 2;
    return moepage_device_close(device) == MOEPAGE_OK ? 0 : 1;
}
EOF

outside_program() { # outside_program PKG_CONFIG_FLAGS CC_FLAGS...
    flags=$1; shift
    export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
    (cd "$outside" && $CC -std=c11 "$@" program.c -o program \
        $(pkg-config --cflags --libs $flags moepage) &&
        LD_LIBRARY_PATH=$prefix/lib ./program)
}

files() { (cd "$1" && find . ! -type d | LC_ALL=C sort); }

check "make install succeeds" make install PREFIX="$prefix"
check "a program outside the tree builds and runs with the shared library" outside_program ''
check "a program outside the tree builds and runs with the static library" \
    outside_program --static -static

tools() { # each says what it is; one opens a model, from a directory without a library in sight
    for tool in pack generate inspect eval bench sim; do
        (cd "$outside" && env -u LD_LIBRARY_PATH "$prefix/bin/moepage-$tool" --help >said 2>&1 &&
            grep -q "moepage-$tool" said) || { cat "$outside/said"; return 1; }
    done
    env -u LD_LIBRARY_PATH "$prefix/bin/moepage-inspect" examples/models/tiny-qwen3moe
}
check "the tools are installed, and run" tools
beside() {
    for tool in "$prefix"/bin/moepage-*; do
        readelf -d "$tool" | grep -E 'R(UN)?PATH' | grep -qF '[$ORIGIN/../lib]' || { echo "$tool"; return 1; }
    done
}
check "they look for the library beside themselves" beside

variables() {
    export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
    number='s/^#define MOEPAGE_VERSION_[MP][AI][JNT][A-Z]* //p'
    version=$(sed -n "$number" include/moepage.h | paste -sd.)
    [ "$(pkg-config --variable=cudamodule moepage)" = "$prefix/lib/libmoepage-cuda.so" ] &&
        [ "$(pkg-config --modversion moepage)" = "$version" ]
}
check "pkg-config knows the version and the place of the CUDA module" variables

check "make install with DESTDIR succeeds" make install DESTDIR="$root/stage" PREFIX=/opt/moepage
same_files() { [ "$(files "$prefix")" = "$(files "$root/stage/opt/moepage")" ]; }
check "DESTDIR moves the files and nothing else" same_files
no_stage() { ! grep -r "$root" "$root/stage/opt/moepage/lib/pkgconfig"; }
check "DESTDIR is not recorded in moepage.pc" no_stage

check "make uninstall succeeds" make uninstall PREFIX="$prefix"
nothing_left() { [ -z "$(files "$prefix")" ] || { files "$prefix"; return 1; }; }
check "make uninstall leaves no file" nothing_left

finish
