#!/bin/sh
# The suites that take their device from tests/support/device_rig.h, on "cuda" over the simulated
# driver.
set -u
. tests/support/tap.sh
suites=${BUILD:-build}/release/suites
for program in property/test_same_bits property/test_pool_stress property/test_version_outputs \
    property/test_version_walk unit/test_versions unit/test_versions_ffn unit/test_version_places \
    property/test_budget_bits; do
    check "${program#*/} holds on a CUDA device over the simulated driver" \
        env MP_TEST_DEVICE=sim CMOCKA_MESSAGE_OUTPUT=STDOUT "$suites/${program%/*}" "${program#*/}"
done
finish
