#!/bin/sh
# Runs test programs, shows one line for each, and ends with the totals over all test cases.
#
#   run.sh -o LOG_DIR [-s 'SKIPPED PART (why)']... PROGRAM[:ARGUMENT]...
#
# SUITE:PROGRAM[:PATTERN] is one program of a suite, or those of its cases that match. A program
# reports its cases in TAP on standard output (cmocka does so when asked), or skips as a whole by
# exit status 77. One that crashes, hangs, stops before its plan is done, exits non-zero without a
# failed case, or has no case at all counts as one failure more and is named; so is every skip. A
# program of the unit suites that takes more than UNIT_SECONDS of CPU time is named, without failing.
# Exit status: 0 if nothing failed and something passed or was named as skipped.
set -u
export CMOCKA_MESSAGE_OUTPUT=TAP

# Runs one program; leaves its output in LOG and its counts, failures and skips in LOG.result.
run_one() {
    log=$1/$(echo "$2" | tr -c 'A-Za-z0-9._\n' -).log
    launch=''
    # TSan's shadow memory collides with high-entropy address layouts.
    case $2 in */thread/*) setarch -R true 2>/dev/null && launch='setarch -R' ;; esac
    program=${2%%:*} argument=${2#*:}
    [ "$program" != "$2" ] || argument=''
    case $program in /*) ;; *) program=./$program ;; esac
    # Many more rounds where they are quick.
    if [ "${MP_TEST_LONG:-}" = plain ]; then
        case $2 in */release/* | *.sh) MP_TEST_LONG=1 ;; *) unset MP_TEST_LONG ;; esac
    fi
    began=$(date +%s)
    timeout "${TEST_TIMEOUT:-300}" $launch "$program" ${argument:+"$argument"} >"$log" 2>&1 </dev/null
    awk -v rc=$? -v name="$2" '
        function bad(what) { failed++; print "fail " name ": " what }
        /^1\.\.[0-9]+/ { planned += substr($1, 4) }
        /^(not )?ok [0-9]+ .*# *[Ss][Kk][Ii][Pp]/ {
            skipped++; sub(/^(not )?ok [0-9]+( -)? */, ""); sub(/^# *SKIP */, "")
            print "skip " name ": " $0; next }
        /^ok [0-9]+/ { passed++ }
        /^not ok [0-9]+/ { sub(/^not ok [0-9]+( -)? */, ""); bad($0) }
        END {
            cases = passed + failed + skipped
            if (rc == 77 && !cases) { cases = skipped = 1; print "skip " name }
            else if (rc == 124) bad("no end after the time limit")
            else if (rc > 128) bad("killed by signal " rc - 128)
            else if (rc && !failed) bad("exit status " rc)
            else if (!cases) bad("no test case ran")
            else if (planned > cases) bad("stopped after " cases " of " planned " cases")
            print "count", passed + 0, failed + 0, skipped + 0
        }' "$log" >"$log.result"
    # Of this process's children, user and system: on a busy machine the clock says little.
    times >"$log.times"
    cpu=$(awk -F '[ms ]+' 'NR == 2 { print int(60 * ($1 + $3) + $2 + $4 + 0.5) }' "$log.times")
    echo "time $cpu $(($(date +%s) - began)) $2" >>"$log.result"
    set -- "$2" $(sed -n 's/^count //p' "$log.result")
    if [ "$3" != 0 ]; then
        echo "FAIL  $1: $2 passed, $3 failed, $4 skipped"
        sed -n '/^ok [0-9]/!s/^/    | /p' "$log"
    elif [ "$4" != 0 ]; then
        echo "ok    $1: $2 passed, $4 skipped"
    else
        echo "ok    $1: $2 passed"
    fi
}

if [ "${1:-}" = --one ]; then
    report=$(run_one "$2" "$3")
    echo "$report"
    exit 0
fi

logs='' parts=''
while getopts o:s: option; do
    case $option in
    o) logs=$OPTARG ;;
    s) parts="$parts$OPTARG
" ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ -n "$logs" ] || { echo "run.sh: -o LOG_DIR is needed" >&2; exit 2; }

rm -rf "$logs" && mkdir -p "$logs" || exit 2
if [ $# -gt 0 ]; then
    printf '%s\n' "$@" | xargs -d '\n' -n 1 -P "$(nproc)" "$0" --one "$logs"
fi

cat /dev/null "$logs"/*.result 2>/dev/null >"$logs/all"
printf '%s' "$parts" | sed 's/^/skip /' >>"$logs/all"
echo
sed -n 's/^time \([0-9]*\) \([0-9]*\) /\1 s of CPU in \2 s: /p' "$logs/all" | sort -rn | head -n 5 | sed 's/^/slowest: /'
awk -v budget="${UNIT_SECONDS:-5}" '/^time / && $2 > budget && $4 ~ /suites\/unit/ {
    print "over budget: " $4 " took " $2 " s of CPU; a unit program has " budget " s" }' "$logs/all"
sed -n 's/^skip /skipped: /p' "$logs/all"
sed -n 's/^fail /failed: /p' "$logs/all"
awk -v programs=$# '
    /^count / { passed += $2; failed += $3; skipped += $4; reported++ }
    /^skip / { named++ }
    END {
        if (reported < programs) failed += programs - reported
        print passed + 0 " passed, " failed + 0 " failed, " named + 0 " skipped"
        exit failed > 0 || passed + named == 0
    }' "$logs/all"
