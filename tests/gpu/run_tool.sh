#!/bin/sh
# A tool as a test of one case: it passes if the tool exits with 0. Its output becomes comments.
output=$("$@" 2>&1)
status=$?
printf '%s\n' "$output" | sed 's/^/# /'
[ "$status" = 0 ] && echo "ok 1 - ${1##*/}" || echo "not ok 1 - ${1##*/} exits with $status"
echo 1..1
exit "$status"
