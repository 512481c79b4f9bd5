# mypy: allow-untyped-defs
"""How does a round become analysts' totals, offers, and small packing problems? One pass over the demands each.

Works on one order of each block: `cost` is the demand of each entry there, `left` what is available.
"""

from __future__ import annotations

import numpy as np

from dpbalance.scheduler.compiled import kernel
from dpbalance.scheduler.greedy import charge, fits
from dpbalance.scheduler.kernel_packing import pack

ROWS_MAX = 64
"""Analysts with more different rows than this are packed by row generation."""

SNAP = 1e-11
"""Step 1 is that exact, relatively: an offer this close below a whole number is that number."""


@kernel
def survey(members, group, start, block, cost, left, inverse_capacity, admitted, dominant, total, mark):
    """Who can be met alone (`admitted`, with its dominant share), and each analyst's total demand by columns.

    `mark` is a fingerprint of who asks what of the block: blocks of one analyst with the same mark have the same
    row. `total` and `mark` are scratch of one entry for each block, all 0, and are left so.
    """
    analysts, room = len(group) - 1, 0
    for i in range(analysts):
        size = 0
        for m in range(group[i], group[i + 1]):
            size += start[members[m] + 1] - start[members[m]]
        room += min(size, len(left))
    column, row = np.zeros(analysts + 1, dtype=np.int64), np.empty(room, dtype=np.int32)
    amount, fingerprint = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.uint64)
    at = 0
    for i in range(analysts):
        first = at
        for m in range(group[i], group[i + 1]):
            j = members[m]
            share, good = 0.0, True
            for e in range(start[j], start[j + 1]):
                if cost[e] > left[block[e]]:
                    good = False
                share = max(share, cost[e] * inverse_capacity[block[e]])
            admitted[j], dominant[j] = good, share
            if not good:
                continue
            salt = np.uint64(2 * m + 1) * np.uint64(0x9E3779B97F4A7C15)
            for e in range(start[j], start[j + 1]):
                k = block[e]
                if cost[e] == 0:  # of several orders, one may cost nothing
                    continue
                if total[k] == 0:
                    row[at] = k
                    at += 1
                total[k] += cost[e]
                word = (np.uint64(cost[e]) ^ salt) * np.uint64(0xBF58476D1CE4E5B9)
                mark[k] += (word ^ (word >> np.uint64(31))) * salt
        for e in range(first, at):
            k = row[e]
            amount[e], fingerprint[e] = total[k], mark[k]
            total[k], mark[k] = 0, np.uint64(0)
        column[i + 1] = at
    return column, row[:at], amount[:at], fingerprint[:at]


@kernel
def offers(column, row, amount, take, left, bounded):
    """What each analyst may use of each block, whole units, never more than is left when `bounded`.

    The true answer of step 1 is often a round number that doubles miss by a hair; it is taken where it fits.
    """
    offered, used = np.empty(len(row), dtype=np.int64), np.zeros(len(left), dtype=np.int64)
    for i in range(len(take)):
        for e in range(column[i], column[i + 1]):
            exact = amount[e] * take[i]
            offered[e] = np.int64(np.floor(exact * (1.0 + SNAP) + 1e-3))
            used[row[e]] += offered[e]
    if bounded:
        for i in range(len(take)):
            for e in range(column[i], column[i + 1]):
                if used[row[e]] > left[row[e]]:
                    offered[e] = np.int64(np.floor(amount[e] * take[i] * (1.0 - 1e-15)))
    return offered


@kernel
def different_rows(begin, end, fingerprint, offered):
    """One entry for each different row among begin..end: the one that is offered least. A small hash table."""
    size = 16
    while size < 2 * (end - begin):
        size *= 2
    if end - begin > 4096:
        size = 4096
    while True:
        slot = np.full(size, -1, dtype=np.int64)
        count, full = 0, False
        for e in range(begin, end):
            h = np.int64((fingerprint[e] ^ (fingerprint[e] >> np.uint64(29))) & np.uint64(size - 1))
            while slot[h] >= 0 and fingerprint[slot[h]] != fingerprint[e]:
                h = (h + 1) & (size - 1)
            if slot[h] < 0:
                slot[h] = e
                count += 1
                if 2 * count > size:
                    full = True
                    break
            elif offered[e] < offered[slot[h]]:
                slot[h] = e
        if not full:
            return np.sort(slot[slot >= 0])
        size *= 4


@kernel
def small_problem(entries, row, offered, pipelines, start, block, cost):
    """The demands of these pipelines on these rows, dense, and the budgets."""
    demand = np.zeros((len(entries), len(pipelines)), dtype=np.int64)
    budget = np.empty(len(entries), dtype=np.int64)
    for r in range(len(entries)):
        budget[r] = offered[entries[r]]
        k = row[entries[r]]
        for m in range(len(pipelines)):
            low, high = start[pipelines[m]], start[pipelines[m] + 1]
            while low < high:
                middle = (low + high) // 2
                if block[middle] < k:
                    low = middle + 1
                else:
                    high = middle
            if low < start[pipelines[m] + 1] and block[low] == k:
                demand[r, m] = cost[low]
    return demand, budget


@kernel
def ceil_product(units, times):
    """ceil(units * times) of the exact product; the same splitting as in amounts.multiplied."""
    left = float(units)
    product = left * times
    scaled = left * 134217729.0
    left_high = scaled - (scaled - left)
    left_low = left - left_high
    scaled = times * 134217729.0
    right_high = scaled - (scaled - times)
    right_low = times - right_high
    rest = left_low * right_low - (((product - left_high * right_high) - left_low * right_high) - left_high * right_low)
    whole = np.ceil(product)
    return np.int64(whole) + (1 if whole == product and rest > 0.0 else 0)


@kernel
def whole_multiples(demand, budget, cap, x):
    """Take from the multiples above 1 until their charges, each rounded up, fit the budgets in whole units."""
    height, width = demand.shape
    for j in range(width):
        if x[j] > 1.0:
            x[j] = min(np.rint(x[j] * 1e12) / 1e12 if x[j] < 1e3 else x[j], cap[j])
    for attempt in range(7):
        factor = 1.0
        for r in range(height):
            used, extra, several = 0, 0.0, 0
            for j in range(width):
                if x[j] > 0.0:
                    used += ceil_product(demand[r, j], x[j]) if x[j] > 1.0 else demand[r, j]
                    extra += demand[r, j] * (x[j] - 1.0)
                    several += 1
            if used > budget[r]:
                over = float(used - budget[r] + several)
                factor = min(factor, 1.0 - over / extra if extra > over and attempt < 6 else 0.0)
        if factor == 1.0:
            break
        for j in range(width):
            if x[j] > 1.0 and attempt == 0:  # often only the last digit of a multiple such as 1.1 is too much
                x[j] = max(x[j] * (1.0 - 3e-16), 1.0)
            elif x[j] > 1.0:
                x[j] = 1.0 + (x[j] - 1.0) * factor


@kernel
def pack_all(
    group, members, admitted, value, cap, start, block, cost, column, row, fingerprint, offered, nodes_max, multiple
):
    """Step 2 for every analyst; fills multiples, returns 0 (proven), 1 (not proven) or 2 (too many rows) for each."""
    analysts = len(group) - 1
    hard = np.zeros(analysts, dtype=np.int8)
    for i in range(analysts):
        if column[i + 1] == column[i]:
            for m in range(group[i], group[i + 1]):
                multiple[members[m]] = 1.0 if admitted[members[m]] else 0.0  # what costs nothing is served
            continue
        entries = different_rows(column[i], column[i + 1], fingerprint, offered)
        if len(entries) > ROWS_MAX:
            hard[i] = 2
            continue
        able = np.zeros(group[i + 1] - group[i], dtype=np.bool_)
        for m in range(group[i], group[i + 1]):
            able[m - group[i]] = admitted[members[m]]
        pipelines = members[group[i] : group[i + 1]][able]
        demand, budget = small_problem(entries, row, offered, pipelines, start, block, cost)
        able = np.ones(len(pipelines), dtype=np.bool_)
        for m in range(len(pipelines)):
            for r in range(len(entries)):
                if demand[r, m] > budget[r]:
                    able[m] = False
        chosen = pipelines[able]
        demand = demand[:, able].copy()
        wanted = np.zeros(len(entries), dtype=np.bool_)
        for r in range(len(entries)):
            wanted[r] = demand[r].sum() > 0
        demand, budget = demand[wanted], budget[wanted]
        x = np.zeros(len(chosen))
        _, _, proven = pack(demand, budget, value[chosen], cap[chosen], nodes_max, x)
        whole_multiples(demand, budget, cap[chosen], x)
        for m in range(len(chosen)):
            multiple[chosen[m]] = x[m]
        hard[i] = 0 if proven else 1
    return hard


@kernel
def usage(start, block, cost, multiple, left):
    """What is left of each block after the grants; the caller makes sure it is not below 0."""
    rest = left.copy()
    for j in range(len(multiple)):
        if multiple[j] == 1.0:
            for e in range(start[j], start[j + 1]):
                rest[block[e]] -= cost[e]
        elif multiple[j] > 1.0:
            for e in range(start[j], start[j + 1]):
                rest[block[e]] -= ceil_product(cost[e], multiple[j])
    return rest


@kernel
def refill(group, members, start, block, cost, left, dominant, weight, order, inverse_capacity, multiple):
    """Offer what is left until nothing fits: the analyst with the smallest utility first, its smallest pipeline first.

    `cost` and `left` have all orders here; `order` and `inverse_capacity` say where a block's share is taken.
    """
    analysts = len(group) - 1
    utility, got = np.zeros(analysts), np.zeros(len(left))
    done = np.zeros(analysts, dtype=np.bool_)
    granted = 0
    for i in range(analysts):
        utility[i] = weight[i] * held_share(
            i, group, members, start, block, cost, order, inverse_capacity, multiple, got
        )
    while True:
        poorest = -1
        for i in range(analysts):
            if not done[i] and (poorest < 0 or utility[i] < utility[poorest]):
                poorest = i
        if poorest < 0:
            return granted
        best = -1
        for m in range(group[poorest], group[poorest + 1]):
            j = members[m]
            if multiple[j] == 0.0 and (best < 0 or dominant[j] < dominant[best]) and fits(start, block, cost, left, j):
                best = j
        if best < 0:
            done[poorest] = True
            continue
        charge(start, block, cost, left, best)
        multiple[best] = 1.0
        granted += 1
        utility[poorest] = weight[poorest] * held_share(
            poorest, group, members, start, block, cost, order, inverse_capacity, multiple, got
        )


@kernel
def held_share(i, group, members, start, block, cost, order, inverse_capacity, multiple, got):
    """The dominant share analyst i holds; `got` is scratch, all 0, and is left so."""
    share = 0.0
    for sign in (1.0, 0.0):
        for m in range(group[i], group[i + 1]):
            j = members[m]
            if multiple[j] > 0.0:
                for e in range(start[j], start[j + 1]):
                    k = block[e]
                    got[k] = (got[k] + cost[e, order[k]] * multiple[j]) * sign
                    share = max(share, got[k] * inverse_capacity[k])
    return share
