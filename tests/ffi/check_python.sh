#!/bin/sh
# The Python package against torch and transformers: all of tests/ffi/python and
# tests/ffi/transformers, with an interpreter that has what they need. That is $MOEPAGE_PYTHON, or
# a private environment in $BUILD/python-venv, which is made if it is missing (several GB: torch
# from PyPI comes with CUDA). Environments that cannot be made are a named skip.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
build=$(realpath "${BUILD:-build}")
MOEPAGE_LIBRARY=$(realpath "${LIB:-lib}/libmoepage.so.0"); export MOEPAGE_LIBRARY
MOEPAGE_SOURCE=$(pwd); export MOEPAGE_SOURCE
BUILD=$build; export BUILD
PYTHONDONTWRITEBYTECODE=1; export PYTHONDONTWRITEBYTECODE
HF_HUB_OFFLINE=1; export HF_HUB_OFFLINE
OMP_NUM_THREADS=1; export OMP_NUM_THREADS # small products on busy cores wait for each other
unset PYTHONPATH PYTHONHOME PYTHONOPTIMIZE
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Leaves an interpreter with the requirements in $python, or says in $why what is missing.
find_python() {
    venv=$build/python-venv
    python=${MOEPAGE_PYTHON:-$venv/bin/python}
    if [ -z "${MOEPAGE_PYTHON:-}" ] && [ ! -e "$venv/complete" ]; then
        install >"$work/pip" 2>&1 ||
            { why=$( (grep '^ *ERROR: ' "$work/pip" || cat "$work/pip") | tail -n 1); return 1; }
    fi
    "$python" -c 'import numpy, torch, transformers, tokenizers' >"$work/import" 2>&1 ||
        { why="$python: $(tail -n 1 "$work/import")"; return 1; }
}
install() {
    rm -rf "$venv"
    cp -r examples/python "$work/source" && # building leaves files in a source tree
        python3 -m venv "$venv" &&
        timeout 2400 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            numpy "$work/source[transformers]" &&
        "$venv/bin/python" -m pip uninstall --quiet --yes moepage && # the tests take the tree's
        touch "$venv/complete"
}
if ! find_python; then
    skip "the Python package with torch and transformers" "$why"
    finish
fi

MOEPAGE_PYTHON=$python sh tests/ffi/test_python.sh # which has a plan of its own
failures=$?

# Tests print TAP without numbers; a process that dies is a failure of its own.
modules=$(cd tests/ffi/transformers && ls test_*.py | sed 's/\.py$//')
(cd tests/ffi/transformers && PYTHONPATH=$MOEPAGE_SOURCE/examples/python:. \
    "$python" -X faulthandler "$MOEPAGE_SOURCE/tests/ffi/python/tap.py" $modules) >"$work/tap" 2>&1
status=$?
take "$work/tap"
ended() {
    grep -q '^ok' "$work/tap" && { [ "$status" = 0 ] || grep -q '^not ok' "$work/tap"; }
}
check "the interpreter ends by itself" ended
finish
