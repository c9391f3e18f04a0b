#!/bin/sh
# Which tests a name means: make test T=NAME.
#
#   tests/choose.sh [NAME]
#
# Prints the programs (unit/test_x) and scripts (abi/test_x.sh) whose path has NAME in it; of the other
# programs, PROGRAM:*NAME* where the name of a case has it. Without NAME: everything.
name=${1:-}
for file in tests/*/test_*.c tests/*/test_*.sh; do
    test=${file#tests/}
    sources=$file
    case $test in
    *"$name"*) echo "${test%.c}"; continue ;;
    *.sh) continue ;;
    conformance/*) sources=$(ls tests/conformance/*.c) ;;
    esac
    if grep -qE "test_[a-z0-9_]*$name" $sources; then
        echo "${test%.c}:*$name*"
    fi
done
