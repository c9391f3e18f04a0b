#!/bin/bash
# Which cases a tree has, by its sources; or where the cases of one tree are in another.
#
#   tests/cases.sh [TREE]       a line "SUITE/PROGRAM CASE" each; after them, how many assertions there are
#   tests/cases.sh OLD NEW      "OLD PLACE CASE -> NEW PLACE" for each that moved, "-> gone" for each that did
#                               not arrive, then the counts of both; exit status 1 if
#                               one is gone
#
# A case of C is a function test_*(void **state), one of a script a check of its name, one of Python a method
# test_*.
set -u
export LC_ALL=C

cases() ( # cases TREE
    cd "$1/tests" || exit 2
    grep -EHo '^(static )?void test_[a-z0-9_]*\(void \*\*' */*.c |
        sed -E 's/\.c:(static )?void (test_[a-z0-9_]*)\(.*/ \2/'
    grep -EHo '^ *(check|check_on_terminal|skip) ["'\''][^"'\'']*' */*.sh |
        sed -E 's/:? *(check|check_on_terminal|skip) ["'\'']/ /'
    grep -EHo '^ *def test_[a-z0-9_]*' */*/test_*.py | sed -E 's/\.py: *def / /'
)
assertions() ( # assertions TREE
    cd "$1/tests" || exit 2
    cat */*.c */*.h | grep -Eo '\b(assert_[a-z_]+|fail_msg) *\(' | wc -l
)

old=${1:-.}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cases "$old" | sort -u >$work/old || exit 2
if [ $# -lt 2 ]; then
    cat $work/old
    echo "$(wc -l <$work/old) cases, $(assertions "$old") assertions"
    exit
fi
cases "$2" | sort -u >$work/new || exit 2
awk '{ place = $1; name = $0; sub(/^[^ ]* /, "", name) }
    NR == FNR { at[name] = at[name] " " place; next }
    !(name in at) { print place " " name " -> gone"; gone = 1; next }
    { split(at[name], places, " ")
      for (i in places) if (places[i] == place) next
      print place " " name " ->" at[name] }
    END { exit gone }' $work/new $work/old
status=$?
for tree in "$old" "$2"; do
    which=new; [ "$tree" = "$old" ] && which=old
    echo "$tree: $(wc -l <$work/$which) cases, $(assertions "$tree") assertions"
done
exit $status
