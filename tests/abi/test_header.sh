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

# A program of every initialiser: the struct knows its size, and all else is 0.
initialisers() {
    echo '#include "moepage_cuda.h"'
    echo 'static int is_blank(const unsigned char *bytes, uint32_t size) {'
    echo '    for (uint32_t i = 4; i < size; i++) if (bytes[i]) return 0;'
    echo '    return 1; }'
    echo 'int main(void) { int bad = 0; int32_t id = 7; float x = 1;'
    sed -n 's/^field moepage_\([a-z0-9_]*\)\.struct_size .*/\1/p' lib/abi/structs.txt |
        while read -r name; do
            macro=$(echo "MOEPAGE_$name" | tr '[:lower:]' '[:upper:]')
            case $name in step) arguments=0 ;; routing) arguments='0, 0, 0' ;;
                ffn) arguments='0, 0, 0' ;; *) arguments= ;; esac
            echo "{ moepage_$name made = $macro($arguments);"
            echo 'bad += made.struct_size != sizeof made ||'
            echo '!is_blank((const unsigned char *)&made, (uint32_t)sizeof made); }'
        done
    echo 'moepage_step step = MOEPAGE_STEP(3);'
    echo 'moepage_routing routing = MOEPAGE_ROUTING(2, &id, &x);'
    echo 'moepage_ffn ffn = MOEPAGE_FFN(MOEPAGE_DTYPE_F32, &x, &x);'
    echo 'bad += step.n_tokens != 3 || routing.top_k != 2 || routing.ids != &id ||'
    echo 'routing.weights != &x || ffn.dtype != MOEPAGE_DTYPE_F32 || ffn.x != &x || ffn.y != &x;'
    echo "$1"
    echo 'return bad; }'
}
designated='moepage_plan plan = MOEPAGE_PLAN(.layer = 3, .group = 1);
bad += plan.layer != 3 || plan.group != 1 || plan.struct_size != sizeof plan;'
initialise() { # initialise COMPILER LANGUAGE STANDARD MORE
    work=$(mktemp -d)
    initialisers "$4" >"$work/program.$2"
    [ "$(grep -c 'made = ' "$work/program.$2")" -gt 40 ] &&
        $1 "-std=$3" -pedantic -Wall -Wextra -Wshadow -Werror -Iinclude "$work/program.$2" \
            -o "$work/program" && "$work/program"
    code=$?
    rm -rf "$work"
    return $code
}
for compiler in $(printf '%s\n' "$CC" gcc clang | sort -u); do
    name="every struct has an initialiser that sets its size, in C with $compiler"
    if command -v "$compiler" >/dev/null; then
        check "$name" initialise "$compiler" c c99 "$designated"
        check "$name (C11)" initialise "$compiler" c c11 "$designated"
    else
        skip "$name" "$compiler is not installed"
    fi
done
for compiler in $(printf '%s\n' "$CXX" g++ clang++ | sort -u); do
    name="every struct has an initialiser that sets its size, in C++17 with $compiler"
    if command -v "$compiler" >/dev/null; then
        check "$name" initialise "$compiler" cc c++17 ''
    else
        skip "$name" "$compiler is not installed"
    fi
done

includes() {
    sed -n 's/^#include //p' include/moepage.h | grep -vxF -e '<stddef.h>' -e '<stdint.h>'
    sed -n 's/^#include //p' include/moepage_cuda.h | grep -vxF '"moepage.h"'
}
only_allowed_includes() { ! includes | grep .; }
check "the headers include stddef.h and stdint.h only" only_allowed_includes

finish
