#!/bin/sh
# The manual pages say what the headers say, of every function, and render.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check "pages are written without a complaint" docs/man/man.sh "$work/man"
pages=$work/man/man3

every_function() {
    tests/abi/symbols.sh | cut -f 1 >"$work/functions" && [ -s "$work/functions" ] &&
        (cd "$pages" && ls) | sed 's/\.3$//' | diff "$work/functions" -
}
check "every function has a page, and every page a function" every_function

links() {
    grep -l '^\.so' "$pages"/* | while read -r page; do
        target=$(sed -n 's/^\.so //p' "$page") name=$(basename "$page" .3)
        grep -q "^$name,\|, $name\>" "$work/man/$target" || echo "$name is not named in $target"
    done | grep . && return 1
    [ "$(sed -n 's/^\.so //p' "$pages/moepage_cuda_scatter.3")" = man3/moepage_cuda_gather.3 ]
}
check "a page that is a link leads to one that names its function" links

complete() {
    for page in $(grep -L '^\.so' "$pages"/*); do
        for part in NAME LIBRARY SYNOPSIS DESCRIPTION 'RETURN VALUE' THREADS 'SEE ALSO'; do
            awk -v part=".SH $part" '
                $0 == part { there = 1; next } there { said = /[A-Za-z]/; exit }
                END { exit !said }' "$page" || echo "$(basename "$page"): nothing under $part"
        done
        # Classes and marks are spelt out, and none is left of what makes a comment.
        grep -nE '\[(any|one|set-up|capture)\]|/\*|\*/|`' "$page" |
            grep -vE '`(preferred|keep|bonus|stream)`' | sed "s|^|$(basename "$page"):|"
    done | grep . && return 1
    return 0
}
check "every page has its parts, and no mark of a comment" complete

again() { docs/man/man.sh "$work/again" && diff -r "$work/man" "$work/again"; }
check "the same headers give the same pages" again

# The text of a page as one line: no fonts, macros or quotes.
plain() {
    sed -e 's/^\.[A-Z]* *//' -e 's/\\f[BIRP]//g' -e 's/\\&//g' -e 's/\\-/-/g' -e 's/\\(dq//g' -e 's/"//g' \
        "$pages/$1.3" | tr -s ' \n' ' '
}
says() { # says PAGE TEXT
    plain "$1" | grep -qF -- "$2" || { echo "$1 does not say: $2"; plain "$1" | fold -s; return 1; }
}

# Fields as the compiler sees them; the pages read the same header by themselves.
fields_of() { tests/abi/structs.sh | sed -n "s/^field $1\.\([a-z0-9_]*\) .*/\1/p"; }
shows_struct() { # shows_struct PAGE STRUCT
    fields_of "$2" >"$work/fields" && [ -s "$work/fields" ] || return 1
    sed -n "/^\.B typedef struct $2 /,/^\.B } /s/^\.BI \"[^\"]*\" \"\([a-z0-9_]*\).*/\1/p" \
        "$pages/$1.3" | diff "$work/fields" - &&
        sed -n "/^\.SS $2\$/,/^\.S[HS] [^m]/s/^\.BI .*\" \"\([a-z0-9_]*\)[^ ]*\"\$/\1/p" \
            "$pages/$1.3" | head -n "$(wc -l <"$work/fields")" | diff "$work/fields" -
}
check "moepage_device_open shows every field of its config" \
    shows_struct moepage_device_open moepage_device_config
check "moepage_expert_pool_get_info shows every field of its info" \
    shows_struct moepage_expert_pool_get_info moepage_expert_pool_info
check "moepage_session_route shows every field of a plan" \
    shows_struct moepage_session_route moepage_plan
check "moepage_cuda_remap_run shows every field of its arguments" \
    shows_struct moepage_cuda_remap_run moepage_cuda_remap

every_struct() {
    tests/abi/structs.sh | sed -n 's/^struct \([a-z_]*\) .*/\1/p' | while read -r name; do
        grep -qx "\.SS $name" "$pages"/* || echo "on no page: $name"
    done | grep . && return 1
    return 0
}
check "every struct is on some page" every_struct

device_open() {
    says moepage_device_open 'moepage_device_open - opens a device by name' &&
        says moepage_device_open '#include <moepage.h>' &&
        says moepage_device_open 'moepage_status moepage_device_open(const char * name ,' &&
        says moepage_device_open 'uint32_t threads host: threads a kernel may use, at most 1024; 0' &&
        says moepage_device_open 'BUDGET for a zero budget or one smaller than its own workspace' &&
        says moepage_device_open 'MOEPAGE_E_BUDGET the device budget cannot hold what was asked' &&
        says moepage_device_open 'THREADS Any thread may call it at any time.'
}
check "moepage_device_open says what the header says" device_open

classes() {
    says moepage_device_close 'Set-up: one thread at a time per object, and not while a step is' &&
        says moepage_session_route 'One thread at a time may call it, per object.' &&
        says moepage_kv_append 'Any thread may call it, but one call at a time per sequence.' &&
        says moepage_kv_swap_in 'Any thread may call it, one call at a time per sequence.' &&
        says moepage_cuda_path_layer 'while its stream is being captured into a CUDA graph.' &&
        ! says moepage_cuda_path_create 'being captured' >/dev/null
}
check "thread classes are spelt out, and handed down where a comment has none" classes

constants() {
    says moepage_session_create 'MOEPAGE_PREFETCH_HINT = 1 only what moepage_session_hint(3) names' &&
        says moepage_cuda_topk_run 'MOEPAGE_CUDA_GATE_SOFTMAX_TOP = 2 The top k of the logits' &&
        says moepage_session_ffn 'MOEPAGE_DTYPE_BF16 = 3' &&
        ! says moepage_device_close 'CONSTANTS' >/dev/null
}
check "constants that a page names are explained on it" constants

callbacks() {
    says moepage_model_open_banks 'typedef int32_t (*moepage_read_fn)(void * user ,' &&
        says moepage_model_open_banks 'It may block for I/O, and must not call into the library' &&
        says moepage_pack_write 'A non-zero return ends the call with MOEPAGE_E_CALLBACK.'
}
check "callbacks are declared and described" callbacks

borrowed() {
    says moepage_cuda_dequantise 'A NaN stays a NaN, of no particular payload.' &&
        says moepage_exph_bound 'The exponent-Huffman codec, in the caller' &&
        says moepage_paged_create 'addresses never change;'
}
check "what is said of a struct, a section or an object is on its functions' pages" borrowed

# A banner of the header marks what is behind it.
parts() {
    says moepage_engine_open 'PART Core: What a host needs to serve a model' &&
        says moepage_session_route 'PART Core:' && says moepage_paged_create 'PART Advanced:' &&
        says moepage_session_set_remap 'PART For study:' &&
        says moepage_cuda_path_create 'PART CUDA:' || return 1
    for page in $(grep -L '^\.so' "$pages"/*); do
        grep -qE '^\\fB(Core|Advanced|For study|CUDA)\\fP:$' "$page" || echo "$page has no mark"
    done | grep . && return 1
    sed -n 's/^\.SH \(CORE\|ADVANCED\|FOR STUDY\|CUDA\)$/\1/p' "$work/man/man7/moepage.7" |
        tr '\n' ' ' >"$work/order"
    [ "$(cat "$work/order")" = 'CORE ADVANCED FOR STUDY CUDA ' ]
}
check "every page says which part of the header it is of, and moepage(7) lists core first" parts

overview() {
    grep -c '^\\fBmoepage_[a-z_]*\\fP(3)$' "$work/man/man7/moepage.7" >"$work/count"
    [ "$(cat "$work/count")" = "$(wc -l <"$work/functions")" ] &&
        grep -q 'MOEPAGE_E_WOULD_NOT_FIT = \\-7' "$work/man/man7/moepage.7"
}
check "moepage(7) names every function and every status" overview

no_comment() {
    mkdir -p "$work/bad" && sed 's|^/\* Closes a device\. .*\*/$||' include/moepage.h >"$work/bad/moepage.h"
    ! docs/man/man.sh "$work/none" "$work/bad/moepage.h" 2>"$work/complaint" &&
        grep -q 'moepage_device_close has no comment' "$work/complaint"
}
check "a function without a comment is refused" no_comment

# One page at a time: a warning is then of a page.
rendered() { # rendered COMMAND...
    for page in $(grep -L '^\.so' "$pages"/*) "$work/man/man7/moepage.7"; do
        "$@" "$page" 2>&1 >/dev/null | sed "s|^|$(basename "$page"): |"
    done | grep . && return 1
    return 0
}
linted() {
    for page in $(grep -L '^\.so' "$pages"/*) "$work/man/man7/moepage.7"; do
        mandoc -T lint -W warning "$page"
    done | grep -v 'missing date' | grep . && return 1 # a date would not be the headers'
    return 0
}
if command -v groff >/dev/null; then
    check "groff has no warning" rendered groff -man -ww -z -Tascii
else
    skip "groff has no warning" "groff is not installed"
fi
if command -v mandoc >/dev/null; then
    check "mandoc has no warning" linted
else
    skip "mandoc has no warning" "mandoc is not installed"
fi

finish
