#!/bin/sh
# The bounds of docs/gpu-bounds.md: its tables are those of the committed figures, and they are good enough.
# Needs no compiler.
set -u
. tests/support/tap.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
SUMMARY=$scratch/summary; export SUMMARY

page_is_current() { tests/sass/page.sh >"$scratch/page" && diff docs/gpu-bounds.md "$scratch/page"; }
reaches() { # reaches GPU COLUMN RELATION LIMIT
    awk -v column="$2" -v relation="$3" -v limit="$4" -v gpu="$1" '
        $1 == gpu { seen = 1; print gpu ": " $column; bad = relation == "least" ? $column < limit : $column > limit }
        END { exit bad || !seen }' "$SUMMARY"
}

check "docs/gpu-bounds.md has the tables of tests/sass" page_is_current
check "the decoder can write 2.5 TB/s on an H200" reaches H200_SXM 2 least 2.5
check "thin experts can have 80 % of an H200's bandwidth" reaches H200_SXM 3 least 80
check "a path adds 2 us to a layer at most" reaches H200_SXM 4 most 2
finish
