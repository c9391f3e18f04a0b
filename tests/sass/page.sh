#!/bin/sh
# Prints docs/gpu-bounds.md with the tables that the newest committed figures give.
#
#   page.sh >new && mv new docs/gpu-bounds.md        from the project's root
set -eu
here=$(dirname "$0")
figures=$(ls "$here"/figures-*.txt | sort -V | tail -1)
tables=$(mktemp)
trap 'rm -f "$tables"' EXIT
awk ${SUMMARY:+-v summary="$SUMMARY"} -f "$here/bounds.awk" "$here/gpus.txt" "$figures" >"$tables"
awk -v tables="$tables" '
    /^<!-- end of tables/ { kept = 0 }
    !kept { print }
    /^<!-- tables/ { kept = 1; print ""; while ((getline line < tables) > 0) print line; print "" }' docs/gpu-bounds.md
