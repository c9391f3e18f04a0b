#!/bin/sh
# Do the rooms of src/ and cuda/ keep to their order, and do their headers stay inside?
#
#   tests/layers/layers.sh OBJECTS [ROOT]
#
# OBJECTS holds src/<room>/*.o and cuda/*.o, ROOT (default: here) the tree they were built from. Prints a
# line for each violation; exit status 1 if there is one. The laws are data, in ROOT/tests/layers:
#   order.txt   ROOM: ROOMS    it may use these, and what they may use; nothing else
#   doors.txt   ROOM: HEADERS  other rooms include these of its headers alone; each is a short page
set -u
objects=${1:?usage: tests/layers/layers.sh OBJECTS [ROOT]}
case $objects in /*) ;; *) objects=$PWD/$objects ;; esac
cd "${2:-.}" || exit 2
laws=tests/layers
[ -f $laws/order.txt ] && [ -f $laws/doors.txt ] || { echo "no laws in $PWD/$laws"; exit 2; }
longest_door=120
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/found"
found() { sed "s|^|$1: |" >>"$work/found"; }

# ---- What there is: "ROOM USED" for each pair that the order allows ----
awk '{ sub(/#.*/, "") } NF {
        sub(/:$/, "", $1); rooms[$1]
        for (i = 2; i <= NF; i++) below[$1 " " $i] }
    END {
        do { grown = 0
            for (edge in below) { split(edge, e, " ")
                for (room in rooms) if ((e[2] " " room) in below && !((e[1] " " room) in below)) {
                    below[e[1] " " room]; grown = 1 } }
        } while (grown)
        for (edge in below) print edge
        for (room in rooms) print room, room }' $laws/order.txt >"$work/allowed"
sed -n 's/^\([a-z_]*\):.*/\1/p' $laws/order.txt | sort >"$work/rooms"
awk '$1 == $2 { n[$1]++ } n[$1] > 1' "$work/allowed" | sort -u | found 'order.txt has a circle'
# "FILE SYMBOL TYPE" for what each file defines and needs; a file is named without its ending.
find src cuda -name '*.c' | sed 's/\.c$//' | sort >"$work/sources"
sed 's|^src/||; s|/.*||' "$work/sources" | sort -u | comm -3 - "$work/rooms" | tr -d '\t' |
    found 'not both a folder and a line of order.txt'
while read -r file; do
    [ -f "$objects/$file.o" ] || echo "$file.c" >>"$work/unbuilt"
done <"$work/sources"
[ ! -f "$work/unbuilt" ] || found 'no object of' <"$work/unbuilt"
(cd "$objects" && sed 's/$/.o/' "$work/sources" | xargs nm -A 2>/dev/null) |
    awk 'NF >= 2 { file = $1; sub(/\.o:.*/, "", file); print file, $NF, $(NF - 1) }' >"$work/symbols"

# "FILE USED SYMBOL" for each symbol that one file takes from another.
awk '$3 ~ /^[BCDRTVW]$/ { defines[$2] = $1 }
    $3 == "U" { n++; user[n] = $1; wanted[n] = $2 }
    END { for (i = 1; i <= n; i++) if (wanted[i] in defines)
              print user[i], defines[wanted[i]], wanted[i] }' "$work/symbols" >"$work/uses"

# "FILE HEADER" for each header of ours that a file includes, by the paths that the build has.
find src cuda include \( -name '*.[ch]' -o -name '*.cu' \) >"$work/files"
xargs grep -H '^ *# *include *"' <"$work/files" | sed 's/: *# *include *"\([^"]*\)".*/ \1/' |
    awk 'NR == FNR { there[$1]; next }
        { folder = $1; sub(/[^\/]*$/, "", folder)
          n = split(folder " src/ include/ cuda/", places, " ")
          for (i = 1; i <= n; i++) if ((places[i] $2) in there) { print $1, places[i] $2; break } }' \
        "$work/files" - | sort >"$work/includes"

# ---- Circles ----
circles() { # circles WHAT FIELDS: of the pairs on standard input
    sort -u | tsort 2>&1 >/dev/null | sed 's/^tsort: //' |
        awk '/loop:$/ { if (line) print line; line = ""; next } { line = line " " $0 }
            END { if (line) print line }' | found "circle of $1"
}
room='function room(path) { return path ~ /^cuda\// ? "cuda" : path ~ /^include\// ? "include" : substr(path, 5, index(substr(path, 5), "/") - 1) }'
awk '{ print $1, $2 }' "$work/uses" | circles files
awk "$room"' room($1) != room($2) { print room($1), room($2) }' "$work/uses" | circles folders

# ---- Arrows: of symbols, then of headers ----
awk "$room"' NR == FNR { allowed[$1 " " $2]; next }
    !((room($1) " " room($2)) in allowed) { print $1 ".c uses " $3 " of " $2 ".c" }' \
    "$work/allowed" "$work/uses" | found 'upward arrow'
awk "$room"' NR == FNR { allowed[$1 " " $2]; next }
    room($1) != "include" && room($2) != "include" && room($2) != "cuda" &&
        !((room($1) " " room($2)) in allowed) { print $1 " includes " $2 }' \
    "$work/allowed" "$work/includes" | found 'upward include'

# ---- Headers ----
awk "$room"' $2 ~ /(\/|_)inside\.h$/ && room($1) != room($2) { print $1 " includes " $2 }' \
    "$work/includes" | found 'inside of another room'
awk "$room"' NR == FNR { sub(/#.*/, ""); if (NF) { sub(/:$/, "", $1); walled[$1]
        for (i = 2; i <= NF; i++) door["src/" $1 "/" $i] } next }
    room($1) != room($2) && room($2) in walled && !($2 in door) &&
        $2 !~ /(\/|_)inside\.h$/ { print $1 " includes " $2 }' \
    $laws/doors.txt "$work/includes" | found 'no door'
awk '{ sub(/#.*/, "") } NF { sub(/:$/, "", $1); for (i = 2; i <= NF; i++) print "src/" $1 "/" $i }' \
    $laws/doors.txt | while read -r door; do
    if [ ! -f "$door" ]; then
        echo "$door"
    elif [ "$(wc -l <"$door")" -ge $longest_door ]; then
        echo "$door has $(wc -l <"$door") lines, a door has fewer than $longest_door"
    fi
done | found 'missing or too big a door'
awk "$room"' room($1) == "include" && room($2) != "include" { print $1 " includes " $2 }' \
    "$work/includes" | found 'a public header needs the tree'
awk '$1 ~ /^src\// && $2 ~ /^cuda\// { print $1 " includes " $2 }' "$work/includes" |
    found 'src knows cuda'

cat "$work/found"
[ ! -s "$work/found" ]
