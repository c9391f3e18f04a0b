#!/bin/sh
# The Python package: its bindings say what the ABI says, and its tests (python/test_*.py) pass.
# MOEPAGE_PYTHON names another interpreter than python3, such as one that has NumPy and torch.
set -u
LC_ALL=C; export LC_ALL
. tests/support/tap.sh
python=${MOEPAGE_PYTHON:-python3}
MOEPAGE_LIBRARY=$(realpath "${LIB:-lib}/libmoepage.so.0"); export MOEPAGE_LIBRARY
MOEPAGE_SOURCE=$(pwd); export MOEPAGE_SOURCE
PYTHONDONTWRITEBYTECODE=1; export PYTHONDONTWRITEBYTECODE
unset PYTHONPATH PYTHONHOME PYTHONOPTIMIZE
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
simulated=${BUILD:-build}/release/simulated/libmoepage.so.0

name="the Python package"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    skip "$name" "no $python of version 3.9 or later"
    finish
elif nm -D --undefined-only "$MOEPAGE_LIBRARY" | grep -q -e __asan_ -e __tsan_; then
    skip "$name" "an interpreter cannot load a library that is built with a sanitizer"
    finish
fi

check "the bindings are what is generated from lib/abi" \
    "$python" lib/abi/bindings/python.py --check

# Both sides name a struct or a field and its numbers; C's has types behind them.
same_layout() {
    tests/abi/structs.sh | sed -n -e 's/^\(field [^ ]* [0-9]* [0-9]*\) .*/\1/' \
        -e '/^struct/p' -e '/^field/p' >"$work/c" &&
        "$python" lib/abi/bindings/python.py --layout >"$work/ctypes" &&
        [ -s "$work/c" ] && diff -u "$work/c" "$work/ctypes"
}
check "every struct lies in ctypes as it lies in C" same_layout

# Tests print TAP without numbers. A process that dies is a failure of its own. Its libraries are
# looked for in $path as well.
path=
run_tests() { # run_tests FLAGS MODULE...
    flags=$1; shift
    (cd tests/ffi/python && PYTHONPATH=$MOEPAGE_SOURCE/examples/python:. \
        LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$python" -X faulthandler $flags tap.py "$@") >"$work/tap" 2>&1
    status=$?
    sed "s/^\(not ok\|ok\) - /&${flags:+$flags }/" "$work/tap" >"$work/named"
    take "$work/named"
    check "the interpreter ends by itself${flags:+ with $flags}" ended "$status"
}
ended() {
    grep -q '^ok' "$work/tap" && { [ "$1" = 0 ] || grep -q '^not ok' "$work/tap"; }
}
run_tests "" $(cd tests/ffi/python && ls test_*.py | grep -v -e cuda -e simulated | sed 's/\.py$//')
run_tests "-X dev" test_misuse
if [ -e "$simulated" ]; then
    shipped=$MOEPAGE_LIBRARY
    MOEPAGE_LIBRARY=$(realpath "$simulated")
    run_tests "" test_simulated
    MOEPAGE_LIBRARY=$shipped
else
    skip "arrays of a simulated device" "no library with simulated devices: make tests"
fi
sim=${BUILD:-build}/release/sim
if [ -e "$sim/libcuda.so.1" ]; then
    path=$(realpath "$sim")
    run_tests "" test_cuda
    path=
else
    skip "arrays of a GPU" "no simulated GPU: make sim"
fi

installed() {
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index \
        --no-build-isolation --target "$work/site" "$work/source" &&
        (cd "$work" && PYTHONPATH=$work/site "$python" -W error -c "
import moepage, os
assert os.path.dirname(moepage.__file__) == os.path.join('$work', 'site', 'moepage')
assert os.path.exists(os.path.join(os.path.dirname(moepage.__file__), 'py.typed'))
with moepage.Device('host', budget='1MiB') as device:
    print(moepage.version(), device.info.name)")
}
name="an installed package works outside the tree"
# Older setuptools does not read pyproject.toml, or needs the package wheel.
builds='import setuptools, pip
have = tuple(int(n) for n in setuptools.__version__.split(".")[:2])
if have < (70, 1):
    import wheel
assert have >= (61, 0)'
if "$python" -c "$builds" 2>/dev/null; then
    cp -r examples/python "$work/source"
    check "$name" installed
else
    skip "$name" "$python has no pip, no setuptools of version 61 or later, or no wheel"
fi

# Where nobody says where the library is, and where there is none.
found() {
    (cd / && unset MOEPAGE_LIBRARY && PYTHONPATH=$MOEPAGE_SOURCE/examples/python "$python" -c "
from moepage import library
import os
assert next(library._candidates()) == os.path.join('$MOEPAGE_SOURCE', 'lib', 'libmoepage.so.0')")
}
if [ -e lib/libmoepage.so.0 ]; then
    check "a source tree's library is found" found
else
    skip "a source tree's library is found" "lib/ has none"
fi
missing() {
    output=$(MOEPAGE_LIBRARY=$work/none PYTHONPATH=$MOEPAGE_SOURCE/examples/python \
        "$python" -c "import moepage; moepage.version()" 2>&1)
    printf '%s\n' "$output" | grep "LibraryNotFound: no libmoepage: set MOEPAGE_LIBRARY" &&
        printf '%s\n' "$output" | grep "$work/none"
}
check "a missing library is an error that says where it was looked for" missing
finish
