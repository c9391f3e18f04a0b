#!/bin/sh
# Blocks of GGUF's formats, freshly drawn: the library's values are the bits of the gguf package's. Runs with
# $MOEPAGE_PYTHON, or python3; skipped by name where that has no gguf.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
PYTHONDONTWRITEBYTECODE=1; export PYTHONDONTWRITEBYTECODE
python=${MOEPAGE_PYTHON:-python3}
name="fresh blocks of every format have the values of the gguf package"

output=$("$python" tests/data/blocks/make_blocks.py --check 2>&1)
status=$?
as_gguf() { printf '%s\n' "$output"; return "$status"; }
case $status in
77 | 126 | 127) skip "$name" "$output" ;;
*) check "$name" as_gguf ;;
esac
finish
