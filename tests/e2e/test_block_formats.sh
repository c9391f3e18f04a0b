#!/bin/sh
# Blocks of every format, freshly drawn: the library's values are the bits of those of the packages gguf, of
# compressed-tensors for W4, and of ModelOpt and compressed-tensors for NVFP4G. Runs with $MOEPAGE_PYTHON, or python3;
# skipped by name where that has no such package.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
PYTHONDONTWRITEBYTECODE=1; export PYTHONDONTWRITEBYTECODE
python=${MOEPAGE_PYTHON:-python3}

output=
as_packages() { printf '%s\n' "$output"; return "$status"; }
compare() { # compare NAME SCRIPT
    output=$("$python" "tests/data/blocks/$2" --check 2>&1)
    status=$?
    case $status in
    77 | 126 | 127) skip "$1" "$output" ;;
    *) check "$1" as_packages ;;
    esac
}
compare "fresh blocks of every format have the values of the gguf package" make_blocks.py
compare "fresh blocks of W4 have the values of compressed-tensors" make_w4.py
compare "fresh blocks of NVFP4G have the values of ModelOpt and compressed-tensors" make_nvfp4.py
finish
