#!/bin/sh
# The program of docs/embedding.md is short, builds cleanly, and prints what the document says.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
CC=${CC:-cc}
document=docs/embedding.md
library=$(cd "${LIB:-lib}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The fenced block that has a main().
awk '/^```c$/ { text = ""; inside = 1; next }
     /^```$/ { if (inside && text ~ /\nint main\(/) printf "%s", text; inside = 0 }
     inside { text = text $0 "\n" }' "$document" >"$work/decode.c"

at_most_60_lines() {
    lines=$(wc -l <"$work/decode.c")
    echo "$lines lines"
    [ "$lines" -gt 20 ] && [ "$lines" -le 60 ] && ! grep -E '.{101}' "$work/decode.c"
}
check "the program has at most 60 lines of at most 100 columns" at_most_60_lines

builds() { # builds COMPILER
    "$1" -std=c11 -Wall -Wextra -Werror -Iinclude "$work/decode.c" "$library/libmoepage.so.0" \
        -Wl,-rpath,"$library" -o "$work/decode"
}
for compiler in clang "$CC"; do
    name="it builds without a warning with $compiler"
    if command -v "$compiler" >/dev/null; then
        check "$name" builds "$compiler"
    else
        skip "$name" "$compiler is not installed"
    fi
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
sed -n '/^```console$/,/^```$/p' "$document" | sed -n '/^\$ \.\/decode /{N;p;}' >"$work/session"
commands() { sed -n 's/^\$ \.\/decode //p' "$work/session"; }
as_printed() { # as_printed ARGUMENTS
    want=$(sed -n "/^\$ \.\/decode $(echo "$1" | sed 's|/|\\/|g')\$/{n;p;}" "$work/session")
    # shellcheck disable=SC2086
    said=$("$work/decode" $1) || return 1
    echo "$said" && echo "$said" | sed 's/.* //' >>"$work/results"
    [ "$said" = "$want" ]
}
[ "$(commands | wc -l)" = 4 ] || check "the document has four runs of it" false
commands >"$work/commands"
while read -r arguments; do
    check "'decode $arguments' prints what the document says" as_printed "$arguments"
done <"$work/commands"

same_results() {
    sort -u "$work/results"
    [ "$(wc -l <"$work/results")" = 4 ] && [ "$(sort -u "$work/results" | wc -l)" = 1 ] &&
        ! grep -q '^0x0p' "$work/results"
}
check "every budget and policy computes the same bits" same_results

refuses() { # refuses TEXT ARGUMENT...
    text=$1; shift
    "$work/decode" "$@" 2>"$work/error" && return 1
    [ $? = 1 ] && grep -F "$text" "$work/error"
}
check "it reports a failure with the library's sentence" \
    refuses 'no-such-model: config.json: cannot open' no-such-model 8
check "a budget that is too small is refused" \
    refuses 'moepage_device_open' examples/models/tiny-qwen3moe 0

finish
