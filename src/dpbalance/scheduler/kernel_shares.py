# mypy: allow-untyped-defs
"""How is alpha-fairness over few rows solved? A primal-dual interior point method on the KKT system in logarithms.

maximise sum m y^(1-beta)/(1-beta) over A y <= 1. With prices p and q = A' p the optimum has
beta log y + log q - log m = kappa for some kappa, s = 1 - A y and s_k p_k = 0; log m_i, the priorities, is `offset`.
Working with logarithms makes every analyst count alike however small its utility; prices are kept at sum 1, and kappa
floats.

A is stored by columns (one for each analyst): rows `row[e]`, values `value[e]` for e in start[i]:start[i + 1].
"""

from __future__ import annotations

import numpy as np

from dpbalance.scheduler.compiled import kernel
from dpbalance.scheduler.kernel_linear import factor, substitute

SMALLEST = 1e-280
"""Utilities end here; with beta near 0 the exact ones may be far below the smallest double."""


@kernel
def rows_times(start, row, value, y, out):
    """out = A y."""
    out[:] = 0.0
    for i in range(len(y)):
        yi = y[i]
        for e in range(start[i], start[i + 1]):
            out[row[e]] += value[e] * yi


@kernel
def columns_times(start, row, value, p, out):
    """out = A' p."""
    for i in range(len(out)):
        total = 0.0
        for e in range(start[i], start[i + 1]):
            total += value[e] * p[row[e]]
        out[i] = total


@kernel
def tightest_rows(start, row, value, member):
    """Mark for each analyst the row that bounds it most on its own."""
    for i in range(len(start) - 1):
        best, at = -1.0, -1
        for e in range(start[i], start[i + 1]):
            if value[e] > best:
                best, at = value[e], row[e]
        member[at] = 1


@kernel
def violated_rows(start, row, activity, member, limit):
    """Mark for each analyst its fullest row above the limit that is not yet at work; return how many are new."""
    new = 0
    for i in range(len(start) - 1):
        best, at = limit, -1
        for e in range(start[i], start[i + 1]):
            if member[row[e]] == 0 and activity[row[e]] > best:
                best, at = activity[row[e]], row[e]
        if at >= 0:
            member[at] = 2
    for k in range(len(member)):
        if member[k] == 2:
            member[k] = 1
            new += 1
    return new


@kernel
def cover_everyone(start, row, activity, member):
    """Mark the fullest row of each analyst that has none at work: without one it would be unbounded."""
    for i in range(len(start) - 1):
        best, at = -1.0, -1
        for e in range(start[i], start[i + 1]):
            if member[row[e]] != 0:
                at = -1
                break
            if activity[row[e]] > best:
                best, at = activity[row[e]], row[e]
        if at >= 0:
            member[at] = 1


@kernel
def working_matrix(start, row, value, position):
    """The columns of A restricted to rows with position >= 0."""
    count = len(start) - 1
    small = np.zeros(count + 1, dtype=np.int64)
    for i in range(count):
        kept = 0
        for e in range(start[i], start[i + 1]):
            if position[row[e]] >= 0:
                kept += 1
        small[i + 1] = small[i] + kept
    rows = np.empty(small[count], dtype=np.int32)
    values = np.empty(small[count])
    for i in range(count):
        at = small[i]
        for e in range(start[i], start[i + 1]):
            if position[row[e]] >= 0:
                rows[at] = position[row[e]]
                values[at] = value[e]
                at += 1
    return small, rows, values


@kernel
def residuals(start, row, value, offset, beta, y, p, q, r):
    """q = A' p and r = kappa + log m - beta log y - log q with the kappa that balances it.

    Returns the largest |r|, and the largest felt by prices: who still shrinks but holds next to nothing is not.
    """
    columns_times(start, row, value, p, q)
    kappa, mass, worst, felt = 0.0, 0.0, 0.0, 0.0
    for i in range(len(y)):
        r[i] = offset[i] - beta * np.log(y[i]) - np.log(q[i])
        kappa -= y[i] * q[i] * r[i]
        mass += y[i] * q[i]
    kappa /= mass
    for i in range(len(y)):
        r[i] += kappa
        if y[i] <= SMALLEST and r[i] < 0.0:
            r[i] = 0.0
        worst = max(worst, abs(r[i]))
        felt = max(felt, r[i] if r[i] > 0.0 else -r[i] * min(1.0, 1e4 * y[i] * q[i] / mass))
    return worst, felt


@kernel
def slacks(t, s, p, rp):
    """Primal residual 1 - A y - s for t = A y; returns the largest of it and the mean complementarity."""
    infeasible, mu = 0.0, 0.0
    for k in range(len(s)):
        slack = 1.0 - t[k]
        if abs(slack - s[k]) > 1e-8 and slack > 0.1 * s[k]:
            s[k] = slack  # y moved otherwise than planned; where there is room, start from the true slack
        rp[k] = slack - s[k]
        infeasible = max(infeasible, abs(rp[k]))
        mu += s[k] * p[k]
    return infeasible, mu / len(s)


@kernel
def newton_matrix(start, row, value, beta, y, q, ratio, s, p, g, schur, jacobi, panel):
    """Factor A H^-1 A' + diag(s/p) with unit diagonal; g = H^-1.

    An analyst that must shrink by exp(ratio) gets the mean slope along the way, so it cannot be planned below zero.
    """
    for i in range(len(y)):
        mean = np.expm1(max(ratio[i], -700.0)) / ratio[i] if ratio[i] < -1e-8 else 1.0
        g[i] = y[i] * mean / (beta * q[i])
    schur[:] = 0.0
    for i in range(len(y)):
        for e in range(start[i], start[i + 1]):
            line = schur[row[e]]
            scaled = g[i] * value[e]
            for f in range(start[i], e + 1):
                line[row[f]] += scaled * value[f]
    for k in range(len(s)):
        diagonal = schur[k, k] + s[k] / p[k]
        schur[k, k] = diagonal * (1.0 + 1e-15)
        jacobi[k] = 1.0 / np.sqrt(diagonal)
    for k in range(len(s)):
        for e in range(k + 1):
            schur[k, e] *= jacobi[k] * jacobi[e]
    factor(schur, panel)


@kernel
def scaled_solve(schur, jacobi, x):
    """Solve with the factored Newton matrix, in place; return the sum of the solution."""
    for k in range(len(x)):
        x[k] *= jacobi[k]
    substitute(schur, x)
    total = 0.0
    for k in range(len(x)):
        x[k] *= jacobi[k]
        total += x[k]
    return total


@kernel
def direction(start, row, value, beta, q, r, g, s, p, rp, target, lift, total, schur, jacobi, dp, dy, ds):
    """Newton step for the complementarity targets; `lift` is the answer of the prices to kappa, of sum `total`.

    Kappa moves along so that prices keep their sum: else y could not grow as a whole without p shrinking.
    """
    for k in range(len(s)):
        dp[k] = target[k] / p[k] - s[k] - rp[k]
    for i in range(len(q)):
        move = g[i] * q[i] * r[i]
        for e in range(start[i], start[i + 1]):
            dp[row[e]] += value[e] * move
    drift = scaled_solve(schur, jacobi, dp)
    shift = -drift / total if total > 1e-300 else 0.0
    shift = max(-1.0 - 2.0 * beta, min(1.0 + 2.0 * beta, shift))
    for k in range(len(s)):
        dp[k] += shift * lift[k]
    columns_times(start, row, value, dp, dy)
    for i in range(len(q)):
        dy[i] = g[i] * (q[i] * (r[i] + shift) - dy[i])
    rows_times(start, row, value, dy, ds)
    for k in range(len(s)):
        ds[k] = rp[k] - ds[k]


@kernel
def longest(x, dx, margin):
    """The longest step, at most 1, that keeps x + step dx positive with a margin."""
    step = 1.0
    for i in range(len(x)):
        if dx[i] < 0:
            step = min(step, -(1.0 - margin) * x[i] / dx[i])
    return step


@kernel
def overshoots(y, dy, ratio):
    """Whether someone was planned (nearly) below zero; if so its ratio is set to the planned one."""
    found = False
    for i in range(len(y)):
        if dy[i] < -0.995 * y[i]:
            planned = dy[i] / y[i]
            if ratio[i] < -1e-8:
                planned *= ratio[i] / np.expm1(max(ratio[i], -700.0))
            if planned < ratio[i] - 0.1:
                ratio[i] = planned
                found = True
    return found


@kernel
def interior_point(start, row, value, offset, goal, begin, caution, y, p, tolerance, limit):
    """Improve y and p in place; return (iterations, largest |r|, complementarity)."""
    count, rows = len(y), len(p)
    q, r, g, dy, ratio = np.empty((5, count))
    s, rp, dp, ds, t, lift, target, jacobi = np.empty((8, rows))
    schur, panel = np.empty((rows, rows)), np.empty((4, rows))
    rows_times(start, row, value, y, t)
    for k in range(rows):
        s[k] = max(1.0 - t[k], 1e-3)
    floor, best, stalled, iteration = 0.0, np.inf, 0, 0
    worst, mu = np.inf, np.inf
    beta = begin
    while iteration < limit:
        p /= p.sum()
        worst, felt = residuals(start, row, value, offset, beta, y, p, q, r)
        rows_times(start, row, value, y, t)
        infeasible, mu = slacks(t, s, p, rp)
        merit = max(worst, mu * rows, infeasible)
        margin = max(min(0.005, merit), 1e-9)
        if beta != goal and felt < 0.5:
            beta = max(goal, 0.5 * beta) if beta > goal else min(goal, 2.0 * beta)
            best, stalled = np.inf, 0
            iteration += 1
            continue
        if merit <= tolerance and beta == goal:
            break
        stalled = 0 if merit < 0.9 * best else stalled + 1
        best = min(best, merit)
        if stalled >= 40 or (stalled >= 12 and merit < 1e-9):
            break
        floor = 0.0 if stalled <= 2 else min(0.8, max(0.1, 2 * floor))
        for i in range(count):
            ratio[i] = min(r[i] / beta, 0.0)
        target[:] = 0.0
        for _ in range(4):
            newton_matrix(start, row, value, beta, y, q, ratio, s, p, g, schur, jacobi, panel)
            lift[:] = 0.0
            for i in range(count):
                for e in range(start[i], start[i + 1]):
                    lift[row[e]] += value[e] * (g[i] * q[i])
            total = scaled_solve(schur, jacobi, lift)
            direction(start, row, value, beta, q, r, g, s, p, rp, target, lift, total, schur, jacobi, dp, dy, ds)
            if not overshoots(y, dy, ratio):
                break
        primal, dual = longest(s, ds, margin), longest(p, dp, margin)
        after = 0.0
        for k in range(rows):
            after += (s[k] + primal * ds[k]) * (p[k] + dual * dp[k])
        centre = max(floor, min(caution, 0.5 * felt), 0.3 if beta != goal else 0.0)
        sigma = max(min((after / (rows * mu)) ** 3, 1.0), centre)
        for k in range(rows):
            target[k] = sigma * mu - ds[k] * dp[k]
        direction(start, row, value, beta, q, r, g, s, p, rp, target, lift, total, schur, jacobi, dp, dy, ds)
        primal, dual = longest(s, ds, margin), longest(p, dp, margin)
        for i in range(count):
            if dy[i] < -1.0001 * y[i]:
                primal = min(primal, -(1.0 - margin) * y[i] / dy[i])
        if stalled > 2 and worst > 1.0:
            primal = dual = min(primal, dual)
        for i in range(count):
            moved = y[i] + primal * dy[i]
            if ratio[i] < -5.0 and dy[i] < 0.0:  # nearly nothing: how near is for the logarithm to say, not for a sum
                moved = y[i] * np.exp(max(primal * dy[i] / y[i] * ratio[i] / np.expm1(max(ratio[i], -700.0)), -90.0))
            y[i] = max(moved, SMALLEST)
        for k in range(rows):
            s[k] += primal * ds[k]
            p[k] += dual * dp[k]
        iteration += 1
    return iteration, worst, mu


@kernel
def starting_point(start, row, value, rows):
    """A strictly feasible y that shares every row evenly, and prices on the row that binds each analyst most."""
    count = len(start) - 1
    crowd = np.zeros(rows)
    for e in range(len(row)):
        crowd[row[e]] += 1.0
    y, p = np.empty(count), np.full(rows, 1e-3)
    for i in range(count):
        most, at = 0.0, 0
        for e in range(start[i], start[i + 1]):
            if value[e] * crowd[row[e]] > most:
                most, at = value[e] * crowd[row[e]], row[e]
        y[i] = 0.9 / most
        p[at] += 1.0 / count
    return y, p
