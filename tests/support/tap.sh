# Sourced by shell tests: cases that report in TAP.
cases=0 failures=0

# check NAME COMMAND...: the case passes if the command does; its output is shown if it does not.
check() {
    name=$1; shift
    cases=$((cases + 1))
    if output=$("$@" 2>&1); then
        echo "ok $cases - $name"
    else
        failures=$((failures + 1))
        echo "not ok $cases - $name"
        printf '%s\n' "$output" | sed 's/^/# /'
    fi
}

# skip NAME WHY
skip() {
    cases=$((cases + 1))
    echo "ok $cases - $1 # SKIP $1 ($2)"
}

# check_on_terminal NAME COMMAND...: a check that needs script(1) and a pseudo-terminal of this machine.
check_on_terminal() {
    if ! command -v script >/dev/null; then
        skip "$1" "no script command"
    elif ! script -qec true /dev/null </dev/null >/dev/null 2>&1; then
        skip "$1" "no pseudo-terminal on this machine"
    else
        check "$@"
    fi
}

# take FILE: the cases that another program reported, without numbers.
take() {
    while IFS= read -r line; do
        case $line in
        "ok - "*) cases=$((cases + 1)); echo "ok $cases${line#ok}" ;;
        "not ok - "*)
            cases=$((cases + 1)); failures=$((failures + 1)); echo "not ok $cases${line#not ok}" ;;
        *) printf '%s\n' "$line" | sed 's/^#* */# /' ;;
        esac
    done <"$1"
}

finish() {
    echo "1..$cases"
    [ "$failures" = 0 ]
    exit
}
