#!/bin/sh
# The Rust crates of examples/rust: generated bindings, how they are written, their own tests one by
# one, and the example beside the tool that is written in C.
set -u
LC_ALL=C; export LC_ALL
PYTHONDONTWRITEBYTECODE=1; export PYTHONDONTWRITEBYTECODE
. tests/support/tap.sh
name="the Rust crates"
model=$PWD/examples/models/tiny-qwen3moe
lib=${LIB:-lib} bin=${BUILD:-build}/bin
# The same library, with simulated devices.
simulated=$(realpath "${BUILD:-build}")/release/simulated
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if command -v python3 >/dev/null; then
    check "the bindings are what is generated from lib/abi" python3 lib/abi/bindings/rust.py --check
else
    skip "the bindings are what is generated from lib/abi" "no python3 on PATH"
fi

# ---- The toolchain, which must not write outside the build directory or ask the network ----

PATH=$PATH:${CARGO_HOME:-${HOME:-/}/.cargo}/bin
if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
    skip "$name" "no cargo and rustc on PATH: Debian's packages have these names"
    finish
fi
minor=$(rustc --version | sed -n 's/^rustc 1\.\([0-9]*\).*/\1/p')
if [ "${minor:-99}" -lt 63 ]; then
    skip "$name" "$(rustc --version): 1.63 is the oldest that will do"
    finish
elif nm -D --undefined-only "$lib/libmoepage.so.0" | grep -q -e __asan_ -e __tsan_; then
    skip "$name" "rustc does not link a library that is built with a sanitizer"
    finish
fi
mkdir -p "${BUILD:-build}/rust"
MOEPAGE_LIB_DIR=$(realpath "$lib") CARGO_TARGET_DIR=$(realpath "${BUILD:-build}/rust")
CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 RUSTFLAGS=-Dwarnings
# Most of the time goes into optimising tests that run once, and describing them to debuggers.
CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0
export MOEPAGE_LIB_DIR CARGO_TARGET_DIR CARGO_NET_OFFLINE CARGO_TERM_COLOR CARGO_INCREMENTAL
export CARGO_PROFILE_DEV_OPT_LEVEL CARGO_PROFILE_DEV_DEBUG RUSTFLAGS PATH
unset CARGO_BUILD_TARGET CARGO_ENCODED_RUSTFLAGS RUSTC_WRAPPER
rust() { # rust SUBCOMMAND FLAG...
    subcommand=$1; shift
    cargo "$subcommand" --manifest-path examples/rust/Cargo.toml "$@"
}

# ---- How it is written ----------------------------------------------------------------------

if cargo fmt --version >/dev/null 2>&1; then
    check "rustfmt would change nothing" rust fmt --all --check
else
    skip "rustfmt would change nothing" "no rustfmt: Debian's package has that name"
fi
if cargo clippy --version >/dev/null 2>&1; then
    check "clippy finds nothing" rust clippy --locked --all-targets -- -D warnings
else
    skip "clippy finds nothing" "no clippy: Debian's package is rust-clippy"
fi
explained() { # every unsafe block and impl says why it is right, in the lines above it
    awk '/SAFETY:|# Safety/ { near = FNR }
         FNR == 1 { near = -9 }
         /unsafe (impl|\{)/ && FNR - near > 7 { print FILENAME ":" FNR ": " $0; bad = 1 }
         END { exit bad }' $(find examples/rust -name '*.rs')
}
check "every unsafe block says why it is safe" explained

# ---- Its tests ------------------------------------------------------------------------------

check "it builds without a warning" rust test --locked --lib --tests --no-run
ran() { # ran FLAG...: all tests pass
    LD_LIBRARY_PATH=$simulated${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        rust test --locked --no-fail-fast "$@" >>"$work/log" 2>&1
    status=$?
    [ "$status" = 0 ] || grep -v ' \.\.\. ok$' "$work/log" | tail -n 60
    return "$status"
}
# Stable compilers look at the error codes of what must not compile only when told to.
documented() { (export RUSTC_BOOTSTRAP=1; ran --doc); }
check "its tests pass" ran --lib --tests
check "its documentation's examples compile, or fail to, as they say" documented
sed -n 's/^test \(.*\) \.\.\. .*$/\1/p' "$work/log" >"$work/tests"
while read -r test; do
    check "$test" grep -qxF "test $test ... ok" "$work/log"
done <"$work/tests"
all_there() { wc -l <"$work/tests" && [ "$(wc -l <"$work/tests")" -ge 66 ]; }
check "no test was left out" all_there

# ---- Its example ----------------------------------------------------------------------------

# The lists of numbers under a key, one on a line.
lists() { # lists KEY FILE
    tr -d ' \n' <"$2" | grep -o "\"$1\":\[[0-9,]*\]" | sed -e 's/.*\[//' -e 's/\]//'
}
reference=$model/reference/reference.json
lists prompt_bytes "$reference" >"$work/prompts"
lists greedy "$reference" >"$work/greedy"

same_tokens() { # same_tokens PERCENT: as the C tool, and as the model's own reference
    ours= theirs=
    while read -r prompt; do
        ours="$ours --prompt-tokens $prompt" theirs="$theirs --tokens $prompt"
    done <"$work/prompts"
    "$CARGO_TARGET_DIR/debug/examples/generate" --model "$model" --tokens 64 --budget "$1%" \
        --json $ours >"$work/ours.json" &&
        "$bin/moepage-generate" --model "$model" --max-tokens 64 --budget "$1%" --json $theirs \
            >"$work/theirs.json" || return 1
    lists tokens "$work/ours.json" >"$work/ours"
    lists tokens "$work/theirs.json" >"$work/theirs"
    [ "$(wc -l <"$work/ours")" = 8 ] && diff "$work/ours" "$work/theirs" &&
        diff "$work/ours" "$work/greedy"
}
# It computes: this one is worth optimising.
check "the example builds without a warning" \
    rust rustc --locked -p moepage --example generate -- -C opt-level=2
for percent in 100 25; do
    check "the example gives the tokens of moepage-generate at $percent %" same_tokens $percent
done

readable() {
    "$CARGO_TARGET_DIR/debug/examples/generate" --model "$model" --prompt 'int main(' --tokens 8 \
        --budget 25% --metrics >"$work/text" &&
        grep -q '^hit rate  *[0-9.]*% (' "$work/text" &&
        grep -q '^moepage_' "$work/text"
}
check "the example prints text, its hit rate and metrics" readable
refused() { ! "$CARGO_TARGET_DIR/debug/examples/generate" --model "$model" --budget 25 --prompt x; }
check "the example refuses flags that it does not know" refused
finish
