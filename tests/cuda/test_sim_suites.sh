#!/bin/sh
# The suites that take their device from tests/support/device_rig.h, on "cuda" over the simulated
# driver.
set -u
. tests/support/tap.sh
property=${BUILD:-build}/release/suites/property
for suite in test_same_bits test_pool_stress; do
    check "$suite holds on a CUDA device over the simulated driver" \
        env MP_TEST_DEVICE=sim CMOCKA_MESSAGE_OUTPUT=STDOUT "$property" $suite
done
finish
