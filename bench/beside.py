#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast copies and updates on the host ran in traces, by what ran beside them.

    bench/beside.py TRACE...

TRACE is what `tidemark run --trace` wrote, of one rank. Each op moved its bytes in the seconds that it had alone and beside
other lanes; the rates of these fit all ops of all steps by least squares of relative errors. It prints a line for each lane and
what was busy beside it: GB/s, and the seconds that they are of. Combinations of less than 20 ms are left out, as are copies below
30 MB. Exit status 1 if a trace cannot be read, 2 for other arguments. Needs nothing but Python.
"""
import bisect
import sqlite3
import sys

LANES = ("h2d", "d2h", "host")
LEAST_BYTES = 30e6
LEAST_SECONDS = 0.02
OPS = """select lane, case lane when 'host' then op.bytes else copied_bytes end, start_ns, end_ns from op
         join timing on op_number = number where lane in ('h2d', 'd2h', 'host') and step = ? and end_ns > start_ns"""


def spans_of(ops):
    """For each op of a step its seconds by the lanes that were busy in them."""
    times = sorted({t for op in ops for t in op[2:]})
    busy = [0] * len(times)
    for lane, _, start, end in ops:
        for i in range(bisect.bisect_left(times, start), bisect.bisect_left(times, end)):
            busy[i] |= 1 << LANES.index(lane)
    for lane, moved, start, end in ops:
        spans = {}
        for i in range(bisect.bisect_left(times, start), bisect.bisect_left(times, end)):
            spans[busy[i]] = spans.get(busy[i], 0) + 1e-9 * (times[i + 1] - times[i])
        yield lane, moved or 0, spans


def solve(rows, right):
    """Gauss's elimination with pivots."""
    n = len(rows)
    m = [row + [value] for row, value in zip(rows, right)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(m[k][i]))
        m[i], m[pivot] = m[pivot], m[i]
        for k in range(n):
            if k != i:
                share = m[k][i] / m[i][i]
                m[k] = [a - share * b for a, b in zip(m[k], m[i])]
    return [m[i][n] / m[i][i] for i in range(n)]


def fit(ops):
    """The rate by what is busy: of ops with bytes and seconds."""
    total = {}
    for _, spans in ops:
        for busy, seconds in spans.items():
            total[busy] = total.get(busy, 0) + seconds
    kinds = sorted(busy for busy, seconds in total.items() if seconds >= LEAST_SECONDS)
    if not kinds:
        return []
    rows = [[sum(s.get(a, 0) * s.get(b, 0) / moved for moved, s in ops) for b in kinds] for a in kinds]
    rates = solve(rows, [sum(s.get(a, 0) for _, s in ops) for a in kinds])
    return list(zip(kinds, rates, (total[k] for k in kinds)))


def main(paths):
    if not paths or any(path.startswith("-") for path in paths):
        print(__doc__, file=sys.stderr)
        return 2
    for path in paths:
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as trace:
                steps = [row[0] for row in trace.execute("select distinct step from timing order by step")]
                taken = [op for step in steps for op in spans_of(trace.execute(OPS, (step,)).fetchall())]
        except sqlite3.Error as error:
            print(f"bench/beside.py: {path}: {error}; give what tidemark run --trace wrote", file=sys.stderr)
            return 1
        print(f"{path}: {len(steps)} steps")
        for number, lane in enumerate(LANES):
            for busy, rate, seconds in fit([(m, s) for of, m, s in taken if of == lane and m >= LEAST_BYTES]):
                beside = ", ".join(other for k, other in enumerate(LANES) if busy >> k & 1 and k != number)
                print(f"  {lane:5} beside {beside or 'nothing':10} {1e-9 * rate:6.1f} GB/s {seconds:7.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
