#!/bin/bash
# Plants one defect after another in a copy of the kernels' PTX, and runs a suite from it: each must be
# caught, and as what the table says.
#
#   planted.sh PTX_FOLDER SUITE_PROGRAM [TABLE]
#
# The table has a line for each, with tabs between: the family, the entry without mp_gpu_, which of the
# lines that match, a pattern (sed -E), what it becomes, the suite's program with a pattern of cases, and
# the finding, "differs" for results that the suite itself refuses, or "caught" for either. With "all" for
# which, the pattern is a script for sed over the whole entry. Prints TAP.
set -u
folder=$1 suite=$2 table=${3:-$(dirname "$0")/planted.txt}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CMOCKA_MESSAGE_OUTPUT=TAP
unset MP_TEST_PTX_RAN

# What the program says of the PTX in $work.
verdict() { # verdict PROGRAM
    MP_TEST_PTX=$work timeout 120 "$suite" "$1" >"$work/log" 2>&1 </dev/null
    case $? in
    0) echo nothing ;;
    124) echo endless ;;
    *)
        said=$(sed -n 's/^PTX machine: [a-z]*[.]ptx: .*/refused/p' "$work/log" | head -1)
        [ -n "$said" ] || said=$(sed -n 's/^PTX machine: \([a-z ]*\): mp_gpu.*/\1/p' "$work/log" | head -1)
        echo "${said:-differs}"
        ;;
    esac
}

n=0 failed=0
while IFS=$'\t' read -r family entry nth pattern change program wanted; do
    case $family in '' | '#'*) continue ;; esac
    n=$((n + 1))
    what="$family, $entry, $nth: $pattern -> $change"
    rm -f "$work"/*.ptx
    ln -s "$(realpath "$folder")"/*.ptx "$work"
    rm "$work/$family.ptx"
    if [ "$nth" = all ]; then
        edit="/[.]entry mp_gpu_${entry}[(]/,/^}/{ $pattern }"
    else
        at=$(awk -v entry="$entry" -v nth="$nth" -v pattern="${pattern//\\/\\\\}" -f "${0%/*}/plant.awk" \
            "$folder/$family.ptx")
        edit=${at:+"$at"$'s\001'"$pattern"$'\001'"$change"$'\001'}
    fi
    sed -E "$edit" "$folder/$family.ptx" >"$work/$family.ptx"
    if cmp -s "$folder/$family.ptx" "$work/$family.ptx"; then
        got="not there"
    else
        got=$(verdict "$program")
    fi
    if [ "$got" = "$wanted" ] || { [ "$wanted" = caught ] && [[ ! $got =~ ^(nothing|not there|refused)$ ]]; }; then
        echo "ok $n - $what: $got"
    else
        failed=$((failed + 1))
        echo "not ok $n - $what: $got, not $wanted"
        sed -n 's/^PTX machine/#   &/p; s/^ERROR/#   &/p' "$work/log" | head -3
    fi
done <"$table"
echo "1..$n"
exit $((failed > 0))
