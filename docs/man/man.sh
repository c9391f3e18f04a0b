#!/bin/sh
# Writes manual pages of the public headers: FOLDER/man3, a page for each function, and
# FOLDER/man7/moepage.7, which says what the functions have in common.
#
#   man.sh FOLDER [HEADER...]
#
# What it writes depends on the headers alone.
set -eu
LC_ALL=C; export LC_ALL
here=$(dirname "$0") folder=$1
shift
[ $# -gt 0 ] || set -- "$here/../../include/moepage.h" "$here/../../include/moepage_cuda.h"
rm -rf "$folder/man3" "$folder/man7"
mkdir -p "$folder/man3" "$folder/man7"
exec awk -v folder="$folder" -v summaries="$here/briefs.txt" \
    -f "$here/header.awk" -f "$here/roff.awk" -f "$here/pages.awk" "$@"
