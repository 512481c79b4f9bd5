# mypy: allow-untyped-defs
"""How does a demand matrix become the scaled problem of step 1, and shares of it feasible for certain?"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpbalance.scheduler.compiled import kernel


def by_columns(gamma: Any) -> Any:
    """(start, row, value, rows) of an array or a scipy.sparse matrix."""
    if hasattr(gamma, "tocsc"):
        sparse = gamma.tocsc()
        if not sparse.has_canonical_format:
            sparse = sparse.copy()
            sparse.sum_duplicates()
        start = sparse.indptr.astype(np.int64)
        return (
            start,
            sparse.indices.astype(np.int32, copy=False),
            sparse.data.astype(np.float64, copy=False),
            sparse.shape[0],
        )
    table = np.ascontiguousarray(gamma, dtype=np.float64)
    if table.ndim != 2:
        table = table.reshape(len(table), -1)
    return (*_dense_columns(table), table.shape[0])


@kernel
def _dense_columns(table):
    rows, count = table.shape
    start = np.zeros(count + 1, dtype=np.int64)
    for k in range(rows):
        for i in range(count):
            start[i + 1] += table[k, i] != 0.0
    for i in range(count):
        start[i + 1] += start[i]
    row, value = np.empty(start[count], dtype=np.int32), np.empty(start[count])
    at = start[:-1].copy()
    for k in range(rows):
        for i in range(count):
            if table[k, i] != 0.0:
                row[at[i]] = k
                value[at[i]] = table[k, i]
                at[i] += 1
    return start, row, value


@kernel
def scales(start, row, value, left, weight, upper, scale):
    """Fill scale_i = mu_i a_i and return who can get anything: asks for something, touches no empty row, has weight."""
    live = np.zeros(len(scale), dtype=np.bool_)
    for i in range(len(scale)):
        mu, alive = 0.0, True
        for e in range(start[i], start[i + 1]):
            if value[e] > 0.0:
                mu = max(mu, value[e])
                if left[row[e]] <= 0.0:
                    alive = False
        scale[i] = mu * weight[i]
        live[i] = alive and scale[i] > 0.0 and upper[i] > 0.0
    return live


@kernel
def scaled(start, row, value, left, scale, upper, members):
    """A_ki = gamma_ki / (left_k scale_i) for the members; their upper bounds are rows K + i."""
    rows = len(left)
    small = np.zeros(len(members) + 1, dtype=np.int64)
    for m in range(len(members)):
        i = members[m]
        kept = 1 if upper[i] < np.inf else 0
        for e in range(start[i], start[i + 1]):
            if value[e] > 0.0:
                kept += 1
        small[m + 1] = small[m] + kept
    at_row, at_value = np.empty(small[-1], dtype=np.int32), np.empty(small[-1])
    for m in range(len(members)):
        i, at = members[m], small[m]
        for e in range(start[i], start[i + 1]):
            if value[e] > 0.0:
                at_row[at] = row[e]
                at_value[at] = value[e] / (left[row[e]] * scale[i])
                at += 1
        if upper[i] < np.inf:
            at_row[at] = rows + i
            at_value[at] = 1.0 / (upper[i] * scale[i])
    return small, at_row, at_value


@kernel
def make_feasible(start, row, value, left, upper, x):
    """Shrink x until every row holds in exact arithmetic: by the fullest row, and a margin for summing in doubles.

    Returns about how much of each row is left then.
    """
    activity, entries = np.zeros(len(left)), np.zeros(len(left))
    for i in range(len(x)):
        x[i] = min(x[i], upper[i])
        if x[i] > 0.0:
            for e in range(start[i], start[i + 1]):
                activity[row[e]] += value[e] * x[i]
                entries[row[e]] += 1.0
    fullest, longest = 1.0, 0.0
    for k in range(len(left)):
        if activity[k] > 0.0:
            fullest = max(fullest, activity[k] / left[k])
            longest = max(longest, entries[k])
    factor = (1.0 - (longest + 8.0) * 2.0**-52) / fullest
    for i in range(len(x)):
        x[i] *= factor
    for k in range(len(left)):
        activity[k] = left[k] - factor * activity[k]
    return activity


@kernel
def top_up(start, row, value, room, upper, order, x):
    """Raise whoever could have more without anybody having less, in this order; returns whether anybody was.

    Rows that only those fill who count for next to nothing have prices of next to nothing, and the solver, which
    knows s p = 0 to some digits, leaves them slack.
    """
    raised = False
    for i in order:
        least = 1e-10 * x[i]
        more = upper[i] - x[i]
        for e in range(start[i], start[i + 1]):
            if value[e] > 0.0:
                more = min(more, room[row[e]] / value[e])
                if more <= least:
                    break
        if more > least:
            raised = True
            x[i] += more
            for e in range(start[i], start[i + 1]):
                room[row[e]] -= value[e] * more
    return raised


@kernel
def fill(start, row, value, rows, y):
    """Progressive filling: raise all utilities, stop those on a full row, go on; returns the first full row."""
    count = len(y)
    used, rate = np.zeros(rows), np.zeros(rows)
    open_ = np.ones(count, dtype=np.bool_)
    for i in range(count):
        for e in range(start[i], start[i + 1]):
            rate[row[e]] += value[e]
    first, level, remaining = -1, 0.0, count
    while remaining > 0:
        next_level, tight = np.inf, -1
        for k in range(rows):
            if rate[k] > 0.0:
                reached = (1.0 - used[k]) / rate[k]
                if reached < next_level:
                    next_level, tight = reached, k
        if tight < 0:
            break
        if first < 0:
            first = tight
        level = max(level, next_level)
        limit = level * (1.0 + 1e-12)
        for i in range(count):
            if open_[i]:
                stop = False
                for e in range(start[i], start[i + 1]):
                    k = row[e]
                    if rate[k] > 0.0 and 1.0 - used[k] <= limit * rate[k]:
                        stop = True
                        break
                if stop:
                    y[i] = level
                    open_[i] = False
                    remaining -= 1
        # rates change only now, so that all analysts of a full row stop at the same level
        used[:] = 0.0
        rate[:] = 0.0
        for i in range(count):
            for e in range(start[i], start[i + 1]):
                if open_[i]:
                    rate[row[e]] += value[e]
                else:
                    used[row[e]] += value[e] * y[i]
    return first


@kernel
def with_full_row(start, row, value, rows, entry):
    """The same problem with one more row (the last) that holds `entry[i]` for analyst i."""
    count = len(start) - 1
    grown = start + np.arange(count + 1)
    at_row, at_value = np.empty(len(row) + count, dtype=np.int32), np.empty(len(row) + count)
    for i in range(count):
        at = grown[i]
        for e in range(start[i], start[i + 1]):
            at_row[at], at_value[at] = row[e], value[e]
            at += 1
        at_row[at], at_value[at] = rows, entry[i]
    return grown, at_row, at_value
