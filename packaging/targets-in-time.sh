#!/usr/bin/env bash
# Which commands a new machine (fresh-machine.sh) has time for.
#   targets-in-time.sh LEFT_S SUITE_S     seconds that are left, and those that `make test` has taken on this machine
# Prints the targets: `run test`, the part of the tests that depends on the machine (`run test-machine`), `run`, or nothing.
set -euo pipefail
make_and_start_s=$((180 + $2 / 5)) # debootstrap, packages, the window: 250 s where the tests take 17 minutes
left_s=$(($1 - make_and_start_s))
if [ "$left_s" -ge $(($2 * 5 / 4)) ]; then
    echo run test
elif [ "$left_s" -ge $(($2 / 3)) ]; then
    echo run test-machine
elif [ "$left_s" -ge 0 ]; then
    echo run
fi
