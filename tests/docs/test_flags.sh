#!/bin/sh
# The flags that documents give to tools are flags of theirs, and a tool's own page has all of them.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
tools=${BUILD:-build}/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

flags() { grep -oE -- '--[a-z][a-z0-9-]*' | sort -u; }

# Commands of more than one line as one; a command ends with its line, cell or code.
find . -name '*.md' -not -path './build*' -not -path './.git/*' -not -path './shared/*' -exec \
    sed -e ':more' -e '/\\$/{ N; s/\\\n/ /; b more' -e '}' {} + >"$work/text"

takes_them() { # takes_them TOOL LEAST: every command of it has flags that it takes
    "$tools/$1" --help 2>&1 | flags >"$work/help" && [ -s "$work/help" ] || return 1
    grep -ohE "(^|[^a-z_-])$1 [^\`|]*" "$work/text" | flags | grep -vx -e --help >"$work/given"
    [ "$(wc -l <"$work/given")" -ge "$2" ] || { echo "only $(wc -l <"$work/given") flags"; return 1; }
    comm -23 "$work/given" "$work/help" | sed "s/^/$1 does not take /" | grep . && return 1
    return 0
}
for tool in moepage-generate:8 moepage-pack:2 moepage-sim:15 moepage-bench:2 \
    moepage-eval:15 serve_loop:5 cuda_decode:3; do
    check "commands of ${tool%:*} have flags that it takes" takes_them "${tool%:*}" "${tool#*:}"
done

has_all() { # has_all TOOL DOCUMENT: every flag of the tool is explained there
    "$tools/$1" --help 2>&1 | flags | grep -vx -e --help >"$work/help" && [ -s "$work/help" ] || return 1
    flags <"$2" | comm -23 "$work/help" - | sed "s|^|$2 does not have |" | grep . && return 1
    return 0
}
check "docs/generate.md has every flag of moepage-generate" has_all moepage-generate docs/generate.md
check "docs/pack.md has every flag of moepage-pack" has_all moepage-pack docs/pack.md
check "docs/pack.md has every flag of moepage-inspect" has_all moepage-inspect docs/pack.md
check "docs/quality.md has every flag of moepage-eval" has_all moepage-eval docs/quality.md
check "docs/serving.md has every flag of serve_loop" has_all serve_loop docs/serving.md

finish
