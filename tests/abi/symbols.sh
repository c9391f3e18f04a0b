#!/bin/sh
# Prints every function that the headers in include/, or in the folder given, declare: its name, a
# tab, its prototype. Sorted.
set -eu
LC_ALL=C; export LC_ALL
header=${1:-include}/moepage_cuda.h
[ -e "$header" ] || header=${1:-include}/moepage.h

# With MOEPAGE_BUILD, the visibility attribute marks what is exported.
"${CC:-cc}" -std=c11 -E -P -DMOEPAGE_BUILD "$header" | tr '\n' ' ' | tr ';' '\n' |
    sed -n 's/^.*__attribute__((visibility("default"))) *//p' |
    sed -e 's/  */ /g' -e 's/struct //g' -e 's/\(.*[ *]\)\{0,1\}\(moepage_[a-z0-9_]*\)(\(.*\))$/\2	&/' | sort
