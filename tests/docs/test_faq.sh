#!/bin/sh
# The hit rates in docs/faq.md are what the command that stands there measures.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
document=docs/faq.md
generate=${BUILD:-build}/bin/moepage-generate
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Rows of the table: slots, per cent, and a column for each policy of its head.
sed -n '/^| slots | share/,/^$/p' "$document" | tr -d '|%`' >"$work/table"
policies=$(sed -n '1s/.*experts//p' "$work/table")

row() { # row SLOTS PERCENT RATE...: the tool measures these rates, with so many slots
    slots=$1 percent=$2; shift 2
    for policy in $policies; do
        $generate --model examples/models/tiny-qwen3moe --prompt 'int main(' --max-tokens 128 \
            --temperature 1 --regime cache --budget "$percent%" --policy "$policy" --json >"$work/json" || return 1
        rate=$(tr ',' '\n' <"$work/json" | sed -n 's/.*"hit_rate": *\([0-9.]*\).*/\1/p')
        measured=$(awk -v r="$rate" 'BEGIN { printf "%.1f", 100 * r }')
        [ "$measured" = "$1" ] || { echo "$policy at $percent %: $measured, not $1"; return 1; }
        tr ',' '\n' <"$work/json" | grep -qE "\"slots\": *$slots\$" ||
            { echo "not $slots slots at $percent %"; return 1; }
        shift
    done
}

sed 1,2d "$work/table" | grep '[0-9]' >"$work/rows"
there() { echo "$policies"; [ "$(wc -w <"$work/rows")" = 15 ] && [ "$(wc -l <"$work/rows")" = 3 ]; }
check "the table has three rows of three policies" there
while read -r slots percent rates; do
    # shellcheck disable=SC2086
    check "hit rates with $slots slots are those of the table" row "$slots" "$percent" $rates
done <"$work/rows"

finish
