#!/bin/sh
# The tree keeps to the order of its rooms, and to their doors: order.txt, doors.txt.
set -u
. tests/support/tap.sh
check "no arrow, circle or header breaks the order of the rooms" "${MAKE:-make}" -s check-layers
finish
