#!/bin/sh
# The documents agree with the header and with the tree.
set -u
. tests/support/tap.sh

documents() {
    find . -name '*.md' -not -path './build*' -not -path './.git/*' -not -path './shared/*'
}

links_resolve() {
    for document in $(documents); do
        for target in $(grep -o '](\([^)#]*\)' "$document" | sed 's/^](//' | grep -v '^[a-z]*:'); do
            [ -e "$(dirname "$document")/$target" ] || echo "$document: no such file: $target"
        done
    done | grep . && return 1
    return 0
}
check "every relative link in a document leads to a file" links_resolve

# Headings as links name them: lower case, hyphens for spaces, nothing but letters, digits, - and _.
anchors() {
    awk '/^```/ { code = !code } !code && /^#+ / {
             sub(/^#+ /, ""); s = tolower($0); gsub(/[^a-z0-9 _-]/, "", s); gsub(/ /, "-", s); print s }' "$1"
}
headings_resolve() {
    for document in $(documents); do
        for link in $(grep -o ']([^)]*#[^)]*)' "$document" | sed 's/^](//; s/)$//' | grep -v '^[a-z]*:'); do
            target=${link%%#*}
            [ -n "$target" ] && target=$(dirname "$document")/$target || target=$document
            case $target in *.md) ;; *) continue ;; esac
            anchors "$target" | grep -qxF "${link#*#}" || echo "$document: no such heading: $link"
        done
    done | grep . && return 1
    return 0
}
check "every link to a heading leads to one" headings_resolve

headings_differ() {
    for document in $(documents); do
        anchors "$document" | sort | uniq -d | sed "s|^|$document: heading occurs twice: |"
    done | grep . && return 1
    return 0
}
check "no heading of a document occurs twice, so that a link to it has one end" headings_differ

statuses() {
    sed -n 's/^ *\(MOEPAGE_\(OK\|E_[A-Z_]*\)\) = \(-\{0,1\}[0-9]*\).*/\1 \3/p' include/moepage.h
}
documented() {
    sed -n 's/^## `\(MOEPAGE_[A-Z_]*\)` (\(.*\))$/\1 \2/p' docs/errors.md | sed 's/−/-/'
}
same_statuses() {
    statuses >"$work/header" && documented >"$work/docs" && [ -s "$work/header" ] &&
        diff "$work/header" "$work/docs"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check "docs/errors.md explains every status under its number" same_statuses

named_files() {
    for file in $(grep -oh 'docs/[a-z-]*\.md' include/*.h src/*/*.h | sort -u); do
        [ -e "$file" ] || { echo "named in a header, but missing: $file"; bad=1; }
    done
    [ -z "${bad:-}" ]
}
check "every document that a header names exists" named_files

# Names that the code has, but for the headers of earlier versions.
grep -rIohwE '(moepage|MOEPAGE)_[A-Za-z0-9_]+' --exclude='*.md' --exclude-dir=old \
    include src cuda examples tests lib Makefile | sort -u >"$work/known"
names_exist() { # moepage_kv_fork2 is abi.md's example of a name to come; MOEPAGE_FORM_* is a family
    documents | xargs grep -ohwE '(moepage|MOEPAGE)_[A-Za-z0-9_]+' | grep -vx moepage_kv_fork2 |
        sort -u >"$work/named"
    [ "$(wc -l <"$work/named")" -gt 200 ] || { echo "only $(wc -l <"$work/named") names"; return 1; }
    comm -23 "$work/named" "$work/known" | while read -r name; do
        case $name in *_) grep -q "^$name" "$work/known" && continue ;; esac
        echo "no such name: $name in $(documents | xargs grep -lw "$name" | tr '\n' ' ')"
    done | grep . && return 1
    return 0
}
check "every function, type and constant that a document names is there" names_exist

fields_exist() {
    sed -n 's/^struct \([a-z0-9_]*\) .*/\1/p' lib/abi/structs.txt >"$work/structs"
    sed -n 's/^field \([a-z0-9_.]*\) .*/\1/p' lib/abi/structs.txt | sort -u >"$work/fields"
    documents | xargs grep -ohE 'moepage_[a-z0-9_]+\.[a-z0-9_]+' | sort -u | while read -r field; do
        ! grep -qx "${field%.*}" "$work/structs" || echo "$field"
    done >"$work/named"
    [ "$(wc -l <"$work/named")" -gt 10 ] || { echo "only $(wc -l <"$work/named") fields"; return 1; }
    comm -23 "$work/named" "$work/fields" | sed 's/^/no such field: /' | grep . && return 1
    return 0
}
check "every field that a document names is in its struct" fields_exist

# Paths from the root or from a folder below it, `*` included; of tests also by their name alone. What
# has a <part> in it is a pattern, and what is built need not be there.
files_exist() {
    find . -type f -not -path './build*' -not -path './.git/*' | sed 's|^\./||' >"$work/files"
    documents | xargs sed 's|build/[^ `]*||g' >"$work/text"
    grep -ohE '(src|cuda|tests|examples|include)/[A-Za-z0-9_./*<-]*[A-Za-z0-9>]' "$work/text" |
        grep -v '[<>]' | sort -u >"$work/named"
    grep -ohwE 'test_[a-z0-9_]+[a-z0-9]' "$work/text" | sort -u >>"$work/named"
    [ "$(wc -l <"$work/named")" -gt 100 ] || { echo "only $(wc -l <"$work/named") paths"; return 1; }
    while read -r path; do
        pattern=$(echo "$path" | sed -e 's/\./\\./g' -e 's/\*/[^\/]*/g')
        grep -qE "(^|/)$pattern(\$|/|\.)" "$work/files" || echo "no such file: $path"
    done <"$work/named" | grep . && return 1
    return 0
}
check "every file that a document names is there" files_exist

indexed_once() {
    for page in docs/*.md docs/*/README.md; do
        [ "$page" = docs/index.md ] && continue
        [ "$(grep -cF "](${page#docs/})" docs/index.md)" = 1 ] || echo "not listed once: $page"
    done | grep . && return 1
    return 0
}
check "docs/index.md lists every page once" indexed_once

chart_is_drawn() { docs/charts/hit-rates.sh | diff - docs/charts/hit-rates.svg; }
check "the chart of hit rates shows the table that it is drawn from" chart_is_drawn

no_placeholders() { ! documents | xargs grep -nwE 'FIGURES|TODO|FIXME'; }
check "no document has a placeholder left" no_placeholders

finish
