#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far gradients are apart that `tidemark run --save-gradients` wrote.

    bench/gradients.py ONE OTHER...

ONE and OTHER are its directories. For each OTHER a line: 1 - cosine of the angle between all its gradients and those of
ONE, the norm of their difference as a share of the norm of ONE's, and the tensor for which 1 - cosine is largest. Sums
are in double precision. Exit status 1 if a directory cannot be read or has other tensors. Needs numpy.
"""
import json
import os
import sys

import numpy as np

BLOCK = 1 << 22  # values that are converted at a time


def read(directory):
    """The tensors of a directory by name, fp32, mapped."""
    path = os.path.join(directory, "gradients.safetensors")
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
    return {name: data[slice(*entry["data_offsets"])].view(np.float32) for name, entry in header.items()}


def products(a, b):
    """a * a, b * b and (a - b) * (a - b), summed."""
    sums = np.zeros(3)
    for i in range(0, a.size, BLOCK):
        x, y = a[i : i + BLOCK].astype(np.float64), b[i : i + BLOCK].astype(np.float64)
        sums += (x @ x, y @ y, (x - y) @ (x - y))
    return sums


def angle(sums):
    """1 - cosine, from the difference, so that equal digits do not cancel."""
    a, b = sums[0] ** 0.5, sums[1] ** 0.5
    if a == 0 or b == 0:
        return 0.0 if a == b else 1.0
    return max(0.0, (sums[2] - (a - b) ** 2) / (2 * a * b))


def compare(one, other):
    total, worst, where = np.zeros(3), 0.0, "none"
    for name in one:
        sums = products(one[name], other[name])
        total += sums
        if angle(sums) > worst:
            worst, where = angle(sums), name
    return angle(total), (total[2] / total[0]) ** 0.5 if total[0] > 0 else 0.0, worst, where


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    failed = 0
    one = read(sys.argv[1])
    for directory in sys.argv[2:]:
        try:
            other = read(directory)
            if {k: v.size for k, v in one.items()} != {k: v.size for k, v in other.items()}:
                raise ValueError(f"other tensors than {sys.argv[1]}")
            result = "1 - cosine %.2e, difference %.2e, worst tensor %.2e (%s)" % compare(one, other)
        except (OSError, ValueError) as error:
            result, failed = f"failed: {error}", 1
        print("%-24s %s" % (os.path.basename(os.path.normpath(directory)), result), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
