#!/bin/sh
# The tools and their standard streams: missing ones, full ones, and terminals of every width.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
bin=$(cd "${BUILD:-build}/bin" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools='moepage-generate moepage-eval moepage-inspect moepage-pack moepage-bench'

full_device() {
    for tool in $tools; do
        "$bin/$tool" --help >/dev/full 2>"$work/err" && { echo "$tool: exit status 0"; return 1; }
        [ "$(wc -l <"$work/err")" = 1 ] || { cat "$work/err"; return 1; }
    done
    ! "$bin/moepage-pack" --list-shapes >/dev/full 2>/dev/null
}
check "a help text that cannot be written is a failure, in one line" full_device

lost_output() {
    ! "$bin/moepage-inspect" examples/models/tiny-qwen3moe >&- 2>"$work/err" || return 1
    [ "$(wc -l <"$work/err")" = 1 ]
}
check "output to a closed stream is noticed" lost_output

# What would be printed must not land in the file, whose descriptor would else be a standard one.
closed_streams() {
    "$bin/moepage-pack" --synthetic toy "$work/whole.moepack" >/dev/null 2>&1 || return 1
    "$bin/moepage-pack" --synthetic toy "$work/gaps.moepack" <&- 2>&- >"$work/out" || return 1
    cmp "$work/whole.moepack" "$work/gaps.moepack" || return 1
    "$bin/moepage-pack" --synthetic toy "$work/mute.moepack" <&- >&- 2>&- # output is lost: fails
    cmp "$work/whole.moepack" "$work/mute.moepack" || return 1
    "$bin/moepage-generate" --model "$work/whole.moepack" --tokens 1 --max-tokens 2 --json \
        --logits-out "$work/logits" <&- 2>&- >/dev/null || return 1
    [ "$(wc -c <"$work/logits")" = $((2 * $(vocabulary) * 4)) ]
}
vocabulary() {
    "$bin/moepage-inspect" "$work/whole.moepack" --json | sed 's/.*"vocabulary":\([0-9]*\).*/\1/'
}
check "files hold what they should when standard streams are closed" closed_streams

# terminal COLUMNS TERM: what a pack of a small model shows on a terminal, line by line.
terminal() {
    script -qec "stty cols $1; TERM=$2 '$bin/moepage-pack' --synthetic toy '$work/bar.moepack' \
        >/dev/null" /dev/null </dev/null | tr '\r' '\n'
}
escape=$(printf '\033')
fits() {
    terminal "$1" xterm | sed "s/$escape\[K//" >"$work/shown"
    cat "$work/shown"
    grep -q packing "$work/shown" && ! grep -q "^.\{$1\}" "$work/shown"
}
bars() { fits 20 && fits 44 && fits 120 && grep -q '\[###*\] 100% of 3.* MB' "$work/shown"; }
no_bar() {
    for kind in dumb ''; do
        terminal 80 "$kind" >"$work/shown"
        ! grep -q "$escape" "$work/shown" || return 1
    done
}
check_on_terminal "the progress bar stays on its line" bars
check_on_terminal "a terminal that cannot draw gets no escape codes" no_bar
finish
