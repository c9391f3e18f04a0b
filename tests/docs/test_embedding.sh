#!/bin/sh
# The programs of docs/embedding.md are short, build cleanly, and print what the document says.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
CC=${CC:-cc}
document=docs/embedding.md
library=$(cd "${LIB:-lib}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The fenced blocks that have a main(), under the name that their first line gives.
awk -v folder="$work" '
    /^```c$/ { text = ""; inside = 1; next }
    /^```$/ { if (inside && text ~ /\nint main\(/) {
                  name = text; sub(/^\/\* /, "", name); sub(/ .*/, "", name)
                  printf "%s", text >(folder "/" name ".c") }
              inside = 0 }
    inside { text = text $0 "\n" }' "$document"

at_most() { # at_most LINES PROGRAM
    lines=$(wc -l <"$work/$2.c")
    echo "$lines lines"
    [ "$lines" -gt 20 ] && [ "$lines" -le "$1" ] && ! grep -E '.{101}' "$work/$2.c"
}
check "the first program has at most 48 lines of at most 100 columns" at_most 48 decode
check "the second program has at most 60 lines of at most 100 columns" at_most 60 detail

few_calls() {
    grep -oE 'moepage_[a-z_]+\(' "$work/decode.c" >"$work/calls"
    cat "$work/calls"
    [ "$(wc -l <"$work/calls")" -le 20 ]
}
check "the first program calls the library in at most 20 places" few_calls

builds() { # builds COMPILER PROGRAM
    "$1" -std=c11 -Wall -Wextra -Werror -Iinclude "$work/$2.c" "$library/libmoepage.so.0" \
        -Wl,-rpath,"$library" -o "$work/$2"
}
for compiler in clang "$CC"; do
    for program in decode detail; do
        name="$program builds without a warning with $compiler"
        if command -v "$compiler" >/dev/null; then
            check "$name" builds "$compiler" "$program"
        else
            skip "$name" "$compiler is not installed"
        fi
    done
done

# The other blocks are parts of a function.
parts_compile() {
    {
        echo '#include <moepage.h>'
        echo 'void run(const void *const *tensors, const uint32_t *rows, uint32_t n);'
        echo 'moepage_status part(moepage_session *session, uint32_t layer, moepage_routing routing);'
        echo 'moepage_status part(moepage_session *session, uint32_t layer, moepage_routing routing)'
        echo '{ moepage_status status;'
        awk '/^```c$/ { text = ""; inside = 1; next }
             /^```$/ { if (inside && text !~ /\nint main\(/) printf "%s", text; inside = 0 }
             inside { text = text $0 "\n" }' "$document"
        echo 'return status; }'
    } >"$work/parts.c"
    grep -q moepage_session_next_group "$work/parts.c" &&
        $CC -std=c11 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$work/parts.c"
}
check "the loop over a plan compiles" parts_compile

# Commands of the document with the line behind each, which is what it must print.
sed -n '/^```console$/,/^```$/p' "$document" | sed -nE '/^\$ \.\/(decode|detail) /{N;p;}' >"$work/session"
sed -n 's/^\$ \.\///p' "$work/session" >"$work/commands"
as_printed() { # as_printed COMMAND
    want=$(awk -v command="\$ ./$1" 'found { print; exit } $0 == command { found = 1 }' "$work/session")
    said=$(eval "\"$work\"/$1") || return 1
    echo "$said" && echo "$said" | sed 's/.* //' >>"$work/results"
    [ "$said" = "$want" ]
}
runs() { [ "$(grep -c "^$1 " "$work/commands")" = "$2" ]; }
check "the document has four runs of the first program" runs decode 4
check "the document has two runs of the second" runs detail 2
while read -r command; do
    check "'$command' prints what the document says" as_printed "$command"
done <"$work/commands"

same_results() {
    sort -u "$work/results"
    [ "$(wc -l <"$work/results")" = 6 ] && [ "$(sort -u "$work/results" | wc -l)" = 1 ] &&
        ! grep -q '^0x0p' "$work/results"
}
check "every budget and policy computes the same bits" same_results

refuses() { # refuses TEXT PROGRAM ARGUMENT...
    text=$1 program=$2; shift 2
    "$work/$program" "$@" 2>"$work/error" && return 1
    [ $? = 1 ] && grep -F "$text" "$work/error"
}
model=examples/models/tiny-qwen3moe
check "a failure is reported with the library's sentence" \
    refuses 'no-such-model: config.json: cannot open' decode no-such-model budget=1G
check "the second program does so, too" \
    refuses 'no-such-model: config.json: cannot open' detail no-such-model 8
check "a budget that is too small is told what it would take" \
    refuses 'at least' decode "$model" budget=1K
check "an option that is none is refused by name" \
    refuses 'there is no "bugdet"' decode "$model" bugdet=1G
check "no slots at all are refused" refuses 'moepage_device_open' detail "$model" 0

# Every key that the library reads is in the table, and every key of the table is read.
keys() { sed -n 's/^    {"\([a-z_]*\)", OPTION_.*/\1/p' src/engine/engine_options.c | sort; }
documented() {
    sed -n '/^| option | in the config/,/^$/p' "$document" | grep -oE '`[a-z_]+(=[^`]*)?`' |
        tr -d '`' | sed 's/=.*//' | sort -u
}
every_key() {
    keys >"$work/keys"; documented >"$work/named"
    [ "$(wc -l <"$work/keys")" -gt 20 ] && comm -23 "$work/keys" "$work/named" | sed 's/^/missing: /' |
        grep . && return 1
    keys | while read -r key; do
        grep -qE "^ \*.*[ |]$key=" include/moepage.h || echo "not in moepage.h: $key"
    done | grep . && return 1
    return 0
}
check "the document and the header have every option" every_key

finish
