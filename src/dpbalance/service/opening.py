"""Which blocks open further, and which retire? By the rules of the market, told to the ledger."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import sqlalchemy as sa

from dpbalance.amounts import epsilons
from dpbalance.ledger import Ledger, State
from dpbalance.market.unlocking import ByArrivals, ByTime, Unlocking, portion
from dpbalance.service.catalogue import block_name
from dpbalance.service.database import Database
from dpbalance.service.keeping import read_state
from dpbalance.service.tables import block, pipeline, state


def open_blocks(database: Database, ledger: Ledger, rule: Unlocking, now: float) -> None:
    """Open what is due. The ledger comes first: it never closes again, so doing this twice does nothing more."""
    with database.reading() as connection:
        row_ = read_state(connection)
        through, last = int(row_.opened_through), int(row_.pipelines)
        rows = connection.execute(
            sa.select(block).where((block.c.opened < block.c.parts) | (block.c.parts != rule.parts))
        ).all()
        arrivals = _arrivals(connection, through, last) if isinstance(rule, ByArrivals) and rows else Counter[str]()
    opened = []
    for row in rows:
        parts = row.opened if row.parts == rule.parts else row.opened * rule.parts // row.parts
        if isinstance(rule, ByArrivals):
            young = rule.max_age is None or now - row.arrived <= rule.max_age
            parts += arrivals[block_name(row.device, row.period)] if young else 0
        elif isinstance(rule, ByTime):
            arrived = np.array([row.arrived])
            parts = max(parts, int(rule.passed(rule.first(arrived), np.array([0]), now)[1][0]))
        else:
            parts = rule.parts
        parts = min(parts, rule.parts)
        if (parts, rule.parts) != (row.opened, row.parts):
            opened.append((row, parts))
    if opened:
        _tell(ledger, opened, rule.parts)
    if opened or last != through:
        with database.writing() as connection:
            for row, parts in opened:
                mine = block.update().where(block.c.number == row.number)
                connection.execute(mine.values(opened=parts, parts=rule.parts))
            connection.execute(state.update().values(opened_through=last))


def retire_blocks(database: Database, ledger: Ledger, after: float | None, now: float) -> None:
    """Close blocks of this age for good; a ledger that has retired them already is not told again."""
    if after is None:
        return
    with database.reading() as connection:
        old = connection.execute(sa.select(block.c.device, block.c.period).where(block.c.arrived < now - after)).all()
    names = [block_name(device, period) for device, period in old]
    due = [each.block for each in ledger.balances(names) if each.state != State.RETIRED] if names else []
    if due:
        ledger.retire(due, actor="scheduler")


def _arrivals(connection: sa.Connection, through: int, last: int) -> Counter[str]:
    """How many of the pipelines that came since ask for each block, whatever became of them."""
    came = (pipeline.c.number > through) & (pipeline.c.number <= last)
    found = Counter[str]()
    for demand in connection.execute(sa.select(pipeline.c.demand).where(came)).scalars():
        found.update(json.loads(demand).keys())
    return found


def _tell(ledger: Ledger, opened: list[tuple[sa.Row[tuple[object, ...]], int]], of: int) -> None:
    names = [block_name(str(row.device), str(row.period)) for row, _ in opened]
    balances = ledger.balances(names)
    capacity = np.array([each.capacity for each in balances])
    due = portion(capacity, np.array([parts for _, parts in opened]), of)
    amounts = {
        each.block: epsilons(units).tolist() if ledger.orders is not None else float(epsilons(units)[0])
        for each, units in zip(balances, due, strict=True)
        if each.state != State.RETIRED and (units > each.unlocked).any()
    }
    if amounts:
        ledger.unlock(amounts, actor="scheduler")
