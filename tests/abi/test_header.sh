#!/bin/sh
# The public headers stand alone in every dialect that they promise, and hide no padding.
# moepage_cuda.h begins with moepage.h, so what compiles here is both of them, each alone.
set -u
. tests/support/tap.sh
CC=${CC:-cc} CXX=${CXX:-g++}
source='#include "moepage_cuda.h"
int main(void) { return MOEPAGE_OK; }'
strict='-pedantic -Wall -Wextra -Wshadow -Werror -Iinclude -fsyntax-only'

compile() { # compile COMPILER LANGUAGE FLAG...
    compiler=$1 language=$2; shift 2
    printf '%s\n' "$source" | $compiler -x "$language" "$@" $strict -
}

dialects() { # dialects COMPILER LANGUAGE STANDARD...
    compiler=$1 language=$2; shift 2
    for standard; do
        name="headers alone are clean as $standard with $compiler"
        if command -v "$compiler" >/dev/null; then
            check "$name" compile "$compiler" "$language" "-std=$standard"
        else
            skip "$name" "$compiler is not installed"
        fi
    done
}

# The compilers in use, and the other family where it is present.
for compiler in $(printf '%s\n' "$CC" gcc clang | sort -u); do
    dialects "$compiler" c c99 c11 c17
done
for compiler in $(printf '%s\n' "$CXX" g++ clang++ | sort -u); do
    dialects "$compiler" c++ c++17
done

check "no struct of the headers has implicit padding" compile "$CC" c -std=c11 -Wpadded

includes() {
    sed -n 's/^#include //p' include/moepage.h | grep -vxF -e '<stddef.h>' -e '<stdint.h>'
    sed -n 's/^#include //p' include/moepage_cuda.h | grep -vxF '"moepage.h"'
}
only_allowed_includes() { ! includes | grep .; }
check "the headers include stddef.h and stdint.h only" only_allowed_includes

finish
