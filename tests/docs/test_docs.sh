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

no_placeholders() { ! documents | xargs grep -nwE 'FIGURES|TODO|FIXME'; }
check "no document has a placeholder left" no_placeholders

finish
