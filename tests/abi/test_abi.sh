#!/bin/sh
# What the shared library exports is what the headers declare and what the baseline records.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
library=${LIB:-lib}/libmoepage.so.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tests/abi/symbols.sh >"$work/symbols" && tests/abi/structs.sh >"$work/structs" || exit 1
cut -f 1 "$work/symbols" >"$work/declared"
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
    sort >"$work/exported"
nm -D --undefined-only "$library" | awk '{ sub(/@.*/, "", $2); print $2 }' | sort >"$work/imported"

check "the library exports exactly the functions that the headers declare" \
    diff -u "$work/declared" "$work/exported"

versioned() {
    nm -D --defined-only "$library" |
        awk '$2 == "T" && $3 !~ /@@MOEPAGE_0$/ { print; bad = 1 } END { exit bad }'
}
check "every export carries the version of the symbol map" versioned

soname() { [ "$(objdump -p "$library" | awk '$1 == "SONAME" { print $2 }')" = libmoepage.so.0 ]; }
check "the soname is libmoepage.so.0" soname

immediate() { readelf -d "$library" | grep -q 'FLAGS.*NOW'; }
check "symbols are bound at load time" immediate

# The promise of moepage.h: never aborts, exits, prints, or reads the environment.
forbidden='abort exit _exit _Exit quick_exit __assert_fail getenv secure_getenv environ printf
__printf_chk vprintf puts putchar perror stdout stderr syslog signal sigaction'
imports_none() { printf '%s\n' $forbidden | grep -xFf - "$work/imported" && return 1; return 0; }
check "the library imports nothing that aborts, exits, prints or reads the environment" imports_none

shipped_bare() { ! nm "$library" "${LIB:-lib}/libmoepage.a" | grep -e ' mp_sim_' -e mp_model_open_phantom; }
check "neither library that is shipped has simulated devices" shipped_bare

no_gap() {
    awk '$1 == "struct" { if (end != size) { print name " ends at " end " of " size; bad = 1 }
                          name = $2; size = $3; end = 0 }
         $1 == "field" { if ($3 != end) { print "gap before " $2; bad = 1 }; end = $3 + $4 }
         END { if (end != size) { print name " ends at " end " of " size; bad = 1 }; exit bad }' \
        "$work/structs"
}
check "the fields of every struct fill it without a gap" no_gap

counted() { # counted PATTERN KIND: the table has one line per match in the header
    [ "$(cat include/*.h | grep -cE "$1")" = "$(grep -c "^$2 " "$work/structs")" ]
}
check "the table has every struct" counted '^typedef struct moepage_[a-z_]+ \{' struct
check "the table has every callback" counted '^typedef .*\(\*moepage_' callback

# What lies in arrays has no size of its own (docs/abi.md).
struct_size_first() {
    awk '$2 ~ /_(expert_tensor|dense_tensor|file_place|metadata|step_sequence|plan_expert|decode_job)$/ { next }
         $1 == "struct" { want = $2 ".struct_size" }
         $1 == "field" && want {
             if ($2 != want || $3 != 0 || $4 != 4) { print want " is not first"; bad = 1 }
             want = "" }
         END { exit bad }' "$work/structs"
}
check "structs that do not lie in arrays begin with struct_size" struct_size_first

baseline() { # baseline NAME: a line gone is a break, a line new must be recorded
    diff "lib/abi/$1.txt" "$work/$1" >"$work/diff" && return 0
    grep -q '^<' "$work/diff" && echo "ABI changed: '<' was promised (docs/abi.md)"
    grep -q '^>' "$work/diff" && echo "new in the ABI: 'make abi-update' records it"
    cat "$work/diff"
    return 1
}
check "functions are those of lib/abi/symbols.txt" baseline symbols
check "types and constants are those of lib/abi/structs.txt" baseline structs

finish
