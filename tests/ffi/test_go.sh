#!/bin/sh
# The Go package of examples/go: how it is written, its own tests one by one, and its example beside
# the tool that is written in C.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
name="the Go package"
absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
build=$(absolute "${BUILD:-build}") lib=$(absolute "${LIB:-lib}")
# The same library, with simulated devices.
simulated=$build/release/simulated
model=$PWD/examples/models/tiny-qwen3moe
headers=$(cat include/*.h | cksum)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ---- The toolchain, which must not write outside the build directory or ask the network ----

if ! command -v go >/dev/null; then
    skip "$name" "no go on PATH: Debian's package is golang-go"
    finish
fi
GOCACHE=$build/go/cache GOPATH=$build/go/path GOENV=off GO111MODULE=on GOWORK=off
GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=1
# What is linked runs once: nobody needs it described to a debugger, or its C optimised.
GOFLAGS="-buildvcs=false -ldflags=-w" CGO_CFLAGS=-O0
CGO_LDFLAGS="-L$lib -Wl,-rpath,$lib"
MOEPAGE_GENERATE=$build/bin/moepage-generate
export GOCACHE GOPATH GOENV GO111MODULE GOFLAGS GOWORK GOPROXY GOTOOLCHAIN CGO_ENABLED CGO_CFLAGS
export CGO_LDFLAGS MOEPAGE_GENERATE
minor=$(go version | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p')
if [ "${minor:-99}" -lt 19 ]; then
    skip "$name" "$(go version): 1.19 is the oldest that will do"
    finish
fi

# Go looks at its own files to see what has to be compiled again; the C headers are elsewhere.
mkdir -p "$build/go"
if [ "$headers" != "$(cat "$build/go/headers" 2>/dev/null)" ]; then
    rm -rf "$GOCACHE"
    echo "$headers" >"$build/go/headers"
fi
cd examples/go || exit 1

# ---- How it is written ----------------------------------------------------------------------

formatted() {
    formatter=$(command -v gofmt) || formatter=$(go env GOROOT)/bin/gofmt
    unformatted=$("$formatter" -l .) && echo "$unformatted" && [ -z "$unformatted" ]
}
check "gofmt would change nothing" formatted
check "go vet finds nothing" go vet ./...

# ---- Its tests ------------------------------------------------------------------------------

# What a test said, and that it failed.
failed() { # failed TEST
    awk -v test="$1" '$1 == "===" { on = $3 == test || index($3, test "/") == 1 } on' "$work/log"
    return 1
}
ended() { # ended STATUS
    grep -v -e '^=== ' -e '^ *--- ' "$work/log" | tail -n 50
    [ "$1" = 0 ] && [ -s "$work/results" ]
}

# go_tests TITLE ARGUMENT...: one case for each test of `go test`, and one for its whole.
go_tests() {
    title=$1; shift
    LD_LIBRARY_PATH=$simulated${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        go test -v -count=1 -timeout 200s "$@" >"$work/log" 2>&1
    status=$?
    awk '/^--- [A-Z]+: / { sub(/:/, "", $2); reason = before; sub(/^ *[^ ]*: /, "", reason)
                           print $2, $3, reason }
         { before = $0 }' "$work/log" >"$work/results"
    while read -r verdict test reason; do
        case $verdict in
        PASS) check "$title: $test" true ;;
        SKIP) skip "$title: $test" "$reason" ;;
        *) check "$title: $test" failed "$test" ;;
        esac
    done <"$work/results"
    check "$title: every test ended" ended $status
}

# The strict check of what pointers C is given, as long as it needs no other runtime.
if [ "$minor" -lt 21 ]; then
    GODEBUG=cgocheck=2; export GODEBUG
fi
go_tests "go test" ./...
if [ -n "${MP_TEST_LONG:-}" ]; then
    go_tests "go test -race" -race .
else
    skip "go test -race" "MP_TEST_LONG is not set"
fi
unset GODEBUG

# ---- Its example ----------------------------------------------------------------------------

generate=$build/go/generate
check "the example is built" go build -o "$generate" ./cmd/generate

same_tokens() { # same_tokens BUDGET
    "$generate" -model "$model" -prompt 'int main(' -prompt 'The ' -tokens 48 -budget "$1" -json |
        sed 's/.*"outputs":\[\(.*\)\],"stats".*/\1/' >"$work/ours" || return 1
    "$MOEPAGE_GENERATE" --model "$model" --prompt 'int main(' --prompt 'The ' --max-tokens 48 \
        --budget "$1" --json | grep -o '"tokens":\[[0-9,]*\]' | sed 's/"tokens"://' |
        paste -sd, - >"$work/theirs"
    cat "$work/ours" "$work/theirs"
    [ -s "$work/theirs" ] && cmp "$work/ours" "$work/theirs"
}
check "the example's tokens are moepage-generate's" same_tokens 100%
check "so they are with a quarter of the experts" same_tokens 25%

refused() { # refused STATUS -eq|-gt LINES ARGUMENT...
    expected=$1 compare=$2 lines=$3; shift 3
    "$generate" "$@" >"$work/out" 2>"$work/err"
    status=$?
    cat "$work/out" "$work/err"
    [ $status = "$expected" ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" $compare "$lines" ]
}
check "a missing model is an error of one line" refused 1 -eq 1 -model "$work/none" -prompt x
check "a missing prompt is a matter of usage" refused 2 -gt 5 -model "$model"

# Against an installed library, as programs outside of this tree are built. Go keeps what pkg-config
# said with what it has compiled: the folder is the same in every run.
installed() {
    usr=$build/go/usr
    rm -rf "$usr" && mkdir -p "$usr" && ln -s "$lib" "$usr/lib" &&
        ln -s "$OLDPWD/include" "$usr/include" || return 1
    sed -e "s|@PREFIX@|$usr|" -e 's|@VERSION@|0|' -e 's|@PKGS@||' \
        "$OLDPWD"/pkgconfig/*.pc.in >"$work/moepage.pc"
    PKG_CONFIG_PATH=$work CGO_LDFLAGS= go build -tags pkgconfig -o "$work/generate" ./cmd/generate &&
        LD_LIBRARY_PATH=$lib "$work/generate" -model "$model" -prompt x -tokens 1
}
if command -v pkg-config >/dev/null; then
    check "an installed library is found by pkg-config" installed
else
    skip "an installed library is found by pkg-config" "no pkg-config"
fi
finish
