# mypy: allow-untyped-defs
"""How are the small dense systems inside the interior point method solved? Strict arithmetic, one thread."""

from __future__ import annotations

import numpy as np

from dpbalance.scheduler.compiled import kernel

DROPPED = 1e100
"""A pivot that vanished is replaced by this, which leaves its row out of the solution."""


@kernel
def factor(matrix, panel):
    """Cholesky in place (lower triangle), four columns at a time; `panel` is (4, n) scratch.

    Updates are sums of columns rather than dot products, so they vectorise without reordering any sum.
    """
    n = matrix.shape[0]
    for j in range(0, n, 4):
        width = min(4, n - j)
        for c in range(width):
            column = j + c
            for i in range(column, n):
                value = matrix[i, column]
                for b in range(c):
                    value -= panel[b, i] * panel[b, column]
                panel[c, i] = value
            pivot = panel[c, column]
            scale = 1.0 / np.sqrt(pivot) if pivot > 1e-30 else 1.0 / DROPPED
            for i in range(column, n):
                panel[c, i] *= scale
            panel[c, column] = 1.0 / scale
            for i in range(column, n):
                matrix[i, column] = panel[c, i]
        if width < 4:
            break
        for i in range(j + 4, n):
            a, b, c_, d = panel[0, i], panel[1, i], panel[2, i], panel[3, i]
            row = matrix[i]
            for k in range(j + 4, i + 1):
                row[k] -= a * panel[0, k] + b * panel[1, k] + c_ * panel[2, k] + d * panel[3, k]


@kernel
def substitute(matrix, x):
    """Solve L L' x = x in place."""
    n = matrix.shape[0]
    for i in range(n):
        row = matrix[i]
        s0 = s1 = s2 = s3 = 0.0
        k = 0
        while k + 4 <= i:
            s0 += row[k] * x[k]
            s1 += row[k + 1] * x[k + 1]
            s2 += row[k + 2] * x[k + 2]
            s3 += row[k + 3] * x[k + 3]
            k += 4
        while k < i:
            s0 += row[k] * x[k]
            k += 1
        x[i] = (x[i] - ((s0 + s1) + (s2 + s3))) / row[i]
    for i in range(n - 1, -1, -1):
        row = matrix[i]
        x[i] /= row[i]
        value = x[i]
        for k in range(i):
            x[k] -= row[k] * value
