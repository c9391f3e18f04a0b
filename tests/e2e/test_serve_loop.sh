#!/bin/sh
# The serving loop: every way to divide the budget serves every request once, as if it were alone; under
# pressure, interrupted, and asked for nonsense.
#
# With MP_TEST_LONG=1 all 500 requests of the trace, in six ways: some minutes.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
serve=$(cd "${BUILD:-build}/bin" && pwd)/serve_loop
trace=tests/data/azure-conversation-500.csv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

numbers() { # numbers KEY FILE: all of that name, one a line
    grep -o "\"$1\":[0-9.]*" "$2" | cut -d: -f2
}
all_are() { # all_are KEY VALUE FILE
    [ -n "$(numbers "$1" "$3")" ] && [ "$(numbers "$1" "$3" | sort -u)" = "$2" ] ||
        { echo "$1: $(numbers "$1" "$3")"; return 1; }
}
sum() { numbers "$1" "$2" | awk '{ s += $1 } END { print s + 0 }'; }

# As many as were asked for, each with its whole answer, none twice; all KV blocks free again.
whole() { # whole REQUESTS FILE
    arms=$(grep -o '"split":' "$2" | wc -l)
    all_are done "$1" "$2" && all_are refused 0 "$2" && all_are same_as_alone "$1" "$2" &&
        [ "$(grep -o '"state":"done"' "$2" | wc -l)" = $((arms * $1)) ] &&
        [ "$(numbers free_blocks "$2")" = "$(numbers last_blocks "$2")" ]
}

every_split() {
    "$serve" --poisson 40 --requests 8 --prompt-tokens 40 --output-tokens 12 --clock virtual \
        --budget 60% --check --burst 4 --observe 4 \
        --split 50-50,fixed:70,flux,mv-wsa,mv-wsa-online,dual-resize,planner,layer-offload \
        --json "$work/all.json" --report "$work/all.html" --metrics "$work/all.prom" \
        >"$work/table" || return 1
    whole 8 "$work/all.json" && [ "$(grep -o '"split":' "$work/all.json" | wc -l)" = 8 ] &&
        grep -q '"not_served":\[\]' "$work/all.json"
}
check "every split serves every request as if it were alone" every_split

escape=$(printf '\033')
on_paper() {
    ! grep -q "$escape" "$work/table" && grep -q '^TPOT p99, ms  *[0-9]' "$work/table" &&
        grep -q '<svg' "$work/all.html" && ! grep -Eq '(src|href)=' "$work/all.html" &&
        grep -q '^moepage_.*arm="layer-offload"' "$work/all.prom" &&
        ! ls "$work"/all.prom.* 2>/dev/null
}
check "table, page and metrics are there, and no dashboard where there is no terminal" on_paper

# On a terminal there is a dashboard, which is gone when the table comes; on one that cannot draw there is
# none.
on_screen() { # on_screen TERM [FLAGS]
    script -qec "TERM=$1 '$serve' --poisson 50 --requests 2 --clock virtual --output-tokens 4 ${2:-}" \
        /dev/null </dev/null >"$work/screen"
    grep -q '^TPOT' "$work/screen"
}
dashboard() { # and a failure's line is not cleared with it
    on_screen xterm && grep -q "$escape\[5A$escape\[J" "$work/screen" &&
        grep -q 'preempted now' "$work/screen" && on_screen dumb && ! grep -q "$escape" "$work/screen" || return 1
    on_screen xterm "--metrics $work/no/where"
    grep -q 'preempted now' "$work/screen" && grep -q 'serve_loop: --metrics' "$work/screen" &&
        ! sed '1,/serve_loop: --metrics/d' "$work/screen" | grep -q "$escape"
}
check_on_terminal "a terminal that can has a dashboard" dashboard

# So many at once that prompts wait for room, and what grows drives the youngest out.
under_pressure() {
    "$serve" --poisson 1000 --requests 14 --prompt-tokens 8 --output-tokens 36 --clock virtual \
        --budget 3584K --check --split flux,fixed:40 --concurrency 12 --json "$work/tight.json" \
        >/dev/null || return 1
    whole 14 "$work/tight.json" && for n in $(numbers preemptions "$work/tight.json"); do
        [ "$n" -gt 0 ] || return 1
    done
    [ "$(numbers swapped_out_blocks "$work/tight.json")" = \
      "$(numbers swapped_in_blocks "$work/tight.json")" ]
}
check "preempted requests come back and go on where they were" under_pressure

# Who came first has the first token first, and the first of all is never preempted.
fair() {
    [ "$(grep -o '"split":' "$work/tight.json" | wc -l)" = 2 ] || return 1
    sed 's/"split":/\n&/g' "$work/tight.json" | grep '^"split"' | while read -r arm; do
        echo "$arm" | sed 's/.*"answers"//' >"$work/answers"
        numbers first_ns "$work/answers" | sort -nc || exit 1
        [ "$(numbers preempted "$work/answers" | head -1)" = 0 ] || exit 1
        [ "$(sum preempted "$work/answers")" -gt 0 ] || exit 1
    done
}
check "first tokens come in the order of arrival, whoever is preempted" fair

# One layer's experts leave 16 blocks; a prompt takes 10 of them. Who is let in keeps them.
promised() {
    for _ in 1 2 3; do
        echo '{"timestamp": 0, "input_length": 150, "output_length": 3, "hash_ids": []}'
    done >"$work/wide.jsonl"
    "$serve" --arrivals "$work/wide.jsonl" --clock virtual --budget 4M --split fixed:40 \
        --json "$work/wide.json" >/dev/null && all_are done 3 "$work/wide.json" &&
        all_are last_blocks 16 "$work/wide.json" && all_are moves 0 "$work/wide.json" &&
        all_are preemptions 0 "$work/wide.json"
}
check "room is promised once: prompts that come in are not driven out by each other" promised

same_twice() {
    for run in 1 2; do
        "$serve" --poisson 40 --requests 16 --clock virtual --split 50-50 --concurrency 4 --seed 9 \
            --prompt-tokens 40 --output-tokens 12 --temperature 0.8 \
            --json "$work/twice$run.json" >/dev/null || return 1
        sed 's/.*"answers"//' "$work/twice$run.json" >"$work/twice$run"
    done
    cmp "$work/twice1" "$work/twice2" &&
        [ "$(numbers idle_ns "$work/twice1.json")" = "$(numbers idle_ns "$work/twice2.json")" ]
}
check "a virtual clock gives the same run twice" same_twice

# What the options choose must not change an answer.
options() {
    i=0
    for extra in "--policy lfu-aged" "--policy s3fifo --prefetch on" "--policy lirs --math bf16" \
        "--policy sieve --prefetch maps" "--policy cycle --regime stream" \
        "--policy finemoe --prefetch coactivation" "--scope layer --prefetch hit-count" \
        "--host-tier 4M --io-threads 2" "--miss host --prefetch previous" \
        "--scan-percent 30 --max-group-experts 5"; do
        i=$((i + 1))
        # shellcheck disable=SC2086
        "$serve" --poisson 50 --requests 3 --clock virtual --check --prompt-tokens 32 \
            --output-tokens 8 $extra --json "$work/o$i.json" >/dev/null && whole 3 "$work/o$i.json" ||
            { echo "with $extra"; return 1; }
    done
}
check "policies, predictors and regimes change no answer" options

# A lower floor leaves controllers more room: KV may end smaller, and moves must wait for KV in use.
low_floor() {
    for floor in 1 8; do
        "$serve" --poisson 60 --requests 16 --clock virtual --check --budget 50% --burst 4 \
            --prompt-tokens 60 --output-tokens 30 --split mv-wsa-online --kv-floor $floor \
            --json "$work/floor$floor.json" >/dev/null && whole 16 "$work/floor$floor.json" ||
            return 1
    done
    [ "$(numbers last_blocks "$work/floor1.json")" -lt "$(numbers last_blocks "$work/floor8.json")" ]
}
check "KV's floor is how far controllers go" low_floor

# What the controller expects is told where it decides how many run.
expected() {
    for how in "" --admission; do
        # shellcheck disable=SC2086
        "$serve" --poisson 60 --requests 24 --clock virtual --budget 50% --burst 4 --prompt-tokens 40 \
            --output-tokens 20 --split mv-wsa-online $how --json "$work/expected$how.json" >/dev/null ||
            return 1
    done
    all_are target_running 0 "$work/expected.json" &&
        [ -n "$(numbers target_running "$work/expected--admission.json")" ] || return 1
    for key in predicted_ttft_ns predicted_tpot_ns; do
        all_are $key 0 "$work/expected.json" || return 1
        [ "$(numbers $key "$work/expected--admission.json")" -gt 0 ] || { echo "no $key"; return 1; }
    done
}
check "admission tells how many should run, and the times that are expected" expected

# Blocks that no sequence uses serve experts, and come back when they are needed.
lent() {
    "$serve" --poisson 40 --requests 24 --clock virtual --check --budget 50% --burst 8 --prompt-tokens 60 \
        --output-tokens 30 --split mv-wsa-online --admission --json "$work/lent.json" >/dev/null &&
        whole 24 "$work/lent.json" || return 1
    for key in recalls lent_blocks moves; do
        [ "$(numbers $key "$work/lent.json")" -gt 0 ] || { echo "no $key"; return 1; }
    done
}
check "admission and blocks that are lent change no answer" lent

mooncake() {
    for i in 0 1 2 3 4 5; do
        echo "{\"timestamp\": $((i * 20)), \"input_length\": $((4000 + i * 700))," \
            "\"output_length\": $((100 + i)), \"hash_ids\": [$i]}"
    done >"$work/moon.jsonl"
    "$serve" --arrivals "$work/moon.jsonl" --max-context 96 --check --bus 4G \
        --json "$work/moon.json" >"$work/moon.txt" && whole 6 "$work/moon.json" &&
        grep -q 'times are real' "$work/moon.txt"
}
check "Mooncake's lines are served in real time" mooncake

too_long() {
    ! "$serve" --poisson 1 --requests 2 --budget 3M 2>"$work/err" >/dev/null &&
        grep -q "at least" "$work/err"
}
check "a budget without room for the longest request is refused" too_long

interrupted() { # interrupted SIGNAL STATUS SPLITS REPORTED WORDS
    rm -f "$work/shown"; mkfifo "$work/shown"
    "$serve" --poisson 1000 --requests 2000 --clock virtual --dashboard on --split "$3" --observe 2000 \
        --json "$work/int.json" --report "$work/int.html" >"$work/shown" 2>"$work/err" &
    pid=$!
    {
        read -r first # the dashboard is there: it serves
        kill -s "$1" $pid
        cat >"$work/int.txt"
    } <"$work/shown"
    wait $pid
    status=$?
    [ $status = "$2" ] || { echo "status $status"; cat "$work/err"; return 1; }
    grep -q "$5" "$work/int.txt" && grep -q '^mv-wsa: not served$' "$work/int.txt" &&
        [ ! -s "$work/err" ] && grep -q '"not_served":\["mv-wsa"\]' "$work/int.json" &&
        grep -q '</html>' "$work/int.html" &&
        [ "$(numbers free_blocks "$work/int.json")" = "$(numbers last_blocks "$work/int.json")" ] &&
        [ "$(grep -o '"split":' "$work/int.json" | wc -l)" = "$4" ] &&
        [ "$(grep -o '"interrupted":true' "$work/int.json" | wc -l)" = "$4" ]
}
check "SIGINT ends with the report and status 130" \
    interrupted INT 130 50-50,mv-wsa 1 '^50-50: interrupted with'
check "SIGTERM ends with the report and status 143, in a rehearsal too" \
    interrupted TERM 143 mv-wsa 0 'times are virtual'

# The second split finds that it has seen too little; the first one's results are not lost.
half_way() {
    "$serve" --poisson 50 --requests 2 --clock virtual --output-tokens 4 --observe 1 \
        --split 50-50,mv-wsa,flux --json "$work/half.json" --report "$work/half.html" \
        >"$work/half.txt" 2>"$work/err"
    [ $? = 2 ] && [ "$(wc -l <"$work/err")" = 1 ] && all_are done 2 "$work/half.json" &&
        grep -q '"not_served":\["mv-wsa","flux"\]' "$work/half.json" &&
        grep -q '^mv-wsa: not served$' "$work/half.txt" && grep -q '</html>' "$work/half.html"
}
check "a split that fails takes none of those before it along" half_way

refused() { # refused WORD ARGUMENTS...: status 2, one line, which has the word in it
    word=$1; shift
    "$serve" "$@" >"$work/out" 2>"$work/err"
    status=$?
    [ $status = 2 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" = 1 ] &&
        grep -qe "$word" "$work/err" || { echo "$* -> $status"; cat "$work/err"; return 1; }
}

# What holds the place of a file is not replaced by one; of a link the file is, and no name is too odd.
places() {
    ln -s "$PWD/examples/models/tiny-qwen3moe" "$work/model$(printf '\377')"
    echo old >"$work/real.prom"; ln -s real.prom "$work/link.prom"
    "$serve" --poisson 50 --requests 1 --clock virtual --output-tokens 2 --metrics "$work/link.prom" \
        --model "$work/model$(printf '\377')" --json "$work/odd.json" >/dev/null &&
        [ -L "$work/link.prom" ] && grep -q '^moepage_' "$work/real.prom" &&
        grep -q "/model$(printf '\357\277\275')\"" "$work/odd.json" &&
        refused regular --poisson 50 --metrics "$work/shown" && [ -p "$work/shown" ]
}
check "devices and pipes stay what they are, links stay links" places

nonsense() {
    sed 's/^TIME.*Tokens/&2/' $trace >"$work/header"
    refused --arrivals &&
        refused --poisson --arrivals $trace --poisson 3 &&
        refused nowhere --arrivals "$work/nowhere.csv" &&
        refused config.json:1 --arrivals examples/models/tiny-qwen3moe/config.json &&
        refused --time-scale --poisson 3 --time-scale 2 &&
        refused --prompt-tokens --arrivals $trace --prompt-tokens 5 &&
        refused --step-tokens --poisson 3 --step-tokens 8 --concurrency 8 &&
        refused --admission --poisson 3 --target-tpot 5 &&
        refused milliseconds --poisson 3 --admission --target-ttft 0 &&
        refused planner --poisson 3 --admission --target-ttft 5 --split planner &&
        refused --split --poisson 3 --split half &&
        refused --split --poisson 3 --split flux,flux &&
        refused --budget --poisson 3 --budget 0 &&
        refused --poisson --poisson 0 &&
        refused --poisson --poisson x &&
        refused --poisson --poisson 1e-300 --requests 2 &&
        refused layer-offload --poisson 3 --requests 2 --clock virtual --budget 6M \
            --split 50-50,layer-offload --metrics "$work/begun.prom" && [ ! -e "$work/begun.prom" ] &&
        refused --observe --poisson 3 --requests 4 --clock virtual --split mv-wsa --observe 1 &&
        refused --remap --poisson 3 --check --remap 1,1 &&
        refused --miss --poisson 3 --miss low &&
        refused --prefetch-depth --poisson 3 --prefetch-depth 2 &&
        refused sim: --poisson 3 --device sim:examples/machines/h200.json &&
        refused lru2 --poisson 3 --policy lru2 &&
        refused nothing --poisson 3 --model "$work/nothing" &&
        refused --json --poisson 3 --json - --dashboard on &&
        refused directory --arrivals "$work" &&
        refused header --arrivals "$work/header" &&
        refused unknown --poisson 3 --what
}
check "nonsense is refused in one line" nonsense

helped() {
    flags=$("$serve" --help | grep -o -e '--[a-z][a-z-]*' | sort -u)
    [ "$(echo "$flags" | wc -l)" -gt 30 ] || return 1
    for flag in $flags; do
        [ "$flag" = --help ] || ! "$serve" "$flag" 2>&1 | grep -q unknown || { echo "$flag"; return 1; }
    done
}
check "every flag that --help names is one" helped

lost_files() {
    for flag in --json --report --metrics; do
        "$serve" --poisson 50 --requests 2 --clock virtual $flag "$work/no/where" \
            >/dev/null 2>"$work/err"
        [ $? = 1 ] && grep -qe "$flag" "$work/err" || return 1
    done
}
check "a file that cannot be written is a failure that names it" lost_files

name="500 requests of the Azure conversation trace, in six ways"
long() {
    "$serve" --arrivals $trace --check --clock virtual --json "$work/long.json" \
        --split 50-50,flux,mv-wsa,mv-wsa-online,layer-offload >/dev/null && whole 500 "$work/long.json" &&
        "$serve" --arrivals $trace --check --clock virtual --json "$work/let.json" --admission \
            --split mv-wsa-online >/dev/null && whole 500 "$work/let.json"
}
if [ -n "${MP_TEST_LONG:-}" ]; then
    check "$name" long
else
    skip "$name" "MP_TEST_LONG is not set"
fi

finish
