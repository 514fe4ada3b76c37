# SPDX-License-Identifier: Apache-2.0
#
# For tests that wait for another process; they read it by `. "$TDM_SRCDIR/tests/support/waits.sh"`.

# wait_until COMMAND...: until it succeeds. Five minutes at most: how busy the computer is must decide nothing.
wait_until() {
    for _ in $(seq 3000); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}
