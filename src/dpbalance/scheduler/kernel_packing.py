# mypy: allow-untyped-defs
"""How is one analyst's share packed? Branch and bound on whole-number rows, bounded by Lagrangian prices.

Choose multiples x_j = 0 or 1 <= x_j <= cap_j with D x <= b: first as many pipelines as possible, then the largest
sum v_j x_j. D and b are whole numbers and the least demands are summed as such, so ties with the budget are exact.

For a count N and prices pi >= 0 on the rows scaled to 1, with d_j = v_j - pi A_j and g_j the best d_j x_j over
1 <= x_j <= cap_j, no choice is worth more than  sum pi + (the N largest g_j).  At a node it is the same with the g of
those already in, and the largest g of those still free.
"""

from __future__ import annotations

import numpy as np

from dpbalance.scheduler.compiled import kernel

STEPS = 40
"""Subgradient steps for the prices at the root."""

GREEDY_TRIES = 12
"""Orders tried for a first choice that serves as many as the relaxation allows."""

UNKNOWN = -1.0
"""No choice is known yet; finite, so that comparisons with a tolerance stay comparisons."""

LEAF = 16
"""Spending the leftover of a choice counts as a node for so many entries of its rows."""

TABLE_MAX = 400
"""Up to this many pipelines the bounds on the count know who is still free at each node."""


@kernel
def spend(rows, rest, value, cap):
    """Maximise value e over rows e <= rest, 0 <= e <= cap: a dense simplex with bounds, starting from nothing.

    Returns e and the prices of the rows.
    """
    height, width = rows.shape
    table, price, held, limit = rows.copy(), value.copy(), rest.copy(), np.full(height, np.inf)
    basic, free = np.arange(width, width + height), np.arange(width)
    bound, full = cap.copy(), np.zeros(width, dtype=np.bool_)
    threshold = 1e-13 * max(1e-300, np.max(np.abs(value))) if width else 0.0
    for step in range(50 * (height + width)):
        best, column = threshold, -1
        for j in range(width):
            gain = -price[j] if full[j] else price[j]
            if gain > best:
                best, column = gain, j
                if step > 10 * (height + width):  # the first one, not the best one: cannot cycle
                    break
        if column < 0:
            break
        sign = -1.0 if full[column] else 1.0
        length, leaving = bound[column], -1
        for r in range(height):
            rate = sign * table[r, column]
            if rate > 1e-13 and held[r] < length * rate:
                length, leaving = held[r] / rate, r
            elif rate < -1e-13 and limit[r] - held[r] < -length * rate:
                length, leaving = (limit[r] - held[r]) / -rate, r
        if length == np.inf:
            break
        for r in range(height):
            held[r] = max(held[r] - sign * length * table[r, column], 0.0)
        if leaving < 0:
            full[column] = not full[column]
            continue
        entered = bound[column] - length if full[column] else length
        at_limit = sign * table[leaving, column] < 0.0
        pivot = table[leaving, column]
        table[leaving] /= pivot
        table[leaving, column] = 1.0 / pivot
        for r in range(height):
            factor = table[r, column]
            if r != leaving and factor != 0.0:
                table[r] -= factor * table[leaving]
                table[r, column] = -factor / pivot
        factor = price[column]
        price -= factor * table[leaving]
        price[column] = -factor / pivot
        basic[leaving], free[column] = free[column], basic[leaving]
        limit[leaving], bound[column] = bound[column], limit[leaving]
        held[leaving], full[column] = entered, at_limit
    result, prices = np.zeros(width), np.zeros(height)
    for j in range(width):
        if free[j] >= width:
            prices[free[j] - width] = max(-price[j], 0.0)
        elif full[j]:
            result[free[j]] = bound[j]
    for r in range(height):
        if basic[r] < width:
            result[basic[r]] = held[r]
    return result, prices


@kernel
def take_in_order(demand, budget, order, chosen):
    """Serve whoever still fits, in this order; fills chosen and returns how many."""
    used = np.zeros(len(budget), dtype=np.int64)
    chosen[:] = False
    taken = 0
    for j in order:
        inside = True
        for r in range(len(budget)):
            if used[r] + demand[r, j] > budget[r]:
                inside = False
                break
        if inside:
            chosen[j] = True
            taken += 1
            for r in range(len(budget)):
                used[r] += demand[r, j]
    return taken


@kernel
def most_pipelines(demand, budget, scaled):
    """An upper bound on the count by linear relaxation with its prices, and a choice that reaches `found`.

    The choice takes the cheapest first at those prices, which then rise on the rows it overfills.
    """
    height, width = demand.shape
    ones = np.ones(width)
    fraction, surrogate = spend(scaled, np.ones(height), ones, ones)
    highest = min(int(fraction.sum() + 1e-7), width)
    price, weight = surrogate + 1e-3 / height, np.empty(width)
    chosen, trial, found = np.zeros(width, dtype=np.bool_), np.empty(width, dtype=np.bool_), 0
    for _ in range(GREEDY_TRIES):
        weight[:] = 0.0
        for r in range(height):
            weight += price[r] * scaled[r]
        order = np.argsort(weight, kind="mergesort")
        taken = take_in_order(demand, budget, order, trial)
        if taken > found:
            found = taken
            chosen[:] = trial
        if found >= highest:
            break
        for r in range(height):
            load = 0.0
            for j in order[:highest]:
                load += scaled[r, j]
            price[r] *= load * load
        price /= price.sum()
    return highest, found, chosen, surrogate


@kernel
def worth(demand, budget, scaled, value, cap, chosen, x, prices):
    """The value of serving exactly the chosen ones as well as possible; fills x and the prices of what was left."""
    members = np.flatnonzero(chosen)
    height = len(budget)
    rest, rows = np.empty(height), np.empty((height, len(members)))
    exhausted = np.zeros(len(members), dtype=np.bool_)
    for r in range(height):
        left = budget[r]
        for m in range(len(members)):
            left -= demand[r, members[m]]
        rest[r] = left / budget[r]
        for m in range(len(members)):
            rows[r, m] = scaled[r, members[m]]
            if left == 0 and rows[r, m] > 0.0:
                exhausted[m] = True
    room = np.empty(len(members))
    for m in range(len(members)):
        room[m] = 0.0 if exhausted[m] else cap[members[m]] - 1.0
    extra, prices[:] = spend(rows, rest, value[members], room)
    x[:] = 0.0
    total = 0.0
    for m in range(len(members)):
        more = max(extra[m], 0.0) if not exhausted[m] else 0.0
        x[members[m]] = 1.0 + more
        total += value[members[m]] * (1.0 + more)
    return total


@kernel
def bounds(scaled, value, cap, price, gain):
    """Fill gain with g_j under these prices."""
    for j in range(len(value)):
        d = value[j]
        for r in range(len(price)):
            d -= price[r] * scaled[r, j]
        gain[j] = d * cap[j] if d > 0.0 else d


@kernel
def price_rows(scaled, value, cap, count, known, price, steps):
    """Improve prices towards the smallest bound for serving `count`, by subgradient steps towards the known value."""
    height, width = scaled.shape
    gain, load, best_price, best = np.empty(width), np.empty(height), price.copy(), np.inf
    factor, patience = 1.0, 0
    for _ in range(steps):
        bounds(scaled, value, cap, price, gain)
        order = np.argsort(-gain, kind="mergesort")
        total = price.sum()
        load[:] = 1.0
        for j in order[:count]:
            total += gain[j]
            times = cap[j] if gain[j] > 0.0 else 1.0
            for r in range(height):
                load[r] -= scaled[r, j] * times
        patience += 1
        if total < best:
            if total < best - 1e-4 * abs(best - known):
                patience = 0
            best, best_price = total, price.copy()
        if patience >= 4:
            factor, patience = 0.5 * factor, 0
            price = best_price.copy()
        length = 0.0
        for r in range(height):
            if price[r] == 0.0 and load[r] > 0.0:
                load[r] = 0.0
            length += load[r] * load[r]
        if total - known <= 1e-10 * abs(known) or length == 0.0:
            break
        price = np.maximum(price - factor * (total - known) / length * load, 0.0)
    return best_price, best


@kernel
def smallest_sums(amounts, count):
    """table[t, k]: the sum of the k smallest amounts among those from position t on."""
    width = len(amounts)
    table = np.full((width + 1, count + 1), np.inf)
    table[:, 0] = 0.0
    held = np.empty(width)
    for t in range(width - 1, -1, -1):
        number = width - 1 - t
        at = number
        while at > 0 and held[at - 1] > amounts[t]:
            held[at] = held[at - 1]
            at -= 1
        held[at] = amounts[t]
        total = 0.0
        for k in range(min(number + 1, count)):
            total += held[k]
            table[t, k + 1] = total
    return table


@kernel
def dominated(scaled, value, cap, order):
    """before[a, b]: the pipeline at position a is at least as good in every way as the one at b > a."""
    width = len(order)
    before = np.zeros((width, width), dtype=np.bool_)
    for b in range(width):
        for a in range(b):
            i, j = order[a], order[b]
            better = value[i] >= value[j] and cap[i] >= cap[j]
            for r in range(scaled.shape[0]):
                if scaled[r, i] > scaled[r, j]:
                    better = False
                    break
            before[a, b] = better
    return before


@kernel
def plan(scaled, value, cap, wide, count, surrogate, price):
    """What the search looks things up in: gains, their order and sums, tables of smallest sums, who dominates whom."""
    height, width = scaled.shape
    gain = np.empty(width)
    bounds(scaled, value, wide, price, gain)
    order = np.argsort(-gain, kind="mergesort")
    prefix = np.zeros(width + 1)
    for t in range(width):
        prefix[t + 1] = prefix[t] + gain[order[t]]
    combined = np.zeros((height + 1, width))
    for t in range(width):
        for r in range(height):
            combined[r, t] = scaled[r, order[t]]
            combined[height, t] += surrogate[r] * scaled[r, order[t]]
    depth = width + 1 if width <= TABLE_MAX else 1
    tables = np.zeros((height + 1, depth, count + 1))
    for r in range(height + 1):
        if depth > 1:
            tables[r] = smallest_sums(combined[r], count)
        else:
            tables[r, 0, 1:] = np.cumsum(np.sort(combined[r]))[:count]
    before = dominated(scaled, value, cap, order) if width <= TABLE_MAX else np.zeros((0, 0), dtype=np.bool_)
    return gain, order, prefix, tables, before


@kernel
def crowded(tables, t, need, budget, used, surrogate):
    """Whether even the smallest `need` pipelines from position t on are too much for some row, or all rows together."""
    height = len(budget)
    row, rest = t if tables.shape[1] > 1 else 0, 0.0
    for r in range(height):
        left = (budget[r] - used[r]) / budget[r]
        rest += surrogate[r] * left
        if tables[r, row, need] > left + 1e-9:
            return True
    return tables[height, row, need] > rest + 1e-9 * (1.0 + rest)


@kernel
def may_enter(t, j, demand, budget, used, before, inside):
    """Whether the pipeline at position t fits, and nobody at least as good in every way was left out before it."""
    for r in range(len(budget)):
        if used[r] + demand[r, j] > budget[r]:
            return False
    if len(before):
        for a in range(t):
            if before[a, t] and not inside[a]:
                return False
    return True


@kernel
def search(demand, budget, scaled, value, cap, wide, count, surrogate, price, known, nodes_max, best_x):
    """Depth first over the pipelines in order of their gain; returns (value or known, nodes used, finished)."""
    height, width = demand.shape
    gain, order, prefix, tables, before = plan(scaled, value, cap, wide, count, surrogate, price)
    used, inside = np.zeros(height, dtype=np.int64), np.zeros(width, dtype=np.bool_)
    chosen, x, scratch = np.zeros(width, dtype=np.bool_), np.empty(width), np.empty(height)
    state = np.zeros(width + 1, dtype=np.int8)  # 0 fresh, 1 was taken in, 2 was left out
    base, taken, t, nodes = price.sum(), 0, 0, 0
    held = 0.0
    while t >= 0:
        nodes += 1
        if nodes > nodes_max:
            return known, nodes, False
        need = count - taken
        if state[t] == 0:
            cut = width - t < need or base + held + prefix[t + need] - prefix[t] <= known + 1e-11 * abs(known)
            if not cut and need == 0:
                chosen[:] = False
                for a in range(t):
                    chosen[order[a]] = inside[a]
                total = worth(demand, budget, scaled, value, cap, chosen, x, scratch)
                nodes += taken * height // LEAF
                if total > known + 1e-12 * abs(known):
                    known = total
                    best_x[:] = x
                cut = True
            if cut or crowded(tables, t, need, budget, used, surrogate):
                t -= 1
                continue
            state[t] = 2
            if may_enter(t, order[t], demand, budget, used, before, inside):
                state[t] = 1
                inside[t] = True
                held += gain[order[t]]
                taken += 1
                for r in range(height):
                    used[r] += demand[r, order[t]]
            t += 1
            state[t] = 0
        elif state[t] == 1:
            inside[t] = False
            held -= gain[order[t]]
            taken -= 1
            for r in range(height):
                used[r] -= demand[r, order[t]]
            state[t] = 2
            t += 1
            state[t] = 0
        else:
            t -= 1
    return known, nodes, True


@kernel
def pack(demand, budget, value, cap, nodes_max, x):
    """Solve; fills x, returns (count, value, proven). Rows have a budget above 0 and every pipeline fits alone."""
    height, width = demand.shape
    x[:] = 0.0
    if width == 0:
        return 0, 0.0, True
    scaled = np.empty((height, width))
    for r in range(height):
        for j in range(width):
            scaled[r, j] = demand[r, j] / budget[r]
    wide = np.empty(width)
    for j in range(width):
        wide[j] = cap[j]
        for r in range(height):
            if demand[r, j] > 0:
                wide[j] = min(wide[j], budget[r] / demand[r, j] * (1.0 + 1e-15))
    highest, found, chosen, surrogate = most_pipelines(demand, budget, scaled)
    greedy, best_x, start, scratch = UNKNOWN, np.zeros(width), np.zeros(height), np.empty(height)
    if found > 0:
        greedy = worth(demand, budget, scaled, value, cap, chosen, best_x, start)
    spent = 0
    for count in range(highest, 0, -1):
        known = greedy if count == found else UNKNOWN
        if count == found:
            x[:] = best_x
        if count == width:  # everyone fits: nothing to choose
            everyone = np.ones(width, dtype=np.bool_)
            return width, worth(demand, budget, scaled, value, cap, everyone, x, scratch), True
        price, _ = price_rows(scaled, value, wide, count, max(greedy, 0.0), start.copy(), STEPS)
        known, nodes, finished = search(
            demand, budget, scaled, value, cap, wide, count, surrogate, price, known, nodes_max - spent, x
        )
        spent += nodes
        if not finished:
            if known == UNKNOWN or count < found:
                x[:] = best_x
                return found, greedy, False
            return count, known, False
        if known > UNKNOWN:
            return count, known, True
    return 0, 0.0, True
